"""Asyncio work for programs without an event loop: each app gets a thread with its own event loop.

The first call starts the thread. It ends with :meth:`Background.close`, with its app, or with the process. Threads do
not survive a fork, so a forked process starts its own thread. It writes nothing to the inherited connection, which
belongs to the parent process.
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

#: Seconds that the thread has for its end.
_GOODBYE = 5.0


class Background:
    """A thread with an event loop and a connection for publishing, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: _Thread | None = None
        self._finish: weakref.finalize[..., Background] | None = None
        _backgrounds.add(self)

    @property
    def begun(self) -> bool:
        """True while there is a thread to close."""
        return self._begun is not None

    def run(self, url: str, work: Callable[[Sender], Awaitable[T]]) -> T:
        """Run a coroutine with a sender for the server; return its result, or raise its exception."""
        with self._lock:  # no work may reach an event loop that has ended
            future = self._thread(url).submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Disconnected("the app was closed while it published") from None
        except BaseException:
            future.cancel()  # for example Ctrl-C: the caller no longer waits
            raise

    def _thread(self, url: str) -> "_Thread":
        if self._begun is not None and (self._begun.url != url or not self._begun.is_alive()):
            self._taken().end()
        if self._begun is None:
            self._begun = _Thread(url)
            # An app that is collected without close() must not leave a thread; at the exit, _close_all ends it
            self._finish = weakref.finalize(self, self._begun.end)
            self._finish.atexit = False
        return self._begun

    def _taken(self) -> "_Thread":
        """Detach and return the thread, which the caller must end."""
        assert self._begun is not None
        assert self._finish is not None
        self._finish.detach()
        thread, self._begun, self._finish = self._begun, None, None
        return thread

    def close(self) -> None:
        """Disconnect and end the thread; running publishes end in an error. A second call does nothing."""
        with self._lock:
            thread = self._taken() if self.begun else None
        if thread is not None:
            thread.end()
            thread.join(_GOODBYE)

    def forked(self) -> None:
        """Drop the parent's thread after a fork, so that this process starts its own."""
        self._lock = threading.Lock()  # another thread of the parent may have held the lock
        if self.begun:
            thread = self._taken()
            thread.disown()
            _inherited.append(thread)  # keeps it alive: if collected, its tasks and transports would try to close


class _Thread:
    """A thread with an event loop and a sender that runs in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        # Not epoll, asyncio's default: a forked process shares its epoll instance, so removing descriptors there would
        # also remove them here. There are only two or three descriptors.
        self._selector = selectors.PollSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._sender: Sender | None = None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="millstream-publish", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels running tasks at its end
            runner.run(self._serve())

    async def _serve(self) -> None:
        await self._ended.wait()
        if self._sender is not None:
            await self._sender.close()

    def is_alive(self) -> bool:
        """Report whether the thread still runs."""
        return self._thread.is_alive()

    def submit(self, work: Callable[[Sender], Awaitable[T]]) -> "concurrent.futures.Future[T]":
        """Start a coroutine in the thread; not allowed after :meth:`end`."""

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
        """Wait until the thread has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def disown(self) -> None:
        """In a forked process, replace the parent's sockets by ``/dev/null``, so that nothing is written to them."""
        disown(key.fd for key in self._selector.get_map().values())
        self._loop.set_debug(False)  # debug mode would report objects collected in another thread
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 - the warning would be wrong


_backgrounds: "weakref.WeakSet[Background]" = weakref.WeakSet()
_inherited: list[_Thread] = []


def _close_all() -> None:
    for background in list(_backgrounds):
        background.close()


def _forked() -> None:
    for background in list(_backgrounds):
        background.forked()


atexit.register(_close_all)  # runs before the interpreter stops daemon threads
os.register_at_fork(after_in_child=_forked)
