"""The web console in a thread of this process, and its raw replies to requests."""

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.ops.watching.servers import ConsoleServer
from millstream.web.serving import app
from millstream.web.serving.process import ConsoleProcess, bind
from millstream.web.settings import Access, ConsoleSettings
from support.waiting import DEADLINE

app.AT_ONCE = DEADLINE  # a slow machine would send the beginning of a refusal, with status 200


@dataclass(frozen=True)
class Answer:
    """A reply of the console.

    Attributes:
        status: HTTP status.
        headers: Headers by lower-case name.
        body: Raw body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def facts(self) -> Any:
        return json.loads(self.body)


class ConsoleThread:
    """A console that runs within a ``with`` block.

    Args:
        urls: URLs of the shown servers.
        access: Users that may log in.
        allow_changes: The console's option.
        archive: The console's option.
        history: The console's option.
        base: The value of ``--base-path``, without a slash at its end.

    Attributes:
        settings: Settings made from these arguments.
        process: The uvicorn process; in a thread it handles no signals.
    """

    def __init__(
        self,
        *urls: str,
        access: Access | None = None,
        allow_changes: bool = False,
        archive: Path | str | None = None,
        base: str = "",
        history: bool = False,
    ) -> None:
        servers = tuple(map(ConsoleServer, urls))
        self.settings = ConsoleSettings(servers, access or Access(), allow_changes, archive, history, base)
        self._ready = threading.Event()
        self.process = ConsoleProcess(self.settings, self._ready.set)
        self._socket = bind("127.0.0.1", 0)
        self._thread = threading.Thread(target=self._run, name="console")

    def _run(self) -> None:
        with self._socket:
            asyncio.run(self.process.serve([self._socket]))

    def __enter__(self) -> "ConsoleThread":
        self._thread.start()
        assert self._ready.wait(DEADLINE)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()

    def forget(self) -> None:
        """Drop cached readings of earlier tests, so that the next page reads anew."""
        for watch in self.process.watches:
            watch.changed()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, *, method: str = "GET", host: str | None = None, body: bytes = b"", **headers: str
    ) -> Answer:
        """Send one request.

        Args:
            path: Path with its query.
            method: HTTP method.
            host: Host header instead of the address; empty for none at all.
            body: Body of a POST.
            headers: More headers, with ``_`` for ``-``.
        """
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)) as connection:
            connection.putrequest(method, path, skip_host=True)
            if host != "":
                connection.putheader("host", host or f"127.0.0.1:{self.port}")
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            if method == "POST":
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body or None)
            reply = connection.getresponse()
            return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())

    def events(self, path: str) -> "Events":
        """Open the events that keep a page live."""
        return Events(self.port, path)


class Events:
    """Server-sent events, read one by one within a ``with`` block."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
        self._path = path

    def __enter__(self) -> "Events":
        self._connection.request("GET", self._path, headers={"accept": "text/event-stream"})
        self._reply = self._connection.getresponse()
        return self

    def __exit__(self, *_: object) -> None:
        self._reply.close()
        self._connection.close()

    def next(self) -> tuple[str, Any]:
        """Return kind and facts of the next event."""
        kind = ""
        while True:
            line = self._reply.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return kind, json.loads(line.removeprefix("data: "))
