"""The promises of one subscriber, in this process, on every server."""

import asyncio
import dataclasses
import threading
from collections import Counter
from typing import Any

import pytest
import redis

from millstream import AlreadySettledError, App, EntryLostError, Message, Nack, Reject, Retry, StreamSub, failpoints
from millstream.client.dead_letter.letter import unpack
from millstream.clock import ManualClock
from support import needs
from support.groups import all_done, consumers, pending
from support.servers import ServerProcess
from support.waiting import aeventually, eventually

HOUR = 3_600_000
# unlike other tests, the contract also runs on servers that few machines have
SERVERS = ["redis", "millstream", *needs.OTHERS]
QUICK = Retry(max_deliveries=3, base=0.02, jitter=False)


def leave_behind(client: redis.Redis, stream: str, group: str, count: int, *, idle: int) -> list[str]:
    """Add entries that a consumer called ghost read, never acknowledged, and left idle for a time."""
    client.xgroup_create(stream, group, "0", mkstream=True)
    ids: Any = [client.xadd(stream, {"x": number}) for number in range(count)]
    client.xreadgroup(group, "ghost", {stream: ">"})
    client.execute_command("XCLAIM", stream, group, "ghost", 0, *ids, "IDLE", idle, "RETRYCOUNT", 1, "JUSTID")
    return ids


def dead_letters(server: ServerProcess, stream: str) -> list[Any]:
    """Return the entries of the dead-letter stream."""
    with server.client() as client:
        rows: Any = client.execute_command("XRANGE", f"{stream}:dead", "-", "+")
        return [unpack([part for pair in fields.items() for part in pair]) for _, fields in rows]


