"""``hold=True``: an entry begins only after every earlier one of its key is done or dead."""

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream import App, Message, Nack, Reject, Retry, StreamSub, failpoints
from millstream.cli.main import main
from millstream.errors import ConfigError, Disconnected
from millstream.worker.model.pause import HandlerPause
from millstream.worker.partitions.loop import PartitionedLoop
from support import needs
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]
LEASE_MS = 1_200


class Log:
    """An app with ``hold`` and a log of its handler's runs."""

    def __init__(self, url: str, fails: dict[int, list[BaseException]], **options: Any) -> None:
        self.app = App(url, reap_after=None)
        self.begun: list[tuple[str, int]] = []
        self.done: list[tuple[str, int]] = []
        where: dict[str, Any] = {"group": "g", "min_idle_time": LEASE_MS} | options.pop("where", {})

        @self.app.subscriber(StreamSub("orders", **where), hold=True, **options)
        async def handle(key: str, n: int, msg: Message) -> None:
            self.begun.append((key, n))
            await asyncio.sleep(0)
            if fails.get(n):
                raise fails[n].pop(0)
            self.done.append((key, n))

    def ordered(self) -> bool:
        """Report whether each key's entries began in order, with repetitions of an entry next to each other."""
        by_key = defaultdict(list)
        for key, n in self.begun:
            by_key[key].append(n)
        return all(each == sorted(each) for each in by_key.values())


@pytest.fixture
async def publisher(server: ServerProcess) -> AsyncIterator[App]:
    """An app that partitioned the stream."""
    app = App(server.url)
    await app.partition("orders", 2, by="key")
    yield app
    await app.close()


async def fill(publisher: App, count: int, keys: int = 3) -> None:
    """Add entries of a few keys."""
    await publisher.publish_batch("orders", [{"key": f"k{n % keys}", "n": n} for n in range(count)])


@pytest.mark.parametrize("delay", [None, 0.3])
@pytest.mark.parametrize("ack", ["auto", "each"])
async def test_later_entries_of_a_key_wait_for_a_failed_one(publisher: App, delay: float | None, ack: Any) -> None:
    """With ``hold``, a failed entry holds its own key until its retry, immediate or delayed, and no other key."""
    log = Log(publisher.url, {3: [Nack(delay=delay)], 4: [ValueError(), Nack(delay=delay)]}, ack=ack,
              retry=Retry(base=0.05))  # fmt: skip
    await fill(publisher, 30)
    async with log.app.running():
        await aeventually(lambda: len(log.done) == 30)
    assert log.ordered()
    assert len(log.begun) == 33


async def test_other_keys_go_on_while_one_is_held(publisher: App, client: redis.Redis) -> None:
    """A key that waits an hour for a retry holds back only its own entries, and only a bounded number."""
    log = Log(publisher.url, {0: [Nack(delay=3600)]}, where={"max_records": 40})
    await fill(publisher, 60)
    async with log.app.running():
        await aeventually(lambda: len(log.done) == 40)
        assert {key for key, _ in log.done} == {"k1", "k2"}
        assert log.begun.count(("k0", 0)) == 1
        held = [one for part in log.app.loops[0].parts if part.holding for one in part.holding.held_up()]
        assert [one.key for one in held] == ["k0"]


async def test_a_full_buffer_does_not_keep_the_failed_one_out(publisher: App) -> None:
    """Entries of a held key that fill the whole buffer do not keep out the failed entry that they wait for."""
    log = Log(publisher.url, {0: [Nack(delay=0.2)], 50: [Nack(), Nack(delay=0.1)]}, where={"max_records": 4})
    await fill(publisher, 100, keys=1)
    async with log.app.running():
        await aeventually(lambda: len(log.done) == 100)
    assert log.ordered()


@pytest.mark.parametrize("end", [Reject("bad"), ValueError("limit")])
async def test_a_dead_letter_ends_the_hold(publisher: App, client: redis.Redis, end: BaseException) -> None:
    """A dead letter lets the next entry of its key begin."""
    log = Log(publisher.url, {0: [end]}, retry=Retry(max_deliveries=1))
    await fill(publisher, 12)
    async with log.app.running():
        await aeventually(lambda: len(log.done) == 11)
    assert log.ordered()
    assert sum(client.xlen(f"orders{{{at}}}:dead") for at in range(2)) == 1


@pytest.mark.parametrize("how", ["ack", "delete"])
async def test_an_entry_that_another_hand_settles_ends_the_hold(publisher: App, client: redis.Redis, how: str) -> None:
    """An operator's acknowledgement or deletion of a failed entry lets its key continue."""
    log = Log(publisher.url, {0: [Nack(delay=3600)]})
    await fill(publisher, 12)
    async with log.app.running():
        await aeventually(lambda: len(log.done) == 8)
        for at in range(2):
            rows: Any = client.xpending_range(f"orders{{{at}}}", "g", "-", "+", 100)
            for row in rows:
                if row["consumer"] == "(retry)":
                    client.xack(f"orders{{{at}}}", "g", row["message_id"])
                    if how == "delete":
                        client.xdel(f"orders{{{at}}}", row["message_id"])
        await aeventually(lambda: len(log.done) == 11)
    assert log.ordered()


