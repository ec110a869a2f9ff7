"""The writer of the history on real servers: one at a time, bounded, and read again by the console's reader."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from millstream.client.line import Line
from millstream.client.open import open_line
from millstream.ops.history import model, series, writer
from millstream.ops.history.keeping import keeping
from millstream.ops.history.model import FIVE, LEASE, REST, TEN, TEN_MS, TOTAL, Subject
from millstream.ops.history.own import OwnHistory
from millstream.ops.history.series import HistoryReader, SeriesSeen, changes
from millstream.ops.history.windows import window_of
from millstream.ops.history.writer import HistoryWriter
from millstream.ops.streams import reading
from millstream.worker.registry import protocol
from support.clusters import Three
from support.histories import fill, put, wave
from support.servers import ServerProcess
from support.waiting import aeventually

pytestmark = pytest.mark.realserver

T = TypeVar("T")

GROUP, STREAM = ("group", "orders", "billing"), ("stream", "orders")
HANDLER = ("handler", "bill", "orders", "billing")


def on(url: str, work: Callable[[Line], Awaitable[T]]) -> T:
    """Run a function on a connection."""

    async def main() -> T:
        line = open_line(url)
        try:
            return await work(line)
        finally:
            await line.close()

    return asyncio.run(main())


def orders(client: "redis.Redis | redis.RedisCluster", count: int = 5) -> None:
    """Add entries, a group that has two of them pending, and a dead letter."""
    for number in range(count):
        client.xadd("orders", {"n": number})
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "c1", {"orders": ">"}, count=2)
    client.xadd("orders:dead", {"n": 1})


def worker(handled: int, beat_ms: int, version: str = "1.0") -> dict[str, Any]:
    """Return the record of a worker whose handler had most of its runs within 25 milliseconds."""
    one = {"handler": "bill", "stream": "orders", "group": "billing", "consumer": "c", "paused": None, "jobs": []}
    one |= dict.fromkeys(("slots", "running", "buffered", "dead"), 0) | {"handled": handled, "failed": handled // 10}
    recent = {"over_ms": 300_000, "handled": 9, "failed": 1, "retried": 0, "dead": 0, "runs": [0, 90, 6, 4]}
    return {
        "id": "w",
        "host": "h",
        "pid": 1,
        "version": version,
        "state": "running",
        "started_ms": 1,
        "beat_ms": beat_ms,
        "bounds_ms": [10.0, 25.0, 50.0],
        "last_error": None,
        "subscribers": [one | {"recent": recent}],
    }


async def beat(line: Line, *given: Any) -> None:
    """Write the record of a worker into the registry."""
    record = worker(*given)
    await line.calls(protocol.beat("w", record, record["beat_ms"], []))


async def read(line: Line, *subjects: Subject, text: str = "15m") -> SeriesSeen:
    """Read the history of some subjects with a new reader."""
    return await HistoryReader().read(line, subjects, window_of(text, line.wall_time()))


def test_figures_of_a_server_are_written_and_read(server: ServerProcess, client: redis.Redis) -> None:
    """Streams, groups, handlers, versions and totals have their figures, and rates from the second entry on."""
    orders(client)

    async def work(line: Line) -> SeriesSeen:
        one = HistoryWriter(line, "me")
        await beat(line, 100, 1_000)
        assert await one.turn()
        client.xadd("orders", {"n": 9})
        await beat(line, 150, 6_000)
        assert await one.turn()
        return await read(line, TOTAL, GROUP, STREAM, HANDLER)

    seen = on(server.url, work)
    counts = not client.info("server")["redis_version"].startswith("6.")
    assert [len(rows) for rows in seen.rows.values()] == [2] * 4
    last = {subject: rows[-1][1] for subject, rows in seen.rows.items()}
    assert last[HANDLER][:2] == (10, 1)
    assert last[STREAM][0] == 6
    assert last[STREAM][2] == 1
    assert last[GROUP][2] == 2
    if counts:
        assert last[GROUP][0] == 4
        assert last[STREAM][1] > 0
        assert last[TOTAL][0] == 4
    else:
        assert isinstance(last[GROUP][0], tuple)  # Redis 6.2 does not count: the bounds are known
    assert last[TOTAL][5:8] == (1, 10, 1)
    assert last[TOTAL][8] > 100_000
    assert last[TOTAL][9] > 0
    assert (seen.skipped, seen.why, seen.own) == (0, None, False)


def test_one_process_writes_by_lease(server: ServerProcess, client: redis.Redis) -> None:
    """A second writer waits until the lease is free; a writer that lost it adds nothing."""

    async def work(line: Line) -> None:
        first, second = HistoryWriter(line, "first"), HistoryWriter(line, "second")
        assert (await first.turn(), await second.turn()) == (True, False)
        now = int(client.time()[0]) * 1000
        owner, ends = client.get(LEASE).split()
        assert (owner, now < int(ends) <= now + writer.LEASE_MS + 1000, client.ttl(LEASE)) == (b"first", True, -1)
        client.set(LEASE, f"second {now + 20_000}")  # as if the first had been suspended for long
        assert (await first.turn(), await second.turn()) == (False, True)
        assert client.xlen(TEN) == 2
        for text in (f"second {now - 1}", f"second {now + 10**9}", "", "second", "second x", "9" * 400):
            client.set(LEASE, text)  # one that ended, and texts that no writer sets
            assert await first.turn()

    on(server.url, work)


def test_a_writer_gives_its_lease_back(server: ServerProcess, client: redis.Redis) -> None:
    """A program that ends lets another one write at once."""

    async def work(line: Line) -> None:
        async with keeping(server.url):
            await aeventually(lambda: client.xlen(TEN))
            assert client.exists(LEASE)
        assert not client.exists(LEASE)
        assert await HistoryWriter(line, "next").turn()

    on(server.url, work)


def test_the_others_are_written_every_five_minutes(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Series beyond the limit are only in the stream of the rest, and the reader finds them there."""
    monkeypatch.setattr(writer, "FIVE_MS", 1)
    monkeypatch.setattr("millstream.ops.history.sampling.Sampler.chosen.__defaults__", (24,))
    with client.pipeline(transaction=False) as pipe:
        for number in range(4):
            pipe.xadd(f"s{number}", {"n": 1}, id="1-0")
            for entry in range(number):
                pipe.xadd(f"s{number}", {"n": 1}, id=f"{entry + 2}-0")
            pipe.xgroup_create(f"s{number}", "g", id="0")
        pipe.execute()

    async def work(line: Line) -> None:
        one = HistoryWriter(line, "me")
        for _ in range(3):
            assert await one.turn()
            one._all_at = 0.0  # noqa: SLF001 - else half a minute passes until the next reading of all
        chosen, other = ("group", "s0", "g"), ("group", "s3", "g")
        fine = await read(line, chosen, other)
        assert (len(fine.rows[chosen]), len(fine.rows[other])) == (3, 2)
        lines = [model.opened(flat) for _, flat in await line.call("XRANGE", TEN, "-", "+")]
        assert [model.row_of(one, other) for one in lines if one is not None] == [None] * 3
        coarse = await read(line, TOTAL, other, text="24h")
        assert (len(coarse.rows[TOTAL]), len(coarse.rows[other])) == (2, 2)

    on(server.url, work)
    assert client.xlen(REST) == 2