async def test_one_subscriber_reads_new_entries_and_claims_stale_ones(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A subscriber reads new entries and claims idle ones, including the backlog."""
    left = leave_behind(client, "s", "g", 5, idle=HOUR)
    backlog = [client.xadd("s", {"x": 5}) for _ in range(5)]
    app, seen = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000))
    async def handle(x: int, msg: Message) -> None:
        seen.append((msg.id, msg.delivery_count))

    async with app.running():
        await aeventually(lambda: len(seen) == 10)
        fresh = client.xadd("s", {"x": 6})
        await aeventually(lambda: len(seen) == 11)
        await aeventually(all_done(client, "s", "g"))
    assert sorted(seen) == sorted([(i, 2) for i in left] + [(i, 1) for i in [*backlog, fresh]])
    assert app.stats()["handle"]["claimed"] == 5
    assert app.stats()["handle"]["acked"] == 11


async def test_young_pending_entries_are_left_alone(server: ServerProcess, client: redis.Redis) -> None:
    """An entry that another consumer holds for less than min_idle_time is not claimed."""
    left = leave_behind(client, "s", "g", 3, idle=10)
    app, seen = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR, polling_interval=50))
    async def handle(msg: Message) -> None:
        seen.append(msg.id)

    async with app.running():
        fresh = [client.xadd("s", {"x": number}) for number in range(20)]
        await aeventually(lambda: len(seen) >= 20)
    assert sorted(seen) == sorted(fresh)
    assert pending(client, "s", "g") == dict.fromkeys(left, ("ghost", 1))


async def test_a_failing_entry_is_tried_exactly_as_often_as_allowed_and_then_dead_once(
    server: ServerProcess, client: redis.Redis
) -> None:
    """With max_deliveries=3 a failing entry runs three times and then has one dead letter with its fields and error."""
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=QUICK)
    async def handle(msg: Message) -> None:
        runs.append(msg.delivery_count)
        raise ValueError("no such order")

    entry: Any = client.xadd("s", {"order": "7", "note": "ü"})
    async with app.running():
        await aeventually(lambda: client.exists("s:dead"))
        await aeventually(all_done(client, "s", "g"))
    assert runs == [1, 2, 3]
    (letter,) = dead_letters(server, "s")
    assert letter.fields == (b"order", b"7", b"note", "ü".encode())
    assert (letter.stream, letter.id, letter.group, letter.deliveries) == ("s", entry, "g", 3)
    assert letter.reason == "error"
    assert letter.error == "ValueError: no such order"
    assert "raise ValueError" in letter.traceback
    assert letter.published_ms == int(entry.split("-")[0])
    assert app.stats()["handle"] | {"failed": 3, "retried": 2, "dead": 1} == app.stats()["handle"]


async def test_entries_that_kill_their_process_are_not_run_for_ever(server: ServerProcess, client: redis.Redis) -> None:
    """An entry whose unfinished deliveries far exceed the limit becomes a dead letter without another run."""
    (entry,) = leave_behind(client, "s", "g", 1, idle=HOUR)
    client.execute_command("XCLAIM", "s", "g", "ghost", 0, entry, "IDLE", HOUR, "RETRYCOUNT", 4, "JUSTID")
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000), retry=QUICK)
    async def handle(msg: Message) -> None:
        runs.append(msg.id)

    async with app.running():
        await aeventually(lambda: client.exists("s:dead"))
    assert runs == []
    (letter,) = dead_letters(server, "s")
    assert (letter.reason, letter.deliveries) == ("overdue", 5)


async def test_poison_never_starves_new_entries(server: ServerProcess, client: redis.Redis) -> None:
    """Entries that keep failing leave half of each read to new entries."""
    for number in range(20):
        client.xadd("s", {"poison": 1, "x": number})
    app, runs = App(server.url), Counter[str]()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=50), retry=Retry(max_deliveries=0), concurrency=2)
    async def handle(msg: Message) -> None:
        if "poison" in msg.fields:
            runs["poison"] += 1
            raise Nack("again")
        runs["good"] += 1
        runs["at the last good one"] = runs["poison"]

    async with app.running():
        await aeventually(lambda: runs["poison"] > 40)
        await app.publish_batch("s", [{"x": number} for number in range(100)])
        there = runs["poison"]
        await aeventually(lambda: runs["good"] == 100)
    # half of each read, plus what the growing read-ahead held when the good entries were there
    assert runs["at the last good one"] - there <= 100 + 2 * 128
    assert len(pending(client, "s", "g")) == 20


async def test_manual_ack_nack_and_reject_do_what_they_say(server: ServerProcess, client: redis.Redis) -> None:
    """Manual ``ack`` ends the entry, ``nack`` delivers it again, and ``reject`` makes it dead.

    No call leaves it pending.
    """
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), ack="manual", retry=QUICK)
    async def handle(do: str, msg: Message) -> None:
        runs.append((do, msg.delivery_count))
        if do == "ack" or (do in ("nack", "later") and msg.delivery_count == 2):
            await msg.ack()
            assert msg.id not in pending(client, "s", "g")
        elif do == "nack":
            await msg.nack()
        elif do == "later":
            await msg.nack(delay=0.05)
        elif do == "reject":
            await msg.reject("not ours")

    async with app.running():
        ids = {do: client.xadd("s", {"do": do}) for do in ("ack", "nack", "later", "reject", "nothing")}
        await aeventually(lambda: len(runs) == 7)
        await aeventually(lambda: set(pending(client, "s", "g")) == {ids["nothing"]})
    assert Counter(do for do, _ in runs) == {"ack": 1, "nack": 2, "later": 2, "reject": 1, "nothing": 1}
    (letter,) = dead_letters(server, "s")
    assert (letter.reason, letter.error, letter.id) == ("reject", "not ours", ids["reject"])
    # an unsettled entry is free after the stop, and its delivery stays counted
    assert client.xautoclaim("s", "g", "other", HOUR)[1]
    assert pending(client, "s", "g") == {ids["nothing"]: ("other", 2)}


async def test_a_message_used_twice_is_an_error(server: ServerProcess, client: redis.Redis) -> None:
    """A second outcome of a message is a clear error, also after an automatic acknowledgement, and changes nothing."""
    app, errors, kept = App(server.url), [], []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(msg: Message) -> None:
        await msg.ack()
        for again in (msg.ack, msg.nack, msg.reject):
            try:
                again()
            except AlreadySettledError as error:
                errors.append(str(error))
        kept.append(msg)

    async with app.running():
        client.xadd("s", {"x": 1})
        await aeventually(lambda: kept)
    assert len(errors) == 3
    assert "settled" in errors[0]
    assert not client.exists("s:dead")
    assert kept[0].settled


async def test_raising_nack_and_reject(server: ServerProcess, client: redis.Redis) -> None:
    """Raising Nack delivers the entry again, and raising Reject makes it dead, in handlers of either kind."""
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), retry=QUICK)
    def handle(do: str, msg: Message) -> None:
        runs.append((do, msg.delivery_count))
        if do == "reject":
            raise Reject("bad")
        raise Nack("later", delay=0.01)

    async with app.running():
        client.xadd("s", {"do": "reject"})
        client.xadd("s", {"do": "nack"})
        await aeventually(lambda: client.xlen("s:dead") == 2)
    assert sorted(runs) == [("nack", 1), ("nack", 2), ("nack", 3), ("reject", 1)]
    assert sorted((letter.reason, letter.deliveries) for letter in dead_letters(server, "s")) == [
        ("nack", 3),
        ("reject", 1),
    ]


async def test_an_entry_that_does_not_fit_is_dead_at_once(server: ServerProcess, client: redis.Redis) -> None:
    """An entry that fails validation is dead at once with the field's name, and its handler does not run."""
    app, seen = App(server.url), []

    @dataclasses.dataclass
    class Flight:
        number: int
        delay: float | None

    def handle(flight: Any) -> None:
        seen.append(flight)

    handle.__annotations__["flight"] = Flight
    app.subscriber(StreamSub("s", group="g"))(handle)
    async with app.running():
        client.xadd("s", {"number": "NA", "delay": "2"})
        client.xadd("s", {"number": "17", "delay": ""})
        await aeventually(lambda: client.exists("s:dead"))
        await aeventually(lambda: seen)
    assert seen == [Flight(17, None)]
    (letter,) = dead_letters(server, "s")
    assert (letter.reason, letter.deliveries) == ("invalid", 1)
    assert "number" in letter.error


async def test_stop_hands_back_what_was_not_started_uncharged_and_at_once(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A stop hands back entries that have not begun: at once, uncharged, and without leaving the consumer behind."""
    ids = [client.xadd("s", {"x": number}) for number in range(20)]
    app, running, go = App(server.url), asyncio.Event(), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR, max_records=20), concurrency=2)
    async def handle(msg: Message) -> None:
        running.set()
        await go.wait()

    await app.start()
    await running.wait()
    await aeventually(lambda: len(pending(client, "s", "g")) == 20)
    stopping = asyncio.create_task(app.stop())
    # while two still run, the other eighteen can be had by any consumer whatever its min_idle_time
    taken: Any = await aeventually(lambda: len(claim_all(client)) == 18 and True)
    assert taken
    go.set()
    assert await stopping
    assert pending(client, "s", "g") == dict.fromkeys(ids[2:], ("other", 1))
    assert consumers(client, "s", "g") == {"other"}


def claim_all(client: redis.Redis) -> list[str]:
    """Return the entries that ``other`` claims: all that were idle for an hour or had no owner."""
    client.xautoclaim("s", "g", "other", HOUR, count=100)
    return [entry for entry, (name, _) in pending(client, "s", "g").items() if name == "other"]


async def test_a_handler_beyond_the_grace_time_is_cancelled_and_handed_back(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A handler over the stop's grace time is cancelled, and another worker can claim its entry at once, uncharged."""
    entry = client.xadd("s", {"x": 1})
    app, running, cancelled = App(server.url), asyncio.Event(), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
    async def handle(msg: Message) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(msg.id)
            raise

    await app.start()
    await running.wait()
    assert await app.stop(grace=0.05)
    assert cancelled == [entry]
    client.xautoclaim("s", "g", "other", HOUR)
    assert pending(client, "s", "g") == {entry: ("other", 1)}


async def test_the_group_is_made_anew_after_flushall(server: ServerProcess, client: redis.Redis) -> None:
    """After FLUSHALL the group is created again and work continues."""
    app, seen = App(server.url), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> None:
        seen.append(x)

    async with app.running():
        client.xadd("s", {"x": 1})
        await aeventually(lambda: seen == [1])
        client.flushall()
        client.xadd("s", {"x": 2})
        await aeventually(lambda: seen == [1, 2])
        client.xgroup_destroy("s", "g")
        await aeventually(lambda: seen[2:] == [2])
        await aeventually(all_done(client, "s", "g"))
    assert app.stats()["handle"]["groups_created"] == 3


async def test_a_server_restart_is_survived(own_server: ServerProcess) -> None:
    """After a server restart the worker reads on, and its finished entry is acknowledged."""
    app, seen, gate = App(own_server.url), [], asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=2_000))
    async def handle(x: int) -> None:
        seen.append(x)
        if x == 1:
            await gate.wait()

    async with app.running():
        with own_server.client() as client:
            client.xadd("s", {"x": 1})
        await aeventually(lambda: seen == [1])
        await asyncio.to_thread(own_server.kill)
        gate.set()  # this outcome cannot be stored now
        await asyncio.to_thread(own_server.start)
        with own_server.client(decode_responses=True) as client:
            client.xadd("s", {"x": 2})
            await aeventually(lambda: 2 in seen)
            await aeventually(all_done(client, "s", "g"))
    assert app.stats()["handle"]["reconnects"] == 1


