"""What the console was started with: which servers, who may come in, what may be changed."""

import hashlib
from dataclasses import dataclass, field

from millstream.client.url import without_password

__all__ = ["Access", "ConsoleServer", "ConsoleSettings", "digest"]


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
class ConsoleServer:
    """One server that the console shows.

    Attributes:
        url: as given, perhaps with a password: it is never shown.
    """

    url: str = field(repr=False)

    @property
    def name(self) -> str:
        """What people call it by: its URL without secrets, and without what they do not need."""
        return without_password(self.url).partition("?")[0].removeprefix("redis://").removesuffix("/0")

    @property
    def address(self) -> str:
        """Its URL for a command line; a password is left out, as three stars."""
        return without_password(self.url)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All of it.

    Attributes:
        servers: at least one.
        access: who may come in.
        allow_changes: whether buttons that change something are there and obeyed.
    """

    servers: tuple[ConsoleServer, ...]
    access: Access = Access()
    allow_changes: bool = False


def digest(password: str) -> bytes:
    """What is kept of a password: enough to know it again, in the same time whatever is guessed."""
    return hashlib.sha256(password.encode(errors="surrogateescape")).digest()
