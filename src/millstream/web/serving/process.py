"""The console as a process: a socket, uvicorn, and one line with its address."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from typing import IO

import uvicorn

from millstream.errors import UsageError
from millstream.ops.watching.watch import ServerWatch
from millstream.web import rendering
from millstream.web.serving.app import console_app
from millstream.web.serving.connections import MOST, BrowserConnection
from millstream.web.settings import ConsoleSettings

USUAL_PORT = 8379
"""The default port, tried first."""

_BACKLOG = 128  # connections that wait to be accepted, each of which uses a file descriptor
_GRACE = 1  # seconds for unfinished responses at the end, since live pages never end by themselves


class PortError(UsageError):
    """The console cannot listen on the given address; the message gives the remedy.

    What to do: choose another port, or end the process that listens there.
    """


def bind(host: str, port: int | None) -> socket.socket:
    """Return a listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PortError(f"--host {host}: {error.strerror}: give an address of this machine") from None
    wanted = [USUAL_PORT, 0] if port is None else [port]
    for at in wanted:
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((address[0], at, *address[2:]))
        except OSError as error:
            opened.close()
            if at == wanted[-1]:
                raise PortError(
                    f"cannot listen on {host} port {at} ({error.strerror}): give another --port, or leave it out for a "
                    "free one"
                ) from None
            continue
        return opened
    raise AssertionError("the last port either opens or raises")


def address_of(host: str, opened: socket.socket) -> str:
    """Return the console's address for a browser."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{opened.getsockname()[1]}/"


def run(
    settings: ConsoleSettings, host: str, port: int | None, ready: Callable[[str], None], until: IO[str] | None = None
) -> None:
    """Serve until SIGINT or SIGTERM."""
    opened = bind(host, port)
    server = ConsoleProcess(settings, lambda: ready(address_of(host, opened) + f"{settings.base}/"[1:]))
    if until is not None:
        threading.Thread(target=_end_with, args=(until, server), name="console-end", daemon=True).start()
    # Uvicorn raises the signal again at its end, for the previous handler, so that the sender sees a clean end
    signal.signal(signal.SIGTERM, server.handle_exit)
    with opened:
        asyncio.run(server.serve([opened]))


def _end_with(stream: IO[str], server: uvicorn.Server) -> None:
    """End the server when the other end of a stream is closed."""
    for _ in stream:
        pass
    server.should_exit = True


class ConsoleProcess(uvicorn.Server):
    """Uvicorn without an access log, since addresses contain the names of streams."""

    def __init__(self, settings: ConsoleSettings, ready: Callable[[], None]) -> None:
        self.watches = [ServerWatch(server) for server in settings.servers]  # Watches of the servers
        config = uvicorn.Config(
            console_app(settings, self.watches),
            http=BrowserConnection,
            ws="none",
            limit_concurrency=MOST + 1,  # includes the request itself
            backlog=_BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the guard decides which headers to trust
            timeout_graceful_shutdown=_GRACE,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then report the address."""
        rendering.prepare()
        await super().startup(sockets)
        if self.started:
            self._ready()
