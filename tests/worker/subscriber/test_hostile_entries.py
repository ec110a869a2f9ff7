"""An entry of any bytes is handled, or becomes a dead letter with those bytes. Worker and group continue."""

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis

from millstream import App, BatchError, Message, Middleware, Retry, StreamSub
from millstream.client.dead_letter.letter import DeadLetter, pack, parse_history, returning, take_history, unpack
from millstream.client.payloads import envelope
from millstream.worker import testing
from millstream.worker.handlers.binding import Binder
from millstream.worker.middlewares.logging import LogContext
from millstream.worker.middlewares.tracing import Tracing
from millstream.worker.model.answers import PayloadError
from millstream.worker.model.lifecycle import State
from millstream.worker.registry import facts, protocol
from millstream.worker.settlement.consumer import Held, hold
from millstream.worker.settlement.failure_log import parse as parse_record
from millstream.worker.subscriber.apart import Apart
from millstream.worker.subscriber.key_ordering import KeyOrdering
from support import campaign
from support.groups import all_done
from support.servers import ServerProcess
from support.waiting import aeventually

DEEP = b"[" * 1_500
TWO_TRIES = Retry(max_deliveries=2, base=0.01, jitter=False)

HISTORIES = {
    "too-deep": DEEP,
    "deep-inside": b'[{"id":' + b"[" * 700 + b"]" * 700 + b"}]",
    "long-number": b'[{"id":"1-1","deliveries":' + b"9" * 4_000 + b"}]",
    "no-history": b'[{"id":7}]',
    "not-json": b"\xff\x00",
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
async def test_a_hostile_history_does_not_stop_the_group(
    server: ServerProcess, client: redis.Redis, history: bytes
) -> None:
    """An entry with an unreadable death history fails like any other, and its dead letter keeps its bytes."""
    app, runs = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=500), retry=TWO_TRIES)
    async def handle(a: int) -> None:
        runs.append(a)
        if a == 1:
            raise ValueError("no good")

    client.xadd("s", {"a": 1, "_dead.history": history})
    client.xadd("s", {"a": 2})
    async with app.running():
        watch = asyncio.ensure_future(app.wait())
        await aeventually(lambda: watch.done() or (client.xlen("s:dead") == 1 and all_done(client, "s", "g")()))
        assert not watch.done(), watch.exception()
        watch.cancel()
    assert sorted(runs) == [1, 1, 2]
    with server.client() as raw:
        ((_, flat),) = raw.execute_command("XRANGE", "s:dead", "-", "+")
    letter = unpack(flat if isinstance(flat, list) else [part for pair in flat.items() for part in pair])
    assert letter.fields == (b"a", b"1", b"_dead.history", history)
    assert letter.deliveries == 2


@pytest.mark.parametrize("count", [2**63 - 2, 2**63 - 1])
async def test_a_count_at_the_end_of_its_range_is_above_every_limit(
    server: ServerProcess, client: redis.Redis, count: int
) -> None:
    """A delivery count at the maximum, which a claim makes negative, is above every limit."""
    app, runs = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=100), retry=TWO_TRIES)
    async def handle(a: int) -> None:
        runs.append(a)

    client.xgroup_create("s", "g", "0", mkstream=True)
    entry = client.xadd("s", {"a": 1})
    client.xreadgroup("g", "other", {"s": ">"})
    client.execute_command("XCLAIM", "s", "g", "other", 0, entry, "RETRYCOUNT", count, "IDLE", 100_000)
    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 1)
        await aeventually(all_done(client, "s", "g"))
    assert runs == []
    with server.client() as raw:
        ((_, fields),) = raw.xrange("s:dead")
    assert unpack([part for pair in fields.items() for part in pair]).reason == "overdue"


