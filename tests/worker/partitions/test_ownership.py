"""Partition owners: one member reads each partition, whichever members join, leave, freeze or are killed."""

import asyncio
import contextlib
import json
import logging
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream import App, EntryLostError, Message, Nack, StreamSub, failpoints, once
from millstream.cli.main import main
from millstream.client.partitions import lease as leases
from millstream.client.partitions.layout import LayoutError
from millstream.client.partitions.lease import PartitionLease
from millstream.clock import ManualClock
from millstream.errors import ConfigError
from millstream.ops.asking import NotReadableError
from millstream.ops.groups.owners import partition_owners
from millstream.worker.partitions.loop import PartitionedLoop
from support import needs
from support.accounts import user
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]
LEASE_MS = 1_200


def sub(stream: str = "orders", **options: Any) -> StreamSub:
    """Build the subscription of these tests."""
    return StreamSub(stream, **({"group": "g", "min_idle_time": LEASE_MS} | options))


class Fleet:
    """Apps on one stream of four partitions, with a log of their handlers' runs."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        self.url = url
        self.client = client
        self.seen: list[tuple[int, str, int]] = []  # App, key, number
        self.apps: list[App] = []

    def app(self, *, lease_ms: int = LEASE_MS, **options: Any) -> App:
        """Add an app, with a long lease where it must not expire on a busy machine."""
        app, number = App(self.url, reap_after=None), len(self.apps)
        self.apps.append(app)

        @app.subscriber(sub(min_idle_time=lease_ms), **options)
        async def handle(key: str, n: int) -> None:
            self.seen.append((number, key, n))

        return app

    async def publish(self, first: int, count: int) -> None:
        """Publish entries of ten keys."""
        await self.apps[0].publish_batch("orders", [{"key": f"k{n % 10}", "n": n} for n in range(first, first + count)])

    def ordered(self) -> bool:
        """Report whether each key's entries ran once and in order."""
        by_key = defaultdict(list)
        for _, key, n in self.seen:
            by_key[key].append(n)
        return all(each == sorted(set(each)) for each in by_key.values())


def owned(app: App) -> list[int]:
    """Return the partitions that an app owns."""
    (loop,) = app.loops
    assert isinstance(loop, PartitionedLoop)
    return loop.partitions


def owner(client: redis.Redis, number: int) -> str | None:
    """Return the text of an owner key."""
    found: Any = client.get(f"millstream:{{{number}}}:owner:orders{{{number}}}:g")
    return found


@pytest.fixture
async def fleet(server: ServerProcess, client: redis.Redis) -> AsyncIterator[Fleet]:
    """A fleet without an app yet, on a partitioned stream."""
    found = Fleet(server.url, client)
    app = App(server.url)
    await app.partition("orders", 4, by="key")
    await app.close()
    yield found
    for one in found.apps:
        await one.close()