def test_the_oldest_goes_at_the_limit(server: ServerProcess, client: redis.Redis) -> None:
    """A stream above its limit of memory loses its oldest entries, and the reader reports where it begins."""
    now = int(client.time()[0]) * 1000
    fill(client, now, days=0.05)
    before = client.memory_usage(TEN)
    half = before // 2

    async def work(line: Line) -> SeriesSeen:
        one = HistoryWriter(line, "me", {TEN: half})
        await one.turn()
        return await read(line, TOTAL, text="1h")

    seen = on(server.url, work)
    assert client.memory_usage(TEN) < before * 0.7
    assert seen.cut_ms is not None
    assert seen.first_ms == seen.cut_ms > now - 0.05 * 86_400_000


def test_damaged_entries_are_skipped_and_counted(server: ServerProcess, client: redis.Redis) -> None:
    """Entries that are not a writer's are skipped and counted, and all others are read."""
    now = int(client.time()[0]) * 1000
    put(client, TEN, now - 60_000, wave(now))
    for number, fields in enumerate(
        [{"x": "y"}, {"v": "1", "zlib": "broken"}, {"v": "9", "text": '["total"] 1'}, {b"\xff": b"\xff"}]
    ):
        client.xadd(TEN, fields, id=f"{now - 50_000}-{number}")
    client.xadd(TEN, {"v": 1, "text": '["total"] a b\n["version",'}, id=f"{now - 40_000}-0")
    put(client, TEN, now - 30_000, wave(now))
    seen = on(server.url, lambda line: read(line, TOTAL))
    assert ([at for at, _ in seen.rows[TOTAL]], seen.skipped) == ([now - 60_000, now - 30_000], 4)
    client.delete(TEN)
    client.set(TEN, "no stream")
    assert "holds no stream" in str(on(server.url, lambda line: read(line, TOTAL)).why)


