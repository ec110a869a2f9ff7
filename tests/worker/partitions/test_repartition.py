"""Repartitioning: keys keep their order, nothing is lost, and an interrupted change can be continued."""

import asyncio
import contextlib
import re
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream import App, Message, StreamSub, failpoints
from millstream.cli.main import main
from millstream.client.later import schedule
from millstream.client.partitions.changing import finish, withdraw
from millstream.client.partitions.declared import find_layout
from millstream.errors import UsageError
from millstream.worker.partitions.loop import PartitionedLoop
from support import needs
from support.accounts import user
from support.clusters import Three
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]
LEASE_MS = 1_200


class EndedError(Exception):
    """The simulated end of a program."""


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """An app that publishes and repartitions."""
    found = App(server.url, registry=False)
    yield found
    await found.close()


class Work:
    """Handlers of one stream and a log of their runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.parts: list[tuple[str, int | None]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def app(self) -> App:
        """Add a process."""
        app = App(self.url, reap_after=None)

        @app.subscriber(StreamSub("orders", group="g", min_idle_time=LEASE_MS), key="key", concurrency=8)
        async def handle(msg: Message, key: str, n: int) -> None:
            await self.gate.wait()
            self.seen[key].append(n)
            self.parts.append((msg.stream, msg.partition))

        return app

    @property
    def count(self) -> int:
        """Return the number of runs."""
        return sum(map(len, self.seen.values()))

    def ordered(self) -> bool:
        """Report whether each key's entries ran once and in order."""
        return all(each == sorted(set(each)) for each in self.seen.values())


def runner(app: App) -> PartitionedLoop:
    """Register the subscriber of an app."""
    (found,) = app.loops
    assert isinstance(found, PartitionedLoop)
    return found


