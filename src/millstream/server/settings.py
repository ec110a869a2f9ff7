"""The settings of a server at its start."""

from dataclasses import dataclass, field
from pathlib import Path

from millstream.commands.context.config import Config
from millstream.node.durability.group_commit import Fsync
from millstream.server.tls import Tls

PROMISES: dict[str, str] = {
    "always": "every write is on disk before it is acknowledged",
    "everysec": "a machine crash may lose about the last second of acknowledged writes; a process crash loses none",
    "no": "a machine crash may lose acknowledged writes not stored by the kernel yet; a process crash loses none",
    "memory": "nothing is kept: the data is lost when the server ends",
}
"""The durability of each mode, in one sentence; ``memory`` is the mode without a directory."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Time limits of the server; only tests change them."""

    farewell: float = 2.0  # Seconds that clients have for reading their last replies when the server stops
    after_error: float = 1.0  # Seconds before a periodic task is repeated after an internal error
    slow_check: float = 1.0  # Seconds between checks of clients above the soft output limit


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server at its start; the defaults suit an embedded one."""

    host: str = "127.0.0.1"  # Address or name to listen on
    port: int | None = 0  # TCP port; 0 for a free one; None for no unencrypted TCP
    unixsocket: Path | None = None  # Path of the Unix socket; None for none
    directory: Path | None = None  # Data directory, created if it does not exist; None keeps all data in memory only
    fsync: Fsync = "always"  # When writes are synced to the disk
    # CONFIG parameters that differ from their defaults, by name
    parameters: dict[str, str] = field(default_factory=dict)
    tls: Tls | None = None  # Settings of TLS; None for no TLS
    aclfile: Path | None = None  # File of users: read at the start and by ACL LOAD, written by ACL SAVE; None for none
    delays: Delays = Delays()  # Time limits
    # Host and port of the primary, used if the data directory does not record a role
    replicaof: tuple[str, int] | None = None

    @property
    def promise(self) -> str:
        """The durability of acknowledged writes, in one sentence."""
        return PROMISES["memory" if self.directory is None else self.fsync]

    def config(self) -> Config:
        """Return the parameters for CONFIG, with facts about this start."""
        serves_tls = self.tls is not None and self.tls.port is not None
        facts = {
            "bind": self.host if self.port is not None or serves_tls else "",
            "port": str(self.port or 0),
            "unixsocket": str(self.unixsocket or ""),
            "dir": str(self.directory.absolute() if self.directory else ""),
            "appendonly": "no" if self.directory is None else "yes",
            "appendfsync": self.fsync,
            "aclfile": str(self.aclfile or ""),
        }
        if self.tls is not None:
            facts |= {
                "tls-port": str(self.tls.port or 0),
                "tls-cert-file": str(self.tls.cert_file or ""),
                "tls-key-file": str(self.tls.key_file or ""),
                "tls-ca-cert-file": str(self.tls.ca_cert_file or ""),
                "tls-auth-clients": self.tls.auth_clients,
                "tls-replication": "yes" if self.tls.replication else "no",
            }
        config = Config({**self.parameters, **facts})
        config.has_files = self.directory is not None
        config.expect_files()
        return config
