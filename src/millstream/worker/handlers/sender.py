"""Adding entries for one event loop, over its own connection; with ``retry``, again if no reply came.

An XADD whose reply is lost may have been carried out, so sending it again may add a second entry. With ``retry``, each
publish has a mark by which the server recognizes it:

* with XADD IDMP (Millstream, Redis 8.6) an id under a producer's name that no other publish uses meanwhile. The server
  remembers only the latest ids of a producer, and here the latest one is enough;
* else a key next to the stream that one script sets together with the XADD::

      millstream:{orders}:published:<random>      string: the entry's id, for a minute longer than is tried

A server that supports neither is refused before anything is sent.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from millstream import times
from millstream.client.capabilities import Capabilities, find
from millstream.client.jobs import record
from millstream.client.later import schedule
from millstream.client.later.schedule import WORDS_LIMIT
from millstream.client.later.scripts import ServerScript, Word
from millstream.client.line import Command, Line, Reply, passes
from millstream.client.open import open_line
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import PartitionLayout, is_sealed, key_bytes, logical
from millstream.client.slots import beside
from millstream.client.url import advised, remedy
from millstream.errors import Disconnected, UsageError
from millstream.printable import without_password
from millstream.worker.handlers.publish import PRODUCER, key_in, xadd
from millstream.worker.jobs.replies import ReplyHints

#: Adds an entry unless its mark, or the marker of its unique name, refers to an entry that counts. KEYS: the stream,
#: the mark, the marker. ARGV: milliseconds of the mark and of the marker, 0 for none; 1 if the marker also counts after
#: its entry was handled; the group that must have handled it, empty for all; the arguments of XADD.
SCRIPT = ServerScript.beside("millstream.worker.handlers", "unique.lua")

#: Seconds for which the name of a unique entry, and the mark of an outbox row, are remembered.
_DAY = 86_400.0
#: Seconds between two updates of the server's index that a stream has schedules.
_NOTE = 3_600.0
#: Seconds after which a publish for later looks again if a plain stream was partitioned.
_PLAIN = 1.0
#: Milliseconds for which a mark outlives the last attempt, which may take half a minute.
_LONGER_MS = 60_000
#: Longest and shortest seconds for one attempt.
_TRY, _LEAST = 5.0, 0.2
#: Seconds between two attempts.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
#: Default seconds for which a server remembers an id, and a margin for the network.
_IDMP_SECONDS = 100.0
_MARGIN = 5.0

Trim = tuple[str | int, ...]


class Later(NamedTuple):
    """A publish at a later time."""

    id: str | None  # Id of the schedule; None for a random one
    when: schedule.When
    replace: bool = False  # Give a waiting schedule of that id this content and time


class Unique(NamedTuple):
    """A publish that adds nothing while an entry of the same name exists."""

    name: str
    within: float | None = None  # Seconds for which the name counts in any case; None until its entry is handled
    group: str | None = None  # Group that must have handled the entry; None for all


class How(NamedTuple):
    """Options for adding an entry; see :meth:`millstream.App.publish`."""

    trim: Trim = ()  # Trimming arguments of XADD
    idempotent: str | None = None  # Idempotency id that the caller chose
    # Seconds, or a text such as ``"2m"``, for which attempts are repeated; None makes a single attempt
    retry: float | str | None = None
    later: Later | None = None
    unique: Unique | None = None
    mark: str | None = None  # Mark of a publish that other processes may repeat; the server keeps it for a day
    key: str | bytes | float | None = None  # Partition key; None for the stream's own field
    keep_ms: int | None = None  # Milliseconds for which its result is kept; None for an entry without a result

    @property
    def needs_partitions(self) -> bool:
        """True if only a partitioned stream can take the entry; a row of an outbox keeps a key for any stream."""
        return self.key is not None and self.mark is None


class PlacedId(str):
    """The id of an entry, or of a schedule, with the stream or partition that has it."""

    __slots__ = ("stream",)
    stream: str

    def __new__(cls, ident: str, stream: str) -> Self:
        """Make the id with its stream."""
        self = super().__new__(cls, ident)
        self.stream = stream
        return self


class Sender:
    """Adds entries over the connections of one event loop."""

    def __init__(self, url: str, scheduled: Callable[[str], None] = lambda _: None) -> None:
        self.url = url
        self.line: Line = open_line(url, redial=True)
        self._trying: Line | None = None
        self._capabilities: Capabilities | None = None
        self._name = secrets.token_hex(8)
        self._free: list[str] = []  # Producer names that no publish is using
        self._made = 0
        self._scheduled = scheduled  # Called when a stream gets a schedule for the first time
        self.replies = ReplyHints(url, self.line)
        self._noted: dict[str, float] = {}  # Stream -> time at which its schedules were last recorded on the server
        self._layouts: dict[str, PartitionLayout] = {}  # Layouts of the streams that are known to be partitioned
        self._plain: dict[str, float] = {}  # Other streams -> time at which they were last found without a layout

    async def server(self, deadline: float | None = None) -> Capabilities:
        """Return the server's capabilities, read once; read again while some are unknown."""
        if self._capabilities is not None:
            return self._capabilities
        found = await (find(self.line) if deadline is None else find(self._tries(), limit=_share(deadline)))
        if not found.unknown:
            self._capabilities = found
        return found

    async def add(self, stream: str, fields: list[bytes], how: How) -> str:
        """Add one entry and return its id, or the schedule's id if it is for later."""
        with advised(self.url):
            return await self._place(stream, fields, how)

    async def _place(self, stream: str, fields: list[bytes], how: How) -> str:
        fields = self._wanting(fields, how)
        known = self._layouts.get(stream)
        seconds = 0.0 if how.retry is None else times.configured("publish(retry=", how.retry, "s")
        deadline = asyncio.get_running_loop().time() + seconds if seconds else None
        # A schedule would wait at a sealed stream until a worker hands it over, so a publish for later reads the layout
        # first, but not each of many; other publishes are refused there
        if known is None and (how.needs_partitions or (how.later is not None and not self._is_plain(stream))):
            known = await self._layout_for(stream, how, deadline)
            how = _left(how, deadline)
        while True:
            refused: ResponseError | None = None
            for place in _places(stream, known, fields, how):
                try:
                    return PlacedId(await self._add(place, fields, how), place)
                except ResponseError as error:
                    if not is_sealed(error):
                        raise
                    refused = error
            found = await self._layout_for(stream, how, deadline)
            how = _left(how, deadline)
            if refused is not None and found == known:
                raise refused
            known = found

    def _is_plain(self, stream: str) -> bool:
        """Return True if the stream was not partitioned a moment ago."""
        return asyncio.get_running_loop().time() < self._plain.get(stream, -math.inf) + _PLAIN

    async def _layout_for(self, stream: str, how: How, deadline: float | None) -> PartitionLayout | None:
        """Read a stream's layout, trying until the publish's deadline."""
        pauses = iter(_PAUSES)
        while True:
            try:
                return await self.layout(stream, needed=how.needs_partitions, deadline=deadline)
            except (Disconnected, ResponseError) as error:
                lasting = isinstance(error, ResponseError) and not passes(error)
                if lasting or deadline is None or not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    raise

    async def hand_over(self, one: schedule.Schedule) -> bool:
        """Add the entry of a schedule that waits next to a sealed stream, once; False if no layout replaces it.

        Raises:
            UsageError: the entry has no key.
        """
        stream = logical(one.stream)
        if stream is None or await self.layout(stream) is None:
            stream = one.stream
            if await self.layout(stream) is None:
                return False
        mark = f"later:{one.stream}:{one.id}"
        await self.add(stream, list(one.fields), How(one.trim, retry=_TRY, mark=mark, key=one.key))
        return True

    async def layout(
        self, stream: str, *, needed: bool = False, deadline: float | None = None
    ) -> PartitionLayout | None:
        """Read a stream's layout; None if it is not partitioned."""
        if deadline is None:
            found = await find_layout(self.line, stream)
        else:
            found = await find_layout(self._tries(), stream, limit=_share(deadline))
        if found is not None:
            self._layouts[stream] = found
            return found
        self._layouts.pop(stream, None)
        self._plain[stream] = asyncio.get_running_loop().time()
        if needed:
            raise UsageError(
                f"publish({stream!r}, key=) is invalid: the stream is not partitioned. Omit key=, or partition it: "
                f"`millstream stream partition {stream} 16`."
            )
        return None

    async def _add(self, stream: str, fields: list[bytes], how: How) -> str:
        trim, idempotent, given, later, unique, shared, *_ = how
        retry = 0.0 if given is None else times.configured("publish(retry=", given, "s")
        if given is not None and not retry:
            raise UsageError(f"publish(retry={given!r}) is invalid: it is more than 0 seconds. Omit it for one try.")
        deadline = None if given is None else asyncio.get_running_loop().time() + retry
        if later is not None:
            return await self._schedule(deadline, retry, stream, fields, how)
        if unique is not None or shared is not None:
            return await self._add_by_script(deadline, retry, stream, fields, how)
        if deadline is None or idempotent is not None:
            return str(await self._answer(deadline, stream, xadd(stream, fields, trim, idempotent), idmp=True), "ascii")
        known = await self._known(deadline)
        if known.idmp or "idmp" in known.unknown:  # if IDMP is unknown, the server's own error shows the reason
            name = self._free.pop() if self._free else self._new_name()
            command = xadd(stream, fields, trim, secrets.token_hex(8), name)
            try:
                return str(await self._until(deadline, stream, command, idmp=True), "ascii")
            finally:
                self._free.append(name)
        return await self._add_by_script(deadline, retry, stream, fields, how)

    def _tries(self) -> Line:
        """Return the connection for publishes with ``retry``: the other one would wait for its longer limit first."""
        if self._trying is None:
            self._trying = open_line(self.url, redial=True)
        return self._trying

    def _new_name(self) -> str:
        self._made += 1
        return f"{PRODUCER}:{self._name}:{self._made}"

    async def _known(self, deadline: float) -> Capabilities:
        """Return the server's capabilities, reading them until IDMP is known or the time is up."""
        pauses = iter(_PAUSES)
        while True:
            try:
                found = await self.server(deadline)
                if "idmp" not in found.unknown or not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    return found
            except Disconnected:
                if not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    raise

    async def _add_by_script(
        self, deadline: float | None, retry: float, stream: str, fields: list[bytes], how: How
    ) -> str:
        unique = how.unique
        mark, lives_mark = _mark(stream, deadline, retry, how)
        marker = beside(stream, "unique", unique.name if unique is not None else "")
        lives = 0 if unique is None else round((unique.within or _DAY) * 1000)
        firm, group = (0, "") if unique is None else (int(unique.within is not None), unique.group or "")
        words = (lives_mark, lives, firm, group, *how.trim, "*", *fields)
        reply = await self._by_script(SCRIPT, deadline, stream, (stream, mark, marker), words)
        return str(reply, "ascii")

    async def _schedule(self, deadline: float | None, retry: float, stream: str, fields: list[bytes], how: How) -> str:
        """Schedule an entry on the server."""
        later = how.later
        assert later is not None
        loop = asyncio.get_running_loop()
        if loop.time() > self._noted.get(stream, -math.inf) + _NOTE:
            # Before the schedule, since movers check only recorded streams
            await self._answer(deadline, stream, ("SADD", schedule.INDEX, stream), idmp=False)
            await self._answer(deadline, stream, ("HSET", schedule.CONTROL, schedule.FLAG, 1), idmp=False)
            self._noted[stream] = loop.time()
            self._scheduled(stream)
        mark, lives = _mark(stream, deadline, retry, how)
        ident, words = self._scheduling(later.id, lives, fields, how)
        keys = schedule.keys(stream, mark)
        reply = await self._by_script(schedule.SCRIPT, deadline, stream, keys, words, len(fields))
        if reply[2]:
            # First schedule of the stream: the server may have lost the record together with earlier data
            await self._answer(deadline, stream, ("SADD", schedule.INDEX, stream), idmp=False)
        return ident

    @staticmethod
    def _scheduling(
        given: str | None, mark_ms: int, fields: list[bytes], how: How
    ) -> tuple[str, tuple[bytes | str | int, ...]]:
        """Return the id of a schedule, and the arguments of the script that adds it."""
        later = how.later
        assert later is not None
        ident = given if given is not None else secrets.token_hex(8)
        expires = "" if later.when.expires_ms is None else later.when.expires_ms
        key = None if how.key is None else key_bytes(how.key)
        content = schedule.packed((*how.trim, "*", *fields), key)
        return ident, ("add", ident, mark_ms, *later.when.words, int(later.replace), expires, content)

    async def add_batch(self, stream: str, contents: Sequence[list[bytes]], hows: Sequence[How]) -> list[str]:
        """Add many entries in one round trip and return their ids, or those of their schedules."""
        begun: list[str] = []
        contents = [self._wanting(fields, how) for fields, how in zip(contents, hows, strict=True)]
        with advised(self.url):
            try:
                return await self._place_batch(stream, contents, hows, begun)
            except Disconnected as error:
                if begun and not error.sent:  # True only for the last command; the earlier ones were carried out
                    raise Disconnected(str(error)) from error
                raise

    def _wanting(self, fields: list[bytes], how: How) -> list[bytes]:
        """Return the fields of an entry, with the request for its result added."""
        if how.keep_ms is None:
            return fields
        return [*fields, *record.trailer(record.WantedResult(how.keep_ms, self.replies.name))]

    async def _place_batch(
        self, stream: str, contents: Sequence[list[bytes]], hows: Sequence[How], begun: list[str]
    ) -> list[str]:
        """Add many entries; append the streams that may have got some to ``begun``."""
        known = self._layouts.get(stream)
        if known is None and any(how.key is not None or how.later is not None for how in hows):
            known = await self.layout(stream, needed=any(how.key is not None for how in hows))
        rows = list(zip(contents, hows, strict=True))
        if hows and hows[0].later is not None:
            places = [_places(stream, known, fields, how)[0] for fields, how in rows]
            added: list[str] = [""] * len(rows)
            for place in dict.fromkeys(places):
                here = [one for one, found in enumerate(places) if found == place]
                ids = [later.id for one in here if (later := hows[one].later) is not None]
                found_ids = await self._add_batch_later(place, [contents[one] for one in here], ids, hows[0], begun)
                for one, ident in zip(here, found_ids, strict=True):
                    added[one] = ident
            return added
        replies: dict[int, Reply] = {}
        taken: dict[int, str] = {}
        left = list(range(len(rows)))
        while left:
            offers = {at: _places(stream, known, *rows[at]) for at in left}
            # Entries refused by a sealed stream continue together, so that entries of one key stay in order
            for turn in range(len(offers[left[0]])):
                commands = [
                    xadd(offers[at][turn], rows[at][0], rows[at][1].trim, rows[at][1].idempotent) for at in left
                ]
                sent = await self.line.calls(commands)
                replies |= zip(left, sent, strict=True)
                taken |= {at: offers[at][turn] for at in left}
                begun += [taken[at] for at in left if not isinstance(replies[at], Exception)]
                left = [at for at in left if isinstance(replies[at], ResponseError) and is_sealed(replies[at])]
                if not left:
                    break
            found = await self.layout(stream) if left else known
            if found == known:
                break
            known = found
        for reply in replies.values():
            if isinstance(reply, ResponseError):
                raise reply
        return [PlacedId(str(replies[at], "ascii"), taken[at]) for at in range(len(rows))]

    async def _add_batch_later(
        self, stream: str, contents: Sequence[list[bytes]], ids: Sequence[str | None], how: How, begun: list[str]
    ) -> list[str]:
        """Schedule many entries on the server; return the ids of the schedules."""
        if not contents:
            return []
        assert how.later is not None
        _check_size(max(map(len, contents)))
        # The first one records the stream and loads the script
        first = await self._schedule(None, 0.0, stream, contents[0], how._replace(later=how.later._replace(id=ids[0])))
        begun.append(stream)
        keys = schedule.keys(stream, beside(stream, "published", ""))
        steps = [self._scheduling(id_, 0, fields, how) for fields, id_ in zip(contents[1:], ids[1:], strict=True)]
        replies = await self.line.calls([schedule.SCRIPT.command(keys, words) for _, words in steps]) if steps else []
        for reply, (_, words) in zip(replies, steps, strict=True):
            if isinstance(reply, NoScriptError):  # after a failover, the script is missing
                await self.line.call(*schedule.SCRIPT.command(keys, words, whole=True))
            elif isinstance(reply, Exception):
                raise reply
        return [first, *(ident for ident, _ in steps)]

    async def _by_script(
        self,
        script: ServerScript,
        deadline: float | None,
        stream: str,
        keys: Sequence[str],
        words: Sequence[Word],
        size: int | None = None,
    ) -> Reply:
        """Run a script that adds an entry once, however often it is sent."""
        _check_size(len(words) if size is None else size)
        try:
            try:
                return await self._answer(deadline, stream, script.command(keys, words), idmp=False)
            except NoScriptError:
                return await self._answer(deadline, stream, script.command(keys, words, whole=True), idmp=False)
        except NoPermissionError as refused:
            raise UsageError(
                "publish(at=, delay=, unique=, retry=) needs scripts, which this server refuses; without these and "
                f"XADD IDMP a repetition could add a second entry: {refused}. Nothing was added. Allow "
                "EVAL, EVALSHA and the keys millstream:*, or publish without these options."
            ) from None

    async def _answer(self, deadline: float | None, stream: str, command: Command, *, idmp: bool) -> Reply:
        if deadline is None:
            return await self.line.call(*command)
        return await self._until(deadline, stream, command, idmp=idmp)

    async def _until(self, deadline: float, stream: str, command: Command, *, idmp: bool) -> Reply:
        """Send a command until a reply comes; a server that cannot accept it now may accept it later."""
        loop = asyncio.get_running_loop()
        pauses, first, sent, began = iter(_PAUSES), 0.0, False, loop.time()
        while True:
            try:
                if idmp and first and loop.time() - first > await self._remembers(stream, deadline) - _MARGIN:
                    break
                first = first or loop.time()
                return await self._tries().call(*command, timeout=_share(deadline))
            except Disconnected as error:
                sent |= error.sent  # an earlier attempt may have added it
                if not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    reason = f"no answer within {loop.time() - began:.1f} s, at last: {error}"
                    raise Disconnected(reason, sent=sent) from error
            except ResponseError as refused:
                if not passes(refused) or not await _pause(deadline, next(pauses, _PAUSES[-1])):
                    raise
        raise Disconnected(
            f"{stream}: no answer for {loop.time() - first:.0f} s, and by now the server may have forgotten whether "
            "the entry was added (XCFGSET IDMP-DURATION sets how long it remembers)"
        )

    async def _remembers(self, stream: str, deadline: float) -> float:
        """Return the seconds for which the server remembers an id of this stream."""
        try:
            flat = await self._tries().call("XINFO", "STREAM", stream, timeout=_share(deadline))
        except ResponseError as refused:
            return math.inf if "no such key" in str(refused) else _IDMP_SECONDS
        seconds = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"idmp-duration")
        return float(seconds) if isinstance(seconds, int) else _IDMP_SECONDS

    async def close(self) -> None:
        """Disconnect."""
        await self.replies.close()
        await self.line.close()
        if self._trying is not None:
            await self._trying.close()


