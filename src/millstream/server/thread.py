"""A server in a thread of this process, for programs and tests without an event loop."""

import asyncio
import threading
from pathlib import Path
from types import TracebackType

from millstream.clock import Clock
from millstream.errors import UsageError
from millstream.node.durability.group_commit import Fsync
from millstream.server.app import Server
from millstream.server.loops import loop_factory
from millstream.server.settings import Settings
from millstream.server.tls import Tls


class ServerThread:
    """A server that runs from the beginning of ``with`` to its end.

    For example::

        with ServerThread(directory) as server:
            client = redis.Redis.from_url(server.url)
    """

    def __init__(
        self,
        dir: str | Path | None = None,  # noqa: A002 - same name as on the command line
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unixsocket: str | Path | None = None,
        fsync: Fsync = "always",
        parameters: dict[str, str] | None = None,
        tls: Tls | None = None,
        aclfile: str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = Settings(
            host=host,
            port=port,
            unixsocket=None if unixsocket is None else Path(unixsocket),
            directory=None if dir is None else Path(dir),
            fsync=fsync,
            parameters=parameters or {},
            tls=tls,
            aclfile=None if aclfile is None else Path(aclfile),
        )
        self._clock = clock
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None

    @property
    def server(self) -> Server:
        """The server; its loop runs in the thread, so only read it, or use ``server.loop.call_soon_threadsafe``."""
        if self._server is None:
            raise UsageError("the server does not run: use it inside its `with` block, or call start() first")
        return self._server

    @property
    def url(self) -> str:
        """URL at which clients reach the server."""
        return self.server.url

    def start(self) -> "ServerThread":
        """Start, and return when clients can connect."""
        self._ready.clear()
        self._thread = threading.Thread(target=self._main, name="millstream-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        error = self._error
        if error is not None:
            self._thread.join()
            raise error
        return self

    def stop(self) -> None:
        """Stop the server as SIGTERM would; do nothing if it does not run."""
        if self._thread is None or self._server is None:
            return
        if self._thread.is_alive():
            self._server.loop.call_soon_threadsafe(self._server.request_stop)
        self._thread.join()
        failure, self._thread, self._server = self._server.failure, None, None
        if failure is not None:
            raise failure

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = Server(self.settings, clock=self._clock)
        try:
            await server.start()
        except BaseException as error:  # noqa: BLE001 - start() raises it in the calling thread
            self._error = error
            self._ready.set()
            return
        self._server = server
        self._ready.set()
        await server.stopping.wait()
        await server.stop()

    def __enter__(self) -> "ServerThread":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
