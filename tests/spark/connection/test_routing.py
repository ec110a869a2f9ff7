"""Clusters, Sentinels and replicas: Spark's commands reach the node that holds the key, also after it moved."""

import itertools
import json
import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis
import pyarrow as pa
import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable

import millstream
from millstream import failpoints
from millstream.errors import ConfigError, UsageError
from millstream.spark import dispatch, recover
from millstream.spark.archiving.manifest import ArchivePosition
from millstream.spark.archiving.replay import replay
from millstream.spark.archiving.replay_model import Replay
from millstream.spark.archiving.trim import Keep, Trimmer
from millstream.spark.arrow.encode_rows import RowLayout
from millstream.spark.connection import bulk_reader, routing
from millstream.spark.group.source import GroupReader
from millstream.spark.model.offsets import DataLossError, Id
from millstream.spark.monitoring import store
from millstream.spark.options.write import SinkOptions
from millstream.spark.read import pages
from millstream.spark.source import BatchReader, MillstreamSource, StreamReader
from millstream.spark.write import staging
from millstream.spark.write.sink import settle, stage
from support.clock import own_clock
from support.clusters import Three
from support.partitioned import partition
from support.ports import free_port
from support.sentinels import Watched
from support.servers import ServerProcess, redis_server
from support.streams import fill
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

ALL = ReadAllAvailable()
STREAMS = ["{a}", "{b}", "{c}"]
"""Streams on three different nodes."""

HOUR = 3_600_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """Yield one cluster for the module. The node of the first stream has a replica."""
    with Three(tmp_path_factory.mktemp("cluster"), spare="{a}") as found:
        assert len({found.owner(stream).port for stream in STREAMS}) == 3
        yield found