@pytest.mark.parametrize("clean", [True, False])
async def test_the_next_owner_holds_on(publisher: App, client: redis.Redis, clean: bool) -> None:
    """After a stop or a lost lease, the next owner begins no entry before the failed one of its key."""
    fails: dict[int, list[BaseException]] = {0: [Nack(delay=1.0)], 4: [Nack(delay=0.5)]}
    first, second = Log(publisher.url, fails), Log(publisher.url, fails)
    owners = [f"millstream:{{{at}}}:owner:orders{{{at}}}:g" for at in range(2)]
    await fill(publisher, 30)
    async with first.app.running():
        await aeventually(lambda: (sum(1 for key, _ in first.done if key == "k2")) == 10)
        if not clean:
            for key in owners:
                client.set(key, "thief:99")
            await aeventually(lambda: first.app.loops[0].parts == [])
    client.delete(*owners)
    async with second.app.running():
        await aeventually(lambda: len(first.done) + len(second.done) >= 30)
    first.begun += second.begun
    assert first.ordered()


@pytest.mark.parametrize(
    ("stream", "options", "fault"),
    [
        ("plain", {}, "is not partitioned"),
        ("orders", {"batch": True}, "batch=True"),
        ("orders", {"ack": "manual"}, "manual"),
        ("loose", {}, "without a key"),
    ],
)
async def test_a_hold_that_cannot_be_kept_is_refused(
    publisher: App, stream: str, options: dict[str, Any], fault: str
) -> None:
    """The app does not start with ``hold`` if other readers of the stream or missing keys would break it."""
    await publisher.partition("loose", 2)
    app = App(publisher.url)

    async def start() -> None:
        @app.subscriber(StreamSub(stream, group="g"), hold=True, **options)
        async def handle(n: list[int]) -> None: ...

        await app.start()

    with pytest.raises(ConfigError, match=f"hold=True.*{fault}"):
        await start()
    await app.close()


async def test_a_held_key_is_named(publisher: App, client: redis.Redis) -> None:
    """``group show``, ``pending ls``, the metrics and the worker's record name a held key with its entry and error."""
    log = Log(publisher.url, {0: [ValueError("no such customer")]}, retry=Retry(base="1h", jitter=0))
    url = publisher.url
    await fill(publisher, 12)
    async with log.app.running():
        await aeventually(lambda: len(log.done) == 8)
        (loop,) = log.app.loops
        assert isinstance(loop, PartitionedLoop)
        (held,) = loop.held_up
        assert (held["key"], held["error"], held["waiting"]) == ("k0", "ValueError: no such customer", 3)

        async def shown(*words: str) -> Any:
            return await asyncio.to_thread(CliRunner().invoke, main, [*words, "--url", url])

        async def finding() -> Any:
            whole = json.loads((await shown("group", "show", "orders", "g", "-o", "json")).stdout)
            return next((one for one in whole["advice"] if one["code"] == "held-up"), None)

        found: Any = None
        while found is None:  # with the next heartbeat
            found = await finding()
        assert found["evidence"]["entry"] == held["id"]
        assert "ValueError: no such customer" in found["says"]
        listed = await shown("pending", "ls", "orders", "g")
        assert f"the key 'k0' of {held['stream']} is held up by {held['id']}" in listed.stderr
        text = (await log.app.metrics())[0].decode()
        assert "millstream_partition_held_keys{" in text
        assert max(float(row.rpartition(" ")[2]) for row in text.splitlines() if "held_seconds{" in row) > 0


@pytest.mark.parametrize("hold", [True, False])
async def test_entries_that_were_handed_back_keep_their_place(
    publisher: App, client: redis.Redis, *, hold: bool
) -> None:
    """A pause hands back entries that have not begun. Later entries of their keys wait for their return."""
    app, go, done = App(publisher.url, reap_after=None), asyncio.Event(), defaultdict[str, list[int]](list)

    @app.subscriber(StreamSub("orders", group="g", min_idle_time=LEASE_MS), hold=hold, concurrency=2)
    async def handle(key: str, n: int) -> None:
        await go.wait()
        done[key].append(n)

    def in_hand() -> int:
        rows: Any = [row for at in range(2) for row in client.xinfo_groups(f"orders{{{at}}}")]
        return sum(row["pending"] for row in rows)

    await publisher.publish_batch("orders", [{"key": f"k{n % 3}", "n": n} for n in range(600)])
    async with app.running():
        await aeventually(lambda: in_hand() >= (100 if hold else 60))
        (loop,) = app.loops
        loop.pause(HandlerPause("orders", "g", "", "a test", 0))
        go.set()
        await aeventually(lambda: not loop.busy)
        loop.pause(None)
        await aeventually(lambda: sum(map(len, done.values())) == 600, 60)
    assert done == {f"k{at}": list(range(at, 600, 3)) for at in range(3)}


