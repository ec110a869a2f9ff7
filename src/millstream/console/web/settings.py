"""What the console was started with: which servers, who may come in, what may be changed."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from millstream.console.watching.servers import ConsoleServer


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in.

    Attributes:
        hosts: names a browser may call the console by, beside numbers of addresses and ``localhost``; lower case.
        password: its digest (:func:`digest`); None for none.
        user_header: the header in which a proxy names the user it has let in, lower case; None for none.
        proxies: addresses of the proxies whose word on that counts.
    """

    hosts: frozenset[str] = frozenset()
    password: bytes | None = None
    user_header: str | None = None
    proxies: frozenset[str] = frozenset({"127.0.0.1", "::1"})

    @property
    def asks(self) -> bool:
        """Whether anybody has to say who they are."""
        return self.password is not None or self.user_header is not None


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All of it.

    Attributes:
        servers: at least one.
        access: who may come in.
        allow_changes: whether buttons that change something are there and obeyed.
        archive: directory of an archive of the streams; None for none.
    """

    servers: tuple[ConsoleServer, ...]
    access: Access = Access()
    allow_changes: bool = False
    archive: Path | None = None


def digest(password: str) -> bytes:
    """What is kept of a password: enough to know it again, in the same time whatever is guessed."""
    return hashlib.sha256(password.encode(errors="surrogateescape")).digest()