async def publish(app: App, first: int, count: int) -> None:
    """Publish entries of ten keys, singly and as a batch."""
    for n in range(first, first + count // 2):
        await app.publish("orders", {"key": f"k{n % 10}", "n": n})
    await app.publish_batch("orders", [{"key": f"k{n % 10}", "n": n} for n in range(first + count // 2, first + count)])


def place(key: str, number: int, generation: int) -> str:
    """Return the partition of a key by the formula documented for other languages."""
    return f"orders{f'~{generation}' * (generation > 1)}{{{zlib.crc32(key.encode()) % number}}}"


@pytest.mark.parametrize("numbers", [(4, 8, 6, 1)], ids=str)
async def test_keys_keep_their_order_over_changes(server: ServerProcess, app: App, numbers: tuple[int, ...]) -> None:
    """Keys keep their order when the number of partitions changes to a multiple, a divisor or any other number."""
    work = Work(server.url)
    await app.partition("orders", numbers[0], by="key")
    one, two = work.app(), work.app()
    async with one.running(), two.running():
        await publish(app, 0, 60)
        for at, number in enumerate(numbers[1:], 1):
            await app.repartition("orders", number)
            await publish(app, 60 * at, 60)
        await aeventually(lambda: work.count == 60 * len(numbers))
        layout = await find_layout(app._shared(), "orders")  # noqa: SLF001 - the app's own line
        assert layout is not None
        assert [len(each.keys) for each in layout.generations] == list(numbers)
        await aeventually(lambda: {*runner(one).partitions, *runner(two).partitions} == {0})
        assert await finish(app._shared(), "orders") == sum(numbers[:-1])  # noqa: SLF001 - as above
        await publish(app, 1_000, 20)
        await aeventually(lambda: work.count == 60 * len(numbers) + 20)
    assert work.ordered()


async def until_ended(step: int, make: Any) -> bool:
    """Run an operation and end it at a step of its change; return False if it has fewer steps."""
    left = step

    def end() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise EndedError

    failpoints.on("repartition", end)
    try:
        await make()
    except EndedError:
        return True
    finally:
        failpoints.clear()
    return False


async def test_a_change_that_was_ended_goes_on(server: ServerProcess, app: App) -> None:
    """A repartitioning interrupted between any two steps loses no entry and no order. Calling it again completes it."""
    work, layouts = Work(server.url), 1
    await app.partition("orders", 1, by="key")
    consumer = work.app()
    async with consumer.running():
        number, n, step = 1, 0, 0
        await publish(app, 0, 10)
        while True:
            number, step = 5 - number, step + 1
            ended = await until_ended(step, lambda: app.repartition("orders", number))  # noqa: B023 - called at once
            fresh = App(server.url)
            await publish(app, n := n + 10, 10)
            await publish(fresh, n := n + 10, 10)
            if ended and step > 2:
                with pytest.raises(UsageError, match="under way"):
                    await fresh.repartition("orders", 7)
            await fresh.repartition("orders", number)
            await fresh.close()
            await publish(app, n := n + 10, 10)
            layouts += 1
            if not ended:
                break
        await aeventually(lambda: work.count == n + 10, 60)
    layout = await find_layout(app._shared(), "orders")  # noqa: SLF001 - the app's own line
    assert layout is not None
    assert len(layout.generations) == layouts
    assert [one.sealed for one in layout.generations] == [True] * (layouts - 1) + [False]
    assert step > 4
    assert work.ordered()


async def test_a_plain_stream_becomes_partitioned(server: ServerProcess, app: App, client: redis.Redis) -> None:
    """When a plain stream becomes partitioned, its entries run first. Programs that still add to it are refused."""
    work = Work(server.url)
    await publish(app, 0, 40)
    client.xgroup_create("orders", "g", "0")
    client.xgroup_create("orders", "other", "0")
    with pytest.raises(UsageError, match=r"repartition\('orders', 4\)"):
        await app.partition("orders", 4, by="key")
    await app.repartition("orders", 4, by="key")
    await app.repartition("orders", 4, by="key")
    await app.partition("orders", 4, by="key")
    await publish(app, 40, 40)
    with pytest.raises(redis.ResponseError, match="exhausted"):
        client.xadd("orders", {"key": "foreign"})
    assert client.xlen("orders") == 40
    groups: Any = client.xinfo_groups("orders{0}")
    assert {row["name"] for row in groups} == {"g", "other"}
    work.gate.clear()
    one, two = work.app(), work.app()
    async with one.running(), two.running():
        await aeventually(lambda: one.loops[0].in_hand + two.loops[0].in_hand == 40)
        assert runner(one).partitions == runner(two).partitions == []
        work.gate.set()
        await aeventually(lambda: work.count == 80)
    assert work.ordered()
    assert work.parts[:40] == [("orders", None)] * 40
    assert {part for _, part in work.parts[40:]} == {0, 1, 2, 3}
    with pytest.raises(UsageError, match=r"group 'other' has entries"):
        await finish(app._shared(), "orders")  # noqa: SLF001 - the app's own line
    client.xgroup_destroy("orders", "other")
    assert await finish(app._shared(), "orders") == 1  # noqa: SLF001 - as above
    assert client.xlen("orders") == 0
    with pytest.raises(redis.ResponseError, match="exhausted"):
        client.xadd("orders", {"key": "foreign"})


async def test_a_partition_waits_for_its_own_parents_only(server: ServerProcess, app: App) -> None:
    """A new partition is read once its own parents are drained, even if another partition's parents are not."""
    work = Work(server.url)
    await app.partition("orders", 2, by="key")
    work.gate.clear()
    one = work.app()
    keys = {number: next(k for k in "abcdef" if zlib.crc32(k.encode()) % 2 == number) for number in (0, 1)}
    async with one.running():
        await app.publish("orders", {"key": keys[0], "n": 0})
        await aeventually(lambda: one.loops[0].in_hand == 1)
        await app.repartition("orders", 4)
        await app.repartition("orders", 8)
        for number in (0, 1):
            await app.publish("orders", {"key": keys[number], "n": 1})
        parts = runner(one).ownership.parts
        held = place(keys[0], 2, 1)
        await aeventually(lambda: len(parts) == 5)
        assert {part.lease.stream for part in parts.values()} == {held} | {f"orders~3{{{at}}}" for at in (1, 3, 5, 7)}
        await aeventually(lambda: one.loops[0].in_hand == 2)
        work.gate.set()
        await aeventually(lambda: work.count == 3 and len(parts) == 8)
    assert work.ordered()


@pytest.mark.parametrize("how", ["one", "batch", "sync", "retry", "unique", "idempotent", "later"])
async def test_a_publisher_of_before_finds_the_new_partition(
    app: App, server: ServerProcess, client: redis.Redis, how: str
) -> None:
    """A publisher that missed a repartitioning follows it in every way of publishing, and adds no entry twice."""
    if how == "idempotent" and "redis" in server.url and not needs_idmp(client):
        pytest.skip("this server has no XADD IDMP")
    other = App(server.url)
    await app.partition("orders", 2, by="key")
    await app.publish("orders", {"key": "k1", "n": 0})
    if how in ("unique", "idempotent"):
        client.xgroup_create(place("k1", 2, 1), "g", "0")
        before = await app.publish("orders", {"key": "k1", "n": 1}, **{how: "once"})
    await other.repartition("orders", 4)
    await other.close()
    added = place("k1", 4, 2)
    if how == "batch":
        await app.publish_batch("orders", [{"key": f"k{n}", "n": n} for n in range(20)])
        assert sum(client.xlen(f"orders~2{{{at}}}") for at in range(4)) == 20
    elif how == "sync":
        await asyncio.to_thread(app.publish_sync, "orders", {"key": "k1", "n": 1})
    elif how == "retry":
        await app.publish("orders", {"key": "k1", "n": 1}, retry=5)
    elif how == "later":
        await app.publish("orders", {"key": "k1"}, delay="1h")
        assert client.zcard(schedule.due_key(place("k1", 2, 1))) == 1  # It is handed over when it is due
        return
    else:
        options: dict[str, Any] = {how: "once"} if how != "one" else {}
        ident = await app.publish("orders", {"key": "k1", "n": 1}, **options)
        if options:
            assert ident == before
            assert client.xlen(added) == 0
            ident = await app.publish("orders", {"key": "k1", "n": 1}, **{how: "other"})
            assert ident == await app.publish("orders", {"key": "k1", "n": 1}, **options | {how: "other"})
    assert client.xlen(added) >= 1
    assert client.xlen(place("k1", 2, 1)) == 1 + (how in ("unique", "idempotent"))


def needs_idmp(client: redis.Redis) -> bool:
    """Report whether the server has XADD IDMP."""
    try:
        client.execute_command("XADD", "probe", "IDMP", "p", "1", "*", "f", "v")
    except redis.ResponseError:
        return False
    return True


@pytest.mark.parametrize("by", ["key", None])
async def test_what_waits_next_to_a_sealed_partition_is_handed_over(
    app: App, server: ServerProcess, client: redis.Redis, by: str | None
) -> None:
    """A schedule at a sealed partition is added once to its key's new partition.

    A killed mover does not change that.
    """
    await app.partition("orders", 2, by=by)
    key = None if by else "k1"
    for ident in ("a", "b"):
        await app.publish("orders", {"key": "k1", "n": ident}, delay=0.05, id=ident, key=key)
    await app.repartition("orders", 4)
    (waits,) = [one async for one in app.later.list(place("k1", 2, 1)) if one.id == "a"]
    assert await app._sending().hand_over(waits)  # noqa: SLF001 - the first half of what a mover does
    worker = Work(server.url).app()
    async with worker.running():
        await aeventually(lambda: not client.exists(schedule.due_key(place("k1", 2, 1))))
    rows: Any = client.xrange(place("k1", 4, 2))
    assert sorted(fields["n"] for _, fields in rows) == ["a", "b"]


async def test_an_unseal_withdraws_a_change(app: App, server: ServerProcess, client: redis.Redis) -> None:
    """``unseal`` withdraws an unfinished repartitioning. The former partitions accept entries again."""
    line, n = app._shared(), 0  # noqa: SLF001 - the app's own line
    await app.publish("orders", {"key": "k0", "n": -1})
    other = App(server.url)
    for step in range(1, 9):
        await until_ended(step, lambda: other.repartition("orders", 2, by="key"))
        for end in (step % 3, 0):
            if await find_layout(line, "orders") is not None:
                await until_ended(end, lambda: withdraw(line, "orders"))
        for _ in range(2):
            await app.publish("orders", {"key": "k0", "n": (n := n + 1)})
        assert client.xlen("orders") == 1 + n
    await other.repartition("orders", 2, by="key")
    await app.publish("orders", {"key": "k0", "n": n})
    with pytest.raises(UsageError, match="has entries"):
        await withdraw(line, "orders")
    await app.publish("orders", {"key": "k0", "n": n})
    assert client.xlen("orders") == 1 + n
    await other.close()


async def test_entries_may_be_kept_for_other_readers(server: ServerProcess, app: App, client: redis.Redis) -> None:
    """Drained partitions can be kept for Spark and archives, which find them in the descriptor.

    New workers skip them.
    """
    work = Work(server.url)
    await app.partition("orders", 1, by="key")
    await publish(app, 0, 10)
    await app.repartition("orders", 2)
    one = work.app()
    async with one.running():
        await aeventually(lambda: work.count == 10)
    line = app._shared()  # noqa: SLF001 - the app's own line
    for keep in (True, True, False):
        assert await finish(line, "orders", keep=keep) == 1
        assert client.xlen("orders{0}") == (10 if keep else 0)
        two = work.app()
        async with two.running():
            await aeventually(lambda: runner(two).whole)  # noqa: B023 - waited for here
        assert work.count == 10
    layout = await find_layout(line, "orders")
    assert layout is not None
    assert len(layout.generations) == 1


async def test_what_cannot_be_done_is_refused_before_anything_is_changed(
    app: App, server: ServerProcess, client: redis.Redis
) -> None:
    """A repartitioning is refused before any change on a full server, or with staged Spark rows or missing rights."""
    await app.partition("orders", 2, by="key")
    await publish(app, 0, 10)
    before: Any = client.keys("*")
    client.hset("millstream:{1}:staged:query-7:0", "a", "b")
    with pytest.raises(UsageError, match="query-7"):
        await app.repartition("orders", 4)
    client.delete("millstream:{1}:staged:query-7:0")
    rights = ("~*", "+@all", "-xsetid")
    with user(client, *rights) as name:
        weak = App(server.url.replace("redis://", f"redis://{name}"))
        with pytest.raises(UsageError, match="XSETID"):
            await weak.repartition("orders", 4)
        await weak.close()
    with contextlib.ExitStack() as full:
        if "millstream_version" not in client.info("server"):  # Millstream has its limit from its start
            client.config_set("maxmemory", 1)
            full.callback(client.config_set, "maxmemory", 0)
            with pytest.raises(redis.ResponseError, match=r"(?i)memory"):
                await app.repartition("orders", 4)
    for number, by, fault in ((0, None, "1 to 1024"), (4, "other", "for good")):
        with pytest.raises(UsageError, match=fault):
            await app.repartition("orders", number, by=by)
    with pytest.raises(UsageError, match="no such stream"):
        await app.repartition("nothing", 4)
    after: Any = client.keys("*")
    assert set(after) == set(before)
    await app.publish("orders", {"key": "k1", "n": 1})


def refuse() -> None:
    """Refuse a change at one of its steps."""
    raise UsageError("it changed")


async def test_a_refused_unseal_changes_nothing(server: ServerProcess, app: App, client: redis.Redis) -> None:
    """A refused ``unseal`` seals nothing, records nothing, and reports no changes."""
    await app.partition("orders", 2, by="key")
    await app.repartition("orders", 4)
    await app.publish("orders", {"key": "k1"})
    for options in (["--yes"], ["--dry-run"]):
        words = ["stream", "unseal", "orders", *options, "--url", server.url]
        done = await asyncio.to_thread(CliRunner().invoke, main, words)
        assert (done.exit_code, "has entries" in done.output, "until then" in done.output) == (5, True, False)
    assert not client.exists("millstream:audit")
    # An entry that comes between the preview and the change is a refusal too
    await app.repartition("orders", 2)
    failpoints.on("repartition", refuse)
    done = await asyncio.to_thread(
        CliRunner().invoke, main, ["stream", "unseal", "orders", "--yes", "--url", server.url]
    )
    failpoints.clear()
    assert (done.exit_code, "it changed" in done.output, "until then" in done.output) == (5, True, False)
    assert not client.exists("millstream:audit")


def test_an_operator_changes_the_number(server: ServerProcess, client: redis.Redis) -> None:
    """The command shows a repartitioning first, continues an interrupted one, and refuses an impossible one."""

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["stream", *words, "--url", server.url])
        assert done.exit_code == code, (words, done.output)
        return done.output

    for n in range(3):
        client.xadd("orders", {"key": f"k{n}"})
    client.xgroup_create("orders", "g", "0")
    assert "`millstream stream partition orders 4 --by FIELD`" in run("repartition", "orders", "4", "--yes", code=5)
    assert "not set: each publish gives its key" in run("partition", "orders", "4", "--dry-run")
    words = ("partition", "orders", "4", "--by", "key")
    assert "'orders{0}' to 'orders{3}'" in run(*words, "--dry-run")
    assert client.keys("millstream:*") == []
    asyncio.run(until_ended(4, lambda: App(server.url).repartition("orders", 4, by="key")))
    run(*words, "--yes")
    assert "partitioned already" in run(*words, "--yes", code=5)
    run("repartition", "orders", "8", "--yes")
    assert "has entries of it to handle" in run("repartition", "orders", "--finish", "--yes", code=5)
    run("unseal", "orders", "--yes")
    client.xgroup_destroy("orders", "g")
    assert run("repartition", "orders", "--finish", "--yes")
    assert client.xlen("orders") == 0
    assert "can be withdrawn" in run("unseal", "orders", "--yes", code=5)
    run("repartition", "orders", code=2)
    assert ": NUMBER '0': it must be" in run("repartition", "orders", "0", code=2)
    run("repartition", "orders", "4", "--finish", code=2)


async def test_the_documented_rights_are_enough(server: ServerProcess, app: App, client: redis.Redis) -> None:
    """The documented rights are enough to begin and complete a repartitioning."""
    page = (ROOT / "docs/how-to/repartition.md").read_text()
    words = re.findall(r"`(\+eval [^`]+)`", page)[0]
    await app.publish("orders", {"key": "k1", "n": 1})
    client.xgroup_create("orders", "g", "$")
    rights = ("~orders*", "~millstream:*", "+@connection", "+info", "+xtrim", *words.split())
    with user(client, *rights) as name:
        weak = App(server.url.replace("redis://", f"redis://{name}"))
        for number in (2, 3):
            await weak.repartition("orders", number, by="key")
        await finish(weak._shared(), "orders")  # noqa: SLF001 - the app's own line
        await weak.repartition("orders", 4)
        await withdraw(weak._shared(), "orders")  # noqa: SLF001 - as above
        await weak.close()
    await app.publish("orders", {"key": "k1", "n": 1})


async def test_a_cluster_changes_the_number_too(tmp_path: Path) -> None:
    """On a cluster a plain stream is split over three nodes and then doubled, with every key in order."""
    with Three(tmp_path) as three:
        app, work = App(three.url, registry=False), Work(three.url)
        await publish(app, 0, 20)
        await app.publish("orders", {"key": "later", "n": 0}, delay=0.1)
        await app.repartition("orders", 4, by="key")
        await publish(app, 20, 20)
        one, two = work.app(), work.app()
        async with one.running(), two.running():
            await publish(app, 40, 20)
            await app.repartition("orders", 8)
            await publish(app, 60, 20)
            await aeventually(lambda: work.count == 81, 60)
        assert work.ordered()
        assert await finish(app._shared(), "orders") == 5  # noqa: SLF001 - the app's own line
        await app.close()
