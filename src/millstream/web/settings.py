"""The settings of the console: its servers, the permitted users, and the permission to change."""

import hashlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from millstream.ops.watching.servers import ConsoleServer

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Access:
    """The rules for access to the console."""

    # Host names of the console apart from IP addresses and ``localhost``; lower case
    hosts: frozenset[str] = frozenset()
    password: bytes | None = None  # Digest of the password (:func:`digest`); None for none
    # Header with the user that a proxy has authenticated, lower case; None for none
    user_header: str | None = None
    # Networks of the trusted proxies
    proxies: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.1"), ipaddress.ip_network("::1"))

    @property
    def asks(self) -> bool:
        """True if users have to log in."""
        return self.password is not None or self.user_header is not None

    def is_proxy(self, peer: str) -> bool:
        """Return True if the address is that of a trusted proxy.

        An IPv4 address may be written as an IPv6 one.
        """
        try:
            found = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.proxies)


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All settings of the console."""

    servers: tuple[ConsoleServer, ...]  # Servers, at least one
    access: Access = Access()  # Rules for access
    allow_changes: bool = False  # True if the console may make changes
    archive: Path | str | None = None  # Location of an archive of the streams; None for none
    history: bool = False  # True if the console may write the history of its servers
    base: str = ""  # Path below which a proxy shows the console, such as ``/millstream``; empty for the root


def digest(password: str) -> bytes:
    """Return the stored form of a password. Comparing digests takes the same time for every guess."""
    return hashlib.sha256(password.encode(errors="surrogateescape")).digest()