NOTES = {
    "fields": [b"-1", b"9" * 5_000, b"1e3", b"", b"\xff"],
    "deliveries": [b"x", b"9" * 5_000, "²".encode()],
    "died_at": [b"2026-01-01", b"2026-01-01T00:00:00", b"0001-01-01T00:00:00+23:59", b"9" * 5_000, b"--5", b"\xb2"],
    "published_at": [b"2026-01-01T00:00:00", b"x"],
    "history": [DEEP, b"{}", b"[1]", b"\xff"],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in NOTES.items() for value in values],
    ids=lambda one: repr(one)[:30],
)
def test_a_dead_letter_of_hostile_hands_is_one_or_is_none(name: str, value: bytes) -> None:
    """Any entry of a dead-letter stream is parsed, or refused as not a dead letter."""
    letter = DeadLetter((b"a", b"1"), "s", "1-1", "g", "c", 1, "error", "E: x", "", 1, 2)
    flat = pack(letter)
    notes = dict(zip(flat[::2], flat[1::2], strict=True)) | {f"_dead.{name}".encode(): value}
    flat = [part for pair in notes.items() for part in pair]
    try:
        found = unpack(flat)
    except ValueError:
        return
    assert found.fields == (b"a", b"1")
    assert unpack(pack(found)) == found


def test_only_what_workers_write_is_a_history() -> None:
    """Only a death history in the form that workers write is accepted as one. Similar lists are not."""
    fine = returning(DeadLetter((b"a", b"1"), "s", "1-1", "g", "c", 1, "error", "E: \udcff", "", 1, 2), 3)
    rest, history = take_history(fine)
    assert (rest, [death["id"] for death in history]) == ([b"a", b"1"], ["1-1"])
    assert parse_history('[{"id":"1-1","added in a later version":true}]') is not None
    for text in (DEEP, b'[{"id":1}]', b'[{"id":"1-1","x":[1]}]', b'[{"died_ms":"now"}]', b'[{"deliveries":1e400}]'):
        assert parse_history(text) is None, text[:60]


async def test_the_same_id_twice_behind_one_key() -> None:
    """An entry delivered again while its first delivery waits for its key waits behind it, and both run."""
    gate, ran = asyncio.Event(), []

    async def run(held: Held) -> None:
        await gate.wait()
        ran.append(held)

    lanes = KeyOrdering(
        "k", message=Message, run=run, unfit=lambda held, error: None, moved=lambda: None, apart=Apart()
    )
    entries = [Held(entry, [b"k", b"1"], 1, 0) for entry in (b"1-1", b"2-1", b"2-1")]
    tasks = [asyncio.create_task(lanes.run(held)) for held in entries]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert ran == entries


PAUSES = [
    DEEP,
    b"1",
    b"[]",
    b'{"reason":1}',
    b'{"reason":"","by":"","at_ms":1e999}',
    b'{"reason":"","by":"","at_ms":NaN}',
]


@pytest.mark.parametrize("value", PAUSES, ids=lambda one: repr(one)[:30])
async def test_a_hostile_pause_is_a_pause(server: ServerProcess, client: redis.Redis, value: bytes) -> None:
    """A pause with any text in its field pauses the group and ends no worker."""
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(a: int) -> None: ...

    client.hset(protocol.CONTROL, protocol.pause_field("s", "g"), value)
    async with app.running():
        assert app.loops[0].paused is not None
        assert app.progress()[0].doing in ("paused", "starting")


RECORDS = [DEEP, b"1", b"null", b'{"id":1}', b"\xff", b'{"id":"x","subscribers":[1]}', b'{"subscribers":{}}']


async def test_hostile_records_of_workers_are_passed_over(server: ServerProcess, client: redis.Redis) -> None:
    """Invalid records among the workers' are skipped, and valid ones are listed."""
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(a: int) -> None: ...

    for number, value in enumerate(RECORDS):
        client.set(protocol.worker_key(f"w{number}"), value)
        client.zadd(protocol.INDEX, {f"w{number}": number})
    async with app.running():
        found = await protocol.workers(app.loops[0].member.line)
        assert [sub["consumer"] for facts in found for sub in facts["subscribers"]] == [app.loops[0].member.consumer]