async def test_long_handlers_and_waiting_entries_keep_their_lease(server: ServerProcess, client: redis.Redis) -> None:
    """A job of three times min_idle_time, and the entries waiting behind it, are not run by another worker."""
    first, second = App(server.url), App(server.url)
    runs, gate, others = [], asyncio.Event(), []
    sub = StreamSub("s", group="g", min_idle_time=1_000)

    @first.subscriber(sub, concurrency=1)
    async def slow(x: int) -> None:
        runs.append(x)
        await gate.wait()

    @second.subscriber(sub)
    async def handle(x: int) -> None:
        others.append(x)

    for number in range(4):
        client.xadd("s", {"x": number})
    async with first.running():
        await aeventually(lambda: runs and len(pending(client, "s", "g")) >= 1)
        async with second.running():
            # new entries for three times min_idle_time: the second worker has many chances to claim
            started = asyncio.get_running_loop().time()
            number = 100
            while asyncio.get_running_loop().time() - started < 3:
                client.xadd("s", {"x": number})
                await aeventually(lambda latest=number: latest in others)
                number += 1
            gate.set()
            await aeventually(all_done(client, "s", "g"))
    assert sorted(runs + [x for x in others if x < 100]) == [0, 1, 2, 3]


async def test_a_worker_that_lost_its_entry_can_no_longer_ack_it(server: ServerProcess, client: redis.Redis) -> None:
    """A worker that was frozen and lost its entry cannot acknowledge it, and the new owner keeps it."""
    clock = ManualClock()
    app, running, gate, late = App(server.url, clock=clock), asyncio.Event(), asyncio.Event(), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=3_000_000))
    async def handle(msg: Message) -> None:
        running.set()
        await gate.wait()
        late.append(msg)

    entry = client.xadd("s", {"x": 1})
    await app.start()
    await running.wait()
    client.xclaim("s", "g", "other", 0, [entry])
    clock.advance(HOUR)
    gate.set()
    await aeventually(lambda: app.stats()["handle"]["lost"] == 1)
    with pytest.raises(EntryLostError):
        late[0].ack()
    await app.stop()
    assert pending(client, "s", "g") == {entry: ("other", 2)}


