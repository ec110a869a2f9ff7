"""Random sequences of all stream commands in the node and in the simple model; then their log is replayed.

After every command its reply is compared. After every step the rules of the state are checked and everything XINFO
shows is compared. At the end of every sequence a second node is made from the log alone. It must equal the first in
everything a command can show. At any moment the log so far may have been made a snapshot.

A longer campaign (`make test-long`): 50,000 sequences of 50 commands, see ``support.campaign``.
"""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.model import Model
from engine.model_values import ZERO, Id, Read, Refused, Stream, Trim, following, refusal, text
from millstream.replies import OK, Error
from support import campaign
from support.inprocess import Client, Word, World
from support.resp import Pairs, decode
from support.state import check, shown, snapshot

KEYS = [b"s", b"t"]
GROUPS = [b"g", b"h"]
CONSUMERS = [b"a", b"b", b""]
HIDDEN = [b"radix-tree-nodes"]  # an implementation's own number
DAY = 86_400_000

keys = st.sampled_from(KEYS)
groups = st.sampled_from([b"g", b"g", b"g", b"h"])
consumers = st.sampled_from(CONSUMERS)
picks = st.integers(0, 40)
some_picks = st.lists(picks, min_size=1, max_size=4)
counts = st.sampled_from([None, None, 1, 2, 3])
small = st.integers(0, 6)
idles = st.sampled_from([0, 0, 1, 50, 100])
policies = st.sampled_from(["KEEPREF", "DELREF", "ACKED"])
values = st.sampled_from([b"", b"v", b"17", b"x" * 40])
flags = st.booleans()


