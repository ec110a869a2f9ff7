"""Accepting connections: limits on descriptors and TLS handshakes, and the errors for refused clients.

A stranger must not be able to take the descriptors that the log, its rewriting and INFO need. So a new connection first
meets two limits:

* *Descriptors.* The kernel gives the lowest free number. So a number among the last :data:`RESERVE` below the limit
  means that few descriptors are left. Such a connection gets Redis's error for ``maxclients`` and is closed. This
  covers all other uses of descriptors: clients, handshakes, or the program around an embedded server.
* *Handshakes.* A connection in its TLS handshake is not a client yet and does not count for ``maxclients``. Their
  number is limited; further ones wait in the kernel. While they wait, a handshake that takes longer than ``Tls.grace``
  is aborted. An honest client needs a few round trips; one that connects and sends nothing does not delay others for
  long.

Running out of descriptors (EMFILE, ENFILE) is not a failure either: the next try is :data:`AGAIN` later.
"""

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import Callable

from millstream.logs import logger
from millstream.protocol.encoder import error_line
from millstream.server import tls
from millstream.server.listener import TOO_MANY
from millstream.server.sockets import Sockets

log = logger("millstream.server")

RESERVE = 16
"""Number of descriptors that no client gets; a rewrite takes about ten."""
BACKLOG = 511
"""Number of connections that may wait in the kernel (Redis: ``tcp-backlog``)."""
AGAIN = 0.1
"""Seconds until the next try after the system lacked a descriptor, or memory, for a connection."""

# Seconds between two log lines about refused connections.
_SAY_EVERY = 10.0
# Largest number of connections accepted in one turn of the event loop, so that existing clients are also served.
_AT_ONCE = 64
# Temporary lack of resources in the process, the system or the kernel (accept(2)).
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Factory = Callable[[], asyncio.Protocol]


def descriptors() -> int:
    """Return the number of files that this process may have open; a very large number without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def handshakes_at(limit: int, most: int = tls.HANDSHAKES_MAX) -> int:
    """Return the number of simultaneous handshakes for a limit of open files, at most ``most``."""
    return max(1, min(most, (limit - 2 * RESERVE) // 4))


class Listener:
    """The sockets of one address at which the server listens, or of several addresses of one name."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Factory,
        on_refused: Callable[[], None],
        clients: Sockets | None,
        served: tls.Tls | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._sockets = sockets
        self._clients = clients if context is None else None
        self._factory = factory
        self._on_refused = on_refused
        self._served = served
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._paused = True
        self._pause: asyncio.TimerHandle | None = None
        self._said_at = -_SAY_EVERY
        self._openings: set[asyncio.Task[None]] = set()
        self._shaking: dict[socket.socket, float] = {}  # loop time at which each handshake began, oldest first

    def begin(self) -> None:
        """Start to listen."""
        for sock in self._sockets:
            sock.listen(BACKLOG)
        self._resume()

    async def close(self) -> None:
        """Stop listening, and abort running handshakes."""
        self._suspend()
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        for sock in self._shaking:
            _hang_up(sock)
        await asyncio.gather(*self._openings, return_exceptions=True)

    # ------------------------------------------------------------------ pausing and resuming

    def _suspend(self) -> None:
        """Accept nothing for now; new connections wait in the kernel."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._paused = True
        for sock in self._sockets:
            self._loop.remove_reader(sock)

    def _resume(self) -> None:
        self._pause = None
        if self._paused:
            self._paused = False
            for sock in self._sockets:
                self._loop.add_reader(sock, self._accept, sock)

    def _try_later(self, seconds: float) -> None:
        self._suspend()
        self._pause = self._loop.call_later(seconds, self._resume)

    # ------------------------------------------------------------------ one connection

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that wait at a socket."""
        for _ in range(_AT_ONCE):
            if not self._has_place():
                return
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _SHORT:
                    continue  # the waiting connection has been closed
                self._say(f"no connection can be accepted for now ({error.strerror}); the next try is in {AGAIN} s")
                self._try_later(AGAIN)
                return
            sock.setblocking(False)
            if sock.fileno() >= descriptors() - RESERVE:
                self._refuse(sock)
            else:
                self._open(sock)

    def _has_place(self) -> bool:
        """True if one more handshake may start; if not, stop accepting until one may."""
        served = self._served
        if served is None or len(self._shaking) < handshakes_at(descriptors(), served.handshakes):
            return True
        sock, began = next(iter(self._shaking.items()))
        left = began + served.grace - self._loop.time()
        if left > 0:
            self._try_later(left)
        else:
            self._say("slow TLS handshakes are closed, since others wait: a client connects and sends nothing")
            del self._shaking[sock]
            _hang_up(sock)
        return left <= 0

    def _refuse(self, sock: socket.socket) -> None:
        """Send a client Redis's error for too many clients, if it can read it, and close the connection."""
        self._say(
            f"connections are refused: of {descriptors()} files that may be open, the last {RESERVE} are not for "
            "clients; raise the limit (ulimit -n), or lower maxclients to a number that fits it"
        )
        self._on_refused()
        if self._context is None:
            with contextlib.suppress(OSError):
                sock.send(error_line(TOO_MANY))
        sock.close()

    def _open(self, sock: socket.socket) -> None:
        if self._clients is not None:
            self._clients.add(sock, self._factory())
            return
        if self._context is not None:
            self._shaking[sock] = self._loop.time()
        task = self._loop.create_task(self._opened(sock))
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)

    async def _opened(self, sock: socket.socket) -> None:
        """Give the connection its protocol; with TLS, after the handshake."""
        encrypted = self._context is not None
        try:
            await self._loop.connect_accepted_socket(
                self._factory,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=tls.HANDSHAKE_SECONDS if encrypted else None,
                ssl_shutdown_timeout=tls.SHUTDOWN_SECONDS if encrypted else None,
            )
        except OSError as error:  # not TLS, too slow, or closed by the client
            log.debug("a connection failed: %s", error)
            sock.close()
        finally:
            if self._shaking.pop(sock, None) is not None and self._sockets and self._pause is not None:
                self._try_later(0)

    def _say(self, text: str) -> None:
        """Log one line for several connections, not one for each."""
        now = self._loop.time()
        if now - self._said_at >= _SAY_EVERY:
            self._said_at = now
            log.warning("%s", text)


def _hang_up(sock: socket.socket) -> None:
    """End a connection during its handshake, which owns the transport; the handshake then fails and closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
