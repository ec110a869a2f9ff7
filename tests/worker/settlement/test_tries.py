"""The error of each failed try is kept, for the timeline of a run and in its dead letter."""

import json
from itertools import count
from typing import Any

import pytest
import redis

from millstream import App, Message, Reject, Retry, StreamSub
from millstream.client.dead_letter.letter import unpack
from millstream.client.dead_letter.tries import LIMIT, FailedTry, added, parse_tries, tries_text
from millstream.client.jobs import record
from millstream.worker.settlement import failure_log
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually

ALIKE = (FailedTry(5, "a", "ValueError: no"), FailedTry(7, "a", "ValueError: no"), FailedTry(9, "b", "\ud800"))
FAULTY = [
    b"", b"{}", b"[1]", b"[[1,2,3]]", b'[[-1,"a","b"]]', b'[[true,"a","b"]]', b'[[1,"a"]]', b'[[1e99,"a","b"]]',
    b'[[9007199254740992,"a","b"]]', b"[" * 9999, b"\xff",
]  # fmt: skip


def test_tries_are_written_and_read() -> None:
    """Equal parts are written once, the latest tries are kept, and long texts are cut."""
    assert parse_tries(tries_text(ALIKE)) == ALIKE
    assert tries_text(ALIKE).count("ValueError") == 1
    kept: tuple[FailedTry, ...] = ()
    for number in range(LIMIT + 3):
        kept = added(kept, FailedTry(number, "c" * 999, "e" * 999))
    assert [one.at_ms for one in kept] == list(range(3, LIMIT + 3))
    assert len(tries_text(kept)) < 500
    assert len(parse_tries(json.dumps([[1, "c" * 999, None]] * 999))) == LIMIT


@pytest.mark.parametrize("text", FAULTY)
def test_tries_of_another_writer_are_none(text: bytes) -> None:
    """A text that Millstream did not write has no tries, and its row keeps its numbers."""
    assert parse_tries(text) == ()
    row = failure_log.parse(b"2:1:0:" + text)
    assert row is not None
    assert (row.failures, row.uncharged, row.tries) == (2, True, ())


def letters(server: ServerProcess) -> list[Any]:
    """Return the dead letters of the stream."""
    with server.client() as client:
        rows: Any = client.execute_command("XRANGE", "s:dead", "-", "+")
        return [unpack([part for pair in fields.items() for part in pair]) for _, fields in rows]


async def test_a_letter_has_the_errors_of_the_tries_before(server: ServerProcess, client: redis.Redis) -> None:
    """A pending entry has its failed tries beside the stream, and its letter has those before the last one."""
    app, errors, rows = App(server.url), iter((ValueError("one"), TypeError("two"), Reject("three"))), list[Any]()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(base=0.02, jitter=False))
    async def handle(msg: Message) -> None:
        rows.append(client.hget(failure_log.key("s", "g"), msg.id))
        raise next(errors)

    client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: client.exists("s:dead"))
        await aeventually(all_done(client, "s", "g"))
    (letter,) = letters(server)
    assert [one.error for one in letter.tries] == ["ValueError: one", "TypeError: two"]
    assert {one.consumer for one in letter.tries} == {letter.consumer}
    assert [one.at_ms for one in letter.tries] == sorted(one.at_ms for one in letter.tries)
    assert letter.died_ms >= letter.tries[-1].at_ms > 1_600_000_000_000
    assert (letter.error, rows[0]) == ("three", None)
    found = failure_log.parse(rows[2].encode())
    assert found is not None
    assert (found.failures, found.tries) == (2, letter.tries)
    assert not client.exists(failure_log.key("s", "g"))


async def test_a_result_has_the_errors_of_the_tries_before(server: ServerProcess, client: redis.Redis) -> None:
    """An entry that fails and then ends well has its failed tries in its result, and the value is as before."""
    app, runs = App(server.url), count()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=Retry(base=0.02, jitter=False))
    async def handle(n: int) -> int:
        if next(runs) < 2:
            raise ValueError("not yet")
        return n + 1

    async with app.running():
        entry = await app.publish("s", {"n": 1}, result="1h")
        assert await app.job("s", entry, group="g").result("20s") == 2
    key = record.result_key("s", entry)
    found = record.parse_result(client.hget(key, "g").encode())
    assert found is not None
    assert (found["state"], found["value"]) == ("done", 2)
    assert [row[2] for row in found["tries"]] == ["ValueError: not yet", None]


async def test_the_error_of_a_late_nack_replaces_the_missing_outcome(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A handler that returned without an outcome has a failed try, which gets the reason that it gives later."""
    app, seen = App(server.url), list[Message]()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=900), ack="manual", retry=Retry(max_deliveries=9))
    async def handle(msg: Message) -> None:
        seen.append(msg)

    def row() -> Any:
        found = client.hget(failure_log.key("s", "g"), seen[0].id) if seen else None
        return None if found is None else failure_log.parse(found.encode())

    client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: row() is not None)
        assert [one.error for one in row().tries] == ["the handler returned without an outcome"]
        await seen[0].nack(delay=3600)
        await aeventually(lambda: row().tries[0].error != "the handler returned without an outcome")
        assert (row().failures, [one.error for one in row().tries]) == (1, ["Nack"])
        assert pending(client, "s", "g")


async def test_a_late_ack_leaves_no_failed_try(server: ServerProcess, client: redis.Redis) -> None:
    """An entry whose handler returned without an outcome, and that is acknowledged later, has not failed."""
    app, seen = App(server.url), list[Message]()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=900), ack="manual", retry=Retry(max_deliveries=9))
    async def handle(msg: Message) -> None:
        seen.append(msg)
        if len(seen) == 1:
            await msg.nack()

    async with app.running():
        entry = await app.publish("s", {"n": 1}, result="1h")
        await aeventually(lambda: b"without" in (client.hget(failure_log.key("s", "g"), entry) or "").encode())
        await seen[-1].ack()
        await aeventually(lambda: client.hexists(record.result_key("s", entry), "g"))
    found = record.parse_result(client.hget(record.result_key("s", entry), "g").encode())
    assert found is not None
    assert [row[2] for row in found["tries"]] == ["Nack"]