async def test_what_came_before_the_process_was_frozen_is_not_run_after_it(
    server: ServerProcess, client: redis.Redis
) -> None:
    """An entry read before a freeze and claimed by another meanwhile is not run afterwards."""
    clock = ManualClock()
    app, ran, frozen = App(server.url, clock=clock), [], []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=3_000_000))
    async def handle(msg: Message) -> None:
        ran.append(msg.id)

    def freeze() -> None:
        if not frozen and client.xlen("s"):
            frozen.append(client.xautoclaim("s", "g", "other", 0)[1][0][0])
            clock.advance(HOUR)

    failpoints.on("after_read", freeze)
    async with app.running():
        entry = client.xadd("s", {"x": 1})
        await aeventually(lambda: app.stats()["handle"]["lost"] == 1)
        assert frozen == [entry]
        assert ran == []
    assert pending(client, "s", "g") == {entry: ("other", 2)}


async def test_an_entry_that_changed_hands_gets_no_dead_letter(server: ServerProcess, client: redis.Redis) -> None:
    """A worker writes no dead letter for an entry that another consumer has claimed."""
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=3_000_000), retry=Retry(max_deliveries=1))
    async def handle(msg: Message) -> None:
        raise ValueError("no such order")

    entry = client.xadd("s", {"x": 1})
    failpoints.on("before_dead", lambda: client.xclaim("s", "g", "other", 0, [entry]))
    async with app.running():
        await aeventually(lambda: app.stats()["handle"]["lost"] == 1)
    assert client.xlen("s:dead") == 0
    assert pending(client, "s", "g") == {entry: ("other", 2)}