class StreamMachine(RuleBasedStateMachine):
    """One node and one model, given the same commands."""

    @initialize(node=st.sampled_from([(1, 0), (3, 0), (100, 0), (100, 80), (5, 200)]), resp=st.sampled_from([2, 3]))
    def begin(self, node: tuple[int, int], resp: int) -> None:
        config = {"stream-node-max-entries": str(node[0]), "stream-node-max-bytes": str(node[1])}
        self.world = World(config)
        self.world.clock.wall = 10 * DAY
        self.client: Client = self.world.client(resp)
        self.probe: Client = self.world.client(3)
        self.resp = resp
        self.model = Model(*node)
        self.seen: dict[bytes, tuple[int, bytes, object]] = {}
        self.follow()
        for key in KEYS:
            for group in GROUPS:
                self.create_group(key, group, 0, None, end=False)
            for consumer in CONSUMERS[:2]:
                self.add(key, 1, [b"f", b"v"], many=3)
                self.take(key, b"g", consumer, count=2)
                self.pass_time(30)

    def follow(self) -> None:
        """Set the model's time to the node's."""
        self.model.now = self.world.clock.wall
        self.model.purge()

    def pick(self, key: bytes, number: int) -> Id:
        """Return an id for a test: mostly one that is, or was, in the stream."""
        stream = self.model.streams.get(key, Stream())
        known = sorted(
            {(one[0], one[1]) for node in stream.nodes for one in node} | {stream.last, stream.gone, ZERO, (3, 1)}
        )
        known += [following(stream.last), record_id(stream)]
        return known[number % len(known)]

    def same(self, words: list[Word], expected: Callable[[], object], client: Client | None = None) -> None:
        """Run a command in both and compare."""
        answer = (client or self.client).call(*words)
        wanted = refusal(expected)
        if isinstance(wanted, Refused):
            assert isinstance(answer, Error), f"{words}: {answer!r} instead of {wanted}"
            assert answer.line == str(wanted), words
        else:
            assert plain(answer) == wanted, words

    def fine(self, words: list[Word], expected: Callable[[], None]) -> None:
        """Run a command that replies OK in both and compare."""

        def done() -> object:
            expected()
            return OK

        self.same(words, done)

    # ------------------------------------------------------------------ time and keys

    @rule(ms=st.sampled_from([1, 1, 10, 60, 1000, 150_000]))
    def pass_time(self, ms: int) -> None:
        self.world.clock.advance(ms)
        is_look = self.world.node._cron.is_forgetting(self.world.clock.now())  # noqa: SLF001 - the model must know at which tick the node looks at messages
        self.world.tick()
        self.follow()
        if is_look:
            self.model.forget_messages()

    @rule(ms=st.sampled_from([-1, -1000, -DAY, DAY, 5000]))
    def correct_clock(self, ms: int) -> None:
        if self.world.clock.wall + ms > 0:
            self.world.clock.jump(ms)
        self.follow()

    @rule(
        key=keys,
        what=st.sampled_from([*["nothing"] * 7, "delete", "rename", *["copy"] * 3, "dump", "expire", "destroy"]),
    )
    def disturb(self, key: bytes, what: str) -> None:
        """Delete much of a state at once; this is rare, so that states grow."""
        other = KEYS[1 - KEYS.index(key)]
        if what == "delete":
            self.same(["DEL", key], lambda: self.model.delete(key))
        elif what == "rename":
            self.fine(["RENAME", key, other], lambda: self.model.rename(key, other))
        elif what == "copy":
            self.same(["COPY", key, other, "REPLACE"], lambda: self.model.copy(key, other))
        elif what == "dump":
            payload = self.client.call("DUMP", key)
            if isinstance(payload, bytes):
                self.fine(["RESTORE", other, 0, payload, "REPLACE"], lambda: self.model.restore(key, other))
        elif what == "expire":
            self.same(["PEXPIRE", key, 500], lambda: self.model.expire(key, 500))
        elif what == "destroy":
            self.same(["XGROUP", "DESTROY", key, "g"], lambda: self.model.group_destroy(key, b"g"))

    # ------------------------------------------------------------------ adding and removing

    def trimming(
        self, key: bytes, strategy: str, number: int, near: bool, limit: int | None
    ) -> tuple[list[Word], Trim]:
        threshold = number % 7 if strategy == "MAXLEN" else self.pick(key, number)
        words: list[Word] = [strategy, "~" if near else "=", name_of(threshold)]
        if near and limit is not None:
            words += ["LIMIT", limit]
        return words, Trim(threshold, near, limit if near else None)

    @rule(key=keys, step=st.integers(1, 3), fields=st.lists(values, min_size=2, max_size=2), many=st.integers(1, 5))
    def add(self, key: bytes, step: int, fields: list[bytes], many: int) -> None:
        for _ in range(many):
            last = self.model.streams.get(key, Stream()).last
            entry = (last[0], last[1] + step) if step < 3 else (last[0] + 1, 0)
            self.same(["XADD", key, text(entry), *fields], lambda entry=entry: self.model.xadd(key, entry, fields))

    @rule(
        key=keys,
        form=st.sampled_from(["*", "ms-*", "old"]),
        number=picks,
        create=flags,
        fields=st.lists(values, min_size=2, max_size=6).filter(lambda words: len(words) % 2 == 0),
    )
    def add_somehow(self, key: bytes, form: str, number: int, create: bool, fields: list[bytes]) -> None:
        wanted: Id | int | None = None
        words: list[Word] = ["*"]
        if form == "ms-*":
            wanted = self.pick(key, number)[0]
            words = [f"{wanted}-*"]
        elif form == "old":
            wanted = self.pick(key, number)
            words = [text(wanted)]
        options = [] if create else ["NOMKSTREAM"]
        self.same(["XADD", key, *options, *words, *fields], lambda: self.model.xadd(key, wanted, fields, create=create))

    @rule(
        key=keys,
        strategy=st.sampled_from(["MAXLEN", "MINID"]),
        number=picks,
        near=flags,
        limit=st.sampled_from([None, None, 0, 1, 4]),
        policy=policies,
        adding=flags,
    )
    def trim(
        self, key: bytes, strategy: str, number: int, near: bool, limit: int | None, policy: str, adding: bool
    ) -> None:
        words, trim = self.trimming(key, strategy, number, near, limit)
        trim.policy = policy
        if adding:
            entry = following(self.model.streams.get(key, Stream()).last)
            self.same(
                ["XADD", key, policy, *words, text(entry), "f", "v"],
                lambda: self.model.xadd(key, entry, [b"f", b"v"], trim=trim),
            )
        else:
            self.same(["XTRIM", key, *words, policy], lambda: self.model.xtrim(key, trim))

    @rule(key=keys, number=picks, policy=policies, rare=small)
    def empty_a_node(self, key: bytes, number: int, policy: str, rare: int) -> None:
        """Delete a node's newest entry, then trim up to its id; rarely, free its id for a new entry."""
        stream = self.model.streams.get(key, Stream())
        if not stream.entries:
            return
        nodes = [node for node in stream.nodes if any(one in stream.entries for one in node)]
        end = max(one for one in nodes[number % 2 % len(nodes)] if one in stream.entries)
        last = (end[0], end[1])
        self.same(["XDEL", key, text(last)], lambda: self.model.xdel(key, [last]))
        trim = Trim(last, policy=policy)
        self.same(["XTRIM", key, "MINID", text(last), policy], lambda: self.model.xtrim(key, trim))
        if rare == 0:
            low = stream.newest if stream.newest != ZERO else (0, 1)
            self.fine(
                ["XSETID", key, text(stream.last), "MAXDELETEDID", "0-1"],
                lambda: self.model.xsetid(key, stream.last, None, (0, 1)),
            )
            self.fine(["XSETID", key, text(low)], lambda: self.model.xsetid(key, low, None, ZERO))

    @rule(key=keys, message=st.sampled_from([b"1", b"2", b"3"]), producer=st.sampled_from([b"p", b"q"]))
    def add_once(self, key: bytes, message: bytes, producer: bytes) -> None:
        self.same(
            ["XADD", key, "IDMP", producer, message, "*", "f", "v"],
            lambda: self.model.xadd(key, None, [b"f", b"v"], message=(producer, message)),
        )

    @rule(
        key=keys,
        producer=st.sampled_from([b"p", b"q"]),
        pairs=st.permutations([(b"a", b"1"), (b"b", b"2"), (b"a", b"2")]),
    )
    def add_once_by_content(self, key: bytes, producer: bytes, pairs: list[tuple[bytes, bytes]]) -> None:
        pairs = pairs[:2]
        fields = [word for pair in pairs for word in pair]
        content = repr(sorted(pairs)).encode()
        self.same(
            ["XADD", key, "IDMPAUTO", producer, "*", *fields],
            lambda: self.model.xadd(key, None, fields, message=(producer, content)),
        )

    @rule(key=keys, message=st.sampled_from([b"1", b"9"]), number=picks)
    def record_message(self, key: bytes, message: bytes, number: int) -> None:
        entry = self.pick(key, number)
        self.fine(
            ["XIDMPRECORD", key, "p", message, text(entry)], lambda: self.model.xidmprecord(key, b"p", message, entry)
        )

    @rule(key=keys, duration=st.sampled_from([None, 1, 100]), maxsize=st.sampled_from([1, 2, 100]))
    def configure(self, key: bytes, duration: int | None, maxsize: int) -> None:
        words: list[Word] = [] if duration is None else ["IDMP-DURATION", duration]
        self.fine(["XCFGSET", key, *words, "IDMP-MAXSIZE", maxsize], lambda: self.model.xcfgset(key, duration, maxsize))

    @rule(key=keys, numbers=some_picks)
    def remove(self, key: bytes, numbers: list[int]) -> None:
        ids = [self.pick(key, number) for number in numbers]
        self.same(["XDEL", key, *map(text, ids)], lambda: self.model.xdel(key, ids))

    @rule(key=keys, policy=policies, numbers=some_picks)
    def remove_more(self, key: bytes, policy: str, numbers: list[int]) -> None:
        ids = [self.pick(key, number) for number in numbers]
        self.same(
            ["XDELEX", key, policy, "IDS", len(ids), *map(text, ids)], lambda: self.model.xdelex(key, policy, ids)
        )

    @rule(
        key=keys, number=picks, ahead=st.integers(0, 2), added=st.sampled_from([None, 0, 5, 50]), gone=picks, rare=small
    )
    def set_id(self, key: bytes, number: int, ahead: int, added: int | None, gone: int, rare: int) -> None:
        if rare:
            return  # a stream whose counters were set is no longer trusted to tell its lag
        last = self.pick(key, number)
        last = (last[0] + ahead, last[1])
        highest = self.pick(key, gone) if gone % 3 == 0 else ZERO
        words: list[Word] = ["XSETID", key, text(last)]
        words += [] if added is None else ["ENTRIESADDED", added]
        words += [] if highest == ZERO else ["MAXDELETEDID", text(highest)]
        self.fine(words, lambda: self.model.xsetid(key, last, added, highest))

    # ------------------------------------------------------------------ reading

    @rule(key=keys, start=picks, end=picks, count=st.sampled_from([None, 0, 1, 3]), backwards=flags, whole=flags)
    def range(self, key: bytes, start: int, end: int, count: int | None, backwards: bool, whole: bool) -> None:
        low, high = (ZERO, (2**64 - 1, 2**64 - 1)) if whole else (self.pick(key, start), self.pick(key, end))
        ends: list[Word] = ["-", "+"] if whole else [text(low), text(high)]
        name = "XREVRANGE" if backwards else "XRANGE"
        words: list[Word] = [name, key, *(ends[::-1] if backwards else ends)]
        words += [] if count is None else ["COUNT", count]
        self.same(words, lambda: self.model.xrange(key, low, high, count, backwards=backwards))

    def bounds(self, count: int | None, extra: int | None, size: int | None) -> tuple[list[Word], Read]:
        most = None if extra is None else (count or 1) + extra
        words: list[Word] = []
        words += [] if count is None else ["COUNT", count]
        words += [] if most is None else ["MAXCOUNT", most]
        words += [] if size is None else ["MAXSIZE", size]
        return words, Read(self.resp, count, most, size)

    @rule(
        wanted=st.lists(st.tuples(keys, st.sampled_from(["id", "id", "$", "+"]), picks), min_size=1, max_size=3),
        count=counts,
        extra=st.sampled_from([None, None, 0, 1]),
        size=st.sampled_from([None, None, 1, 60, 150]),
    )
    def read(
        self, wanted: list[tuple[bytes, str, int]], count: int | None, extra: int | None, size: int | None
    ) -> None:
        words, read = self.bounds(count, extra, size)
        after = [(key, self.pick(key, number) if form == "id" else form) for key, form, number in wanted]
        words = ["XREAD", *words, "STREAMS", *(key for key, _ in after), *(name_of(one) for _, one in after)]
        self.same(words, lambda: self.model.xread(read, after))

    @rule(
        group=groups,
        consumer=consumers,
        wanted=st.lists(st.tuples(keys, st.sampled_from([">", ">", "id"]), picks), min_size=1, max_size=3),
        count=counts,
        extra=st.sampled_from([None, None, None, 0, 1]),
        size=st.sampled_from([None, None, None, 1, 60, 150]),
        claim=st.sampled_from([None, None, 0, 1, 50]),
        noack=st.sampled_from([False, False, False, True]),
    )
    def read_group(
        self,
        group: bytes,
        consumer: bytes,
        wanted: list[tuple[bytes, str, int]],
        count: int | None,
        extra: int | None,
        size: int | None,
        claim: int | None,
        noack: bool,
    ) -> None:
        words, read = self.bounds(count, extra, size)
        words += [] if claim is None else ["CLAIM", claim]
        words += ["NOACK"] if noack else []
        after = [(key, self.pick(key, number) if form == "id" else form) for key, form, number in wanted]
        places = [*(key for key, _ in after), *(name_of(one) for _, one in after)]
        words = ["XREADGROUP", "GROUP", group, consumer, *words, "STREAMS", *places]
        self.same(words, lambda: self.model.xreadgroup(read, group, consumer, after, claim=claim, noack=noack))

    @rule(key=keys, group=groups, consumer=consumers, count=counts)
    def take(self, key: bytes, group: bytes, consumer: bytes, count: int | None) -> None:
        words: list[Word] = ["XREADGROUP", "GROUP", group, consumer]
        words += [] if count is None else ["COUNT", count]
        self.same(
            [*words, "STREAMS", key, ">"],
            lambda: self.model.xreadgroup(Read(self.resp, count), group, consumer, [(key, ">")]),
        )

    # ------------------------------------------------------------------ groups

    @rule(key=keys, group=groups, number=picks, read=st.sampled_from([None, None, None, 0, 2, 99]), end=flags)
    def create_group(self, key: bytes, group: bytes, number: int, read: int | None, end: bool) -> None:
        last = None if end else self.pick(key, number)
        words: list[Word] = ["XGROUP", "CREATE", key, group, "$" if last is None else text(last), "MKSTREAM"]
        words += [] if read is None else ["ENTRIESREAD", read]
        self.fine(words, lambda: self.model.group_create(key, group, last, read, make=True))

    @rule(key=keys, group=groups, number=picks, read=st.sampled_from([None, None, None, 0, 2]), end=flags)
    def move_group(self, key: bytes, group: bytes, number: int, read: int | None, end: bool) -> None:
        last = None if end else self.pick(key, number)
        words: list[Word] = ["XGROUP", "SETID", key, group, "$" if last is None else text(last)]
        words += [] if read is None else ["ENTRIESREAD", read]
        self.fine(words, lambda: self.model.group_setid(key, group, last, read))

    @rule(key=keys, group=groups, consumer=consumers, create=flags)
    def change_consumer(self, key: bytes, group: bytes, consumer: bytes, create: bool) -> None:
        name = "CREATECONSUMER" if create else "DELCONSUMER"
        change = self.model.group_createconsumer if create else self.model.group_delconsumer
        self.same(["XGROUP", name, key, group, consumer], lambda: change(key, group, consumer))

    # ------------------------------------------------------------------ pending entries

    @rule(key=keys, group=groups, numbers=some_picks)
    def acknowledge(self, key: bytes, group: bytes, numbers: list[int]) -> None:
        ids = [self.pick(key, number) for number in numbers]
        self.same(["XACK", key, group, *map(text, ids)], lambda: self.model.xack(key, group, ids))

    @rule(key=keys, group=groups, policy=policies, numbers=some_picks)
    def acknowledge_and_remove(self, key: bytes, group: bytes, policy: str, numbers: list[int]) -> None:
        ids = [self.pick(key, number) for number in numbers]
        self.same(
            ["XACKDEL", key, group, policy, "IDS", len(ids), *map(text, ids)],
            lambda: self.model.xackdel(key, group, policy, ids),
        )

    @rule(
        key=keys,
        group=groups,
        mode=st.sampled_from(["SILENT", "FAIL", "FATAL"]),
        numbers=some_picks,
        retry=st.sampled_from([None, None, None, 0, 7]),
        force=flags,
    )
    def release(self, key: bytes, group: bytes, mode: str, numbers: list[int], retry: int | None, force: bool) -> None:
        ids = [self.pick(key, number) for number in numbers]
        words: list[Word] = ["XNACK", key, group, mode, "IDS", len(ids), *map(text, ids)]
        words += [] if retry is None else ["RETRYCOUNT", retry]
        words += ["FORCE"] if force else []
        self.same(words, lambda: self.model.xnack(key, group, mode, ids, retry, force=force))

    @rule(
        key=keys,
        group=groups,
        consumer=consumers,
        idle=idles,
        numbers=some_picks,
        when=st.sampled_from([None, None, ("IDLE", 40), ("TIME", 0), ("TIME", DAY), ("IDLE", -5)]),
        retry=st.sampled_from([None, None, None, 0, 2**63 - 1]),
        force=flags,
        just_id=flags,
        last=st.sampled_from([None, None, None, 5]),
    )
    def claim(
        self,
        key: bytes,
        group: bytes,
        consumer: bytes,
        idle: int,
        numbers: list[int],
        when: tuple[str, int] | None,
        retry: int | None,
        force: bool,
        just_id: bool,
        last: int | None,
    ) -> None:
        ids = [self.pick(key, number) for number in numbers]
        position = None if last is None else self.pick(key, last)
        words: list[Word] = ["XCLAIM", key, group, consumer, idle, *map(text, ids)]
        words += [] if when is None else list(when)
        words += [] if retry is None else ["RETRYCOUNT", retry]
        words += ["FORCE"] if force else []
        words += ["JUSTID"] if just_id else []
        words += [] if position is None else ["LASTID", text(position)]
        time = None if when is None else when[1] if when[0] == "TIME" else self.model.now - when[1]
        self.same(
            words,
            lambda: self.model.xclaim(
                key, group, consumer, idle, ids, time=time, retry=retry, force=force, just_id=just_id, last=position
            ),
        )

    @rule(
        key=keys,
        group=groups,
        consumer=consumers,
        idle=idles,
        start=picks,
        count=st.sampled_from([100, 1, 2]),
        just_id=flags,
    )
    def claim_stale(
        self, key: bytes, group: bytes, consumer: bytes, idle: int, start: int, count: int, just_id: bool
    ) -> None:
        begin = self.pick(key, start) if start % 2 else ZERO
        words: list[Word] = ["XAUTOCLAIM", key, group, consumer, idle, text(begin), "COUNT", count]
        words += ["JUSTID"] if just_id else []
        self.same(words, lambda: self.model.xautoclaim(key, group, consumer, idle, begin, count, just_id=just_id))

    @rule(key=keys, group=groups)
    def pending(self, key: bytes, group: bytes) -> None:
        self.same(["XPENDING", key, group], lambda: self.model.xpending(key, group))

    @rule(
        key=keys,
        group=groups,
        idle=idles,
        start=picks,
        end=picks,
        count=st.sampled_from([-1, 0, 2, 100]),
        consumer=st.sampled_from([None, b"a", b"", b"nobody"]),
    )
    def pending_rows(
        self, key: bytes, group: bytes, idle: int, start: int, end: int, count: int, consumer: bytes | None
    ) -> None:
        low, high = self.pick(key, start), self.pick(key, end)
        words: list[Word] = ["XPENDING", key, group, "IDLE", idle, text(low), text(high), count]
        words += [] if consumer is None else [consumer]
        self.same(words, lambda: self.model.xpending_rows(key, group, idle, low, high, count, consumer))

    # ------------------------------------------------------------------ what must always hold

    @rule(key=keys, count=st.sampled_from([1, 3]))
    def inspect(self, key: bytes, count: int) -> None:
        self.ask(["XLEN", key], lambda: len(self.model.streams.get(key, Stream()).entries))
        self.ask(["XINFO", "STREAM", key], lambda: self.model.xinfo_stream(key))
        self.ask(["XINFO", "STREAM", key, "FULL", "COUNT", count], lambda: self.model.xinfo_full(key, count))
        self.ask(["XINFO", "GROUPS", key], lambda: self.model.xinfo_groups(key))
        self.ask(["XINFO", "CONSUMERS", key, "g"], lambda: self.model.xinfo_consumers(key, b"g"))

    def ask(self, words: list[Word], expected: Callable[[], object]) -> None:
        self.same(words, expected, self.probe)

    @invariant()
    @precondition(lambda self: hasattr(self, "world"))
    def everything_agrees(self) -> None:
        changed = [self.look(key) for key in KEYS]
        if any(changed):
            check(self.world.node, wire=False)
        self.time_order_agrees()
        self.lag_is_right_or_unknown()

    def look(self, key: bytes) -> bool:
        """Compare everything that XINFO FULL shows; return False if nothing can have changed.

        Most steps change one key or none. A comparison is not repeated while the model is the same and the log has not
        grown. A change that is not in the log is found when it is replayed. The same bytes are not read again.
        """
        wanted = refusal(lambda: self.model.xinfo_full(key, 0))
        logged = self.world.log.appended
        before, shown, expected = self.seen.get(key, (-1, b"", None))
        if before == logged and expected == wanted:
            return False
        words: list[Word] = ["XINFO", "STREAM", key, "FULL", "COUNT", 0]
        raw = self.probe.raw(*words)
        if isinstance(wanted, Refused):
            self.ask(words, lambda: self.model.xinfo_full(key, 0))
        elif (raw, wanted) != (shown, expected):
            assert plain(decode(raw)) == wanted, key
        self.seen[key] = logged, raw, wanted
        return True

    def time_order_agrees(self) -> None:
        space = self.world.node.keyspace.databases[0]
        for key, stream in self.model.streams.items():
            for name, group in stream.groups.items():
                found = space.keys[key].groups[name].order  # type: ignore[attr-defined] # it is a stream
                assert [to_pair(one.id) for one in found] == [one.id for one in group.records]

    def lag_is_right_or_unknown(self) -> None:
        """Check that a lag is unknown or the number of entries ahead, unless a client set the group's position."""
        for stream in self.model.streams.values():
            for group in stream.groups.values():
                lag = stream.lag(group)
                if stream.trusted and group.trusted and lag is not None:
                    assert lag == sum(entry > group.last for entry in stream.entries)

    @rule()
    def rewrite_log(self) -> None:
        """Replace the log so far by a snapshot: nothing visible changes, and later records apply to it."""
        self.world.log.rewrite()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        node, now = self.world.node, self.world.clock.now()
        for _ in range(2):  # from the log as it is, and from a snapshot of all of it
            twin = self.world.recovered()
            assert snapshot(twin) == snapshot(node)
            assert shown(twin, now, KEYS) == shown(node, now, KEYS)
            check(twin)
            self.world.log.rewrite()


