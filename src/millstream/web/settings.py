"""The settings of the console: its servers, the users that may enter, and the permission to change."""

import hashlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from millstream.ops.watching.servers import ConsoleServer

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of admission."""

    # Names a browser may call the console by, in addition to numbers of addresses and ``localhost``; lower case
    hosts: frozenset[str] = frozenset()
    password: bytes | None = None  # Its digest (:func:`digest`); None for none
    # The header in which a proxy names the user it has let in, lower case; None for none
    user_header: str | None = None
    # Networks of the proxies whose word on that counts
    proxies: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.1"), ipaddress.ip_network("::1"))

    @property
    def asks(self) -> bool:
        """True if users have to log in."""
        return self.password is not None or self.user_header is not None

    def is_proxy(self, peer: str) -> bool:
        """True if an address is that of a proxy whose word counts; an IPv4 address may be written as an IPv6 one."""
        try:
            found = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.proxies)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All of it."""

    servers: tuple[ConsoleServer, ...]  # Servers, at least one
    access: Access = Access()  # Rules of admission
    allow_changes: bool = False  # True if buttons that change something are there and obeyed
    archive: Path | str | None = None  # Place of an archive of the streams; None for none
    base: str = ""  # Path below which a proxy shows the console, such as ``/millstream``; empty for the root


def digest(password: str) -> bytes:
    """The stored form of a password: enough to recognize it, in the same time for every guess."""
    return hashlib.sha256(password.encode(errors="surrogateescape")).digest()