async def test_partitions_of_quick_handlers_are_read_by_few_commands(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition reads further ahead than a plain stream while its entries begin soon, otherwise only its share."""
    one = fleet.app()
    async with one.running():
        await aeventually(lambda: len(owned(one)) == 4)
        buffer, clock = one.loops[0].parts[0]._buffer, ManualClock(mono=1)  # noqa: SLF001 - shown by commands only over time
        monkeypatch.setattr(buffer._member, "clock", clock)  # noqa: SLF001 - the same
        sizes = []
        for waited in (0, *[100] * 8, *[3000] * 8):  # milliseconds until the last read had begun, for four partitions
            clock.advance(waited)
            buffer.put([])
            sizes.append(buffer.free)
        monkeypatch.undo()
    assert (max(sizes), sizes[8], sizes[-1]) == (256, 256, sizes[0])
    assert sizes[0] <= 32


async def test_members_share_the_partitions_and_keep_the_order(fleet: Fleet) -> None:
    """A second app takes half of the partitions and returns them when it stops. Each key stays in order."""
    one, two = fleet.app(lease_ms=5_000), fleet.app(lease_ms=5_000, concurrency=2)
    async with one.running():
        await aeventually(lambda: len(owned(one)) == 4)
        await fleet.publish(0, 40)
        async with two.running():
            await aeventually(lambda: (len(owned(one)), len(owned(two))) == (2, 2))
            await fleet.publish(40, 40)
            await aeventually(lambda: len(fleet.seen) == 80)
            assert {number for number, _, n in fleet.seen if n >= 40} == {0, 1}
        await fleet.publish(80, 20)
        await aeventually(lambda: len(owned(one)) == 4 and len(fleet.seen) == 100)
    assert fleet.ordered()
    # A clean stop leaves no owner, no member and no consumer
    assert fleet.client.keys("millstream:*owner*") == []
    assert fleet.client.keys("millstream:*members*") == []
    for at in range(4):
        assert fleet.client.xinfo_consumers(f"orders{{{at}}}", "g") == []
        pending: Any = fleet.client.xpending(f"orders{{{at}}}", "g")
        assert pending["pending"] == 0


@pytest.mark.parametrize("options", [{"ack": "each"}, {"concurrency": 1}, {"key": lambda msg: msg.fields["key"]}])
async def test_every_way_of_running_shares_the_places(fleet: Fleet, options: dict[str, Any]) -> None:
    """With any number of lanes for the partitions, every entry runs once and in the order of its key."""
    app = fleet.app(lease_ms=60_000, **options)
    async with app.running():
        await fleet.publish(0, 200)
        await aeventually(lambda: len(fleet.seen) == 200)
        assert app.stats()["handle"]["read"] == 200
    assert fleet.ordered()


async def test_batches_and_threads_run_over_partitions(fleet: Fleet) -> None:
    """A batch has entries of one partition only. A threaded handler has one pool for all partitions."""
    app, batches, ran = App(fleet.url), [], Counter[int]()

    @app.subscriber(sub(), batch=True)
    async def handle(n: list[int], msgs: list[Message]) -> None:
        batches.append({msg.stream for msg in msgs})
        ran.update(n)

    @app.subscriber(sub(group="threads"), concurrency=3)
    def run(n: int) -> None:
        ran.update([n])

    fleet.apps.append(app)
    await fleet.publish(0, 50)
    async with app.running():
        await aeventually(lambda: sum(ran.values()) == 100)
    assert set(ran.values()) == {2}
    assert all(len(streams) == 1 for streams in batches)


async def test_a_partition_with_little_gets_a_place_beside_one_with_much(fleet: Fleet) -> None:
    """Lanes are shared fairly among partitions: a large backlog in one does not keep another waiting."""
    app, order = App(fleet.url), []
    gate = asyncio.Event()
    fleet.apps.append(app)

    @app.subscriber(sub(), concurrency=1)
    async def handle(msg: Message, n: int) -> None:
        await gate.wait()
        order.append((msg.partition, n))
        await asyncio.sleep(0)

    await app.publish_batch("orders", [{"n": n, "key": None} for n in range(100)], key=lambda _: "k1")
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        await app.publish_batch("orders", [{"n": 100 + n} for n in range(40)], key=lambda one: one["n"])
        await aeventually(lambda: sum(part.buffered for part in app.loops[0].parts) >= 40)
        gate.set()
        await aeventually(lambda: len(order) == 140)
    busy = zlib.crc32(b"k1") % 4
    # A quarter of the places is each partition's, so the others end long before the backlog does
    assert max(at for at, (part, _) in enumerate(order) if part != busy) < 120


def steal(client: redis.Redis, number: int, text: str = "thief:99") -> None:
    """Give a partition to another owner, as after an expired lease."""
    client.set(f"millstream:{{{number}}}:owner:orders{{{number}}}:g", text, px=60_000)


@pytest.mark.parametrize("how", ["other", "gone", "same name"])
async def test_an_owner_of_before_reads_nothing(fleet: Fleet, how: str) -> None:
    """The server refuses the read of a former owner whose lease ended just before it."""
    app = fleet.app()
    hit = asyncio.Event()

    def lapse() -> None:
        if armed and not hit.is_set():
            hit.set()
            for at in range(4):
                if how == "gone":
                    fleet.client.delete(f"millstream:{{{at}}}:owner:orders{{{at}}}:g")
                    fleet.client.set(f"millstream:{{{at}}}:owner:orders{{{at}}}:g", "thief:99")
                    fleet.client.delete(f"millstream:{{{at}}}:owner:orders{{{at}}}:g")
                    steal(fleet.client, at)
                else:
                    steal(fleet.client, at, "thief:99" if how == "other" else f"{name}:1000")

    armed = False
    failpoints.on("before_fenced_read", lapse)
    async with app.running():
        name = app.loops[0].member.consumer
        await aeventually(lambda: len(owned(app)) == 4 and all(part.fetcher._awaits for part in app.loops[0].parts))  # noqa: SLF001 - it waits
        armed = True
        await fleet.publish(0, 40)
        await asyncio.wait_for(hit.wait(), 30)
        await aeventually(lambda: owned(app) == [])
        assert fleet.seen == []
        for at in range(4):
            assert fleet.client.xpending_range(f"orders{{{at}}}", "g", "-", "+", 10) == []
        for at in range(4):
            fleet.client.delete(f"millstream:{{{at}}}:owner:orders{{{at}}}:g")
        await aeventually(lambda: len(fleet.seen) == 40)


async def test_a_new_connection_is_fenced_from_its_first_moment(fleet: Fleet) -> None:
    """A former owner whose connection breaks reads nothing over its new connection either."""
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4 and all(part.fetcher._awaits for part in app.loops[0].parts))  # noqa: SLF001 - it waits
        for at in range(4):
            steal(fleet.client, at)
        for one in fleet.client.client_list():
            if one["cmd"] == "xread":
                fleet.client.client_kill_filter(_id=one["id"])
        await fleet.publish(0, 40)
        await aeventually(lambda: owned(app) == [])
        assert fleet.seen == []
        for at in range(4):
            assert fleet.client.xpending_range(f"orders{{{at}}}", "g", "-", "+", 10) == []


async def test_an_owner_of_before_settles_nothing(fleet: Fleet) -> None:
    """A run that outlives its partition's lease is cancelled. Its ``once`` is refused, and its entry stays pending."""
    app, ends = App(fleet.url), []
    began = asyncio.Event()
    fleet.apps.append(app)

    @app.subscriber(sub())
    async def handle(msg: Message) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await once(msg, ("INCR", f"effect{{{msg.partition}}}"))
                except EntryLostError as error:
                    ends.append(error)
            raise

    await app.publish("orders", {"key": "a"})
    async with app.running():
        await asyncio.wait_for(began.wait(), 30)
        (at,) = [at for at in range(4) if fleet.client.xlen(f"orders{{{at}}}")]
        steal(fleet.client, at)
        await aeventually(lambda: at not in owned(app))
    assert len(ends) == 1
    assert fleet.client.keys("effect*") == []
    (row,) = fleet.client.xpending_range(f"orders{{{at}}}", "g", "-", "+", 10)
    assert row["times_delivered"] == 1


async def test_once_acts_for_the_owner_and_the_message_names_its_partition(fleet: Fleet) -> None:
    """``once`` runs for the current owner. The message carries the partition and the fence number of the owner key."""
    app, seen = App(fleet.url), []
    fleet.apps.append(app)

    @app.subscriber(sub())
    async def handle(msg: Message, n: int) -> None:
        assert await once(msg, ("INCRBY", f"sum{{{msg.partition}}}", n))
        assert not await once(msg, ("INCRBY", f"sum{{{msg.partition}}}", n))
        seen.append((msg.stream, f"orders{{{msg.partition}}}", owner(fleet.client, msg.partition or 0), msg.fence))

    await app.publish_batch("orders", [{"key": f"k{n}", "n": n} for n in range(10)])
    async with app.running():
        await aeventually(lambda: len(seen) == 10)
        name = app.loops[0].member.consumer
    assert all(stream == part and text == f"{name}:{fence}" for stream, part, text, fence in seen)
    assert sum(int(str(fleet.client.get(key))) for key in fleet.client.keys("sum*")) == 45


async def test_a_change_of_owner_keeps_a_delay_and_charges_nothing(fleet: Fleet) -> None:
    """A Nack's delay survives a change of owner, and the change counts no delivery."""
    first, second = App(fleet.url), App(fleet.url)
    fleet.apps += [first, second]
    counts: list[int] = []
    refused = asyncio.Event()

    @first.subscriber(sub())
    async def handle(msg: Message) -> None:
        refused.set()
        raise Nack("later", delay=1.5)

    @second.subscriber(sub())
    async def again(msg: Message) -> None:
        counts.append(msg.delivery_count)

    await first.publish("orders", {"key": "a"})
    async with first.running():
        await asyncio.wait_for(refused.wait(), 30)
        await aeventually(lambda: bool(fleet.client.keys("millstream:*due*")))
    (due_key,) = fleet.client.keys("millstream:*due*")
    ((_, due),) = fleet.client.zrange(due_key, 0, -1, withscores=True)
    async with second.running():
        await aeventually(lambda: counts)
    seconds, micro = fleet.client.time()
    assert seconds * 1000 + micro // 1000 >= due
    assert counts == [2]


async def test_entries_of_an_owner_that_was_killed_run_before_new_ones(fleet: Fleet) -> None:
    """All pending entries of a killed owner run in order before the next owner reads new ones."""
    for at in range(4):
        fleet.client.xgroup_create(f"orders{{{at}}}", "g", "0", mkstream=True)
    app = fleet.app(concurrency=2, max_records=8)  # Less than is pending: several reads take it over
    await fleet.publish(0, 100)
    for at in range(4):
        fleet.client.xreadgroup("g", "dead", {f"orders{{{at}}}": ">"}, count=15)
    async with app.running():
        await aeventually(lambda: len(fleet.seen) == 100)
        assert app.stats()["handle"]["claimed"] == 60
    assert fleet.ordered()


async def test_a_renewal_needs_the_whole_text(fleet: Fleet) -> None:
    """A lease with an earlier fence number is neither renewed nor released, even under the owner's name."""
    app = fleet.app()
    line = app._shared()  # noqa: SLF001 - the app's own line
    found = []
    for _ in range(2):
        fence = await leases.take(line, "orders{0}", "g", "me", 60_000)
        assert fence is not None
        assert await leases.take(line, "orders{0}", "g", "other", 60_000) is None
        found.append(PartitionLease("orders{0}", 0, "g", "me", fence, 60_000, 0))
        if len(found) == 1:
            await leases.give(line, found[0])
    first, second = found
    assert second.fence == first.fence + 1
    assert not await leases.renew(line, first)
    await leases.give(line, first)
    assert owner(fleet.client, 0) == second.text
    assert await leases.renew(line, second)


async def test_a_later_fence_of_our_name_is_not_our_lease(fleet: Fleet) -> None:
    """A member that finds its own name with a later fence number stops and leaves that lease alone."""
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        for at in range(4):
            steal(fleet.client, at, f"{app.loops[0].member.consumer}:1000")
        await aeventually(lambda: owned(app) == [])
        assert all(owner(fleet.client, at) == f"{app.loops[0].member.consumer}:1000" for at in range(4))


async def test_a_member_that_takes_nothing_leaves_nothing_without_an_owner(fleet: Fleet) -> None:
    """If a live member takes no partitions, the others take its share after three looks."""
    app = fleet.app()

    def ghost() -> bool:
        seconds, micro = fleet.client.time()
        fleet.client.hset(leases.members_key("orders", "g"), "ghost", f"{seconds * 1000 + micro // 1000}:")
        return len(owned(app)) == 4

    ghost_first = {"ghost": "x"}
    fleet.client.hset(leases.members_key("orders", "g"), mapping=ghost_first)
    async with app.running():
        await aeventually(ghost)


@pytest.mark.parametrize("row", ["", "x", "1:1", "9" * 400 + ":", "99999999999999:1,2", b"\xff:\xff"])
async def test_rows_of_members_that_nobody_wrote_do_no_harm(fleet: Fleet, row: str) -> None:
    """Invalid rows in the hash of members are ignored."""
    fleet.client.hset(leases.members_key("orders", "g"), "strange", row)
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        assert fleet.client.hkeys(leases.members_key("orders", "g")) == [app.loops[0].member.consumer]


async def test_the_work_goes_on_where_the_members_cannot_be_reached(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """If the hash of members cannot be reached, owners keep renewing and reading. One log line gives the reason."""
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        fleet.client.delete(leases.members_key("orders", "g"))
        fleet.client.set(leases.members_key("orders", "g"), "text")
        before = [owner(fleet.client, at) for at in range(4)]
        await aeventually(lambda: "partitions are not divided" in caplog.text)
        await fleet.publish(0, 40)
        await aeventually(lambda: len(fleet.seen) == 40)
        assert [owner(fleet.client, at) for at in range(4)] == before
        fleet.client.delete(leases.members_key("orders", "g"))


async def test_a_group_that_goes_is_made_again(fleet: Fleet) -> None:
    """After FLUSHALL a member takes its partitions again, creates the group again and handles new entries."""
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        await fleet.publish(0, 1)
        await aeventually(lambda: len(fleet.seen) == 1)
        fleet.client.flushall()
        await fleet.publish(1, 20)
        await aeventually(lambda: len(fleet.seen) == 21)


async def test_the_registry_has_one_row_for_all_partitions(fleet: Fleet) -> None:
    """A worker's registry row names the logical stream, its lanes once, and its partitions."""
    app = fleet.app(concurrency=7)
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        heartbeat = app._heartbeat  # noqa: SLF001 - its next beat is seconds away
        assert heartbeat is not None
        (row,) = heartbeat.facts()["subscribers"]
    assert (row["stream"], row["slots"], row["partitions"]) == ("orders", 7, [0, 1, 2, 3])
    assert json.dumps(row)


async def test_a_process_that_is_to_be_quiet_gives_its_partitions_up(fleet: Fleet) -> None:
    """``worker quiet`` and ``worker drain`` release a process's partitions. Resuming takes some again."""
    one, two = fleet.app(), fleet.app()
    async with one.running(), two.running():
        await aeventually(lambda: (len(owned(one)), len(owned(two))) == (2, 2))
        one.loops[0].quieten(True)
        await aeventually(lambda: (len(owned(one)), len(owned(two))) == (0, 4))
        one.loops[0].quieten(False)
        await aeventually(lambda: (len(owned(one)), len(owned(two))) == (2, 2))


async def test_a_stop_is_clean_after_the_wait_was_cancelled(fleet: Fleet) -> None:
    """A stop during a blocked read, as on SIGTERM, stores all outcomes and reports success."""
    app = fleet.app()
    await app.start()
    waiting = asyncio.create_task(app.wait())
    await aeventually(lambda: len(owned(app)) == 4)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await app.stop()


@pytest.mark.parametrize(
    ("options", "sub_options", "fault"),
    [
        ({}, {"no_ack": True, "min_idle_time": None}, "no_ack"),
        ({}, {"consumer": "fixed"}, "consumer"),
        ({}, {"start": "5-0"}, "start"),
        ({"read": "claimed"}, {}, "read"),
        ({"read": "new"}, {}, "read"),
    ],
)
async def test_options_that_a_division_cannot_keep_are_refused(
    fleet: Fleet, options: dict[str, Any], sub_options: dict[str, Any], fault: str
) -> None:
    """The app does not start with an option that partitions do not support, and the error names it."""
    app = App(fleet.url)

    @app.subscriber(sub(**sub_options), **options)
    async def handle(msg: Message) -> None: ...

    with pytest.raises(ConfigError, match=f"{fault}.*is partitioned"):
        await app.start()
    await app.close()


async def test_a_foreign_descriptor_stops_the_start(server: ServerProcess, client: redis.Redis) -> None:
    """A partition descriptor written by another program is an error at the start, and none of its keys is read."""
    client.set("millstream:{orders}:partitions", '{"stream": "orders"}')
    app = App(server.url)

    @app.subscriber(sub())
    async def handle(msg: Message) -> None: ...

    with pytest.raises(LayoutError, match="does not describe"):
        await app.start()
    await app.close()


async def test_a_reader_of_one_partition_is_warned(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """``StreamSub("orders{3}")`` reads that one partition, with a log warning that it bypasses the division."""
    app = App(fleet.url)

    @app.subscriber(sub("orders{3}"))
    async def handle(msg: Message) -> None: ...

    with caplog.at_level(logging.WARNING):
        async with app.running():
            pass
    assert "orders{3} is a partition of 'orders'" in caplog.text


async def test_rights_that_are_missing_are_named_at_the_start(fleet: Fleet) -> None:
    """A user without the right to WATCH or scripts gets one error at the start that names them."""
    for rule, needs_ in (("-watch", "WATCH"), ("-eval", "EVAL")):
        with user(fleet.client, "~*", "&*", "+@all", rule) as name:
            app = App(fleet.url.replace("redis://", f"redis://{name}"))

            @app.subscriber(sub())
            async def handle(msg: Message) -> None: ...

            with pytest.raises(ConfigError, match=f"need {needs_}"):
                await app.start()
            await app.close()


async def test_the_command_line_lists_the_owners(fleet: Fleet) -> None:
    """``group owners`` lists each partition's owner, fence, lag and pending entries.

    A plain stream is a named error.
    """
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        line = app._shared()  # noqa: SLF001 - the app's own line
        rows = await partition_owners(line, "orders", "g")
        assert {row.owner for row in rows} == {app.loops[0].member.consumer}
        assert [row.fence for row in rows] == [1, 1, 1, 1]
        assert all(0 < (row.lease_ms or 0) <= LEASE_MS for row in rows)
    await fleet.publish(0, 10)
    steal(fleet.client, 0, "no fence")
    rows = await partition_owners(fleet.apps[0]._shared(), "orders", "g")  # noqa: SLF001 - as above
    assert {row.owner for row in rows} == {None}
    assert sum(row.entries for row in rows) == 10
    # Redis 6.2 does not know a group's lag
    assert [row.lag for row in rows] in ([row.entries for row in rows], [None] * 4)
    with pytest.raises(NotReadableError, match="is not partitioned"):
        await partition_owners(fleet.apps[0]._shared(), "plain", "g")  # noqa: SLF001 - as above


async def test_a_partition_that_nobody_can_take_is_measured(fleet: Fleet) -> None:
    """The metric of a living worker counts the seconds for which a partition has no owner."""
    app = fleet.app(lease_ms=60_000)
    for name in ("owner", "owned", "fence"):  # another program's keys: no script can take the partition
        fleet.client.rpush(f"millstream:{{2}}:{name}:orders{{2}}:g", "no text")
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 3)
        (loop,) = app.loops
        assert isinstance(loop, PartitionedLoop)
        ownership = loop.ownership
        await aeventually(lambda: ownership.unowned_seconds > 0.5)
        fleet.client.delete(*(f"millstream:{{2}}:{name}:orders{{2}}:g" for name in ("owner", "owned", "fence")))
        await aeventually(lambda: ownership.unowned_seconds == 0 and len(owned(app)) == 4)


async def test_metrics_and_the_command_line_name_the_partitions(fleet: Fleet) -> None:
    """A scrape counts each handler's partitions, and ``worker show`` lists the partitions of a process."""
    app = fleet.app()
    async with app.running():
        await aeventually(lambda: len(owned(app)) == 4)
        text = (await app.metrics())[0].decode()
        assert 'millstream_partitions_owned{group="g",handler="handle",stream="orders"} 4.0' in text
        assert 'millstream_partitions_taken_total{group="g",handler="handle",stream="orders"} 4.0' in text
        assert 'millstream_partition_unowned_seconds{group="g",handler="handle",stream="orders"} 0.0' in text
        assert 'redis_stream_length{db="db0",logical="orders",stream="orders{3}"} 0.0' in text
        assert 'millstream_dead_letters_waiting{db="db0",logical="orders:dead",stream="orders{3}:dead"} 0.0' in text
        heartbeat = app._heartbeat  # noqa: SLF001 - its next beat is seconds away
        assert heartbeat is not None
        await heartbeat.begin()
        shown = await asyncio.to_thread(
            CliRunner().invoke, main, ["worker", "show", heartbeat.id, "--url", fleet.url, "-o", "json"]
        )
    assert json.loads(shown.output)["subscribers"][0]["partitions"] == "0, 1, 2, 3"