@pytest.mark.parametrize(
    "row", [b"9" * 5_000 + b":0:0", b"1:2", b"\xff:0:0", b"", b"-1:0:0", b"1:" + b"0" * 9_000 + b":1"]
)
def test_a_hostile_row_of_failures_is_no_record(row: bytes) -> None:
    """An invalid failure record counts as none."""
    assert parse_record(row) is None


@dataclass
class Order:
    id: int
    note: str | None = None
    due: timedelta | None = None
    items: list[int] | None = None


SEEDS: Sequence[bytes] = (
    b"1",
    b"",
    b"null",
    b'{"id": 7, "items": [1, 2], "note": "x"}',
    b'[{"id":"1-1","died_ms":1,"error":"E: x"}]',
    DEEP,
    b'{"a":' * 400 + b"1" + b"}" * 400,
    b"9" * 5_000,
    b"1e999",
    b"NaN",
    b'"\\ud800"',
    b"\xff\xfe\x00",
    "\u202e\x1b[31m".encode(),
    envelope.build({"content-type": "application/json", "correlation_id": "1"}, b'{"id": 7}'),
    envelope.build({"content-type": "text/plain"}, b"\xff"),
    envelope.build({}, DEEP),
)
NAMES: Sequence[bytes] = (
    b"id",
    b"data",
    b"__data__",
    b"_dead.history",
    b"_dead.fields",
    b"note",
    b"due",
    b"items",
    b"\xff",
    b"",
)


def mutated(chance: random.Random, value: bytes) -> bytes:
    """Return the value or a mutation: cut, doubled, with changed bytes, or with parts exchanged."""
    made = bytearray(value)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
        at = chance.randrange(len(made) + 1)
        way = chance.randrange(5)
        if way == 0:
            del made[at : at + chance.randrange(1, 9)]
        elif way == 1:
            made[at:at] = chance.choice(SEEDS)[: chance.randrange(1, 64)]
        elif way == 2:
            made[at:at] = chance.randbytes(chance.randrange(1, 5))
        elif way == 3 and made:
            made[at % len(made)] ^= 1 << chance.randrange(8)
        else:
            made[at:at] = chance.choice((b"[", b"{", b"\x00", b"\xff\xff", b'"', b"-", b"9" * 40))
    return bytes(made)


def entry(chance: random.Random) -> list[bytes]:
    """Return fields and values of one hostile entry."""
    flat = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        flat += [mutated(chance, chance.choice(NAMES)) if chance.random() < 0.2 else chance.choice(NAMES)]
        flat += [mutated(chance, chance.choice(SEEDS))]
    if chance.random() < 0.3:
        flat += [b"_dead.history", mutated(chance, chance.choice(SEEDS))]
    return flat


class Reads(Middleware):
    """A middleware that reads every attribute of a message, as logs and traces do."""

    async def run(self, call_next: Any, msg: Message) -> Any:
        for name in ("fields", "raw", "headers", "origin", "idempotency_key", "timestamp"):
            getattr(msg, name)
        return await call_next(msg)


def apps() -> list[App]:
    """One app for each way in which an entry is read before, around and in the handler."""
    made: list[App] = []
    sub = StreamSub("s", group="g")

    def app(*around: Middleware) -> App:
        made.append(App(registry=False, middlewares=around))
        return made[-1]

    one = app(Reads())

    @one.subscriber(sub, retry=TWO_TRIES)
    async def message(msg: Message) -> None:
        if len(msg.raw[1]) % 3 == 0:
            raise ValueError(msg.raw)

    one = app()

    @one.subscriber(sub, retry=TWO_TRIES)
    async def order(order: Order, msg: Message) -> None: ...

    one = app()

    @one.subscriber(sub, retry=TWO_TRIES, key="note")
    async def fields(id: int, note: str | None, due: timedelta | None, items: set[int] | None) -> None: ...  # noqa: A002 - the field's name

    one = app()

    @one.subscriber(sub, retry=TWO_TRIES, batch=True)
    async def batch(orders: list[dict], msgs: list[Message]) -> None:
        raise BatchError({place: ValueError(msg.raw) for place, msg in enumerate(msgs) if len(msg.raw) % 3 == 0})

    one = app(Tracing(), LogContext())

    @one.subscriber(sub, retry=TWO_TRIES, batch=True)
    async def traced(msgs: list[Message]) -> None: ...

    return made