def test_only_new_entries_are_read_again(server: ServerProcess, client: redis.Redis) -> None:
    """A second reading reads what came since; after the stream was deleted, nothing of it is left."""
    now = int(client.time()[0]) * 1000
    for ago in (40, 30, 20):
        put(client, TEN, now - ago * 1000, wave(now))

    async def work(line: Line) -> None:
        reader = HistoryReader()

        async def rows() -> int:
            return len((await reader.read(line, (TOTAL,), window_of("15m", line.wall_time()))).rows[TOTAL])

        assert await rows() == 3
        client.config_resetstat()
        put(client, TEN, now - 10_000, wave(now))
        assert await rows() == 4
        assert (
            client.info("commandstats")["cmdstat_xrange"]["calls"] == 3
        )  # the first entry, what is new, and the future
        client.delete(TEN)
        assert await rows() == 0

    on(server.url, work)


def test_one_reading_is_bounded(client: redis.Redis, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of very many entries, or of very large tables, ends the reading early, and the next one goes on."""
    monkeypatch.setattr(series, "_READ", 100)
    monkeypatch.setattr(series, "_PAGE", 60)
    now = int(client.time()[0]) * 1000
    for number in range(250):
        put(client, TEN, now - 300_000 + number, wave(now))

    async def work(line: Line) -> list[tuple[int, bool]]:
        reader, found = HistoryReader(), []
        for _ in range(3):
            seen = await reader.read(line, (TOTAL,), window_of("15m", line.wall_time()))
            found.append((len(seen.rows[TOTAL]), seen.more))
        return found

    first, second, third = on(server.url, work)
    assert (first[0] < 250, first[1], second[0] > first[0], third) == (True, True, True, (250, False))


def test_tables_that_are_long_when_uncompressed_end_a_reading(client: redis.Redis, server: ServerProcess) -> None:
    """Entries of a few kilobytes may have tables of megabytes; one page of them does not stop the console."""
    bomb = zlib.compress(b"x" * model.LARGEST)
    for _ in range(45):
        client.xadd(TEN, {"v": 1, "zlib": bomb})

    async def work(line: Line) -> list[bool]:
        reader, window = HistoryReader(), window_of("15m", line.wall_time())
        return [(await reader.read(line, (TOTAL,), window)).more for _ in range(2)]

    assert on(server.url, work) == [True, False]


def test_a_writer_that_stood_still_reads_all_streams_again_soon() -> None:
    """A reading that seems to have taken a day, since the process was suspended, is repeated after an hour."""
    assert list(map(writer.pause_after, (0.001, 0.5, 2, 86_400))) == [30, 200, 400, 3600]


def test_old_figures_are_not_written_as_new_ones(server: ServerProcess, client: redis.Redis) -> None:
    """A writer that stood still for an hour does not write the figures from before as those of the last minutes."""
    orders(client)
    now = int(client.time()[0]) * 1000
    found: list[int] = []

    async def work(line: Line) -> None:
        one = HistoryWriter(line, "me")
        for minutes in (0, 60, 65):
            line.wall_time = lambda later=minutes: now + later * 60_000  # type: ignore[method-assign,misc] # a clock that this test sets
            assert await one.turn()
            found.append(client.xlen(FIVE))

    on(server.url, work)
    assert found == [0, 0, 1]


def test_a_writer_with_a_wrong_clock_removes_nothing(server: ServerProcess, client: redis.Redis) -> None:
    """The server's clock says which entries are old, as it gives the entries their times."""
    now = int(client.time()[0]) * 1000
    with client.pipeline(transaction=False) as pipe:
        for number in range(1000):  # more than a node of the stream
            put(pipe, TEN, now - 3_600_000 + number, {("stream", "a"): (1, 2, 3)})
        pipe.execute()

    async def work(line: Line) -> None:
        line.wall_time = lambda: now + 10 * model.KEPT_MS[TEN]  # type: ignore[method-assign] # the clock of this machine
        assert await HistoryWriter(line, "me").turn()

    on(server.url, work)
    assert client.xlen(TEN) == 1001


def test_no_figures_are_written_for_the_future(server: ServerProcess, client: redis.Redis) -> None:
    """After the clock was set back, an entry would get the newest one's time, so none is written until then."""
    ahead = int(client.time()[0]) * 1000 + 7_200_000
    put(client, TEN, ahead, {("stream", "a"): (1, 2, 3)})

    async def work(line: Line) -> SeriesSeen:
        writer = HistoryWriter(line, "me")
        assert await writer.turn()
        assert client.xlen(TEN) == 1
        seen = await read(line, TOTAL)
        client.delete(TEN)
        assert await writer.turn()
        return seen

    assert on(server.url, work).ahead_ms == ahead
    assert client.xlen(TEN) == 1


def test_a_figure_of_the_far_future_ends_no_history(server: ServerProcess, client: redis.Redis) -> None:
    """An entry further ahead than entries are kept, as another client may write one, is removed with its stream."""
    put(client, TEN, int(client.time()[0]) * 1000 + 2 * model.KEPT_MS[TEN], {("stream", "a"): (1, 2, 3)})

    async def work(line: Line) -> SeriesSeen:
        assert await HistoryWriter(line, "me").turn()
        return await read(line, TOTAL)

    assert on(server.url, work).ahead_ms is None
    assert client.xlen(TEN) == 1


def test_deploys_and_changes_are_marks(server: ServerProcess, client: redis.Redis) -> None:
    """A new version of the workers is a mark, and so is each change in the audit stream; hostile ones are text."""
    now = int(client.time()[0]) * 1000
    for ago, version in ((40, "1.0"), (30, "1.0"), (20, "1.1"), (10, "1.1")):
        put(client, TEN, now - ago * 1000, {TOTAL: (0,) * 10, ("version", version): (1,)})
    client.xadd(
        "millstream:audit", {"action": "group rm", "stream": "orders", "group": "x", "who": "al"}, id=f"{now}-0"
    )
    client.xadd("millstream:audit", {"held": "damaged", b"\xff": b"\xff"}, id=f"{now}-1")

    async def work(line: Line) -> tuple[SeriesSeen, Any]:
        return await read(line, TOTAL), await changes(line, window_of("15m", line.wall_time() + 1000))

    seen, done = on(server.url, work)
    assert [(mark.at_ms, mark.text) for mark in seen.marks] == [(now - 20_000, "workers of version 1.1")]
    assert (done[0].text, done[0].stream, len(done)) == ("group rm x on orders, by al", "orders", 2)


def test_a_user_with_the_documented_rights_writes(server: ServerProcess, client: redis.Redis) -> None:
    """The rules of docs/console.md are enough for the writer, and a user without rights only logs the reason."""
    orders(client)
    page = (Path(__file__).parents[3] / "docs/console.md").read_text()
    (rule,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER history ")]
    old = client.info("server")["redis_version"].startswith("6.")
    rule = rule.replace("%R~* ~millstream:{history}:*", "~*") if old else rule
    client.execute_command(*rule.replace(">a-long-password", ">pw").split())
    client.execute_command("ACL", "SETUSER", "nobody", "on", ">pw", "resetkeys", "+@connection")

    async def work(line: Line) -> bool:
        one = HistoryWriter(line, "me")
        return await one.turn() and await one.turn()

    assert on(server.url.replace("redis://", "redis://history:pw@"), work)
    assert client.xlen(TEN) == 2
    (reader,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER charts ")]
    client.execute_command(*reader.replace(">a-long-password", ">pw").split())
    seen = on(server.url.replace("redis://", "redis://charts:pw@"), lambda line: read(line, TOTAL))
    assert (seen.why, len(seen.rows[TOTAL])) == (None, 2)
    refused = on(server.url.replace("redis://", "redis://nobody:pw@"), lambda line: read(line, TOTAL))
    assert "permission" in str(refused.why)


def test_a_console_keeps_its_own_figures(server: ServerProcess, client: redis.Redis) -> None:
    """Without a writer, the readings of pages become figures, at most one every ten seconds."""
    orders(client)

    async def work(line: Line) -> SeriesSeen:
        own = OwnHistory()
        for later in (0, TEN_MS // 2, TEN_MS):
            seen = await reading.overview(line)
            own.note(type(seen)(seen.at_ms + later, seen.streams), whole=True)
        return own.read((GROUP,), window_of("15m", line.wall_time() + 2 * TEN_MS))

    seen = on(server.url, work)
    assert (seen.own, [row[2] for _, row in seen.rows[GROUP]]) == (True, [2, 2])


def test_a_history_is_in_one_slot_of_a_cluster(tmp_path: Path) -> None:
    """On a cluster the lease and all streams are on one node, and figures of all nodes are in them."""
    with Three(tmp_path) as cluster, redis.RedisCluster(port=cluster.nodes[0].port, host="127.0.0.1") as client:
        orders(client)

        async def work(line: Line) -> SeriesSeen:
            one = HistoryWriter(line, "me")
            assert await one.turn()
            assert await one.turn()
            return await read(line, TOTAL, GROUP)

        seen = on(cluster.url, work)
        assert (len(seen.rows[TOTAL]), seen.rows[GROUP][-1][1][2]) == (2, 2)
        assert len({client.keyslot(key) for key in (LEASE, TEN, FIVE, REST)}) == 1


def test_a_history_is_not_among_the_streams(server: ServerProcess, client: redis.Redis) -> None:
    """A list of all streams leaves the history out; a pattern finds it."""
    orders(client)
    put(client, TEN, 1, wave(1))
    assert on(server.url, reading.names) == ["orders", "orders:dead"]
    assert on(server.url, lambda line: reading.names(line, "*history*")) == [TEN]
