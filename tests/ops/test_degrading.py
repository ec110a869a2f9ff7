"""Features that an older server lacks, or that a user's rights exclude, are shown as missing with the reason."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from millstream.client.line import Command, Line
from millstream.ops.asking import NotReadableError
from millstream.ops.findings.advice import advise
from millstream.ops.findings.check import CheckBounds, check, measure
from millstream.ops.findings.reading import read_case
from millstream.ops.letters.reading import letter_streams
from millstream.ops.pending import reading as pending
from millstream.ops.server.reading import server as read_server
from millstream.ops.spark.reading import read_queries
from millstream.ops.streams import reading as streams
from millstream.ops.streams.reading import read_consumers, read_group
from millstream.ops.streams.status import GroupSeen, StreamsSeen
from millstream.ops.workers.reading import read_workers
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

NEWER = {b"lag", b"entries-read", b"entries-added", b"max-deleted-entry-id", b"recorded-first-entry-id", b"inactive"}
"""Fields of XINFO that Redis 6.2 does not have."""


class OldLine(Line):
    """A line that answers XINFO like Redis 6.2."""

    def calls(self, commands: Any, **options: Any) -> Any:
        """Send commands, and drop the facts of newer servers from the replies."""
        return asyncio.ensure_future(self._older(commands, super().calls(commands, **options)))

    async def _older(self, commands: list[Command], asked: Awaitable[list[Any]]) -> list[Any]:
        replies = await asked
        return [
            _older(reply) if command[0] == "XINFO" else reply for command, reply in zip(commands, replies, strict=True)
        ]


def _older(reply: Any) -> Any:
    if not isinstance(reply, list):
        return reply
    if reply and isinstance(reply[0], list):
        return [_older(row) for row in reply]
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return [part for pair in pairs if pair[0] not in NEWER for part in pair]


def look(line: Line, work: Callable[[Line], Awaitable[Any]]) -> Any:
    """Return the result of a reader over this line."""

    async def main() -> Any:
        try:
            return await work(line)
        finally:
            await line.close()

    return asyncio.run(main())


def fill(client: redis.Redis) -> None:
    """Add ten entries, of which one group was delivered four and another all."""
    for number in range(1, 11):
        client.xadd("orders", {"n": number}, id=f"{number}-0")
    for name, count in (("billing", 4), ("mail", 10)):
        client.xgroup_create("orders", name, id="0")
        client.xreadgroup(name, "c1", {"orders": ">"}, count=count)
    client.xgroup_create("orders", "audit", id="0")


def test_without_counters_the_ids_still_say_much(server: ServerProcess, client: redis.Redis) -> None:
    """Without the server's counters, a lag of zero or of everything is known. Otherwise it has bounds and a reason."""
    fill(client)
    seen: StreamsSeen = look(OldLine(server.url), streams.overview)
    (one,) = seen.streams
    assert {group.name: group.lag.entries for group in one.groups} == {"audit": 10, "billing": None, "mail": 0}
    lag = one.groups[1].lag
    assert (lag.reason, lag.at_least, lag.at_most) == ("no-counters", 1, 9)
    assert (one.entries_added, one.max_deleted_id, one.groups[1].entries_read) == (None, None, None)
    assert "7.0" in one.missing["entries-added"]
    assert one.groups[1].oldest_undelivered.id == "5-0"


def test_without_counters_a_lag_is_counted(server: ServerProcess, client: redis.Redis) -> None:
    """Without the server's counters the lag is counted by reading, and no unsupported repair is offered."""
    fill(client)
    case = look(OldLine(server.url), lambda line: read_case(line, "orders", "billing"))
    assert (case.seen.group.lag.entries, case.seen.group.lag.repair) == (6, None)
    assert (case.seen.consumers[0].inactive_ms, case.seen.consumers[0].inactive_known) == (None, False)


def test_an_unknown_lag_is_never_taken_for_none(server: ServerProcess, client: redis.Redis) -> None:
    """A check whose threshold lies within a lag's bounds is unknown."""
    fill(client)
    seen = look(OldLine(server.url), streams.overview)
    states = {one.measured.group: one.status for one in check(measure(seen), {"lag": CheckBounds(critical=5)})}
    assert states == {"audit": "critical", "billing": "unknown", "mail": "ok"}


@pytest.fixture(autouse=True)
def no_user_stays(client: redis.Redis) -> Iterator[None]:
    """Remove the test's user from the shared server."""
    yield
    client.acl_deluser("looker")


