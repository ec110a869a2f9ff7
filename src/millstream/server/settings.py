"""What a server is started with."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from millstream.commands.config import Config

Fsync = Literal["always", "everysec", "no"]

PROMISES: dict[str, str] = {
    "always": "every write is on disk before it is acknowledged",
    "everysec": "a crash of the machine may lose about the last second of acknowledged writes, of the process none",
    "no": "a crash of the machine may lose acknowledged writes the kernel has not stored yet, of the process none",
    "memory": "nothing is kept: the data is gone when the server ends",
}
"""What each way to keep data promises, in one sentence; ``memory`` is the way without a directory."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server is started with; the defaults are those of an embedded one.

    Attributes:
        host: address or name to listen at.
        port: TCP port, 0 for a free one, None for no TCP at all.
        unixsocket: path of a unix socket to listen at, None for none.
        directory: data directory, made if it is not there; None keeps everything in memory only.
        fsync: when writes are brought to the disk.
        parameters: CONFIG parameters that differ from their defaults, by name.
    """

    host: str = "127.0.0.1"
    port: int | None = 0
    unixsocket: Path | None = None
    directory: Path | None = None
    fsync: Fsync = "always"
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def promise(self) -> str:
        """What becomes of acknowledged writes."""
        return PROMISES["memory" if self.directory is None else self.fsync]

    def config(self) -> Config:
        """The parameters clients see, facts about this start included.

        Raises:
            ConfigError: a parameter is unknown or its value refused.
        """
        facts = {
            "bind": self.host if self.port is not None else "",
            "port": str(self.port or 0),
            "unixsocket": str(self.unixsocket or ""),
            "dir": str(self.directory or ""),
            "appendonly": "no" if self.directory is None else "yes",
            "appendfsync": self.fsync,
        }
        return Config({**self.parameters, **facts})
