"""A small HTTP endpoint for monitoring: the state of the event loop, the readiness of the app, and its metrics.

It runs in its own thread and calls the app's event loop. It reports a blocked loop as blocked, with the line of code
that blocks it. An unreachable server is not a reason to kill a worker, which tries again: ``/healthz`` stays 200 and
``/readyz`` becomes 503.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qs

from millstream.errors import MillstreamError
from millstream.worker.model.progress import PartProgress
from millstream.worker.monitoring.prometheus import MetricsError
from millstream.worker.registry.watchdog import StoppedLoop
from millstream.worker.tasks import disown

log = logging.getLogger("millstream.worker")

#: Variable in which ``millstream run`` passes the allowed host names to its processes, separated by spaces.
ALLOW_VARIABLE = "MILLSTREAM_HEALTH_ALLOW"

_PATIENCE = 5.0
_REFUSALS_LOGGED = 10
_TEXT = "text/plain; charset=utf-8"
_NOT_FOR_US = (
    b"This Host is not one of this endpoint's names. Ask by address, or allow the name: --health-allow NAME, "
    b"app.run(health_allow=[...]).\n"
)
_BLOCKED = b"The event loop is blocked; the worker's log reports where.\n"

Answer = tuple[int, str, bytes]


class Watched(Protocol):
    """Interface of an object to watch: a running app, or the driver of an app's pipelines."""

    @property
    def parts(self) -> str:
        """Key of the list of parts in a report."""

    @property
    def state(self) -> str:
        """``running`` while it should be ready."""

    @property
    def blocked(self) -> StoppedLoop | None:
        """The line at which its event loop is blocked; None if no block is known."""

    def progress(self) -> Sequence[PartProgress]:
        """Return the progress of each part."""

    async def metrics(self, accept: str = "", *, consumers: bool = True) -> tuple[bytes, str]:
        """Return the reply to a scrape and its content type, with or without series for each consumer."""


class HealthError(MillstreamError):
    """The health endpoint cannot listen on its address.

    What to do: choose another --health-port or --health-host.
    """


def allowed_names(host: str, allow: Iterable[str] = ()) -> frozenset[str]:
    """Return the host names accepted in requests, besides addresses and loopback names.

    A page in a browser can make its own name resolve to this machine (DNS rebinding) and then read the replies. The
    ``Host`` of such a request is that name. Addresses are safe, since such a request never has one as its ``Host``.
    """
    own = {host, socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}
    return frozenset(name.lower().rstrip(".") for name in (*own, *allow))


def _is_allowed(host: str, names: frozenset[str]) -> bool:
    """Report whether a request with this ``Host`` is allowed; one without ``Host`` does not come from a browser."""
    name = host.lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if not name or "*" in names or name in names or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _tell_of_refusal(asked: str, refused: set[str]) -> None:
    """Log each refused name once, for a limited number of names, since a scraper by name gets only a 403."""
    if asked in refused or len(refused) == _REFUSALS_LOGGED:
        return
    refused.add(asked)
    log.warning(
        "the health endpoint was asked as %r, which is none of its names, and answers 403: if that is how it is to be "
        "asked, allow the name (--health-allow NAME, app.run(health_allow=[...]))",
        asked[:200],
    )


@contextlib.asynccontextmanager
async def serving(app: Watched, host: str, port: int, allow: Iterable[str] = ()) -> AsyncIterator[int]:
    """Serve reports about ``app`` while the block runs; yield the port, which is chosen freely if ``port`` is 0."""
    home, own = asyncio.get_running_loop(), asyncio.new_event_loop()
    names, refused = allowed_names(host, allow), set[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # by close() alone
            await _converse(app, home, names, refused, reader, writer)

    async def close() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=own.run_forever, name="millstream-health", daemon=True)
    thread.start()
    try:
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(answer, host, port, limit=16_384), own)
        try:
            server = await asyncio.wrap_future(starting)
        except OSError as error:
            raise HealthError(f"cannot answer at {host}:{port} for --health-port: {error}") from None

        def forked() -> None:
            # A child that outlives its parent would otherwise keep the port from the parent's successor
            disown(one.fileno() for one in server.sockets if one.fileno() >= 0)

        os.register_at_fork(after_in_child=forked)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close(), own))
    finally:
        own.call_soon_threadsafe(own.stop)
        thread.join()
        own.close()


