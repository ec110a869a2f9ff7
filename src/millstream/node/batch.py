"""Plain commands: the usual forms of the commands that decide how fast a server is, run many at a time.

What has come from a client is looked through command by command. A *plain* one is run at once, on the values
themselves: no context, no reply object, no record of its own. At the first that is anything else (another command, an
option, an error, a missing key, a key that expires or is waited for by who would have to be looked at again) the run
ends, that command goes the ordinary way through :meth:`~millstream.node.node.Node.execute`, and the next run begins
behind it. So nothing here says what a command means: it says what the handler in ``commands/`` would have done where
nothing is unusual, and the tests run every conformance case both ways.

What holds for a session as a whole (permissions, transactions, notifications, a full disk) is looked at once, before
the run: see :meth:`Batches.takes`. All changes of a run are one record of the log, and its replies wait for that
record together. There are two runners with one interface: :class:`PyPlainRunner` here, and the one in the native core.
"""

import time
from typing import TYPE_CHECKING, Any

from millstream import core
from millstream.engine import ids
from millstream.engine.keyspace import StringValue
from millstream.engine.streams.group import ATTEMPTS, Group, next_count
from millstream.engine.streams.nodes import bulk_ids
from millstream.engine.streams.pending import Consumer, IdIndex
from millstream.engine.streams.stream import Stream
from millstream.node import forms
from millstream.node.calls import GATHERED_MAX, ScriptCalls
from millstream.node.journal import not_logged
from millstream.node.log import codec
from millstream.node.plain import NAMES, NOTHING, PlainRun, PlainRunner
from millstream.node.queued import append_plain
from millstream.protocol import limits
from millstream.protocol.reader import CommandReader
from millstream.protocol.split import Splitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millstream.commands.context.config import Config
    from millstream.commands.context.session import Session
    from millstream.engine.keyspace import Database, Transition
    from millstream.engine.waiting import Place
    from millstream.node.clients.blocking import Waiter
    from millstream.node.clients.sessions import Sessions
    from millstream.node.host import NodeHost
    from millstream.node.journal import Journal
    from millstream.node.stats import NodeStats
    from millstream.replies import Buffer

# Commands after which a run ends, so that other clients have their turn
RUN_MAX = 512
# Bytes of replies after which a run ends, so that they can be sent
REPLIES_MAX = 256 * 1024
# Bytes of one reply; a larger one goes the ordinary way, which holds it once. What a run cannot hold ends the server,
# as what it has changed could not be logged; what one command cannot hold is an error.
REPLY_MAX = 4 * 1024 * 1024
# Bytes of the longest id as it is replied
_ID_MAX = 48
# A count or a time above this goes the ordinary way, which knows which of them are refused
_LARGEST = 2**31
# Rows of XPENDING's reply; more are surely too many bytes, or nearly so
ROWS_MAX = 50_000


_EMPTY = Splitter(b"")
_NONE: list[list[bytes]] = []