@pytest.fixture
def client(three: Three) -> Iterator[Any]:
    """Yield redis-py's client of the emptied cluster."""
    three.flush()
    with millstream.connect(three.url, decode_responses=True) as found:
        yield found
    failpoints.clear()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit pages to 100 entries, so that a test can act between two pages."""
    monkeypatch.setattr(pages, "FIRST_COUNT", 100)
    monkeypatch.setattr(pages, "MOST_COUNT", 100)


def reader(url: str, **options: str) -> StreamReader:
    """Return a stream reader as Spark's driver creates it."""
    source = MillstreamSource({"url": url, "startingOffsets": "earliest"} | options)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def planned(made: StreamReader, start: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Return the partitions of the next batch and its end offset."""
    start = start or made.initialOffset()
    end = json.loads(json.dumps(made.latestOffset(start, ALL)))
    return made.partitions(start, end), end


def rows(made: StreamReader | BatchReader, parts: list[Any]) -> Counter[tuple[str, str]]:
    """Count the stream and id of each row that the tasks read."""
    found: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for batch in made.read(part):
            found.update(zip(batch.column("stream").to_pylist(), batch.column("id").to_pylist(), strict=True))
    return found


def numbered(stream: str, first: int, last: int) -> Counter[tuple[str, str]]:
    return Counter((stream, f"{number}-0") for number in range(first, last + 1))


# --- reading from a cluster ------------------------------------------------------------------------------------------


def test_streams_of_every_node_by_name_and_by_pattern(three: Three, client: Any) -> None:
    """One query reads streams on three nodes, by name and by pattern, and shows its progress in a group of each."""
    for stream in STREAMS:
        fill(client, stream, 250)
    client.set("{b}other", "no stream")
    wanted = sum((numbered(stream, 1, 250) for stream in STREAMS), Counter[tuple[str, str]]())
    for which in ({"stream": ",".join(STREAMS)}, {"streamPattern": "{[abc]}*"}):
        made = reader(three.url, group="lake", minPartitions="6", **which)
        parts, end = planned(made)
        assert len(parts) == 6
        assert rows(made, parts) == wanted
        assert made.latestOffset(end, ALL) == end
        for stream in STREAMS:
            (told,) = client.xinfo_groups(stream)
            assert (told["name"], told["last-delivered-id"], told["lag"]) == ("lake", "250-0", 0)
        made.stop()
    source = MillstreamSource({"url": three.url, "streamPattern": "*"})
    batch = source.reader(source.schema())
    assert isinstance(batch, BatchReader)
    assert rows(batch, batch.partitions()) == wanted


def test_a_partitioned_stream_is_read_from_every_node(three: Three, client: Any) -> None:
    """A partitioned stream is read although its layout and its partitions are on different nodes."""
    partition(three.url, "orders", 8)
    keys = [f"orders{{{at}}}" for at in range(8)]
    assert len({three.owner(key).port for key in keys}) == 3
    for key in keys:
        fill(client, key, 20)
    made = MillstreamSource({"url": three.url, "partitionedStream": "orders"})
    batch = made.reader(made.schema())
    assert isinstance(batch, BatchReader)
    assert rows(batch, batch.partitions()) == sum((numbered(key, 1, 20) for key in keys), Counter[tuple[str, str]]())


@pytest.mark.usefixtures("small_pages")
def test_a_slot_that_moved_after_the_plan_is_followed(three: Three, client: Any) -> None:
    """If a slot moves before a task or between its pages, MOVED is followed: the same rows are read and planned."""
    fill(client, "{a}", 500)
    made = reader(three.url, stream="{a}", minPartitions="2")
    (first, second), end = planned(made)
    three.move("{a}")
    assert rows(made, [first]) == numbered("{a}", 1, 250)
    batches = made.read(second)
    found = next(batches).column("id").to_pylist()
    three.move("{a}")
    for batch in batches:
        found += batch.column("id").to_pylist()
    assert found == [f"{number}-0" for number in range(251, 501)]
    fill(client, "{a}", 10, first=501)
    parts, _ = planned(made, end)
    assert rows(made, parts) == numbered("{a}", 501, 510)
    made.stop()


@pytest.mark.usefixtures("small_pages")
def test_a_slot_that_is_being_moved_is_read_and_planned_at_both_nodes(three: Three, client: Any) -> None:
    """While a slot is being moved, ASK is followed at once: the stream is read and planned at both nodes."""
    fill(client, "{a}", 500)
    client.xadd("{a}0", {"not": "moved yet"}, id="1-0")
    made = reader(three.url, stream="{a}", minPartitions="2", group="lake")
    (first, second), end = planned(made)
    batches = made.read(first)
    found = next(batches).column("id").to_pylist()
    moving = three.begin_move("{a}")
    try:
        for batch in batches:
            found += batch.column("id").to_pylist()
        assert found == [f"{number}-0" for number in range(1, 251)]
        assert rows(made, [second]) == numbered("{a}", 251, 500)
        fill(client, "{a}", 10, first=501)
        parts, end = planned(made, end)
        assert rows(made, parts) == numbered("{a}", 501, 510)
    finally:
        three.end_move(moving)
    fill(client, "{a}", 10, first=511)
    assert rows(made, planned(made, end)[0]) == numbered("{a}", 511, 520)
    made.stop()


def test_a_value_that_looks_like_a_redirection_is_a_value(three: Three, client: Any) -> None:
    """A field value that looks like a MOVED error is read as a value."""
    client.xadd("{a}", {"x": "-MOVED 1 127.0.0.1:1"}, id="1-0")
    made = reader(three.url, stream="{a}")
    assert rows(made, planned(made)[0]) == numbered("{a}", 1, 1)
    made.stop()


# --- writing to a cluster --------------------------------------------------------------------------------------------


def layout(stream: str | None) -> RowLayout:
    """Return the layout of rows with the column ``n``, to one stream or to the stream of each row."""
    return RowLayout(stream, has_id=False, fields=("n",))


def staged(url: str, first: int, last: int, stream: str | None = None) -> Any:
    """Stage numbered rows as a task does, in turn to each stream if none is given."""
    columns: dict[str, Any] = {"n": list(range(first, last))}
    if stream is None:
        columns["stream"] = [STREAMS[number % 3] for number in range(first, last)]
    return stage(SinkOptions(url, stream), layout(stream), "q", [pa.record_batch(columns)])


def commit(url: str, version: int, *messages: Any) -> None:
    """Commit as the driver does."""
    settle(SinkOptions(url), "q", version, messages, lasting=True)


def at_piece(message: Any, stream: str, number: int, act: Callable[[], object]) -> list[Callable[[], object]]:
    """Call ``act`` before the driver first sends this piece of a stream. The returned list is empty after the call."""
    due = [act]
    others = itertools.takewhile(lambda part: part.stream != stream, message.parts)
    pieces = itertools.count(-number - sum(part.pieces for part in others))

    def reached() -> None:
        if next(pieces) == 0:
            due.pop()()

    failpoints.on("publishing", reached)
    return due


def keys(three: Three, pattern: str = "millstream:*") -> set[str]:
    """Return the keys of all nodes."""
    found: set[str] = set()
    for node in three.nodes:
        with node.client(decode_responses=True) as one:
            found.update(one.keys(pattern))
    return found


def there(client: Any, stream: str) -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange(stream)]


def test_rows_to_streams_of_every_node_once(three: Three, client: Any) -> None:
    """A repeated batch over three nodes writes each row once. Only the commit record is left."""
    commit(three.url, 0, staged(three.url, 0, 3000), staged(three.url, 3000, 6000))
    commit(three.url, 0, staged(three.url, 0, 6000))
    for at, stream in enumerate(STREAMS):
        assert there(client, stream) == list(range(at, 6000, 3))
    commit(three.url, 1, staged(three.url, 0, 10, "orders"))
    assert there(client, "orders") == list(range(10))
    assert keys(three) == {"millstream:sink:q"}


def test_a_stream_that_can_have_no_neighbour_is_refused(three: Three, client: Any) -> None:
    """A stream whose name allows no second key in its slot is refused, since its commit could not be atomic."""
    with pytest.raises(UsageError, match="stream 'a}b' cannot be written on a cluster"):
        commit(three.url, 0, staged(three.url, 0, 1, "a}b"))
    assert keys(three, "*") == set()


@pytest.mark.parametrize("step", ["staged", "published"])
def test_the_sink_follows_a_slot(three: Three, client: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """If a slot moves between tasks and commit, or between pieces of a commit, each row is written once."""
    monkeypatch.setattr(staging, "PIECE_ROWS", 3)
    message = staged(three.url, 0, 60)
    if step == "staged":
        three.move("{a}")
    due = at_piece(message, "{a}", 2, lambda: three.move("{a}")) if step == "published" else []
    commit(three.url, 0, message)
    assert not due
    for at, stream in enumerate(STREAMS):
        assert there(client, stream) == list(range(at, 60, 3))
    assert keys(three) == {"millstream:sink:q"}


def test_the_sink_waits_while_a_slot_is_being_moved(three: Three, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a slot is being moved, the commit waits, then writes each row once."""
    monkeypatch.setattr(staging, "PIECE_ROWS", 3)
    moving, sleeps = list[Any](), Counter[str]()

    def arrive(_: float) -> None:
        sleeps["waited"] += 1
        if sleeps["waited"] == 3:  # a waiter has been sent away more than once
            three.end_move(moving[0])

    message = staged(three.url, 0, 60)
    at_piece(message, "{a}", 2, lambda: moving.append(three.begin_move("{a}")))
    for module in ("connection.router", "write.publish", "connection.retry"):  # each sends again what it asked
        own_clock(monkeypatch, f"millstream.spark.{module}", sleep=arrive)
    commit(three.url, 0, message)
    monkeypatch.undo()
    assert sleeps["waited"] >= 3
    assert there(client, "{a}") == list(range(0, 60, 3))


# --- the group mode, recovery, views, the archive --------------------------------------------------------------------


def group_reader(url: str, **more: str) -> GroupReader:
    """Return a group-mode reader as the driver creates it."""
    mode = dispatch.special_read({"url": url, "mode": "group", "group": "g", "queryName": "lake"} | more)
    assert mode is not None
    made = mode.stream_reader(mode.schema())
    assert isinstance(made, GroupReader)
    return made


def test_a_query_of_a_group_on_three_nodes(three: Three, client: Any) -> None:
    """Group mode claims, reads and acknowledges on three nodes, also if a slot moves between claim and read."""
    for stream in STREAMS:
        fill(client, stream, 100)
    made = group_reader(three.url, stream=",".join(STREAMS), startingOffsets="earliest")
    start = made.initialOffset()
    end = json.loads(json.dumps(made.latestOffset(start, ALL)))
    three.move("{a}")
    found: Counter[tuple[str, str]] = Counter()
    for part in made.partitions(start, end):
        for batch in made.read(part):
            found.update(zip(batch.column("stream").to_pylist(), batch.column("id").to_pylist(), strict=True))
    assert found == sum((numbered(stream, 1, 100) for stream in STREAMS), Counter[tuple[str, str]]())
    three.move("{a}")
    assert made.latestOffset(end, ALL) == end
    for stream in STREAMS:
        assert client.xpending(stream, "g")["pending"] == 0
        assert client.xinfo_consumers(stream, "g") == []
    made.stop()


def leave(client: Any, stream: str, count: int) -> None:
    """Leave entries pending for an hour under a dead consumer."""
    client.xgroup_create(stream, "g", "0", mkstream=True)
    ids = fill(client, stream, count)
    client.xreadgroup("g", "dead", {stream: ">"})
    client.xclaim(stream, "g", "dead", 0, ids, idle=HOUR, justid=True)


def test_a_recovery_goes_along_with_its_stream(three: Three, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery follows a slot that moves between its steps, and moves each entry to the dead-letter stream once."""
    leave(client, "{a}", 120)
    points = iter(["sliced", "writing_dead"])
    due = [next(points)]

    def reach(point: str) -> None:
        if due and point == due[0]:
            three.move("{a}")
            due[:] = list(points)[:1]

    monkeypatch.setattr("millstream.failpoints.reach", reach)
    done = recover(None, three.url, "{a}", "g", "10m", verdict="dead", slice_size=50)
    assert (done.dead, done.total) == (120, 120)
    assert not due
    assert client.xlen("{a}:dead") == 120
    assert client.xpending("{a}", "g")["pending"] == 0
    leave(client, "{b}", 10)
    assert recover(None, three.url, "{b}", "g", "10m", verdict="release").released == 10


def test_letters_in_another_slot_are_refused_with_a_name_that_would_do(three: Three, client: Any) -> None:
    """A dead-letter stream in another slot is refused before any claim. The error has a name that works."""
    leave(client, "orders", 3)
    with pytest.raises(ConfigError, match=r"dead='\{orders\}:dead' is"):
        recover(None, three.url, "orders", "g", "10m", verdict="dead")
    assert recover(None, three.url, "orders", "g", "10m", verdict="dead", dead="{orders}:dead").dead == 3
    assert client.xlen("{orders}:dead") == 3


def test_views_of_all_nodes(three: Three, client: Any) -> None:
    """Views return the groups, consumers and pending entries of streams on three nodes."""
    for stream in STREAMS:
        leave(client, stream, 7)

    def view(kind: str, column: str) -> Counter[Any]:
        source = MillstreamSource({"url": three.url, "streamPattern": "*", "view": kind})
        made = source.reader(source.schema())
        found: Counter[Any] = Counter()
        for part in made.partitions():
            for batch in made.read(part):  # type: ignore[union-attr] # a batch of Arrow
                found.update(zip(*(batch.column(name).to_pylist() for name in ("stream", column)), strict=True))
        return found

    assert view("groups", "pending") == Counter((stream, 7) for stream in STREAMS)
    assert view("consumers", "consumer") == Counter((stream, "dead") for stream in STREAMS)
    assert view("pending", "deliveries") == {(stream, 1): 7 for stream in STREAMS}
    three.move("{b}")
    recover(None, three.url, "{b}", "g", "10m", verdict="dead")
    assert view("dead", "letter_stream") == {("{b}", "{b}:dead"): 7}


def test_trimming_and_replaying_on_a_cluster(three: Three, client: Any) -> None:
    """A trim runs on the stream's node, and a replay continues when the target's slot moves."""
    fill(client, "{a}", 300)
    trimmer = Trimmer(three.url, Keep())
    assert trimmer.trim("{a}", ArchivePosition(Id(100, 0), 100)).count == 100
    three.move("{a}")
    assert trimmer.trim("{a}", ArchivePosition(Id(150, 0), 150)).count == 50
    trimmer.close()
    what = Replay(three.url, "{a}", three.url, "{c}copy", ids="keep")
    moves = [three.move]

    def move(*_: object) -> bool:
        if moves:
            moves.pop()("{c}copy")
        return False

    assert replay(what, stop=move).written == 150
    assert not moves
    assert [ident for ident, _ in client.xrange("{c}copy")] == [f"{number}-0" for number in range(151, 301)]


def test_queries_tell_a_cluster_of_themselves(three: Three, client: Any) -> None:
    """On a cluster, queries write their reports and drivers' keys, and the reports are found again."""
    with millstream.connect(three.url) as telling:
        store.write(telling, store.NEW | {"id": "q1", "driver": "d1", "at_ms": 5}, "started")
        telling.set(store.driver_key("d1"), 1)
        store.forget(telling, 6)
    (found,) = store.look(three.url)
    assert (found["id"], found["state"]) == ("q1", "running")
    assert client.xlen(store.PROGRESS) == 1
    client.delete(store.driver_key("d1"))
    assert store.look(three.url)[0]["state"] == "gone"


# --- nodes that die --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
def test_a_node_dies_and_its_replica_takes_over(tmp_path: Path) -> None:
    """If a node dies during a task and a commit, both continue at its replica, with no row lost or written twice."""
    with Three(tmp_path, spare="{a}") as three, millstream.connect(three.url, decode_responses=True) as client:
        fill(client, "{a}", 500)
        made = reader(three.url, stream="{a}")
        (part,), end = planned(made)
        batches = made.read(part)
        found = next(batches).column("id").to_pylist()
        message = staged(three.url, 0, 30)
        owner = three.owner("{a}")
        with owner.client() as there_:
            assert there_.wait(1, 5000) == 1
        owner.kill()
        for batch in batches:
            found += batch.column("id").to_pylist()
        assert found == [f"{number}-0" for number in range(1, 501)]
        commit(three.url, 0, message)
        parts, end = planned(made, end)
        assert sum(rows(made, parts).values()) == 10
        assert three.owner("{a}") is three.replica
        made.stop()


@pytest.mark.usefixtures("small_pages")
def test_a_primary_that_dies_is_replaced_in_the_middle_of_a_query(tmp_path: Path) -> None:
    """If a primary under Sentinels dies during a read, a commit and a claim, all continue at the new primary."""
    with Watched(tmp_path) as watched, watched.master.client(decode_responses=True) as client:
        fill(client, "s", 500)
        fill(client, "jobs", 50)
        made = reader(watched.url, stream="s", group="lake")
        (part,), end = planned(made)
        claiming = group_reader(watched.url, stream="jobs", startingOffsets="earliest")
        start = claiming.initialOffset()
        claim = json.loads(json.dumps(claiming.latestOffset(start, ALL)))
        batches = made.read(part)
        found = next(batches).column("id").to_pylist()
        message = staged(watched.url, 0, 30, "out")
        client.wait(1, 5000)
        watched.master.kill()
        for batch in batches:
            found += batch.column("id").to_pylist()
        assert found == [f"{number}-0" for number in range(1, 501)]
        commit(watched.url, 0, message)
        with watched.replica.client(decode_responses=True) as now:
            assert there(now, "out") == list(range(30))
            fill(now, "s", 10, first=501)
            assert rows(made, planned(made, end)[0]) == numbered("s", 501, 510)
            held = [ident for part in claiming.partitions(start, claim) for batch in claiming.read(part)
                    for ident in batch.column("id").to_pylist()]  # fmt: skip
            assert held == [f"{number}-0" for number in range(1, 51)]
            assert claiming.latestOffset(claim, ALL) == claim
            assert now.xpending("jobs", "g")["pending"] == 0
        made.stop()
        claiming.stop()


# --- replicas --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Yield a primary and its replica."""
    folder = tmp_path_factory.mktemp("pair")
    with redis_server(folder / "primary") as primary:
        words = ["--replicaof", "127.0.0.1", str(primary.port)]
        with redis_server(folder / "replica", *words) as replica:
            yield primary, replica


@pytest.fixture
def paired(pair: tuple[ServerProcess, ServerProcess]) -> Iterator[tuple[redis.Redis, redis.Redis]]:
    """Yield clients of both servers, emptied and in sync."""
    with pair[0].client(decode_responses=True) as primary, pair[1].client(decode_responses=True) as replica:
        eventually(lambda: primary.wait(1, 1000) == 1 and _linked(replica), what="the replica is in step")
        primary.flushall()
        replica.config_resetstat()
        yield primary, replica
        replica.client_unpause()


def _linked(replica: redis.Redis) -> bool:
    told: Any = replica.info("replication")
    return bool(told["master_link_status"] == "up")


def pages_read(client: redis.Redis) -> int:
    """Return the number of XRANGE calls that a server has run."""
    told: Any = client.info("commandstats")
    return int(told.get("cmdstat_xrange", {"calls": 0})["calls"])


@pytest.mark.usefixtures("small_pages")
def test_tasks_read_from_the_replica_and_the_plan_is_the_primary_s(
    pair: tuple[ServerProcess, ServerProcess], paired: tuple[redis.Redis, redis.Redis]
) -> None:
    """With ``readFrom=replica``, every page comes from the replica, and the plan comes from the primary."""
    primary, replica = paired
    fill(primary, "s", 1000)
    made = reader(pair[0].url, stream="s", readFrom="replica", minPartitions="2")
    parts, _ = planned(made)
    primary.config_resetstat()
    assert rows(made, parts) == numbered("s", 1, 1000)
    assert pages_read(primary) == 0
    assert pages_read(replica) >= 20
    made.stop()


def test_a_replica_that_is_behind_is_waited_for(
    pair: tuple[ServerProcess, ServerProcess], paired: tuple[redis.Redis, redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that lags is polled until it has the end of the range. The read is never short."""
    primary, replica = paired
    fill(primary, "s", 100)
    eventually(lambda: replica.xlen("s") == 100)
    replica.client_pause(60_000, all=False)
    fill(primary, "s", 100, first=101)
    made = reader(pair[0].url, stream="s", readFrom="replica")
    parts, _ = planned(made)
    waits = Counter[str]()

    def wait(_: float) -> None:
        waits["seen behind"] += 1
        if waits["seen behind"] == 3:
            replica.client_unpause()

    own_clock(monkeypatch, "millstream.spark.connection.bulk_reader", sleep=wait)
    monkeypatch.setattr(bulk_reader, "REPLICA_SECONDS", 60.0)
    primary.config_resetstat()
    assert rows(made, parts) == numbered("s", 1, 200)
    assert waits["seen behind"] >= 3
    assert pages_read(primary) == 0
    made.stop()


@pytest.mark.parametrize("how", ["behind", "frozen", "dead"])
def test_a_replica_that_does_not_come_after_leaves_the_range_to_the_primary(
    pair: tuple[ServerProcess, ServerProcess],
    paired: tuple[redis.Redis, redis.Redis],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    """If a replica does not catch up in time, the primary serves the range, and the log reports this."""
    primary, replica = paired
    fill(primary, "s", 100)
    eventually(lambda: replica.xlen("s") == 100)
    monkeypatch.setattr(bulk_reader, "REPLICA_SECONDS", 0.3)
    made = reader(pair[0].url, stream="s", readFrom="replica")
    if how == "behind":
        replica.client_pause(60_000, all=False)
    fill(primary, "s", 100, first=101)
    parts, _ = planned(made)
    process = pair[1].process
    assert process is not None
    if how == "frozen":
        process.send_signal(signal.SIGSTOP)
    elif how == "dead":
        pair[1].kill()
    try:
        with caplog.at_level(logging.WARNING, "millstream.spark"):
            assert rows(made, parts) == numbered("s", 1, 200)
    finally:
        if how == "frozen":
            process.send_signal(signal.SIGCONT)
        elif how == "dead":
            pair[1].start()
    assert "no replica that has entry 200-0 was found within 0.3 s; this range is read from the primary" in caplog.text
    made.stop()


def test_what_the_primary_deleted_meanwhile_may_still_be_read_from_a_replica(
    pair: tuple[ServerProcess, ServerProcess], paired: tuple[redis.Redis, redis.Redis]
) -> None:
    """A replica may still return planned entries that the primary deleted meanwhile, and never others."""
    primary, replica = paired
    fill(primary, "s", 100)
    eventually(lambda: replica.xlen("s") == 100)
    made = reader(pair[0].url, stream="s", readFrom="replica")
    parts, _ = planned(made)
    replica.client_pause(60_000, all=False)
    primary.xtrim("s", maxlen=10, approximate=False)
    assert rows(made, parts) == numbered("s", 1, 100)
    replica.client_unpause()
    eventually(lambda: replica.xlen("s") == 10)
    with pytest.raises(DataLossError, match="were removed"):
        rows(made, parts)
    made.stop()


def test_a_cluster_s_replicas_are_those_of_the_stream_s_node(three: Three, client: Any) -> None:
    """On a cluster, a stream is read from a replica of its node, or from the node if it has none."""
    assert three.replica is not None
    (spare,) = routing.replicas(three.url)
    names = [f"{{k{number}}}" for number in range(100)]
    near = next(name for name in names if routing.replicas(three.url, name))
    far = next(name for name in names if not routing.replicas(three.url, name))
    for stream in (near, far):
        fill(client, stream, 50)
    made = reader(three.url, stream=f"{near},{far}", readFrom="replica")
    parts, _ = planned(made)
    with three.replica.client() as replica, three.owner(near).client() as owner:
        assert spare.endswith(f":{three.replica.port}/0")
        owner.config_resetstat()
        replica.config_resetstat()
        assert rows(made, parts) == numbered(near, 1, 50) + numbered(far, 1, 50)
        assert (pages_read(replica) > 0, pages_read(owner)) == (True, 0)
    made.stop()


def test_a_server_that_lost_its_end_is_never_read_short(
    real_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a stream is recreated with fewer entries between plan and read, the read fails."""
    with real_redis.client() as client:
        fill(client, "s", 100)
        made = reader(real_redis.url, stream="s")
        parts, _ = planned(made)
        client.delete("s")
        fill(client, "s", 50)
        with pytest.raises(DataLossError, match="stream 's' went back: entries up to 100-0"):
            rows(made, parts)
        made.stop()


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "redis+cluster://u:secret@a:1/3"}, r"option 'url': .*the redis\+cluster:// URL: .*with database 0"),
        ({"url": "redis+sentinel://a:1"}, "option 'url': .*: a service is given as"),
        ({"url": "redis+sentinel://a:1/s?sentinel_password=secret&x=1"}, "option 'url': "),
        ({"readFrom": "nearest"}, "option 'readFrom' is 'nearest': it must be primary or replica"),
        ({"readFrom": "replica", "view": "groups"}, "option 'readFrom' does nothing in the view 'groups'"),
        ({"readFrom": "replica", "mode": "group", "group": "g", "queryName": "q"}, "'readFrom' does nothing in mode"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_and_no_password_shown(options: dict[str, str], told: str) -> None:
    """An invalid option is named before any connection, and no password is shown."""
    with pytest.raises(ConfigError, match=told) as caught:
        MillstreamSource({"url": "redis://127.0.0.1:1/0", "stream": "s"} | options)
    assert "secret" not in str(caught.value)


def first_contact(url: str, **options: str) -> str:
    """Return the error of a query that cannot begin."""
    made = reader(url, stream="s", **options)
    with pytest.raises(ConfigError) as caught:
        made.initialOffset()
    return str(caught.value)


def test_what_a_first_contact_finds_out(real_redis: ServerProcess, three: Three, tmp_path: Path) -> None:
    """If a replica, service or server is missing, or the URL names one cluster node, the error names the option."""
    with real_redis.client() as client:
        fill(client, "s", 1)
    told = first_contact(real_redis.url, readFrom="replica")
    assert "option 'readFrom' is 'replica', and redis://" in told
    assert "has none that is up. Start one, or leave the option out" in told
    alone = f"redis+cluster://127.0.0.1:{free_port()}"
    assert f"option 'url': cannot connect to {alone}: no node of the cluster answers" in first_contact(alone)
    for node in three.nodes:
        if node is not three.owner("s"):
            assert "option 'url' names one node of a Redis Cluster" in first_contact(node.url)


def test_a_service_that_no_sentinel_knows(tmp_path: Path) -> None:
    """For an unknown Sentinel service, the error lists the known services."""
    with Watched(tmp_path) as watched:
        told = first_contact(watched.url.replace("/orders/0", "/oders"))
        assert "option 'url': cannot connect to" in told
        assert "none of 3 Sentinels knows a master of 'oders' that is up; they know 'orders'" in told
        with watched.master.client() as client:
            fill(client, "s", 5)
            client.wait(1, 5000)
        made = reader(watched.url, stream="s", readFrom="replica")
        parts, _ = planned(made)
        with watched.replica.client() as replica:
            replica.config_resetstat()
            assert rows(made, parts) == numbered("s", 1, 5)
            assert pages_read(replica) > 0
        made.stop()


def test_what_sends_elsewhere() -> None:
    """A redirection is recognized by the kind of URL. The node's URL keeps the credentials."""

    def told(url: str, text: str) -> str | None:
        return routing.redirection(url, hiredis.ReplyError(text))

    many = "redis+cluster://u:p@a:1"
    assert told(many, "ASK 1 ::1:7") == "redis://u:p@[::1]:7/0"
    assert [told(many, text) for text in ("MOVED 1 b:7", "TRYAGAIN so", "CLUSTERDOWN so")] == ["", "", ""]
    assert [told(url, "MOVED 1 b:7") for url in ("redis://a:1", "redis+sentinel://a:1/s")] == [None, None]
    assert [told(url, "READONLY so") for url in (many, "redis://a:1", "redis+sentinel://a:1/s")] == [None, None, ""]
    assert told(many, "ERR no") is None
