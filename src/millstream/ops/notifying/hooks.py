"""Hooks: a signed HTTP request or a command that is told of an alert. A receiver costs a bounded time and memory.

A webhook's request has the header ``Millstream-Signature: t=SECONDS,v1=HEX``. HEX is the HMAC-SHA256 of
``SECONDS.BODY`` under the shared secret. A webhook's URL may contain a token, so messages name its host alone.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from millstream._version import __version__
from millstream.errors import MillstreamError, UsageError
from millstream.ops.alerts.status import AlertEvent, alert_facts
from millstream.ops.words import Facts
from millstream.printable import printable
from millstream.texts import plural

SECONDS = 10.0
"""Time limit of one delivery, in seconds."""

LISTED = 50
"""Largest number of alerts in a summary."""

_HEAD = 4096  # largest size of a reply's first line that is read, in bytes
_AGAIN = frozenset({408, 409, 425, 429})  # statuses below 500 after which another try may help


class HookError(MillstreamError):
    """A hook could not be told of an alert; the message has the reason.

    What to do: correct the address, the secret or the command, and try `millstream alert test`.
    """

    again = True  # Another try may help


class HookRefusedError(HookError):
    """The receiver refused the message; another try will not help.

    What to do: correct the address or the receiver, and try `millstream alert test`.
    """

    again = False


def note_of(event: AlertEvent, server: str, now_ms: int) -> Facts:
    """Return the message about an event: neither payloads nor secrets."""
    entry = event.entry or f"{event.alert.id}-{event.alert.opened_ms}-{event.became}-{event.alert.level}"
    facts = alert_facts(event.alert, now_ms)
    return {"version": 1, "event": event.became, "delivery": entry, "server": server, "at_ms": now_ms, "alert": facts}


def summary_of(events: Sequence[AlertEvent], server: str, now_ms: int) -> Facts:
    """Return one message about many events: their numbers, and the first :data:`LISTED` of them."""
    parts = [(became, sum(event.became == became for event in events)) for became in ("opened", "closed")]
    says = " and ".join(f"{plural(number, 'alert')} {became}" for became, number in parts if number)
    listed = [{"event": event.became, **alert_facts(event.alert, now_ms)} for event in events[:LISTED]]
    delivery = f"summary-{note_of(events[-1], server, now_ms)['delivery']}"
    facts = {"event": "summary", "delivery": delivery, "says": says, "found": len(events), "alerts": listed}
    return {"version": 1, "server": server, "at_ms": now_ms, **facts}


def signature(secret: bytes, seconds: int, body: bytes) -> str:
    """Return the value of the header that signs a body at a time."""
    digest = hmac.new(secret, b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of HTTP requests."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)
    timeout: float = SECONDS
    name: str = "webhook"

    @property
    def place(self) -> str:
        """Scheme, host and port of the URL; its path may contain a token."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    async def send(self, note: Mapping[str, object]) -> None:
        """Send a signed request, and read the first line of the reply. Redirects are not followed."""
        body = json.dumps(note).encode()
        parts = urlsplit(self.url)
        try:
            async with asyncio.timeout(self.timeout):
                status = await self._post(parts, body, str(note.get("delivery", "")))
        except TimeoutError:
            raise HookError(f"{self.place} did not reply within {self.timeout:g} s") from None
        except (OSError, ssl.SSLError, asyncio.LimitOverrunError, asyncio.IncompleteReadError, ValueError) as error:
            raise HookError(f"{self.place}: {printable(str(error))[:200] or type(error).__name__}") from None
        if not 200 <= status < 300:
            kind = HookError if status >= 500 or status in _AGAIN else HookRefusedError
            raise kind(f"{self.place} replied with status {status}")

    async def _post(self, parts: SplitResult, body: bytes, delivery: str) -> int:
        safe = parts.scheme == "https"
        reader, writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if safe else 80),
            ssl=ssl.create_default_context() if safe else None,
            limit=_HEAD,
        )
        try:
            writer.write(self._head(parts, body, delivery) + body)
            await writer.drain()
            line = await reader.readuntil(b"\n")
            version, status, *_ = line.split(None, 2)
            if not version.startswith(b"HTTP/1.") or not status.isdigit():
                raise ValueError("the reply is not HTTP")
            return int(status)
        finally:
            writer.transport.abort()  # the rest of the reply, which may be endless, is not read

    def _head(self, parts: SplitResult, body: bytes, delivery: str) -> bytes:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = (
            f"POST {target} HTTP/1.1",
            f"Host: {parts.netloc}",
            f"User-Agent: millstream/{__version__}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"Millstream-Delivery: {delivery}",
            f"Millstream-Signature: {signature(self.secret, int(time.time()), body)}",
            "Connection: close",
        )
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii", "replace")


def webhook(url: str, secret: str) -> Webhook:
    """Return the webhook of a URL, after a check that it can be used."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in url or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("--webhook is invalid: give an http or https URL without a user, in ASCII. Correct the URL.")
    if not secret:
        raise UsageError(
            "--webhook needs a secret that signs its requests: give --secret-file, or set MILLSTREAM_ALERT_SECRET."
        )
    return Webhook(url, secret.encode(errors="surrogateescape"))


@dataclass(frozen=True, slots=True)
class CommandHook:
    """A command that gets the message as JSON on standard input. No shell runs."""

    words: Sequence[str]
    timeout: float = SECONDS
    name: str = "command"

    @property
    def place(self) -> str:
        """The program; its arguments may be secrets."""
        return printable(self.words[0])

    async def send(self, note: Mapping[str, object]) -> None:
        """Run the command; its output is dropped, and a status other than 0 is a failure."""
        # The command needs no password of the server, nor the secret of the webhook
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MILLSTREAM_", "REDIS_"))}
        nothing = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self.words,
                stdin=asyncio.subprocess.PIPE,
                stdout=nothing,
                stderr=nothing,
                env=kept,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise HookError(f"{self.place}: {printable(str(error))[:200]}") from None
        try:
            async with asyncio.timeout(self.timeout):
                await process.communicate(json.dumps(note).encode())
        except TimeoutError:
            raise HookError(f"{self.place} did not end within {self.timeout:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise HookError(f"{self.place} ended with status {process.returncode}")


Hook: TypeAlias = Webhook | CommandHook
"""A receiver of alerts: ``name`` is the kind under which the server keeps the last entry that it was told of."""