async def test_entries_trimmed_while_pending_are_dropped_and_counted(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A pending entry that was trimmed from the stream leaves the pending list and is counted."""
    ids = leave_behind(client, "s", "g", 5, idle=HOUR)
    client.xtrim("s", minid=ids[3], approximate=False)
    app, seen = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000))
    async def handle(msg: Message) -> None:
        seen.append(msg.id)

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert sorted(seen) == ids[3:]
    assert app.stats()["handle"]["lost"] == 3


@pytest.mark.parametrize("concurrency", [1, 16])
async def test_many_deleted_entries_are_dropped_soon(
    server: ServerProcess, client: redis.Redis, concurrency: int
) -> None:
    """A worker drops 500 pending rows of deleted entries within seconds, deleted before its start or later."""
    leave_behind(client, "s", "g", 500, idle=HOUR)
    client.xtrim("s", maxlen=0)
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), concurrency=concurrency)
    async def handle() -> None:
        raise AssertionError("nothing is left to handle")

    async with app.running():
        await aeventually(lambda: app.stats()["handle"]["lost"] == 500)
        with client.pipeline() as transaction:  # the worker sees none of them in the stream
            for number in range(100):
                transaction.xadd("s", {"x": number})
            transaction.xreadgroup("g", "ghost", {"s": ">"})
            transaction.xtrim("s", maxlen=0)
            transaction.execute()
        if server.release() < (7, 0):  # it keeps deleted entries until their idle time is over
            rows = [str(row["message_id"]) for row in client.xpending_range("s", "g", "-", "+", 2000, "ghost")]
            client.execute_command("XCLAIM", "s", "g", "ghost", 0, *rows, "IDLE", HOUR, "RETRYCOUNT", 1, "JUSTID")
        await aeventually(lambda: app.stats()["handle"]["lost"] == 600)
    assert pending(client, "s", "g") == {}


async def test_a_retry_further_away_than_min_idle_waits_its_time(server: ServerProcess, client: redis.Redis) -> None:
    """A retry delay longer than min_idle_time is kept by the worker that scheduled it."""
    app, times = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=600), retry=Retry(base=1.5, jitter=False, max_deliveries=2))
    async def handle() -> None:
        times.append(asyncio.get_running_loop().time())
        raise ValueError("later")

    client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: client.exists("s:dead"))
    assert len(times) == 2
    assert times[1] - times[0] >= 1.49


async def test_each_ack_is_stored_before_the_next_entry(server: ServerProcess, client: redis.Redis) -> None:
    """With ack="each" and one lane, at most one finished entry is still pending at any time."""
    app, found = App(server.url), []
    ids = [client.xadd("s", {"x": number}) for number in range(10)]

    @app.subscriber(StreamSub("s", group="g"), ack="each", concurrency=1)
    async def handle(msg: Message) -> None:
        found.append((msg.id, set(pending(client, "s", "g"))))

    async with app.running():
        await aeventually(lambda: len(found) == 10)
    for place, (entry, open_entries) in enumerate(found):
        assert entry in open_entries
        assert not open_entries & set(ids[:place])


@pytest.mark.parametrize("waits", [False, True])
async def test_each_lane_repeats_one_finished_entry_at_most(
    server: ServerProcess, client: redis.Redis, *, waits: bool
) -> None:
    """With ack="each" and four lanes, at most three finished entries are pending while a fourth runs."""
    app, finished, open_ones = App(server.url), set(), []
    for number in range(100):
        client.xadd("s", {"x": number})

    @app.subscriber(StreamSub("s", group="g"), ack="each", concurrency=4)
    async def handle(msg: Message) -> None:
        open_ones.append(len(finished & set(pending(client, "s", "g"))))
        if waits:
            await asyncio.sleep(0)
        finished.add(msg.id)

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert len(finished) == app.stats()["handle"]["acked"] == 100
    assert max(open_ones) <= 3


async def test_places_that_acks_keep_are_taken_again(server: ServerProcess, client: redis.Redis) -> None:
    """With ack="each" all lanes are filled from waiting entries, also after entries that finished at once."""
    for number in range(140):
        client.xadd("s", {"x": number})
    app, running = App(server.url), asyncio.Barrier(40)

    @app.subscriber(StreamSub("s", group="g"), ack="each", concurrency=40)
    async def handle(x: int) -> None:
        if x >= 100:
            await running.wait()

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert app.stats()["handle"]["acked"] == 140


async def test_stale_entries_come_between_new_ones_without_end(server: ServerProcess, client: redis.Redis) -> None:
    """An entry that another consumer left is claimed even while every read is full of new entries."""
    app, found = App(server.url), asyncio.Event()
    left = leave_behind(client, "s", "g", 1, idle=0)
    for number in range(300):
        client.xadd("s", {"x": number})

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
    async def handle(msg: Message) -> None:
        if msg.id == left[0]:
            found.set()
        elif not found.is_set():
            await app.publish("s", {"x": 0})
            if app.stats()["handle"]["handled"] == 1_000:  # from now on it is stale
                client.execute_command("XCLAIM", "s", "g", "ghost", 0, *left, "IDLE", HOUR, "JUSTID")

    async with app.running():
        await asyncio.wait_for(found.wait(), 60)
        await aeventually(all_done(client, "s", "g"))


async def test_what_was_handed_back_comes_between_new_ones_without_end(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Entries that were handed back uncharged are read between new ones, however many of each there are."""
    app, found = App(server.url, clock=ManualClock()), set()  # a clock that stands still
    left = leave_behind(client, "s", "g", 300, idle=0)
    client.execute_command("XCLAIM", "s", "g", "ghost", 0, *left, "IDLE", HOUR, "RETRYCOUNT", 0, "JUSTID")
    for number in range(300):
        client.xadd("s", {"x": number})

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR))
    async def handle(msg: Message) -> None:
        if msg.id in left:
            found.add(msg.id)
        elif len(found) < len(left):
            await app.publish("s", {"x": 0})

    async with app.running():
        await aeventually(lambda: len(found) == len(left))
        await aeventually(all_done(client, "s", "g"))


