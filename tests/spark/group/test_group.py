"""Group mode beside other consumers, killed anywhere: each entry is once in a sink that ignores repeated batches."""

import itertools
import json
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millstream.client.delays.due import key
from millstream.errors import ConfigError, UsageError
from millstream.spark import dispatch
from millstream.spark.connection.router import Router
from millstream.spark.group import pending
from millstream.spark.group.pending import PendingEntries
from millstream.spark.group.renewal import LeaseRenewal
from millstream.spark.group.source import GroupReader
from millstream.spark.model.claims import Claim, Run, dump, joined, load, number, parts
from millstream.spark.model.offsets import DataLossError, Id
from support.accounts import user
from support.groupdriver import OWN, Drivers, logged, sunk
from support.servers import ServerProcess, millstream_server, redis_server
from support.streams import fill
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

Options = dict[str, str]


@pytest.fixture(scope="module", params=["redis", "millstream"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a real Redis, then Millstream's server."""
    folder = tmp_path_factory.mktemp("group")
    with redis_server(folder) if request.param == "redis" else millstream_server(folder, "--memory") as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of the emptied server."""
    with server.client(decode_responses=True) as made:
        made.flushall()
        yield made


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    """Yield a factory of drivers that can be killed."""
    made = Drivers()
    yield made
    made.close()


@pytest.fixture
def reading(server: ServerProcess) -> Iterator[Callable[..., GroupReader]]:
    """``reading(stream="s", ...)``: return the source as the driver creates it."""
    made: list[GroupReader] = []

    def read(**more: str) -> GroupReader:
        mode = dispatch.special_read(options(server, **more))
        assert mode is not None
        reader = mode.stream_reader(mode.schema())
        assert isinstance(reader, GroupReader)
        made.append(reader)
        return reader

    yield read
    for reader in made:
        reader.stop()


def options(server: ServerProcess, **more: str) -> Options:
    """Return the options of a query of the group."""
    return {"url": server.url, "stream": "s", "mode": "group", "group": "g", "queryName": "lake"} | more


def rows(reader: GroupReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[str]:
    """Return the ids that the tasks of a batch read."""
    found = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += batch.column("id").to_pylist()
    return found


def following(reader: GroupReader, start: Mapping[str, Any], cap: int | None = None) -> dict[str, Any]:
    """Return the next batch's offset, as read back from the checkpoint."""
    limit = ReadAllAvailable() if cap is None else ReadMaxRows(cap)
    return dict(json.loads(json.dumps(reader.latestOffset(start, limit))))


def held(client: redis.Redis, stream: str = "s") -> dict[str, int]:
    """Return the number of pending entries by consumer of the group."""
    return {row["name"]: row["pending"] for row in client.xinfo_consumers(stream, "g")}


def claim(client: redis.Redis, consumer: str, ids: list[str], *extra: Any) -> None:
    """Claim entries as another worker does."""
    client.execute_command("XCLAIM", "s", "g", consumer, 0, *ids, *extra)  # type: ignore[no-untyped-call]  # untyped in redis-py


# --- killed anywhere -------------------------------------------------------------------------------------------------

POINTS = [
    "planning:2", "claiming:2", "claiming:4", "claimed:2", "before_log", "logged:2", "replaying:3", "sunk", "committed",
    "planning:3", "acking:1", "acking:3", "acked:2",
]  # fmt: skip
"""The failpoints in the order that a batch passes them. A number is the visit at which the driver dies."""


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_anywhere_loses_and_doubles_nothing(
    server: ServerProcess, client: redis.Redis, drivers: Drivers, tmp_path: Path, point: str
) -> None:
    """If a driver is killed at any step and restarted, each entry is in the sink once.

    The steps are claim, offset log, replay, sink, commit log and acknowledgement.
    Entries of another consumer stay pending.
    """
    assert point.partition(":")[0] in (
        *OWN,
        "planning",
        "claiming",
        "claimed",
        "logged",
        "replaying",
        "acking",
        "acked",
    )
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 100)
    others = fill(client, "s", 20, first=101)
    client.xreadgroup("g", "w", {"s": ">"}, count=100)
    client.xreadgroup("g", "worker", {"s": ">"}, count=20)
    client.execute_command("XGROUP", "DELCONSUMER", "s", "g", "w")  # type: ignore[no-untyped-call]  # untyped in redis-py
    ids = fill(client, "s", 1000, first=201)
    given = options(server, maxEntriesPerTrigger="300", minPartitions="2")
    assert drivers.run(tmp_path, given, f"{point}=kill") == -signal.SIGKILL
    done = logged(tmp_path, "commits")
    assert len(done) < 4, "the kill came too late to prove anything"
    more = fill(client, "s", 50, first=2001)
    assert drivers.run(tmp_path, given) == 0
    found = sunk(tmp_path)
    assert sorted(found) == sorted(ids + more)
    assert held(client) == {"worker": 20}
    assert client.xpending("s", "g")["pending"] == len(others)


def test_a_lost_checkpoint_finds_what_was_claimed(
    server: ServerProcess, client: redis.Redis, drivers: Drivers, tmp_path: Path
) -> None:
    """Without its checkpoint, a query finds by name the entries that it held, processes them again, and continues."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 500)
    given = options(server, maxEntriesPerTrigger="200")
    assert drivers.run(tmp_path / "old", given, "sunk=kill") == -signal.SIGKILL
    assert held(client) == {"lake-2": 200}
    assert drivers.run(tmp_path / "new", given) == 0
    assert sunk(tmp_path / "old")[:200] + sunk(tmp_path / "new") == ids
    assert held(client) == {}


# --- what a batch is -------------------------------------------------------------------------------------------------


def test_batches_are_shared_with_other_consumers_and_read_again_alike(
    client: redis.Redis, reading: Callable[..., GroupReader]
) -> None:
    """A batch has the entries its consumer claimed, within the cap. It is acknowledged when the next one is planned."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    fill(client, "s", 20)
    reader = reading(minPartitions="2")
    start = reader.initialOffset()
    assert start == {"claims": {}, "consumer": "lake-0", "group": "g", "seq": 0}
    first = following(reader, start, cap=6)
    client.xreadgroup("g", "w", {"s": ">"}, count=5)
    expected = [f"{number}-0" for number in range(1, 7)]
    assert [rows(reader, start, first) for _ in range(2)] == [expected] * 2
    assert held(client) == {"lake-1": 6, "w": 5}
    assert {row["times_delivered"] for row in client.xpending_range("s", "g", "-", "+", 10)} == {1}
    second = following(reader, first, cap=6)
    assert held(client) == {"lake-2": 6, "w": 5}
    assert rows(reader, first, second) == [f"{number}-0" for number in range(12, 18)]
    assert reader.reportLatestOffset() == {"taken": 0, "waiting": {"s": 9}}
    third = following(reader, second, cap=6)
    assert rows(reader, second, third) == ["18-0", "19-0", "20-0"]
    assert following(reader, third) == third
    reader.commit(third)
    assert held(client) == {"w": 5}
    assert rows(reader, third, third) == []


def test_many_streams_share_the_cap(client: redis.Redis, reading: Callable[..., GroupReader]) -> None:
    """With many streams, each one is served and no batch exceeds the cap. AvailableNow ends despite busy producers."""
    for stream, count in (("a", 500), ("b", 30), ("c", 0)):
        client.xgroup_create(stream, "g", "0", mkstream=True)
        fill(client, stream, count) if count else None
    reader = reading(stream="a,b,c", maxEntriesPerPartition="7")
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    seen: list[str] = []
    sizes = []
    for turn in itertools.count():
        end = following(reader, at, cap=100)
        if end == at:
            break
        assert turn < 10
        found = reader.partitions(at, end)
        assert max(sum(run.n for run in part.runs) for part in found) <= 7  # type: ignore[attr-defined]  # ours
        sizes.append(len(rows(reader, at, end)))
        seen += [f"{key} {run[2]}" for key, runs in end["claims"].items() for run in runs]
        fill(client, "a", 40, first=1000 * (turn + 1))
        at = end
    assert (sizes[0], max(sizes), sum(sizes)) == (100, 100, 530)
    assert any(run.startswith("b") for run in seen[: 100 // 7 + 2])


def test_stale_entries_of_others_are_claimed_too(client: redis.Redis, reading: Callable[..., GroupReader]) -> None:
    """With ``minIdleTime``, entries idle that long are claimed from other consumers once, within the cap."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 60)
    client.xreadgroup("g", "dead", {"s": ">"}, count=40)
    client.xreadgroup("g", "alive", {"s": ">"}, count=10)
    claim(client, "dead", ids[:40:2], "IDLE", 3_600_000)
    client.xdel("s", ids[0])
    reader = reading(minIdleTime="30m")
    at = reader.initialOffset()
    seen: list[str] = []
    for _ in range(3):
        end = following(reader, at, cap=16)
        found = rows(reader, at, end)
        assert len(found) <= 16
        seen += found
        at = end
    assert sorted(seen) == sorted([*ids[2:40:2], *ids[50:]])
    assert held(client)["alive"] == 10
    assert held(client)["dead"] == 20


@pytest.mark.parametrize("rights", [(), ("-@scripting",)], ids=["scripts", "no-scripts"])
def test_what_is_delayed_is_left_to_its_time(
    server: ServerProcess, client: redis.Redis, reading: Callable[..., GroupReader], rights: tuple[str, ...]
) -> None:
    """No batch of group mode has an entry that waits for a delayed retry. Its delivery count is unchanged."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    client.xreadgroup("g", "dead", {"s": ">"})
    claim(client, "(retry)", ids, "IDLE", 3_600_000, "RETRYCOUNT", 1, "JUSTID")
    claim(client, "lake-1", ids[:1], "RETRYCOUNT", 2, "JUSTID")  # a driver died between its claim and its putting back
    client.zadd(key("s", "g"), dict.fromkeys(ids[:5], (client.time()[0] + 3600) * 1000))
    with user(client, "+@all", "~*", *rights) as name:
        reader = reading(minIdleTime="30m", url=server.url.replace("://", f"://{name}"))
        at = reader.initialOffset()
        assert rows(reader, at, following(reader, at)) == ids[5:]
    waiting = {row["message_id"]: row for row in client.xpending_range("s", "g", "-", "+", 100)}
    assert {(waiting[one]["consumer"], waiting[one]["times_delivered"]) for one in ids[:5]} == {("(retry)", 1)}
    assert client.zcard(key("s", "g")) == 5


# --- what others do --------------------------------------------------------------------------------------------------


def test_a_foreign_claimer_is_told_and_changes_no_batch(
    client: redis.Redis, reading: Callable[..., GroupReader], caplog: pytest.LogCaptureFixture
) -> None:
    """Entries that another consumer claimed meanwhile stay in the batch. The warning names that consumer."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    reader = reading()
    start = reader.initialOffset()
    end = following(reader, start)
    claim(client, "other", ids[:3])
    client.xack("s", "g", ids[5])
    assert rows(reader, start, end) == ids
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        assert following(reader, end) == end
    assert len(caplog.records) == 1
    told = caplog.records[0].getMessage()
    assert (
        "4 entries of batch lake-1 were claimed by others while it ran (now held by other: 3; 1 pending no more)"
        in told
    )
    assert held(client) == {"other": 0}
    assert following(reader, end) == end
    assert reader.reportLatestOffset() == {"taken": 4, "waiting": {"s": 0}}


def test_a_batch_that_runs_again_after_it_was_acknowledged_blames_nobody(
    client: redis.Redis, reading: Callable[..., GroupReader], caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that runs again after its acknowledgement does not warn about another consumer."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    first, again = reading(), reading()
    start = first.initialOffset()
    end = following(first, start)
    assert rows(first, start, end) == ids
    assert following(first, end) == end
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        assert rows(again, start, end) == ids
        assert following(again, end) == end
    assert caplog.records == []
    assert again.reportLatestOffset() == {"taken": 0, "waiting": {"s": 0}}


def test_entries_that_a_claim_drops_are_of_no_other_claimer(
    client: redis.Redis, reading: Callable[..., GroupReader], caplog: pytest.LogCaptureFixture
) -> None:
    """Entries that were deleted meanwhile are reported without the name of a consumer."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    reader = reading()
    start = reader.initialOffset()
    end = following(reader, start)
    assert rows(reader, start, end) == ids
    client.xdel("s", *ids[3:5])
    client.xclaim("s", "g", "lake-1", 0, ids, justid=True)
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        assert following(reader, end) == end
    assert "2 entries of batch lake-1 were acknowledged by others, or deleted" in caplog.text
    assert "claimed" not in caplog.text


def test_entries_deleted_after_they_were_claimed_are_a_loss(
    client: redis.Redis, reading: Callable[..., GroupReader], caplog: pytest.LogCaptureFixture
) -> None:
    """Entries deleted after their claim are an error with the count, or a warning with ``failOnDataLoss=false``."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    reader, lenient = reading(), reading(failOnDataLoss="false")
    start = reader.initialOffset()
    end = following(reader, start)
    client.xdel("s", *ids[3:5])
    told = "stream 's': 2 of the 10 entries from 1-0 to 10-0 that lake-1 has claimed were deleted"
    with pytest.raises(DataLossError, match=f"{told}.*'failOnDataLoss' to 'false'"):
        rows(reader, start, end)
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        assert rows(lenient, start, end) == [*ids[:3], *ids[5:]]
    assert told in caplog.text


def test_a_reply_that_is_lost_is_found_on_the_server(
    client: redis.Redis, reading: Callable[..., GroupReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the reply to a claim is lost, the claimed page is still in the batch."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 30)
    sent = Router.once
    broken = []

    def once(self: Router, commands: Any) -> Any:
        replies = sent(self, commands)
        if commands[0][0] == "XREADGROUP" and not broken:
            broken.append(True)
            raise ConnectionResetError("the reply is lost")
        return replies

    monkeypatch.setattr(Router, "once", once)
    reader = reading()
    start = reader.initialOffset()
    end = following(reader, start, cap=20)
    assert broken
    assert rows(reader, start, end) == ids[:20]
    assert rows(reader, end, following(reader, end)) == ids[20:]


def test_what_a_driver_claims_too_late_is_not_lost(client: redis.Redis, reading: Callable[..., GroupReader]) -> None:
    """If two drivers run one query, the entries that the losing driver claims are in a later batch of the other."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    reader = reading()
    start = reader.initialOffset()
    end = following(reader, start, cap=5)
    assert rows(reader, start, end) == ids[:5]
    client.xreadgroup("g", "lake-1", {"s": ">"}, count=2)
    assert rows(reader, end, following(reader, end)) == ids[7:]
    assert held(client)["lake-1"] == 2
    again = reading()
    third = following(again, end | {"seq": 2, "consumer": "lake-2", "claims": {"s": [["8-0", "10-0", 3]]}})
    assert rows(again, end, third) == ids[5:7]
    assert following(again, third) == third
    assert held(client) == {}


def test_a_batch_is_renewed_while_it_runs(server: ServerProcess, client: redis.Redis) -> None:
    """A running batch renews its entries' idle time.

    It leaves those taken by another consumer and ignores missing ones.
    """
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    client.xreadgroup("g", "lake-1", {"s": ">"}, count=10)
    for consumer, some, idle in (("lake-1", ids[:8], 60_000), ("other", ids[8:9], 60_000)):
        claim(client, consumer, some, "IDLE", idle, "JUSTID")
    renewal = LeaseRenewal(server.url, "g", min_idle_ms=150)
    renewal.keep("lake-1", ["gone", "s"])
    try:
        eventually(lambda: all(row["time_since_delivered"] < 30_000 for row in mine(client)), what="all are renewed")
    finally:
        renewal.stop()
    assert len(mine(client)) == 9
    (stolen,) = client.xpending_range("s", "g", ids[8], ids[8], 1)
    assert stolen["consumer"] == "other"
    assert stolen["time_since_delivered"] >= 60_000
    assert {row["times_delivered"] for row in mine(client)} == {1}


def mine(client: redis.Redis) -> list[Any]:
    """Return the pending entries of the batch's consumer."""
    found: list[Any] = client.xpending_range("s", "g", "-", "+", 100, "lake-1")
    return found


def test_the_highest_id_may_end_a_page(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of pending entries may end with the highest possible id."""
    monkeypatch.setattr(pending, "PAGE", 2)
    for ident in ("1-0", f"{2**64 - 1}-{2**64 - 1}"):
        client.xadd("s", {"n": 1}, id=ident)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"})
    asker = Router(server.url)
    assert [len(page) for page in PendingEntries(asker, "s", "g").pending("c")] == [2]
    asker.close()


def test_a_consumer_that_was_given_something_is_not_deleted_with_it(server: ServerProcess, client: redis.Redis) -> None:
    """If a consumer has received entries just before its deletion, they are returned to it."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids = fill(client, "s", 10)
    client.xreadgroup("g", "lake-1", {"s": ">"}, count=3)

    class Late(PendingEntries):
        """Pending entries whose consumers look empty just before entries arrive."""

        def consumers(self) -> dict[str, int]:
            """Report a consumer without entries."""
            return {"lake-1": 0}

    asker = Router(server.url)
    PendingEntries(asker, "s", "g").remove("lake-1")
    assert held(client) == {"lake-1": 3}
    Late(asker, "s", "g").remove("lake-1")
    asker.close()
    assert [row["message_id"] for row in mine(client)] == ids[:3]


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_a_group_is_made_only_where_it_is_said_to_begin(
    server: ServerProcess, client: redis.Redis, reading: Callable[..., GroupReader]
) -> None:
    """A group is created only if ``startingOffsets`` is given, so that a wrong name does not read everything again."""
    fill(client, "s", 3)
    with pytest.raises(ConfigError, match=r"option 'group': stream 's' has no group 'g'; .*'startingOffsets'"):
        reading().initialOffset()
    with pytest.raises(ConfigError, match="option 'stream': 'nope' does not exist on"):
        reading(stream="nope").initialOffset()
    reader = reading(startingOffsets="earliest")
    start = reader.initialOffset()
    end = following(reader, start)
    assert rows(reader, start, end) == ["1-0", "2-0", "3-0"]
    client.xgroup_destroy("s", "g")
    with pytest.raises(UsageError, match="the group 'g' is gone"):
        following(reader, end)
    late = reading(startingOffsets="latest")
    at = late.initialOffset()
    assert following(late, at) == at
    assert server.url


GOOD = {"url": "redis://h:1/0", "stream": "orders", "mode": "group", "group": "g", "queryName": "q"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (GOOD | {"mode": "grop"}, "option 'mode' is 'grop': it must be one of offset, group"),
        ({"queryName": "q", "mode": "offset"}, "option 'queryName' does nothing without .option"),
        ({"minIdleTime": "1m"}, "option 'minIdleTime' does nothing without .option"),
        ({**GOOD, "view": "pending"}, "option 'mode' does nothing in the view 'pending'"),
        (GOOD | {"queryName": "a b"}, "option 'queryName' is 'a b': mode 'group' needs a name"),
        ({name: GOOD[name] for name in GOOD if name != "queryName"}, "option 'queryName' is '': mode 'group' needs"),
        ({name: GOOD[name] for name in GOOD if name != "group"}, "option 'group' is missing"),
        (GOOD | {"minIdleTime": "soon"}, "option 'minIdleTime' is 'soon': it must be a length of time such as"),
        (GOOD | {"minIdleTime": "0s"}, "option 'minIdleTime' is '0s'"),
        (
            GOOD | {"startingOffsets": '{"orders": "1-0"}'},
            "option 'startingOffsets' must be earliest or latest in mode",
        ),
        (GOOD | {"startingTimestamp": "1"}, "option 'startingTimestamp' does nothing in mode 'group'"),
        (GOOD | {"endingOffsets": "latest"}, "option 'endingOffsets' does nothing in mode 'group'"),
        ({**GOOD, "stream": "", "streamPattern": "o*"}, "option 'stream' is ''"),
    ],
)
def test_a_wrong_option_of_group_mode_is_named(given: Options, says: str) -> None:
    """An invalid option of group mode is named in one line."""
    with pytest.raises(ConfigError, match=says):
        dispatch.special_read(given)


def test_a_batch_read_of_a_group_is_refused() -> None:
    """A batch read of a group is refused, since its entries would never be acknowledged."""
    mode = dispatch.special_read(GOOD | {"minIdleTime": "90 s", "fields": "n"})
    assert mode is not None
    assert mode.schema().fieldNames() == ["stream", "id", "timestamp", "n"]
    with pytest.raises(ConfigError, match=r"Use spark\.readStream, millstream\.spark\.recover for what"):
        mode.reader(mode.schema())


# --- numbers alone ---------------------------------------------------------------------------------------------------

RUNS = {"a": (Run(Id(1, 0), Id(9, 0), 9),), "b": (Run(Id(5, 1), Id(5, 1), 1), Run(Id(7, 0), Id(8, 0), 2))}


def test_an_offset_holds_the_claim_and_is_of_one_query() -> None:
    """An offset keeps the claim unchanged. A checkpoint of another group, query or source is refused."""
    claim = Claim("g", "lake").following(3, dict(reversed(RUNS.items())))
    raw = json.loads(json.dumps(dump(claim)))
    assert json.dumps(raw) == json.dumps(dump(claim), sort_keys=True)
    assert load(raw, "g", "lake") == claim
    with pytest.raises(UsageError, match=r"option 'group' was another .*'g', now 'h'"):
        load(raw, "h", "lake")
    with pytest.raises(UsageError, match=r"option 'queryName' was another .*'lake-3', now 'pond-3'"):
        load(raw, "g", "pond")
    with pytest.raises(UsageError, match="not those of a millstream query of mode 'group'"):
        load({"s": {"from": "0-0", "from_n": 0, "id": "1-0", "n": 1}}, "g", "lake")


def test_parts_hold_each_run_once() -> None:
    """Partitions contain each run of entries once and uncut."""
    claim = Claim("g", "q", 1, RUNS)
    for wanted, most in ((None, None), (1, None), (2, None), (12, None), (None, 2), (3, 5)):
        found = parts(claim, wanted, most)
        assert [(key, run) for key, runs in found for run in runs] == [
            (key, r) for key, runs in RUNS.items() for r in runs
        ]
        assert all(len(runs) == 1 or sum(run.n for run in runs) <= (most or 12) for _, runs in found)
    assert len(parts(claim, 12, None)) == 3
    assert parts(Claim("g", "q"), 4, None) == []


def test_single_entries_join_where_nothing_lies_between() -> None:
    """Adjacent entries are joined into runs up to a length, and consumer names are parsed back to their numbers."""
    ids = [Id(n, 0) for n in (1, 2, 5, 6, 7)]
    assert joined(ids, [False, True, False, False], most=2) == [
        Run(ids[0], ids[1], 2), Run(ids[2], ids[3], 2), Run(ids[4], ids[4], 1),
    ]  # fmt: skip
    assert joined([], [], most=2) == []
    assert [number("a.b", name) for name in ("a.b-12", "axb-12", "a.b-012", "a.b-", "a.b-1x")] == [12, *[None] * 4]


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5_000, "\u0664"])
def test_a_consumer_with_a_hostile_number_is_none_of_a_querys(digits: str) -> None:
    """A consumer name with an invalid number is ignored by the query."""
    assert number("q", f"q-{digits}") is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"group": "grop"}, "option 'group': stream 's' has no group 'grop'; correct the name"),
        ({"stream": "nope"}, "option 'stream': 'nope' does not exist on redis://"),
        ({"url": "redis://127.0.0.1:1/0"}, "option 'url': cannot connect to redis://127.0.0.1:1/0"),
        ({"minIdleTime": "99999999999d"}, "option 'minIdleTime' is .* hundred years"),
    ],
)
def test_what_a_consumer_holds_is_asked_of_a_group_that_is_there(
    server: ServerProcess, client: redis.Redis, given: Options, told: str
) -> None:
    """A read of a consumer's pending entries fails if the group does not exist or the server is unreachable."""
    fill(client, "s", 3)
    client.xgroup_create("s", "g", "0")
    wanted = options(server, consumer="w") | given
    if "minIdleTime" in given:
        del wanted["consumer"]
    with pytest.raises(ConfigError, match=told):
        held_by(wanted)


def held_by(given: Options) -> None:
    """Plan a read of the pending entries of a consumer."""
    mode = dispatch.special_read(given)
    assert mode is not None
    mode.reader(mode.schema()).partitions()
