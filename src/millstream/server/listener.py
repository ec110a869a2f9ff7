"""Where the server listens: a TCP address, a unix socket, or both; what is wrong with them in one clear sentence."""

import asyncio
import contextlib
import errno
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from millstream.errors import UsageError
from millstream.server import tls

Factory = Callable[[], asyncio.Protocol]

_BACKLOG = 511
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, not bound


class ListenError(UsageError):
    """The server cannot listen where it was told to; the text says why and what to do."""


async def bind_tcp(
    factory: Factory, host: str, port: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.Server, int]:
    """Take a TCP address; returns the listener, which does not listen yet, and its port.

    Args:
        factory: makes the protocol of a new connection.
        host: address or name.
        port: 0 for a free one.
        context: for TLS.

    Raises:
        ListenError: the address is taken, not ours, or needs rights we have not.
    """
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(
            factory,
            host or None,
            port,
            backlog=_BACKLOG,
            start_serving=False,
            ssl=context,
            ssl_handshake_timeout=None if context is None else tls.HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=None if context is None else tls.SHUTDOWN_SECONDS,
        )
    except OSError as error:
        raise ListenError(tcp_sentence(host, port, error, "--port" if context is None else "--tls-port")) from None
    bound: int = listener.sockets[0].getsockname()[1]
    return listener, bound


def tcp_sentence(host: str, port: int, error: OSError, option: str = "--port") -> str:
    """Why a TCP address cannot be used, and what to do."""
    where = f"{host}:{port}"
    code = error.errno
    if code == errno.EADDRINUSE:
        return (
            f"{where} is in use by another program: stop it, or choose another port with {option} (0 picks a free one)"
        )
    if code == errno.EACCES:
        return f"{where} may not be used without special rights: choose a port above 1023 with {option}"
    if code == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: name one with --host, for example 127.0.0.1"
    if isinstance(error, socket.gaierror):
        return f"the host name {host!r} is not known: name an address of this machine with --host, such as 127.0.0.1"
    return f"cannot listen at {where}: {error}"


async def bind_unix(factory: Factory, path: Path) -> asyncio.Server:
    """Take a unix socket, replacing one that nobody serves any more; the listener does not listen yet.

    Raises:
        ListenError: somebody serves it, or it cannot be made.
    """
    loop = asyncio.get_running_loop()
    try:
        _clear(path)
        return await loop.create_unix_server(factory, str(path), backlog=_BACKLOG, start_serving=False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ListenError(f"cannot listen at {path}: {reason}; choose another place with --unixsocket") from None


def _clear(path: Path) -> None:
    """Remove a socket left over by a process that is gone; leave anything else alone."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ListenError(f"{path} exists and is no socket: choose another place with --unixsocket")
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
    raise ListenError(f"{path} is served by another process: stop it, or choose another place with --unixsocket")


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