def unanswered(stream: str, url: str, error: Disconnected) -> Disconnected:
    """Return the error of a publish without a reply, with its outcome and the next step."""
    reason = str(error).rstrip(".")
    if reason.startswith("cannot connect to "):  # it names the server and the remedy: see client.url.advised
        return Disconnected(f"publish({stream!r}): {reason}. Nothing was added.", sent=False)
    end = (
        "It may have been added. Look at the stream before you publish it again."
        if error.sent
        else f"Nothing was added. {remedy(url, error)}, or correct the URL."
    )
    return Disconnected(f"publish({stream!r}) to {without_password(url)}: {reason}. {end}", sent=error.sent)


def _check_size(words: int) -> None:
    if words > WORDS_LIMIT:
        raise UsageError(
            f"publish() of an entry with more than {WORDS_LIMIT // 2} fields is invalid with at=, delay=, unique= "
            "and with retry= on a server without XADD IDMP: a script cannot add it. Publish it without them."
        )


def _mark(stream: str, deadline: float | None, retry: float, how: How) -> tuple[str, int]:
    """Return the mark's key and its lifetime in milliseconds; 0 if the publish is sent once."""
    if how.mark is not None:
        return beside(stream, "published", how.mark), round(_DAY * 1000)
    if deadline is None:
        return beside(stream, "published", ""), 0
    return beside(stream, "published", secrets.token_hex(12)), round(retry * 1000) + _LONGER_MS


def _places(stream: str, layout: PartitionLayout | None, fields: list[bytes], how: How) -> tuple[str, ...]:
    """Return the streams to which an entry is offered, in order."""
    if layout is None:
        return (stream,)
    key = key_in(layout, fields, how.key)
    if how.later is not None:
        return (layout.place(key),)
    return layout.places(key, known=(how.idempotent or how.unique or how.mark) is not None)


def _left(how: How, deadline: float | None) -> How:
    """Return the options with the time left for ``retry``."""
    return how if deadline is None else how._replace(retry=max(deadline - asyncio.get_running_loop().time(), _LEAST))


def _share(deadline: float) -> float:
    """Return the seconds for one try: a third of the time left, so that a frozen server's successor gets time."""
    return min(_TRY, max(_LEAST, (deadline - asyncio.get_running_loop().time()) / 3))


async def _pause(deadline: float, seconds: float) -> bool:
    """Wait for the next try; return False if no time is left for one."""
    if asyncio.get_running_loop().time() + seconds > deadline:
        return False
    await asyncio.sleep(seconds)
    return True
