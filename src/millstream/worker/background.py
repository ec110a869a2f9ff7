"""Asyncio work for programs that have no event loop: one in a thread of its own, for one app.

It is begun by the first call and ends with :meth:`Background.close`, with its app, or with the process. Threads do not
survive a fork, so a forked process begins a thread of its own. It leaves the inherited connection alone, down to the
last byte, since that belongs to the other process.
"""

import asyncio
import atexit
import concurrent.futures
import os
import selectors
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.errors import Disconnected
from millstream.worker.handlers.sender import Sender
from millstream.worker.tasks import disown

T = TypeVar("T")

#: Seconds the thread may take to end.
_GOODBYE = 5.0


class Background:
    """A thread with an event loop and a connection to publish by, while there is need of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: _Thread | None = None
        self._finish: weakref.finalize[..., Background] | None = None
        _backgrounds.add(self)

    @property
    def begun(self) -> bool:
        """True while there is something to close."""
        return self._begun is not None

    def run(self, url: str, work: Callable[[Sender], Awaitable[T]]) -> T:
        """Do something with the connection to a server, and wait for it; raises what it raises."""
        with self._lock:  # so that nothing comes to an event loop that has ended
            future = self._thread(url).submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Disconnected("the app was closed while it published") from None
        except BaseException:
            future.cancel()  # Ctrl-C: nobody waits for it any more
            raise

    def _thread(self, url: str) -> "_Thread":
        if self._begun is not None and (self._begun.url != url or not self._begun.is_alive()):
            self._taken().end()
        if self._begun is None:
            self._begun = _Thread(url)
            # an app that is forgotten without close() leaves no thread behind; at the exit it is _close_all's
            self._finish = weakref.finalize(self, self._begun.end)
            self._finish.atexit = False
        return self._begun

    def _taken(self) -> "_Thread":
        """The thread, which is somebody else's affair from now on."""
        assert self._begun is not None
        assert self._finish is not None
        self._finish.detach()
        thread, self._begun, self._finish = self._begun, None, None
        return thread

    def close(self) -> None:
        """Disconnect and end the thread; what is being published ends in an error. Called again, nothing."""
        with self._lock:
            thread = self._taken() if self.begun else None
        if thread is not None:
            thread.end()
            thread.join(_GOODBYE)

    def forked(self) -> None:
        """Begin anew in this process, which was forked from the one that has the thread."""
        self._lock = threading.Lock()  # another thread may have held it, and is not here
        if self.begun:
            thread = self._taken()
            thread.disown()
            _inherited.append(thread)  # were it collected, its tasks and transports would still try to end in order


class _Thread:
    """A thread with an event loop, and a sender for what is done there."""

    def __init__(self, url: str) -> None:
        self.url = url
        # Not epoll's, asyncio's own choice: a forked process shares that with this one, and what it forgets of its
        # copies would be forgotten here. There are two or three descriptors.
        self._selector = selectors.PollSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._sender: Sender | None = None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="millstream-publish", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels at its end what still runs
            runner.run(self._serve())

    async def _serve(self) -> None:
        await self._ended.wait()
        if self._sender is not None:
            await self._sender.close()

    def is_alive(self) -> bool:
        """True until it has ended."""
        return self._thread.is_alive()

    def submit(self, work: Callable[[Sender], Awaitable[T]]) -> "concurrent.futures.Future[T]":
        """Begin something in the thread; not after :meth:`end`."""

        async def main() -> T:
            if self._sender is None:
                self._sender = Sender(self.url)
            return await work(self._sender)

        return asyncio.run_coroutine_threadsafe(main(), self._loop)

    def end(self) -> None:
        """End the thread and cancel its tasks; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)

    def join(self, seconds: float) -> None:
        """Wait for the end."""
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def disown(self) -> None:
        """In a forked process: put nothing in place of the sockets, so that whatever is written is lost here."""
        disown(key.fd for key in self._selector.get_map().values())
        self._loop.set_debug(False)  # it would complain of what is collected in another thread than its own
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - of what is nobody's fault


_backgrounds: "weakref.WeakSet[Background]" = weakref.WeakSet()
_inherited: list[_Thread] = []


def _close_all() -> None:
    for background in list(_backgrounds):
        background.close()


def _forked() -> None:
    for background in list(_backgrounds):
        background.forked()


atexit.register(_close_all)  # before the interpreter stops daemon threads where they are
os.register_at_fork(after_in_child=_forked)
