"""An S3-compatible server for tests, and a proxy before it that refuses, cuts, hides objects and counts.

The server is moto's, a separate process, one for a test session. It keeps everything in memory, checks no credentials
and does not order concurrent requests. So the proxy before it lets one PUT through at a time.
"""

import contextlib
import functools
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from support.ports import free_port
from support.waiting import DEADLINE, eventually

KEY, SECRET = "AKIDTEST", "do-not-show-this-secret"
REGION = "us-east-1"
_SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20250101/{REGION}/s3/aws4_request, Signature=none"}
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        method: The HTTP method.
        bucket: Its bucket.
        key: The key of the object; empty if it is for the bucket.
        query: The query of its address.
        user: The owner of the access key that signed it.
        conditional: True if it depends on a condition.
    """

    method: str
    bucket: str
    key: str
    query: str
    user: str
    conditional: bool


Fault = tuple[int, str] | str
"""A status and a code to refuse with; ``cut`` before the request is passed on; ``lost`` for a lost reply;
``unconditional`` to pass it on without its condition.
"""


@dataclass
class Door:
    """The proxy through which clients reach the server.

    Attributes:
        port: Port that it listens on.
        rule: Function from a request to its fault, or None.
        asked: All requests.
        unlisted: Keys that lists do not show yet.
    """

    port: int
    rule: Callable[[Asked], Fault | None] = lambda _asked: None
    asked: list[Asked] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        """Return the proxy's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process that connects through the proxy."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def as_new(self) -> "Door":
        """Reset faults and records."""
        self.rule = lambda _asked: None
        self.asked.clear()
        self.unlisted.clear()
        return self


@functools.cache
def door_port() -> int:
    """Return the fixed port of this process's proxy, which earlier Spark sessions keep in their settings."""
    return free_port()


@contextlib.contextmanager
def object_server(folder: Path) -> Iterator[Door]:
    """Yield the proxy to a running server.

    Args:
        folder: Folder for the server's output.
    """
    port = free_port()
    log = folder / "objects.log"
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out)
        try:
            eventually(lambda: _up(port), 4 * DEADLINE, what="moto's server answers")
            with _door(port) as door:
                yield door
        finally:
            process.kill()
            process.wait()


def make_bucket(door: Door, name: str) -> None:
    """Create a bucket directly at the server."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=DEADLINE)
    connection.request("PUT", f"/{name}", headers=_SIGNED)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, answer.status


def _up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/moto-api/")
        return connection.getresponse().status < 500
    finally:
        connection.close()


class _DoorServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, target: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.target = target
        self.puts = threading.Lock()
        self.door = Door(port)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    server: "_DoorServer"
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        door = self.server.door
        body = b"".join(self._body())
        asked = self._asked()
        door.asked.append(asked)
        fault = door.rule(asked)
        if fault == "cut":
            self.close_connection = True
            return
        if isinstance(fault, tuple):
            self._refuse(*fault)
            return
        with self.server.puts if self.command in ("PUT", "POST") else contextlib.nullcontext():
            status, headers, data = self._passed_on(body, conditional=fault != "unconditional")
        if fault == "lost":
            self.close_connection = True
            return
        if door.unlisted and self.command == "GET" and not asked.key:
            data = _without(data, door.unlisted)
        self._answer(status, headers, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - http.server's names

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _asked(self) -> Asked:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        user = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization") or "")
        given = any(self.headers.get(name) for name in ("If-Match", "If-None-Match"))
        return Asked(self.command, bucket, key, parts.query, user[1] if user else "", given)

    def _passed_on(self, body: bytes, *, conditional: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=DEADLINE)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                dropped = not conditional and name.lower() in ("if-match", "if-none-match")
                if name.lower() not in (*_HOP, "expect") and not dropped:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        length = {name.lower(): value for name, value in headers}.get("content-length", "0")
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up by a test</Message></Error>"
        self._answer(status, [("Content-Type", "application/xml")], text.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def _door(target: int) -> Iterator[Door]:
    server = _DoorServer(door_port(), target)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.door
    finally:
        server.shutdown()
        server.server_close()


def _without(listing: bytes, keys: set[str]) -> bytes:
    """Remove objects from a list."""

    def kept(found: re.Match[bytes]) -> bytes:
        return b"" if unquote(found[1].decode()) in keys else found[0]

    return re.sub(rb"<Contents>\s*<Key>([^<]*)</Key>.*?</Contents>", kept, listing, flags=re.DOTALL)
