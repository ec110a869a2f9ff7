"""Reading costs in round trips and rows: a large server costs no more than a small one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from millstream.client.delays import due
from millstream.client.line import Line
from millstream.clock import SystemClock
from millstream.ops.findings.reading import read_case, read_causes
from millstream.ops.pending import reading as pending
from millstream.ops.pending.status import PendingChoice
from millstream.ops.streams import reading as streams
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver


class Counting(Line):
    """A line that counts round trips, commands and rows.

    Attributes:
        trips: number of round trips.
        commands: number of commands in all of them.
        largest: number of rows in the longest reply.
    """

    trips = commands = largest = 0

    def calls(self, commands: Any, **options: Any) -> Any:
        """Count and send commands."""
        self.trips += 1
        self.commands += len(commands)
        asked = super().calls(commands, **options)
        asked.add_done_callback(lambda done: self._seen(done.result()))
        return asked

    def _seen(self, replies: list[Any]) -> None:
        self.largest = max([self.largest, *(len(reply) for reply in replies if isinstance(reply, list))])


def counted(server: ServerProcess, work: Callable[[Line], Awaitable[Any]]) -> tuple[Any, Counting]:
    """Return a reader's result and its cost."""

    async def main() -> tuple[Any, Counting]:
        line = Counting(server.url)
        try:
            return await work(line), line
        finally:
            await line.close()

    return asyncio.run(main())


def test_an_overview_asks_once_for_a_hundred_streams(server: ServerProcess, client: redis.Redis) -> None:
    """An overview reads 450 streams in a few round trips, and sends no age command for an empty lag."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(450):
            key = f"stream-{number}"
            pipe.xadd(key, {"n": 1}, id="1-0")
            for group in ("done", "new"):
                pipe.xgroup_create(key, group, id="0")
            pipe.xreadgroup("done", "c1", {key: ">"}, noack=True)
        pipe.execute()
    seen, line = counted(server, streams.overview)
    assert (len(seen.streams), line.trips <= 7) == (450, True), line.trips  # SCAN, three pages, the last one's ages
    assert line.commands <= 450 * 2 + 3  # XINFO twice; the group that is behind is before the first entry
    assert {group.lag.entries for one in seen.streams for group in one.groups} == {0, 1}


def test_a_check_of_all_groups_takes_few_round_trips(server: ServerProcess, client: redis.Redis) -> None:
    """The streams with their causes, as `millstream check` reads them, take at most eight round trips."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(100):
            pipe.xadd(f"stream-{number}", {"n": 1}, id="1-0")
            pipe.xgroup_create(f"stream-{number}", "billing", id="0")
            pipe.xreadgroup("billing", "c1", {f"stream-{number}": ">"})
        pipe.execute()

    async def work() -> tuple[int, int]:
        line = Line(server.url, joint=True)
        try:
            seen = await streams.overview(line)
            groups = [group for stream in seen.streams for group in stream.groups]
            await read_causes(line, seen, groups)
            return len(groups), line.trips
        finally:
            await line.close()

    groups, trips = asyncio.run(work())
    assert (groups, trips <= 8) == (100, True), trips


def test_delayed_entries_of_many_groups_take_one_round_trip(server: ServerProcess, client: redis.Redis) -> None:
    """Delayed entries are read for 500 groups, the oldest first; those of the others are unknown, not zero."""
    due_ms = SystemClock().wall_time() + 3_600_000
    with client.pipeline(transaction=False) as pipe:
        for number in range(60):
            pipe.xadd(f"stream-{number}", {"n": 1}, id=f"{number + 1}-0")
            for group in map(str, range(9)):
                pipe.xgroup_create(f"stream-{number}", group, id="0")
                pipe.xreadgroup(group, "c1", {f"stream-{number}": ">"})
                pipe.zadd(due.key(f"stream-{number}", group), {f"{number + 1}-0": due_ms})
        pipe.execute()
    seen, line = counted(server, streams.overview)
    assert line.trips == 7  # two SCANs at once, the names of nodes, two pages, the last one's ages, the delayed entries
    found = {(one.key, group.name): group for one in seen.streams for group in one.groups}
    assert sum(group.delayed == 1 for group in found.values()) == 500
    assert found["stream-0", "8"].oldest_pending.age(seen.at_ms) == 0
    last = found["stream-59", "0"]
    assert (last.delayed, last.oldest_pending.age(seen.at_ms), last.pending) == (None, None, 1)


def test_streams_of_large_entries_are_asked_for_a_few_at_a_time(server: ServerProcess, client: redis.Redis) -> None:
    """Streams with large entries are read a few at a time, since XINFO includes their first and last entries."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(80):
            pipe.xadd(f"stream-{number}", {"n": "x" * 100_000}, id="1-0")
        pipe.execute()
    seen, line = counted(server, lambda line: streams.read(line, [f"stream-{number}" for number in range(80)]))
    # 50 at first, which were 10 MB; then 4 MB at a time; no group commands, since there are no groups
    assert (len(seen.streams), line.trips, line.commands) == (80, 3, 160)


def fill(client: redis.Redis, entries: int) -> None:
    """Add a number of pending entries, spread over four consumers."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(1, entries + 1):
            pipe.xadd("orders", {"n": number}, id=f"{number}-0")
        pipe.xgroup_create("orders", "billing", id="0")
        for number in range(0, entries, 100):
            pipe.xreadgroup("billing", f"c{number // 100 % 4}", {"orders": ">"}, count=100)
        pipe.execute()


OLD = PendingChoice(idle_ms=10**12)


@pytest.mark.parametrize(
    ("work", "trips", "rows"),
    [
        (lambda line: pending.read_page(line, "orders", "billing"), 1, 100),
        (lambda line: pending.read_page(line, "orders", "billing", start="(2500-0", payload=True), 2, 100),
        (lambda line: pending.read_page(line, "orders", "billing", choice=PendingChoice("c2")), 1, 1000),
        (lambda line: pending.read_page(line, "orders", "billing", choice=OLD, scan=3000), 3, 1000),
        (lambda line: pending.read_page(line, "orders", "billing", by="idle", scan=2000), 2, 1000),
        (lambda line: read_case(line, "orders", "billing"), 8, 1000),
    ],
    ids=["page", "payload", "consumer", "none fits", "worst", "group"],
)
def test_no_page_grows_with_what_is_pending(
    server: ServerProcess, client: redis.Redis, work: Callable[[Line], Awaitable[Any]], trips: int, rows: int
) -> None:
    """A page costs at most the given round trips and rows, however many entries are pending."""
    fill(client, 5000)
    _, line = counted(server, work)
    assert (line.trips <= trips, line.largest <= rows) == (True, True), (line.trips, line.largest)


def test_pages_join_without_gap(server: ServerProcess, client: redis.Redis) -> None:
    """Pages of pending entries join without a gap, also with sparse matches, and the last page is marked."""
    fill(client, 2500)
    client.xclaim("orders", "billing", "c9", 0, [f"{number}-0" for number in range(1, 2501, 400)], justid=True)
    found: list[str] = []
    start: str | None = "-"
    while start is not None:
        at = start
        page, _ = counted(
            server,
            lambda line, at=at: pending.read_page(  # type: ignore[misc]  # the loop's value, as it is now
                line,
                "orders",
                "billing",
                start=at,
                count=2,
                choice=PendingChoice(deliveries=1, consumer="c9"),
                scan=700,
            ),
        )
        found += [entry.id for entry in page.entries]
        start = page.next
    assert found == [f"{number}-0" for number in range(1, 2501, 400)]
