"""The server's addresses: TCP, a unix socket, or both; each error in them is one clear sentence."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import stat
from pathlib import Path

from millstream.errors import UsageError
from millstream.protocol import limits

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, not bound

TOO_MANY = "ERR max number of clients reached"
DENIED = (
    "DENIED Millstream is running in protected mode: no password is set, so only clients on the server's own machine "
    "are answered. To let others in, set a password (start with --requirepass, or CONFIG SET requirepass from a client "
    "on that machine), or, on a network where everybody may read and change all data, CONFIG SET protected-mode no."
)


class ListenError(UsageError):
    """The server cannot listen on the given address; the message gives the reason and the remedy.

    What to do: choose another address or port, or end the process that listens there.
    """


async def bind_tcp(host: str, port: int, option: str = "--port") -> tuple[list[socket.socket], int]:
    """Bind a TCP address; return its sockets, which do not listen yet, and its port."""
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with contextlib.suppress(_NoFamilyError):
                bound.append(_bound(family, kind, protocol, address))
    except OSError as error:
        for sock in bound:
            sock.close()
        raise ListenError(tcp_sentence(host, port, error, option)) from None
    if not bound:
        raise ListenError(f"cannot listen on {host}:{port}: the system has no network of that kind")
    return bound, bound[0].getsockname()[1]


class _NoFamilyError(Exception):
    """The system does not have addresses of this family."""


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    """Return a socket bound to one address."""
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError:
        raise _NoFamilyError from None
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # the other address family has its own socket
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def tcp_sentence(host: str, port: int, error: OSError, option: str = "--port") -> str:
    """Return the reason why a TCP address cannot be used, and the remedy."""
    where = f"{host}:{port}"
    code = error.errno
    if code == errno.EADDRINUSE:
        return (
            f"{where} is in use by another program: stop it, or choose another port with {option} (0 picks a free one)"
        )
    if code == errno.EACCES:
        return f"{where} may not be used without special rights: choose a port above 1023 with {option}"
    if code == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: give one with --host, for example 127.0.0.1"
    if isinstance(error, socket.gaierror):
        return f"the host name {host!r} is unknown: give an address of this machine with --host, such as 127.0.0.1"
    return f"cannot listen on {where}: {error}"


def bind_unix(path: Path) -> list[socket.socket]:
    """Bind a unix socket, replacing one that no server uses; it does not listen yet."""
    try:
        _clear(path)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            sock.bind(str(path))
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ListenError(f"cannot listen on {path}: {reason}; choose another path with --unixsocket") from None
    return [sock]


def _clear(path: Path) -> None:
    """Remove a socket that an ended process left over; leave any other file alone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ListenError(f"{path} exists and is not a socket: choose another path with --unixsocket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return
    raise ListenError(f"{path} is served by another process: stop it, or choose another path with --unixsocket")


def tcp_url(host: str, port: int, scheme: str = "redis") -> str:
    """The URL for a client on this machine."""
    reachable = _WILDCARDS.get(host, host)
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"


def show_address(name: object, path: Path | None) -> str:
    """An address as CLIENT LIST writes it: ``ip:port``, ``[ip]:port`` or ``path:0``."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{path}:0"


def is_loopback(peer: object) -> bool:
    """True if a TCP peer is on the server's own machine."""
    if not isinstance(peer, tuple):
        return False
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel check if a silent peer still exists."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_SECONDS)