@pytest.mark.parametrize("point", ["after_read", "after_claim"])
@pytest.mark.parametrize("hold", [True, False])
async def test_entries_of_a_lost_reply_keep_their_place(
    publisher: App, caplog: pytest.LogCaptureFixture, point: str, *, hold: bool
) -> None:
    """A connection breaks after the server has delivered entries: their owner runs them before later ones."""
    app, done, begun = App(publisher.url, reap_after=None), defaultdict[str, list[int]](list), itertools.count()

    @app.subscriber(StreamSub("orders", group="g", min_idle_time="5m"), hold=hold, concurrency=2)
    async def handle(key: str, n: int) -> None:
        done[key].append(n)

    def cut() -> None:
        if next(begun) % 4 < 2:
            raise Disconnected("cut by the test")

    await publisher.publish_batch("orders", [{"key": f"k{n % 3}", "n": n} for n in range(30)])
    failpoints.on("after_read", cut)
    failpoints.on(point, cut)
    try:
        async with app.running():
            for first in range(30, 150, 3):
                await publisher.publish_batch("orders", [{"key": f"k{n % 3}", "n": n} for n in range(first, first + 3)])
            await aeventually(lambda: sum(map(len, done.values())) == 150, 60)
    finally:
        failpoints.clear()
    assert next(begun) > 2
    assert "crashed" not in caplog.text
    assert done == {f"k{at}": list(range(at, 150, 3)) for at in range(3)}


@pytest.mark.parametrize("refusal", ["no replicas", "no group"])
async def test_a_refusal_after_a_lost_reply_is_outlasted(
    publisher: App, client: redis.Redis, request: pytest.FixtureRequest, refusal: str
) -> None:
    """The server refuses for a time to return the entries of a lost reply; its owner goes on when it can."""
    app, done, cuts = App(publisher.url, reap_after=None), set[int](), itertools.count()
    request.addfinalizer(failpoints.clear)
    request.addfinalizer(lambda: client.config_set("min-replicas-to-write", 0))

    @app.subscriber(StreamSub("orders", group="g", min_idle_time="5m"), hold=True)
    async def handle(key: str, n: int) -> None:
        done.add(n)

    def cut() -> None:
        if next(cuts) == 0:
            if refusal == "no group":
                for at in range(2):
                    client.xgroup_destroy(f"orders{{{at}}}", "g")
            else:
                client.config_set("min-replicas-to-write", 1)
            raise Disconnected("cut by the test")

    await fill(publisher, 6)
    failpoints.on("after_read", cut)
    async with app.running():
        await aeventually(lambda: app.loops[0].stats.reconnects >= 1)
        (loop,) = app.loops
        assert isinstance(loop, PartitionedLoop)
        if refusal == "no replicas":
            refused: Any = client.info("errorstats")
            before = refused.get("errorstat_NOREPLICAS", {"count": 0})["count"]

            def more() -> bool:
                now: Any = client.info("errorstats")
                return bool(now.get("errorstat_NOREPLICAS", {"count": 0})["count"] > before + 2)

            await aeventually(more)
            client.config_set("min-replicas-to-write", 0)
        await aeventually(lambda: done == set(range(6)))
        assert not loop.ownership.failed.done()


async def test_an_entry_that_is_settled_meanwhile_is_not_taken_back(
    publisher: App, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the owner looks for entries of a lost reply, a failed entry is stored as delayed, and stays so."""
    app, go = App(publisher.url, reap_after=None), asyncio.Event()

    @app.subscriber(StreamSub("orders", group="g", min_idle_time="5m", polling_interval="200ms"), hold=True)
    async def handle(key: str, n: int) -> None:
        await go.wait()
        raise Nack(delay=60)

    await fill(publisher, 1)
    async with app.running():
        await aeventually(lambda: any(part.member.held for part in app.loops[0].parts))
        part = next(part for part in app.loops[0].parts if part.member.held)
        fence = part.fetcher._owned  # noqa: SLF001 - only a lost reply leads there
        assert fence is not None
        call = fence._line.call  # noqa: SLF001 - the same

        async def slow(*words: Any) -> Any:
            reply = await call(*words)
            go.set()
            await aeventually(lambda: not part.member.held)
            return reply

        monkeypatch.setattr(fence._line, "call", slow)  # noqa: SLF001 - the same
        assert not await fence.take_back(part.member.held)
        rows: Any = client.xpending_range(part.member.stream, "g", "-", "+", 10)
        assert [row["consumer"] for row in rows] == ["(retry)"]