async def _converse(
    app: Watched,
    home: asyncio.AbstractEventLoop,
    names: frozenset[str],
    refused: set[str],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Read one request, reply, and close the connection."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            request, *lines = head.decode("latin-1").split("\r\n")
            method, _, rest = request.partition(" ")
            pairs = (line.partition(":") for line in lines)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            asked = headers.get("host", "")
            if _is_allowed(asked, names):
                status, kind, body = await _answer(app, home, method, rest.partition(" ")[0], headers.get("accept", ""))
            else:
                status, kind, body = 403, _TEXT, _NOT_FOR_US
                _tell_of_refusal(asked, refused)
            writer.write(
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                + (b"" if method == "HEAD" else body)
            )
            await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _answer(app: Watched, home: asyncio.AbstractEventLoop, method: str, target: str, accept: str) -> Answer:
    """Return the reply to one request."""
    path, _, query = target.partition("?")
    if method not in ("GET", "HEAD"):
        return 405, _TEXT, b"GET or HEAD\n"
    if path == "/healthz":
        return await _from(app, home, _soon(healthz, app)) or healthz(app)
    if path == "/readyz":
        return await _from(app, home, _soon(readyz, app)) or readyz(app)
    if path == "/metrics":
        return await _from(app, home, _metrics(app, accept, query)) or (503, _TEXT, _BLOCKED)
    return 404, _TEXT, b"/healthz /readyz /metrics\n"


async def _soon(report: Callable[[Watched], Answer], app: Watched) -> Answer:
    return report(app)


async def _from(
    app: Watched, home: asyncio.AbstractEventLoop, answer: Coroutine[object, object, Answer]
) -> Answer | None:
    """Run a report in the app's event loop; None if that loop is known to be blocked, 503 if it does not reply."""
    if app.blocked is not None or home.is_closed():
        answer.close()
        return None
    try:
        async with asyncio.timeout(_PATIENCE * 0.8):
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, home))
    except TimeoutError:
        return None if app.blocked is not None else (503, _TEXT, _BLOCKED)


def healthz(app: Watched) -> Answer:
    """Return 200, or 503 if a part is stuck or failed, or the event loop is blocked without a supervisor."""
    fine = app.blocked is None or app.blocked.kill_after is not None
    return _report(app, fine=fine and all(progress.alive for progress in app.progress()))


def readyz(app: Watched) -> Answer:
    """Return 200 while every subscriber reads, is fully busy or is paused; 503 while starting, quiet or stopping."""
    fine = app.blocked is None and app.state == "running"
    return _report(app, fine=fine and all(progress.ready for progress in app.progress()))


def _report(app: Watched, *, fine: bool) -> Answer:
    parts = [
        {"handler": progress.handler, "doing": progress.doing, "idle_ms": progress.idle_ms}
        for progress in app.progress()
    ]
    blocked = {} if app.blocked is None else {"blocked": app.blocked.where}
    body = json.dumps({"ok": fine, "state": app.state, **blocked, app.parts: parts}).encode() + b"\n"
    return (200 if fine else 503), "application/json", body


async def _metrics(app: Watched, accept: str, query: str) -> Answer:
    asked = parse_qs(query, keep_blank_values=True).get("consumers", ["on"])[-1]
    if asked not in ("on", "off"):
        return 400, _TEXT, f"consumers={asked}: on (series for each consumer, the default) or off\n".encode()
    try:
        body, kind = await app.metrics(accept, consumers=asked == "on")
    except MetricsError as error:
        return 501, _TEXT, f"{error}\n".encode()
    except Exception:
        log.exception("/metrics failed")
        return 500, _TEXT, b"see the log\n"
    return 200, kind, body