async def test_acks_are_gathered(server: ServerProcess, client: redis.Redis) -> None:
    """A thousand quick entries need only a small fraction of a thousand XACK commands."""
    for number in range(1_000):
        client.xadd("s", {"x": number})
    app, flushes = App(server.url), Counter[str]()
    failpoints.on("before_ack", lambda: flushes.update(["ack"]))

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> None: ...

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert app.stats()["handle"]["acked"] == 1_000
    assert flushes["ack"] <= 100


async def test_as_many_run_at_once_as_may(server: ServerProcess, client: redis.Redis) -> None:
    """Each of forty lanes runs an entry if forty are waiting, and none stays idle."""
    for number in range(40):
        client.xadd("s", {"x": number})
    app, running = App(server.url), asyncio.Barrier(40)

    @app.subscriber(StreamSub("s", group="g"), concurrency=40)
    async def handle() -> None:
        await running.wait()

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert app.stats()["handle"]["acked"] == 40


async def test_prefetch_is_bounded(server: ServerProcess, client: redis.Redis) -> None:
    """A worker with busy handlers holds only its running entries and a bounded number of waiting ones."""
    for number in range(500):
        client.xadd("s", {"x": number})
    app, running = App(server.url), asyncio.Semaphore(0)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=HOUR), concurrency=3)
    async def handle() -> None:
        running.release()
        await asyncio.Event().wait()

    await app.start()
    for _ in range(3):
        await running.acquire()
    await aeventually(lambda: len(pending(client, "s", "g")) >= 6)
    assert len(pending(client, "s", "g")) <= 3 + 128
    await app.stop(grace=0)
    assert not consumers(client, "s", "g")


async def test_no_ack_leaves_nothing_pending(server: ServerProcess, client: redis.Redis) -> None:
    """With NOACK an entry runs at most once and is never pending. A failed one still becomes a dead letter."""
    app, seen = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", no_ack=True))
    async def handle(x: int) -> None:
        assert not pending(client, "s", "g")
        seen.append(x)
        if x == 2:
            raise ValueError("two")

    for number in range(4):
        client.xadd("s", {"x": number})
    async with app.running():
        await aeventually(lambda: len(seen) == 4)
        await aeventually(lambda: client.exists("s:dead"))
    assert sorted(seen) == [0, 1, 2, 3]
    assert len(dead_letters(server, "s")) == 1


