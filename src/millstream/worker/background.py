"""Asyncio work for programs that have no event loop: one in a thread of its own, for one app.

It is begun by the first call and ends with :meth:`Background.close` or with the process. A process that was forked from
one that has it begins one of its own: threads do not survive a fork.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.worker.sending import Sender

T = TypeVar("T")

#: Seconds the thread may take to end.
_GOODBYE = 5.0


class Background:
    """A thread with an event loop and a connection to publish by.

    Args:
        url: the server.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._sender: Sender | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="millstream-publish", daemon=True)
        self._thread.start()
        self._finish = weakref.finalize(self, _end, self._loop, self._thread)
        self._finish.atexit = False  # below: before the interpreter stops daemon threads where they are
        self._at_exit = atexit.register(_close_if_there, weakref.ref(self))

    def serves(self, url: str) -> bool:
        """True while this is of this process, and for that server."""
        return self._pid == os.getpid() and self.url == url and self._thread.is_alive()

    def run(self, work: Callable[[Sender], Awaitable[T]]) -> T:
        """Do something with the connection, and wait for it; raises what it raises."""

        async def main() -> T:
            if self._sender is None:
                self._sender = Sender(self.url)
            return await work(self._sender)

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    def close(self) -> None:
        """Disconnect and end the thread; called again, nothing."""
        if self._pid != os.getpid() or not self._finish.alive:
            return
        sender, self._sender = self._sender, None
        if sender is not None:
            asyncio.run_coroutine_threadsafe(sender.close(), self._loop).result(_GOODBYE)
        atexit.unregister(self._at_exit)
        self._finish()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_GOODBYE)
    if not thread.is_alive():
        loop.close()


def _close_if_there(found: "weakref.ref[Background]") -> None:
    background = found()
    if background is not None:
        background.close()
