"""Adding entries for one event loop: over a connection of its own, and again where no answer came, if that is wished.

An XADD whose reply is lost may have been carried out, so that to send it again may add a second entry. With ``retry``,
each publish has a mark by which the server recognizes it:

* with XADD IDMP (Millstream, Redis 8.6) an id under a producer's name that no other publish uses meanwhile. The server
  remembers only the latest ids of a producer, and here the latest one is enough;
* else a key next to the stream that one script sets together with the XADD::

      millstream:{orders}:published:<random>      string: the entry's id, for a minute longer than is tried

A server that has neither is refused before anything is sent.
"""

import asyncio
import math
import secrets
from hashlib import sha1
from typing import NamedTuple

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from millstream import times
from millstream.client.capabilities import Capabilities, find
from millstream.client.line import Command, Line, passes
from millstream.client.open import open_line
from millstream.client.slots import beside
from millstream.errors import Disconnected, UsageError
from millstream.worker.handlers.publish import PRODUCER, xadd

#: KEYS: the stream, the mark. ARGV: milliseconds the mark lives, then the words behind XADD and the stream.
SCRIPT = """
local id = redis.call('GET', KEYS[2])
if id then return id end
id = redis.call('XADD', KEYS[1], unpack(ARGV, 2))
redis.call('SET', KEYS[2], id, 'PX', ARGV[1])
return id
"""
SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

#: Words of an entry that a script can pass on: Lua has 8,000.
WORDS_LIMIT = 7_500
#: Milliseconds a mark outlives the last try, which may itself take half a minute.
_LONGER_MS = 60_000
#: Seconds for one try, at most and at least.
_TRY, _LEAST = 5.0, 0.2
#: Seconds between two tries.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
#: Seconds a server remembers an id unless it is configured otherwise, and how many of them are left for the way to it.
_IDMP_SECONDS = 100.0
_MARGIN = 5.0

Trim = tuple[str | int, ...]


class How(NamedTuple):
    """Options for adding an entry; see :meth:`millstream.App.publish`."""

    trim: Trim = ()  # The words that trim the stream
    idempotent: str | None = None  # An id of the caller's
    # Seconds, or a text such as ``"2m"``, for which it is sent again; None sends it once
    retry: float | str | None = None


class Sender:
    """Adds entries."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.line: Line = open_line(url, redial=True)
        self._trying: Line | None = None
        self._capabilities: Capabilities | None = None
        self._name = secrets.token_hex(8)
        self._free: list[str] = []  # producers' names that no publish uses now
        self._made = 0

    async def server(self, deadline: float | None = None) -> Capabilities:
        """The server's capabilities, asked once unless it does not report all of them now."""
        if self._capabilities is not None:
            return self._capabilities
        found = await (find(self.line) if deadline is None else find(self._tries(), limit=_share(deadline)))
        if not found.unknown:
            self._capabilities = found
        return found

    async def add(self, stream: str, fields: list[bytes], how: How) -> str:
        """Add one entry and return its id."""
        trim, idempotent, given = how
        if given is None:
            return str(await self.line.call(*xadd(stream, fields, trim, idempotent)), "ascii")
        retry = times.configured("publish(retry=", given, "s")
        if not retry:
            raise UsageError(f"publish(retry={given!r}) is invalid: it is more than 0 seconds. Omit it for one try.")
        deadline = asyncio.get_running_loop().time() + retry
        if idempotent is not None:
            return await self._until(deadline, stream, xadd(stream, fields, trim, idempotent), idmp=True)
        known = await self._known(deadline)
        if known.idmp or "idmp" in known.unknown:  # that is told no more in time: the server says itself why it refuses
            name = self._free.pop() if self._free else self._new_name()
            command = xadd(stream, fields, trim, secrets.token_hex(8), name)
            try:
                return await self._until(deadline, stream, command, idmp=True)
            finally:
                self._free.append(name)
        return await self._by_script(deadline, retry, stream, fields, trim)

    def _tries(self) -> Line:
        """The line of publishes that repeat: on the other one, they would wait out its longer limit first."""
        if self._trying is None:
            self._trying = open_line(self.url, redial=True)
        return self._trying

    def _new_name(self) -> str:
        self._made += 1
        return f"{PRODUCER}:{self._name}:{self._made}"

    async def _known(self, deadline: float) -> Capabilities:
        """The server's capabilities, asked until it reports on IDMP or the time is up."""
        pauses = iter(_PAUSES)
        while True:
            try:
                found = await self.server(deadline)
                if "idmp" not in found.unknown or not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    return found
            except Disconnected:
                if not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    raise

    async def _by_script(self, deadline: float, retry: float, stream: str, fields: list[bytes], trim: Trim) -> str:
        if len(fields) > WORDS_LIMIT:
            raise UsageError(
                f"publish(retry=) of an entry with {len(fields) // 2} fields: this server has no XADD IDMP, and a "
                f"script can add {WORDS_LIMIT // 2} at most; publish it without retry="
            )
        mark = beside(stream, "published", secrets.token_hex(12))
        words = (2, stream, mark, round(retry * 1000) + _LONGER_MS, *trim, "*", *fields)
        try:
            try:
                return await self._until(deadline, stream, ("EVALSHA", SHA, *words), idmp=False)
            except NoScriptError:
                return await self._until(deadline, stream, ("EVAL", SCRIPT, *words), idmp=False)
        except NoPermissionError as refused:
            raise UsageError(
                "publish(retry=): this server could not tell a repetition from a second entry, so nothing was sent: it "
                f"has no XADD IDMP, and scripts are refused: {refused}. Allow EVAL, EVALSHA and the keys millstream:*, "
                "or publish without retry="
            ) from None

    async def _until(self, deadline: float, stream: str, command: Command, *, idmp: bool) -> str:
        """Send until there is an answer; what the server cannot take now it may take later."""
        loop = asyncio.get_running_loop()
        pauses, first = iter(_PAUSES), 0.0
        while True:
            try:
                if idmp and first and loop.time() - first > await self._remembers(stream, deadline) - _MARGIN:
                    break
                first = first or loop.time()
                return str(await self._tries().call(*command, timeout=_share(deadline)), "ascii")
            except Disconnected:
                if not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    raise
            except ResponseError as refused:
                if not passes(refused) or not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    raise
        raise Disconnected(
            f"{stream}: no answer for {loop.time() - first:.0f} s, and by now the server may have forgotten whether "
            "the entry was added (XCFGSET IDMP-DURATION says how long it remembers)"
        )

    async def _remembers(self, stream: str, deadline: float) -> float:
        """Seconds for which the server knows an id of this stream."""
        try:
            flat = await self._tries().call("XINFO", "STREAM", stream, timeout=_share(deadline))
        except ResponseError as refused:
            return math.inf if "no such key" in str(refused) else _IDMP_SECONDS
        seconds = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"idmp-duration")
        return float(seconds) if isinstance(seconds, int) else _IDMP_SECONDS

    async def close(self) -> None:
        """Disconnect."""
        await self.line.close()
        if self._trying is not None:
            await self._trying.close()


def _share(deadline: float) -> float:
    """Seconds for one try: a third of the time left, so that a frozen server leaves time for its successor."""
    return min(_TRY, max(_LEAST, (deadline - asyncio.get_running_loop().time()) / 3))


async def _pause(deadline: float, seconds: float) -> bool:
    """Wait for the next try; False when there is no time for one."""
    if asyncio.get_running_loop().time() + seconds > deadline:
        return False
    await asyncio.sleep(seconds)
    return True