def user(server: ServerProcess, client: redis.Redis, *rules: str, make: type[Line] = Line) -> Line:
    """Return a line for a user with only the given rights."""
    client.acl_setuser("looker", enabled=True, passwords="+x", reset=True)
    client.execute_command("ACL", "SETUSER", "looker", "~*", *rules)
    return make(server.url.replace("//", "//looker:x@"))


GROUP_FIGURES = ("lag", "behind", "pending", "pending-age", "unowned")


def test_a_user_who_may_not_see_groups_sees_the_stream(server: ServerProcess, client: redis.Redis) -> None:
    """For a user without the right to read groups, missing figures show the server's error.

    Dependent ones are not zero.
    """
    fill(client)
    seen = look(user(server, client, "+scan", "+xinfo|stream"), streams.overview)
    (one,) = seen.streams
    assert (one.length, one.groups) == (10, ())
    assert "permission" in one.missing["groups"].lower()
    assert {found.figure: found.why for found in measure(seen)} == dict.fromkeys(GROUP_FIGURES, one.missing["groups"])


def test_a_real_server_without_counters(redis6_process: ServerProcess) -> None:
    """On a real Redis 6.2 the lag is bounded or counted, and a rewind works."""
    with redis6_process.as_new().client() as client:
        fill(client)
    seen: StreamsSeen = look(Line(redis6_process.url), streams.overview)
    (one,) = seen.streams
    assert {group.name: group.lag.entries for group in one.groups} == {"audit": 10, "billing": None, "mail": 0}
    assert one.groups[1].lag.reason == "no-counters"
    found: GroupSeen = look(Line(redis6_process.url), lambda line: read_group(line, "orders", "billing"))
    assert (found.group.lag.entries, found.group.pending) == (6, 4)


def test_without_counters_no_finding_is_made_of_it(server: ServerProcess, client: redis.Redis) -> None:
    """A server without counters causes no lag finding for its groups."""
    fill(client)
    case = look(OldLine(server.url), lambda line: read_case(line, "orders", "billing", count=0))
    assert case.seen.group.lag.reason == "no-counters"
    assert "lag-unknown" not in {one.code for one in advise(case)}


def test_an_older_server_and_a_user_who_may_not_see_entries(server: ServerProcess, client: redis.Redis) -> None:
    """On an older server without the right to read entries, the lag is unknown with that reason. The rest is shown."""
    fill(client)
    line = user(server, client, "+scan", "+xinfo", make=OldLine)
    found: GroupSeen = look(line, lambda line: read_group(line, "orders", "billing"))
    assert (found.group.lag.entries, found.group.lag.reason) == (None, "no-counters")
    assert "xrange" in found.group.lag.why
    assert found.group.pending == 4


def test_a_user_who_may_not_see_entries_sees_the_rest(server: ServerProcess, client: redis.Redis) -> None:
    """Without the right to read entries, ages are unknown with the reason, and the lag is known."""
    fill(client)
    line = user(server, client, "+scan", "+xinfo")
    found: GroupSeen = look(line, lambda line: read_group(line, "orders", "billing"))
    assert (found.group.lag.entries, found.group.unowned, found.group.held) == (6, None, None)
    assert found.group.oldest_undelivered.age(5) is None
    assert "xrange" in (found.group.oldest_undelivered.why or "")
    assert "xpending" in (found.group.oldest_pending.why or "")
    assert found.stream.oldest_pending.why is not None


@pytest.mark.parametrize(
    "work",
    [
        streams.overview,
        lambda line: streams.one(line, "orders"),
        lambda line: read_consumers(line, "orders", "billing"),
        lambda line: pending.read_page(line, "orders", "billing"),
    ],
    ids=["overview", "one", "consumers", "pending"],
)
def test_who_may_do_nothing_is_told_so(
    server: ServerProcess, client: redis.Redis, work: Callable[[Line], Awaitable[Any]]
) -> None:
    """A user without any rights gets one error with the refused command, instead of an empty list."""
    fill(client)
    with pytest.raises(NotReadableError, match=r"(?i)permission"):
        look(user(server, client), work)


def test_who_may_do_nothing_sees_why_of_each_part(server: ServerProcess, client: redis.Redis) -> None:
    """Without rights, workers, queries, dead letters and server each show the reason."""
    line = user(server, client)

    async def every(line: Line) -> list[Any]:
        return [await work(line) for work in (read_workers, read_queries, letter_streams, read_server)]

    workers, queries, letters, (status,) = look(line, every)
    assert [seen.why is not None for seen in (workers, queries, letters)] == [True, True, True]
    assert set(status.missing) == {"info", "costs", "slow"}