class PyPlainRunner(ScriptCalls):
    """The runner in Python, which is also the specification of the native one.

    Args:
        config: the limits of a stream's nodes are looked at.
        waiting: the places where somebody waits.
        claiming: those of them where somebody waits to claim, and is to be told when records change hands.
        records: make records of what changes, since a log is kept.

    Attributes:
        records: as given.
        slow: see :class:`PlainRunner`.
    """

    def __init__(
        self, config: "Config", waiting: "Mapping[Place, object]", claiming: "Mapping[Place, object]", records: bool
    ) -> None:
        super().__init__()
        self._config = config
        self._waiting, self._claiming = waiting, claiming
        self.records = records
        self._splitter = Splitter(b"")
        self.slow: list[tuple[bytes, int]] = []
        self._calls = [0] * len(NAMES)
        self._nanoseconds = [0] * len(NAMES)
        self._steps: list[Transition] = []
        self._db: Database
        self._wall = 0
        self._resp = 2
        self._dirty = self._hits = self._misses = 0
        self._soft_steps = 0
        self._woken: bytes | None = None
        self._alike: list[list[bytes]] = []  # fields of additions that the handler has made with the one it was for
        self._before = 0, 0  # commands run before the one at hand, and bytes of their replies
        self._is_changing = False  # several changes are being made; a failure leaves some of them
        handlers: list[Callable[[list[bytes]], bytes | None]] = [
            self._get, self._ping, self._set, self._xack, self._xadd, self._xautoclaim, self._xclaim, self._xgroup,
            self._xlen, self._xpending, self._xrange, self._xread, self._xreadgroup, self._xrevrange,
        ]  # fmt: skip
        self._handlers = {
            word: (at, handler)
            for at, (name, handler) in enumerate(zip(NAMES, handlers, strict=True))
            for word in (name.encode(), name.upper().encode())
        }

    def run(self, db: "Database", data: bytes, at: int, wall: int, resp: int) -> PlainRun:
        """See :class:`PlainRunner`.

        Args:
            db: the session's database.
            data: bytes from the client.
            at: where to begin.
            wall: wall milliseconds, for all of them.
            resp: the session's protocol, 2 or 3.
        """
        splitter = self._splitter
        if splitter.data is not data or splitter.at != at:
            try:
                splitter = self._splitter = Splitter(data, at)
            except MemoryError:
                return NOTHING._replace(at=at)  # the reader says so
        self._db, self._wall, self._resp = db, wall, resp
        replies: list[bytes] = []
        commands, size, last = 0, 0, -1
        handlers, calls, nanoseconds, clock = self._handlers, self._calls, self._nanoseconds, time.perf_counter_ns
        slow_from = self._config.slow_from
        words: list[bytes] | None = None
        noted = len(self._steps)
        try:
            before = clock()
            while (words := splitter.next()) is not None:
                found = handlers.get(words[0]) or handlers.get(words[0].lower())
                if found is None:
                    break
                self._before = commands, size
                reply = found[1](words)
                if reply is None:
                    break
                self._is_changing = True  # what is done is not to be handed back, and its reply not to be lost
                done, words = words, None
                noted = len(self._steps)
                last = found[0]
                alike, self._alike = self._alike, _NONE
                count = 1 + len(alike)
                calls[last] += count
                commands += count
                replies.append(reply)
                size += len(reply)
                now = clock()
                took, before = now - before, now
                nanoseconds[last] += took
                if took >= slow_from:
                    self._keep_slow(done, alike, took // count, slow_from)
                self._is_changing = False
                if self._woken is not None or size >= REPLIES_MAX or commands >= RUN_MAX:
                    break
        except Exception:
            # One that fails (no memory) has changed nothing, and shows why on the ordinary way. So a handler makes its
            # reply and notes its step before it changes anything; here the step goes again
            if self._is_changing:
                raise
            del self._steps[noted:]
        return self._ended(words, commands, b"".join(replies), last)

    def _keep_slow(self, words: list[bytes], alike: list[list[bytes]], took: int, slow_from: int) -> None:
        """Keep a command for SLOWLOG, and the ``alike`` ones made with it, of which each took as long as the others."""
        if took >= slow_from:
            self.slow += [(forms.packed(each), took) for each in (words, *((*words[:3], *one) for one in alike))]

    def _room(self) -> int:
        """How many additions may be made together, so that the run ends where it would if they were one by one."""
        commands, size = self._before
        return min(RUN_MAX - commands, (REPLIES_MAX - size) // _ID_MAX)

    def _ended(self, words: list[bytes] | None, commands: int, replies: bytes, last: int) -> PlainRun:
        steps, splitter = self._steps, self._splitter
        record = codec.pack(self._wall, steps) if steps and self.records else None
        soft = 0 < len(steps) == self._soft_steps
        name = NAMES[last] if commands else ""
        at, dirty, hits, misses, woken = splitter.at, self._dirty, self._hits, self._misses, self._woken
        if steps:
            self._steps = []
        self._dirty = self._hits = self._misses = self._soft_steps = 0
        self._woken = None
        if at == len(splitter.data):
            self._splitter = _EMPTY
        return PlainRun(at, words, commands, name, replies, record, dirty, hits, misses, woken, soft, at)

    def drain(self) -> list[tuple[int, int]]:
        """See :class:`PlainRunner`."""
        drained = list(zip(self._calls, self._nanoseconds, strict=True))
        self._calls = [0] * len(NAMES)
        self._nanoseconds = [0] * len(NAMES)
        return drained

    # ------------------------------------------------------------------ the commands; None: not plain

    def _get(self, words: list[bytes]) -> bytes | None:
        db = self._db
        if len(words) != 2 or (db.expires and words[1] in db.expires):
            return None
        value = db.keys.get(words[1])
        if value is None:
            self._misses += 1
            return b"$-1\r\n" if self._resp == 2 else b"_\r\n"
        if type(value) is not StringValue:
            return None
        data = value.data
        if len(data) > REPLY_MAX:
            return None
        self._hits += 1
        return b"$%d\r\n%b\r\n" % (len(data), data)

    def _ping(self, words: list[bytes]) -> bytes | None:
        # With sync-replicas what a run answers may wait without end, and a PING must not: it tells of no data
        return b"+PONG\r\n" if len(words) == 1 and not self._config.sync_replicas else None

    def _set(self, words: list[bytes]) -> bytes | None:
        if len(words) != 3:
            return None
        _, key, data = words
        db = self._db
        if (db.expires and key in db.expires) or (db.index, key) in self._waiting:
            return None
        self._steps.append(("set", db.index, key, data, None))
        db.keys[key] = StringValue(data)
        self._dirty += 1
        return b"+OK\r\n"

    def _stream(self, key: bytes) -> Stream | None:
        """The stream at a key; None if there is none, or if it may have to be deleted first."""
        db = self._db
        value = db.keys.get(key)
        return value if type(value) is Stream and key not in db.expires else None

    def _xadd(self, words: list[bytes]) -> bytes | None:
        """``XADD key * field value ...``, and those that follow it at once and add as many fields to the same stream.

        What is the same for all of them is looked at once; their ids follow each other, since the time is the same.
        """
        if len(words) < 5 or not len(words) & 1 or words[2] != b"*":
            return None
        key, db, splitter = words[1], self._db.index, self._splitter
        stream = self._stream(key)
        if stream is None or stream.last_id == ids.MAX_ID:
            return None
        first = max(self._wall << 64, stream.last_id + 1)
        is_waited_for = (db, key) in self._waiting
        added, written, alike, mark = [words[3:]], [splitter.rest(3)], _NONE, splitter.mark
        try:
            if splitter.has_more and not is_waited_for and first < ids.MAX_ID - RUN_MAX:
                alike, rests = splitter.alike(3, self._room() - 1)
                added += alike
                written += rests
            head = b"*%d\r\n" % len(added[0])
            names = bulk_ids(first, len(added))
            wires = [b"*2\r\n%b%b%b\r\n" % (name, head, rest) for name, rest in zip(names, written, strict=True)]
            reply = b"".join(names)
        except MemoryError:
            splitter.go_back(mark)  # one by one they may find it
            raise
        self._is_changing = True
        fresh = stream.add_all(first, added, wires, self._config.node_max_bytes, self._config.node_max_entries)
        if self.records:
            for new_id, fields in enumerate(added, first):
                self._steps.append(("xadd", db, key, ids.pack(new_id), fields, fresh[new_id - first], None))
        self._is_changing = False
        self._alike = alike
        self._dirty += len(added)
        if is_waited_for:
            self._woken = key
        return reply

    def _xgroup(self, words: list[bytes]) -> bytes | None:  # noqa: ARG002 - plain of a primary alone
        return None

    def _xlen(self, words: list[bytes]) -> bytes | None:
        stream = self._stream(words[1]) if len(words) == 2 else None
        if stream is None:
            return None
        self._hits += 1
        return b":%d\r\n" % stream.length

    def _xrange(self, words: list[bytes]) -> bytes | None:
        return self._range(words, backwards=False)

    def _xrevrange(self, words: list[bytes]) -> bytes | None:
        return self._range(words, backwards=True)

    def _range(self, words: list[bytes], *, backwards: bool) -> bytes | None:
        count = -1
        if len(words) == 6:
            count = (forms.number(words[5]) or 0) if words[4].upper() == b"COUNT" else 0
            if not count:
                return None
        elif len(words) != 4:
            return None
        first, second = (words[3], words[2]) if backwards else (words[2], words[3])
        start, end = forms.start(first), forms.end(second)
        stream = self._stream(words[1])
        if start is None or end is None or stream is None:
            return None
        taken, buffers, _ = stream.entries.reply(start, end, count, backwards=backwards)
        if sum(map(len, buffers)) >= REPLY_MAX:
            return None
        self._hits += 1
        return b"*%d\r\n%b" % (taken, b"".join(buffers))

    def _xread(self, words: list[bytes]) -> bytes | None:
        """``XREAD [COUNT n] [BLOCK ms] STREAMS key id`` that finds something."""
        at, count = 1, -1
        while len(words) > at + 3:
            value, option = forms.number(words[at + 1]), words[at].upper()
            if value is None or value > _LARGEST or option not in {b"COUNT", b"BLOCK"}:
                return None
            if option == b"COUNT":
                count = value or -1
            at += 2
        if len(words) != at + 3 or words[at].upper() != b"STREAMS":
            return None
        key = words[at + 1]
        after, stream = forms.bound(words[at + 2], 0), self._stream(key)
        if after is None or words[at + 2] in forms.SIGNS or stream is None:
            return None
        if after == ids.MAX_ID or not stream.length or stream.entries.last_live_id <= after:
            return None
        taken, buffers, _ = stream.entries.reply(after + 1, ids.MAX_ID, count)
        if sum(map(len, buffers)) >= REPLY_MAX:
            return None
        self._hits += 1
        head = b"*1\r\n*2\r\n" if self._resp == 2 else b"%1\r\n"
        return b"%b$%d\r\n%b\r\n*%d\r\n%b" % (head, len(key), key, taken, b"".join(buffers))

    def _xreadgroup(self, words: list[bytes]) -> bytes | None:
        """``XREADGROUP GROUP group consumer [COUNT n] [BLOCK ms] [NOACK] STREAMS key >`` that finds something new.

        Where the group reads in order, that is: its count is known and goes on, and nothing ahead of it is pending.
        """
        end = len(words) - 3
        if end < 4 or words[-1] != b">" or words[1].upper() != b"GROUP" or words[end].upper() != b"STREAMS":
            return None
        at, count, noack = 4, -1, False
        while at < end:
            word = words[at].upper()
            at += 1
            if word == b"NOACK":
                noack = True
                continue
            value = forms.number(words[at]) if at < end else None
            if value is None or value > _LARGEST or word not in {b"COUNT", b"BLOCK"}:
                return None
            if word == b"COUNT":
                count = value or -1
            at += 1
        db, key = self._db.index, words[-2]
        holder = self._holder(key, words[2], words[3])
        if holder is None:
            return None
        stream, group, consumer = holder
        if not _reads_in_order(stream, group):
            return None
        taken, buffers, last = stream.entries.reply(group.last_id + 1, ids.MAX_ID, count)
        if sum(map(len, buffers)) >= REPLY_MAX:
            return None
        head = b"*1\r\n*2\r\n" if self._resp == 2 else b"%1\r\n"
        reply = b"%b$%d\r\n%b\r\n*%d\r\n%b" % (head, len(key), key, taken, b"".join(buffers))
        after = ids.pack(group.last_id)
        self._steps.append(("gread", db, key, words[2], words[3], self._wall, ids.pack(last), noack, after))
        stream.deliver(group, consumer, last, self._wall, noack=noack)
        self._hits += 1
        self._dirty += 1
        return reply

    def _group(self, key: bytes, name: bytes) -> Group | None:
        stream = self._stream(key)
        return None if stream is None else stream.groups.get(name)

    def _holder(self, key: bytes, name: bytes, consumer: bytes) -> tuple[Stream, Group, Consumer] | None:
        """A consumer who may be given entries, with its group; None if one is missing, or somebody waits to claim."""
        stream = self._stream(key)
        group = None if stream is None else stream.groups.get(name)
        holder = None if group is None else group.consumers.get(consumer)
        if stream is None or group is None or holder is None or (self._db.index, key) in self._claiming:
            return None
        return stream, group, holder

    def _xack(self, words: list[bytes]) -> bytes | None:
        if len(words) < 4:
            return None
        wanted = forms.entry_ids(words[3:])
        group = self._group(words[1], words[2])
        if group is None or wanted is None:
            return None
        pending = group.pending
        if isinstance(pending, IdIndex) and pending.begins_with(wanted):
            there = wanted  # found at a glance; else they are looked for one by one
        else:
            there = list(dict.fromkeys([entry for entry in wanted if entry in pending]))
        reply = b":%d\r\n" % len(there)
        if there:
            packed = ids.pack_all(there)
            self._steps.append(("gack", self._db.index, words[1], words[2], packed))
            group.forget_all(packed)
            self._dirty += len(there)
        self._hits += 1
        return reply

    def _xpending(self, words: list[bytes]) -> bytes | None:
        """``XPENDING key group``, and ``XPENDING key group [IDLE ms] start end count [consumer]``."""
        if len(words) < 3:
            return None
        group = self._group(words[1], words[2])
        if group is None:
            return None
        reply = self._summary(group) if len(words) == 3 else self._pending_range(group, words)
        self._hits += reply is not None
        return reply

    def _summary(self, group: Group) -> bytes | None:
        pending = group.pending
        if not len(pending):
            return b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n" if self._resp == 2 else b"*4\r\n:0\r\n_\r\n_\r\n_\r\n"
        rows = [
            b"*2\r\n%b%b" % (forms.bulk(name), forms.bulk(b"%d" % len(consumer.pending)))
            for name, consumer in sorted(group.consumers.items())
            if len(consumer.pending)
        ]
        if sum(map(len, rows)) >= REPLY_MAX:
            return None
        ends = forms.bulk(ids.text(pending.first())) + forms.bulk(ids.text(pending.last()))
        return b"*4\r\n:%d\r\n%b*%d\r\n%b" % (len(pending), ends, len(rows), b"".join(rows))

    def _pending_range(self, group: Group, words: list[bytes]) -> bytes | None:
        at, min_idle = (5, forms.number(words[4])) if len(words) > 7 and words[3].upper() == b"IDLE" else (3, 0)
        if min_idle is None or not at + 3 <= len(words) <= at + 4:
            return None
        start, end, count = forms.start(words[at]), forms.end(words[at + 1]), forms.number(words[at + 2])
        if start is None or end is None or count is None:
            return None
        index = group.pending
        if len(words) == at + 4:
            consumer = group.consumers.get(words[at + 3])
            if consumer is None:
                return b"*0\r\n"
            index = consumer.pending
        if min(count, len(index)) > ROWS_MAX:
            return None
        number, rows = index.idle_rows(start, end, count, min_idle, self._wall)
        return b"*%d\r\n%b" % (number, rows) if len(rows) < REPLY_MAX else None

    def _xclaim(self, words: list[bytes]) -> bytes | None:
        """``XCLAIM key group consumer min-idle id [id ...]`` of ascending ids whose entries are there.

        With ``IDLE ms``, ``TIME ms``, ``RETRYCOUNT n`` and ``JUSTID`` in any order.
        """
        wanted: list[int] = []
        while len(words) > len(wanted) + 5 and (entry := forms.entry_id(words[len(wanted) + 5])) is not None:
            if wanted and entry <= wanted[-1]:
                return None
            wanted.append(entry)
        options = forms.claim_options(words[len(wanted) + 5 :], self._wall)
        if len(words) < 6 or options is None:
            return None
        holder, min_idle = self._holder(*words[1:4]), forms.number(words[4])
        if holder is None or min_idle is None:
            return None
        pending, entries, latest = holder[1].pending, holder[0].entries, self._wall - min_idle
        found: list[int] = []
        counts: list[int] = []
        for entry in wanted:
            record = pending.get(entry)
            if record is None:
                continue
            if entry not in entries:
                return None
            if record.consumer is None or not min_idle or record.time <= latest:
                found.append(entry)
                counts.append(record.count)
        return self._claim(words, holder, options, found, counts)

    def _xautoclaim(self, words: list[bytes]) -> bytes | None:
        """``XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]`` that comes upon no entry that is gone."""
        if len(words) < 6:
            return None
        start, min_idle, count, just_id, at = forms.start(words[5]), forms.number(words[4]), 100, False, 6
        while at < len(words):
            if words[at].upper() == b"JUSTID":
                just_id = True
                at += 1
                continue
            count = (forms.number(words[at + 1]) or 0) if len(words) > at + 1 and words[at].upper() == b"COUNT" else 0
            if not 0 < count <= _LARGEST:
                return None
            at += 2
        holder = self._holder(*words[1:4])
        if holder is None or start is None or min_idle is None:
            return None
        entries, group = holder[0].entries, holder[1]
        cursor, taken, counts, gone = group.claimable(
            entries, start, min_idle, self._wall, most=count, looks=count * ATTEMPTS
        )
        if gone:
            return None
        options = forms.ClaimOptions(self._wall, None, just_id)
        form = b"*3\r\n%b%%b*0\r\n" % forms.bulk(ids.text(cursor))
        return self._claim(words, holder, options, ids.unpack_all(taken), counts, form)

    def _claim(
        self,
        words: list[bytes],
        holder: tuple[Stream, Group, Consumer],
        options: forms.ClaimOptions,
        found: list[int],
        counts: list[int],
        form: bytes = b"%b",
    ) -> bytes | None:
        """Give records to a consumer; the reply, of ids or entries, in the form given."""
        (stream, group, consumer), (time, retry_count, just_id) = holder, options
        if counts and min(counts) < 0:
            return None
        rows: list[Buffer]
        if just_id:
            rows = [forms.bulk(ids.text(entry)) for entry in found]
        else:
            rows = [wire for wire in map(stream.entries.wire, found) if wire is not None]
        if sum(map(len, rows)) >= REPLY_MAX:
            return None
        wall = self._wall
        place = (self._db.index, *words[1:4], wall)
        reply = form % (b"*%d\r\n%b" % (len(found), b"".join(rows)))
        if found:
            if retry_count is not None:
                counts = [retry_count] * len(found)
            elif not just_id:
                counts = list(map(next_count, counts))
            packed = ids.pack_all(found)
            self._steps.append(("gclaim", *place, time, packed, counts))
            self._is_changing = True
            group.assign_all(packed, consumer, time, counts)
            self._is_changing = False
            consumer.seen = consumer.active = wall
            self._dirty += len(found)
        elif consumer.seen != wall:
            self._steps.append(("cseen", *place))
            consumer.seen = wall
            self._soft_steps += 1
        self._hits += 1
        return reply


def _reads_in_order(stream: Stream, group: Group) -> bool:
    """Whether there is something new, whose count follows from the group's, and none of which is pending."""
    last, entries = group.last_id, stream.entries
    if not entries.length or entries.last_live_id <= last or not stream.counts_on(group):
        return False
    return not len(group.pending) or group.pending.last() <= last


_RUNNER: "Callable[[Config, Mapping[Place, object], Mapping[Place, object], bool], PlainRunner]" = core.choose(
    PyPlainRunner
)


class Batches:
    """Runs of plain commands for the sessions of a node.

    Args:
        host: the configuration, the users and the data; its ``wall`` follows.
        sessions: the clients, and what they wait for and watch.
        journal: where records go.
        stats: what INFO counts.

    Attributes:
        call: runs a plain command of a script, between :meth:`begin_calls` and :meth:`end_calls`.
    """

    def __init__(self, host: "NodeHost", sessions: "Sessions", journal: "Journal", stats: "NodeStats") -> None:
        self._host, self._journal, self._stats = host, journal, stats
        self._config, self._accounts, self._keyspace = host.config, host.accounts, host.keyspace
        self._pause, self._watched = sessions.pause, sessions.watches.by_place
        waits = sessions.waits
        places = waits.lines.by_place, waits.claimers.by_place
        self._runner: PlainRunner = _RUNNER(host.config, *places, journal.log is not None)
        self.call = self._runner.call
        self._slow = self._runner.slow
        stats.sources.append(self._drain)

    def make_records(self) -> None:
        """From here on runs make records though no log is kept: replicas are told what is in them."""
        self._runner.records = True

    def takes(self, session: "Session") -> bool:
        """Whether plain commands of this session may be run now, for as long as it runs nothing else.

        What may be in the way: the user's rights, subscriptions (RESP2 then takes few commands), CLIENT REPLY, a pause,
        a full disk, loading, too few replicas, being one, or its being one; but for what a transaction queues, also
        events and WATCH.
        """
        return (
            session.user in self._accounts.unrestricted
            and session.reply_mode == "on"
            and not (session.channels or session.patterns)
            and session.held is None
            and self._pause.ends is None
            and self._journal.outage is None
            and self._journal.loading is None
            and (not self._config.min_replicas or self._host.replication.good >= self._config.min_replicas)
            and (session.queue is not None or not self._config.events)
            and (session.queue is not None or not self._watched)
            and not (self._host.following.is_replica or session.is_replica)
        )

    def take(self, session: "Session", reader: "CommandReader", wall: int) -> PlainRun:
        """Run the plain commands that are next in what a session has sent, and take them out of that.

        The caller keeps their replies until the journal's position is reached, then serves who waited for the key
        ``woken``. What comes next is in ``session.held`` if it is the command behind them; after a run of none it
        comes from the reader, and after any other there may be a further run.

        Args:
            session: who asks.
            reader: what it has sent.
            wall: wall milliseconds.

        Raises:
            StorageError: the log takes nothing any more.
        """
        chunk = reader.chunk
        if not chunk or not self.takes(session):
            return NOTHING
        run = self.run(session, chunk, reader.at, wall)
        reader.advance(run.at)
        session.held = run.words
        return run

    def run(self, session: "Session", data: bytes, at: int, wall: int) -> PlainRun:
        """Run plain commands of a session that :meth:`takes` said yes to, and log them.

        Args:
            session: who asks.
            data: bytes from it.
            at: where to begin.
            wall: wall milliseconds.

        Raises:
            StorageError: the log takes nothing any more.
        """
        session.last_used = self._host.wall = wall
        if session.queue is not None:
            end, commands, last = append_plain(session, session.queue, data, at)
            return NOTHING._replace(at=end, commands=commands, last=last, replies=b"+QUEUED\r\n" * commands)
        run = self._counted(session, data, at, wall)
        if run.commands:
            session.commands += run.commands
            session.last_command = run.last
            if run.record is not None:
                self._journal.append_run(run.record, soft=run.soft)
        return run

    def run_inside(self, session: "Session", data: bytes, at: int, wall: int) -> PlainRun:
        """Run plain commands of a transaction, as a part of its record.

        Args:
            session: whose transaction it is; :meth:`takes` said yes to it.
            data: the commands.
            at: where to begin.
            wall: wall milliseconds.

        Raises:
            StorageError: the log will never have what was changed.
        """
        run = self._counted(session, data, at, wall)
        if run.record is not None:
            self._journal.note_run(run.record, soft=run.soft)
        return run

    def obey(self, session: "Session", data: bytes, at: int, wall: int, *, is_open: bool) -> PlainRun:
        """Run plain commands of a primary, as a part of the record at work.

        Args:
            session: in whose name they are run.
            data: bytes of the primary.
            at: where to begin.
            wall: milliseconds.
            is_open: that is amid a transaction.

        Raises:
            StorageError: as :meth:`run`.
        """
        if self._config.events or self._watched:
            return NOTHING._replace(at=at, whole=at)
        try:
            run = self._runner.obey(self._keyspace.databases[session.db], data, at, wall, is_open)
        except Exception as error:  # as in _counted
            raise not_logged("commands of the primary were run", error) from error
        self._count(run)
        if self._slow:
            self._note_slow(session, wall)
        if run.record is not None:
            self._journal.note_run(run.record, soft=run.soft)
        return run

    def run_again(self, waiter: "Waiter", wall: int) -> PlainRun:
        """Run a command that waited, if it is plain now, of a session that :meth:`takes` says yes to, and log it.

        Args:
            waiter: who waits.
            wall: wall milliseconds.

        Raises:
            StorageError: the log takes nothing any more.
        """
        run = self._counted(waiter.session, waiter.packed, 0, wall, waiter.given)
        if run.commands:  # the same call as before
            self._stats.processed -= 1
            self._stats.command(run.last).calls -= 1
            if run.record is not None:
                self._journal.append_run(run.record, soft=run.soft)
        return run

    def begin_calls(
        self, session: "Session", wall: int, left: int, table: "Callable[..., Any]", faults: list[BaseException]
    ) -> bool:
        """Whether plain commands of a script are run by :attr:`call` from here on, until :meth:`end_calls`.

        Args:
            session: the script's.
            wall: wall milliseconds, for all commands.
            left: nanoseconds after which no more commands are run; below zero for no such time.
            table: makes a table of the script's, of a list.
            faults: gets what comes up and must end the script.
        """
        if not self.takes(session) or self._journal.weight.bytes + GATHERED_MAX > limits.CHANGE_MAX:
            return False
        self._runner.begin(self._keyspace.databases[session.db], wall, left, table, faults)
        return True

    def end_calls(self, wall: int) -> PlainRun:
        """What a script's plain commands came to; their changes are a part of its record.

        Args:
            wall: wall milliseconds.
        """
        try:
            run = self._runner.end()
        except Exception as error:  # noqa: BLE001 - no memory to tell what was done, which ends the record at work
            self._journal.lose(not_logged("plain commands of a script were run", error))
            return NOTHING
        self._count(run)
        if self._slow:
            self._note_slow(None, wall)
        if run.record is not None:
            self._journal.weight.takes(len(run.record))
            self._journal.note_run(run.record, soft=run.soft)
        return run

    def _counted(
        self, session: "Session", data: bytes, at: int, wall: int, given: list[bytes] | None = None
    ) -> PlainRun:
        """Run plain commands, and count them; ``given`` are the client's own words of a command that has others."""
        try:
            run = self._runner.run(self._keyspace.databases[session.db], data, at, wall, session.resp)
        except Exception as error:  # no memory to tell what was done
            raise not_logged("plain commands were run", error) from error
        stats = self._stats  # as _count does; this is the way of each client that waits for its reply
        stats.processed += run.commands
        stats.dirty += run.changes
        if run.hits or run.misses:
            stats.lookups.hits += run.hits
            stats.lookups.misses += run.misses
        if self._slow:
            self._note_slow(session, wall, given)
        return run

    def _note_slow(self, caller: "Session | None", wall: int, given: list[bytes] | None = None) -> None:
        """Give SLOWLOG what took long: of ``caller``, None for a script; ``given`` as for :meth:`_counted`."""
        for data, nanoseconds in self._slow:
            reader = CommandReader()
            reader.feed(data)
            words = given or reader.next()
            assert words is not None
            self._host.slowlog.note(caller, words, nanoseconds, wall)
        self._slow.clear()

    def _count(self, run: PlainRun) -> None:
        stats = self._stats
        stats.processed += run.commands
        stats.lookups.hits += run.hits
        stats.lookups.misses += run.misses

    def _drain(self) -> list[tuple[str, int, int]]:
        return [(name, *counted) for name, counted in zip(NAMES, self._runner.drain(), strict=True)]