async def survived(seed: int, count: int) -> int:
    """Give hostile entries to an app of each kind; check that each is acknowledged, or dead with its own bytes."""
    chance = random.Random(seed)
    made = apps()
    for one in made:
        sent: dict[str, list[bytes]] = {}
        async with testing.run(one, raise_errors=False) as broker:
            watch = asyncio.ensure_future(one.wait())
            raw = redis.Redis.from_pool(broker.client.connection_pool)
            for _ in range(count // len(made)):
                flat = entry(chance)
                sent[raw.execute_command("XADD", "s", "*", *flat)] = flat
            await broker.run_until_idle(120)
            await broker.advance(2)
            assert not watch.done(), watch.exception()
            watch.cancel()
            pending: Any = broker.client.xpending("s", "g")
            assert pending["pending"] == 0, pending
            member = one.loops[0].member
            rows = await member.line.call("XRANGE", "s:dead", "-", "+")
        for _, flat in rows:
            letter = unpack(flat)
            assert b"".join(letter.fields) in (b"".join(sent[letter.id]), b"".join(take_history(sent[letter.id])[0]))
    return count


def binders() -> list[Callable[[Sequence[bytes]], object]]:
    """Run each conversion from an entry's bytes to arguments alone."""

    def whole(order: Order) -> None: ...
    def one(id: int) -> None: ...  # noqa: A002 - the field's name
    def many(id: float, note: bytes, items: list[dict]) -> None: ...  # noqa: A002 - the field's name
    def anything(data) -> None: ...

    return [partial(Binder(handler).bind, message=None) for handler in (whole, one, many, anything)]


def parsed(seed: int, count: int) -> int:
    """Run every pure parser of an entry's bytes alone; check that it raises only its documented errors."""
    chance = random.Random(seed)
    ways = binders()
    for _ in range(count):
        flat = entry(chance)
        held = hold(b"1-1", flat, 1, 0)
        assert held.state is State.BUFFERED
        letter = DeadLetter(
            tuple(held.fields), "s", "1-1", "g", "c", 1, "error", "", "", 1, 2, getattr(held, "history", ())
        )
        assert unpack(pack(letter)) == letter
        assert take_history(returning(letter, 5))[0] == list(held.fields)
        for way in ways:
            with contextlib.suppress(PayloadError):
                way(held.fields)
        mixed = pack(letter)
        mixed[chance.randrange(len(mixed))] = mutated(chance, chance.choice(SEEDS))
        with contextlib.suppress(ValueError):
            unpack(mixed)
        value = mutated(chance, chance.choice(SEEDS))
        parse_record(value)
        protocol.parse_order(value)
        protocol.parse_pause("s", "g", value)
        facts.parse("w", value)
    return count


async def test_hostile_entries_end_no_worker() -> None:
    """Mutated fields, JSON, envelopes and histories end no worker.

    Each entry is acknowledged, or dead with its bytes.
    """
    await survived(1, 500)
    parsed(1, 1_500)


def piece(seed: int) -> int:
    """One piece of the campaign."""
    return asyncio.run(survived(seed, 1_000)) + parsed(seed, 4_000)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_hundred_thousand_hostile_entries() -> None:
    """Each of 100,000 hostile entries and records is handled or refused, and no worker ends."""
    campaign.run("hostile-entries", piece, range(20), processes=2, unit="mutated entries")


def test_a_history_of_ours_survives_json() -> None:
    """A death history written by a worker is read back equal."""
    death = {"id": "1-1", "group": "g", "deliveries": 3, "died_ms": 5, "error": "E", "new": None}
    assert parse_history(json.dumps([death])) == (death,)