async def test_handlers_in_threads_run_at_the_same_time_and_settle(server: ServerProcess, client: redis.Redis) -> None:
    """Plain handlers run in threads, several at once. Their message methods return after the server's reply."""
    app, together, done = App(server.url), threading.Barrier(3), []

    @app.subscriber(StreamSub("s", group="g"), ack="manual", concurrency=3)
    def handle(msg: Message) -> None:
        together.wait(timeout=20)
        msg.ack()
        with server.client(decode_responses=True) as own:
            done.append(msg.id not in pending(own, "s", "g"))

    for number in range(3):
        client.xadd("s", {"x": number})
    async with app.running():
        await aeventually(lambda: len(done) == 3)
    assert done == [True, True, True]


async def test_publishing_and_publishers(server: ServerProcess, client: redis.Redis) -> None:
    """A handler's result goes to its publisher's stream in any order of decorators. Batches keep their order."""
    app, hooks_run = App(server.url), []

    @app.publisher("up")
    @app.subscriber(StreamSub("s", group="g"))
    @app.publisher("down", maxlen=1_000)
    async def handle(x: int) -> dict[str, int] | None:
        return {"twice": 2 * x} if x else None

    @app.on_startup
    async def begin() -> None:
        hooks_run.append("start")

    @app.on_shutdown
    def end() -> None:
        hooks_run.append("stop")

    async with app.running():
        ids = await app.publish_batch("s", [{"x": number} for number in range(5)])
        assert ids == sorted(ids, key=lambda entry: tuple(map(int, entry.split("-"))))
        await aeventually(all_done(client, "s", "g"))
    for stream in ("up", "down"):
        rows: Any = client.xrange(stream)
        assert sorted(fields["twice"] for _, fields in rows) == ["2", "4", "6", "8"]
    assert hooks_run == ["start", "stop"]


async def test_two_subscribers_of_one_app_are_two_groups(server: ServerProcess, client: redis.Redis) -> None:
    """Without a group name the handler's name is used, so that two handlers each receive every entry."""
    app, seen = App(server.url), []

    @app.subscriber("s")
    async def one(x: int) -> None:
        seen.append(("one", x))

    @app.subscriber("s")
    async def two(x: int) -> None:
        seen.append(("two", x))

    client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: sorted(seen) == [("one", 1), ("two", 1)])
    groups: Any = client.xinfo_groups("s")
    assert {group["name"] for group in groups} == {"one", "two"}


def test_the_guides_start_position_is_kept(server: ServerProcess, client: redis.Redis) -> None:
    """``start="$"`` skips entries that were there before the group. The default reads them."""
    client.xadd("s", {"x": 1})

    async def run(group: str, start: str, expect: list[int]) -> None:
        app, seen = App(server.url), []

        @app.subscriber(StreamSub("s", group=group, start=start))
        async def handle(x: int) -> None:
            seen.append(x)

        async with app.running():
            if not expect or expect[-1] == 2:
                await app.publish("s", {"x": 2})
            await aeventually(lambda: seen == expect)

    asyncio.run(run("all", "0", [1]))
    asyncio.run(run("tail", "$", [2]))
    eventually(all_done(client, "s", "tail"))


async def test_a_broken_part_of_the_loop_is_fatal(server: ServerProcess, client: redis.Redis) -> None:
    """If a lane of the worker fails unexpectedly, ``app.wait()`` raises the error."""
    app = App(server.url)

    def broken() -> None:
        raise ZeroDivisionError

    failpoints.on("before_handler", broken)

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> None: ...

    async with app.running():
        client.xadd("s", {"x": 1})
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(app.wait(), 30)


async def test_many_workers_one_poison_storm_each_dead_once(server: ServerProcess, client: redis.Redis) -> None:
    """Several consumers that write dead letters to one stream at once write one for each entry."""
    apps = [App(server.url) for _ in range(4)]
    for app in apps:

        @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000, max_records=5))
        async def handle(x: int) -> None:
            raise Reject("all of them")

    ids = [client.xadd("s", {"x": number}) for number in range(400)]
    for app in apps:
        await app.start()
    await aeventually(all_done(client, "s", "g"))
    for app in apps:
        await app.stop()
    assert sorted(letter.id for letter in dead_letters(server, "s")) == sorted(ids)