def record_id(stream: Stream) -> Id:
    """Return the id of some pending record, since its entry may be gone."""
    ids = [record.id for group in stream.groups.values() for record in group.records]
    return ids[0] if ids else ZERO


def to_pair(entry: int) -> Id:
    return entry >> 64, entry & (2**64 - 1)


def name_of(value: Id | str | int) -> Word:
    return text(value) if isinstance(value, tuple) else value


def plain(value: object) -> object:
    """Return a reply with maps as lists of pairs, without facts that are specific to the implementation."""
    if isinstance(value, Pairs):
        return [[key, plain(item)] for key, item in value if key not in HIDDEN]
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def sequences(number: int, *, random: bool) -> settings:
    """Return settings for a number of sequences of 50 commands, always the same ones unless ``random``."""
    skipped: Iterable[HealthCheck] = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    return settings(
        max_examples=number,
        stateful_step_count=50,
        deadline=None,
        derandomize=not random,
        database=None,
        print_blob=True,
        suppress_health_check=skipped,
        phases=(Phase.generate, Phase.shrink),
    )


def test_commands_answer_as_the_model_and_the_log_says_it_all() -> None:
    """Replies, state and replayed log equal the model's over 150 random sequences (always the same ones)."""
    run_state_machine_as_test(StreamMachine, settings=sequences(150, random=False))


def hundred_sequences(number: int) -> None:
    """Run a piece of the campaign: the same sequences for the same number."""
    machine = seed(number)(type(f"Seed{number}", (StreamMachine,), {}))
    run_state_machine_as_test(machine, settings=sequences(100, random=True))


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_commands_answer_as_the_model_in_many_sequences() -> None:
    """Replies, state and replayed log equal the model's over 50,000 random sequences."""
    campaign.run("machine", hundred_sequences, range(1, 501), version=3, processes=2)
