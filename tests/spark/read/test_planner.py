"""The driver's side with a real server and without Spark: start positions, batch sizes and data loss."""

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow.page import Want
from millstream.spark.model.offsets import DataLossError, Id
from millstream.spark.read.pages import Pages
from millstream.spark.source import BatchReader, MillstreamSource, StreamReader
from support.servers import ServerProcess, redis_server
from support.streams import fill
from support.waiting import eventually

pytestmark = [pytest.mark.realserver]


ALL = ReadAllAvailable()


def reader(server: ServerProcess, **options: str) -> StreamReader:
    """Return a reader of stream ``s`` or of the named streams."""
    return by(server, **{"stream": "s"} | options)


def by(server: ServerProcess, **options: str) -> StreamReader:
    """Return a stream reader as Spark's driver creates it."""
    source = MillstreamSource({"url": server.url} | options)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def ends(offset: dict[str, Any]) -> dict[str, str]:
    """Return the last id of each stream in an offset."""
    return {key: at["id"] for key, at in offset.items()}


def run(made: StreamReader, start: dict[str, Any] | None = None) -> tuple[list[list[str]], dict[str, Any]]:
    """Run batches as Spark does until nothing is new, and return the ids of each batch and the last offset."""
    at = start or made.initialOffset()
    batches = []
    while True:
        end = made.latestOffset(at, made.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(at):
            return batches, end
        batches.append(rows(made, at, end))
        at = json.loads(json.dumps(end))


def rows(made: StreamReader | BatchReader, *between: dict[str, Any]) -> list[str]:
    """Return the ids that a batch's tasks read, partition by partition, with the stream if there are several."""
    found = []
    for part in made.partitions(*between):
        for batch in made.read(part):
            found += batch.column("id").to_pylist()
    return found


def numbers(first: int, last: int) -> list[str]:
    return [f"{number}-0" for number in range(first, last + 1)]


# --- where a query begins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": "earliest"}, numbers(1, 20)),
        ({"startingOffsets": '{"s": "15-0"}'}, numbers(16, 20)),
        ({"startingOffsets": '{"s": "earliest"}'}, numbers(1, 20)),
        ({"startingTimestamp": "15"}, numbers(15, 20)),
        ({"startingTimestamp": "1970-01-01T00:00:00.018Z"}, numbers(18, 20)),
        ({"startingTimestamp": "99"}, []),
        ({"startingOffsetsByTimestamp": '{"s": 17}'}, numbers(17, 20)),
        ({"startingOffsetsByTimestamp": '{"s": "1970-01-01T00:00:00.099Z"}'}, []),
    ],
)
def test_where_a_query_begins(
    real_redis: ServerProcess, client: redis.Redis, options: dict[str, str], expected: list[str]
) -> None:
    """A query begins where each form of the start option points, by default at the end.

    Later entries are always read.
    """
    fill(client, "s", 20)
    made = reader(real_redis, **options)
    batches, end = run(made)
    assert [ident for batch in batches for ident in batch] == expected
    fill(client, "s", 2, first=100)
    assert run(made, end)[0] == [["100-0", "101-0"]]
    made.stop()


def test_the_beginning_is_told_the_same_twice(real_redis: ServerProcess, client: redis.Redis) -> None:
    """The initial offset is the same when Spark requests it twice, even if an entry is added in between."""
    fill(client, "s", 3)
    made = reader(real_redis)
    first = made.initialOffset()
    fill(client, "s", 1, first=9)
    assert made.initialOffset() == first
    made.stop()


def test_a_start_in_the_middle_knows_its_count(real_redis: ServerProcess, client: redis.Redis) -> None:
    """The count of a start in the middle of a stream is found by counting, so lag is exact from the first batch."""
    fill(client, "s", 50)
    client.xtrim("s", maxlen=40, approximate=False)
    made = reader(real_redis, startingOffsets='{"s": "30-7"}')
    assert made.initialOffset() == {"s": {"from": "30-7", "from_n": 30, "id": "30-7", "n": 30}}
    made.stop()


def test_a_start_with_its_count_goes_on_as_a_checkpoint_does(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A start given with its count needs no counting, and entries trimmed after it are reported as lost."""
    fill(client, "s", 10)
    place = '{"s": {"id": "4-0", "n": 4}}'
    made = reader(real_redis, startingOffsets=place)
    assert made.initialOffset() == {"s": {"from": "4-0", "from_n": 4, "id": "4-0", "n": 4}}
    assert run(made)[0] == [numbers(5, 10)]
    client.xtrim("s", maxlen=3, approximate=False)
    with pytest.raises(DataLossError, match="3 entries after 4-0 and before 8-0 were trimmed away"):
        run(reader(real_redis, startingOffsets=place))


@pytest.mark.parametrize("counted", [True, False])
def test_a_start_where_the_group_stands(real_redis: ServerProcess, client: redis.Redis, counted: bool) -> None:
    """With ``startingOffsets=group``, a query without a checkpoint continues after the position it last published."""
    fill(client, "s", 20)
    client.xgroup_create("s", "lake", "15-0", entries_read=15 if counted else None)
    made = reader(real_redis, startingOffsets="group", group="lake")
    assert made.initialOffset() == {"s": {"from": "15-0", "from_n": 15, "id": "15-0", "n": 15}}
    assert run(made)[0] == [numbers(16, 20)]
    made.stop()
    with pytest.raises(ConfigError, match="'startingOffsets' is 'group', and stream 's' has no group 'other'"):
        reader(real_redis, startingOffsets="group", group="other").initialOffset()


def test_a_batch_waits_for_enough_entries(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A batch waits for ``minEntriesPerTrigger`` at most ``maxTriggerDelay`` long, and never in a run with an end."""
    fill(client, "s", 5)
    made = reader(real_redis, startingOffsets="earliest", minEntriesPerTrigger="10")
    batches, at = run(made)
    assert batches == []
    assert ends(made.latestOffset(at, ALL)) == {"s": "5-0"}  # Trigger.Once
    fill(client, "s", 5, first=6)
    batches, at = run(made, at)
    assert batches == [numbers(1, 10)]
    fill(client, "s", 1, first=11)
    assert run(made, at)[0] == []
    made.prepareForTriggerAvailableNow()
    assert run(made, at)[0] == [["11-0"]]
    made.stop()
    hasty = reader(
        real_redis,
        startingOffsets="earliest",
        minEntriesPerTrigger="100",
        maxTriggerDelay="1ms",
        maxEntriesPerTrigger="100",
    )
    assert eventually(lambda: run(hasty)[0], what="the delay has passed") == [numbers(1, 11)]
    hasty.stop()


def test_entries_below_a_start_ahead_of_the_stream_are_not_read(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Entries added later below a future ``startingTimestamp`` are not read."""
    fill(client, "s", 3)
    made = reader(real_redis, startingTimestamp="50")
    at = run(made)[1]
    fill(client, "s", 2, first=40)
    batches, at = run(made, at)
    assert [ident for batch in batches for ident in batch] == []
    fill(client, "s", 1, first=50)
    assert run(made, at)[0] == [["50-0"]]
    made.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": "nope"}, "option 'stream': 'nope' does not exist.*MKSTREAM"),
        ({"stream": "s,text"}, "option 'stream': 'text' holds no stream"),
        (
            {"url": "redis://127.0.0.1:1/0"},
            "option 'url': cannot connect to redis://127.0.0.1:1/0: connection refused. Start the server",
        ),
        (
            {"stream": "", "streamPattern": "x*", "startingOffsets": '{"x1": "1-0"}'},
            "names stream 'x1', which does not exist",
        ),
    ],
)
def test_what_is_not_there_is_named(
    real_redis: ServerProcess, client: redis.Redis, options: dict[str, str], told: str
) -> None:
    """A missing stream or a key of another type is an error, not an endless wait."""
    fill(client, "s", 1)
    client.set("text", "x")
    given = {"url": real_redis.url, "stream": "s"} | options
    source = MillstreamSource({name: value for name, value in given.items() if value})
    made = source.streamReader(source.schema())
    with pytest.raises(ConfigError, match=told):
        made.initialOffset()
    made.stop()


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_options_of_the_other_kind_of_read_are_refused(real_redis: ServerProcess, kind: str) -> None:
    """An option of the other kind of read is refused, by a stream's reader at its first use."""
    source = MillstreamSource(
        {"url": real_redis.url, "stream": "s", ("endingOffsets" if kind == "stream" else "group"): "latest"}
    )
    with pytest.raises(ConfigError, match="does nothing in a"):
        source.streamReader(source.schema()).initialOffset() if kind == "stream" else source.reader(source.schema())


# --- how far batches go ----------------------------------------------------------------------------------------------


def test_the_cap_is_never_exceeded_and_nothing_is_left_out(real_redis: ServerProcess, client: redis.Redis) -> None:
    """On a backlog of several streams, no batch exceeds ``maxEntriesPerTrigger``, and none leaves an entry out."""
    for stream, count in (("a", 70), ("b", 500), ("c", 3)):
        fill(client, stream, count)
    client.xdel("b", *numbers(100, 149))
    made = reader(real_redis, stream="a,b,c", startingOffsets="earliest", maxEntriesPerTrigger="60")
    batches, _ = run(made)
    assert sum(map(len, batches)) == 70 + 450 + 3
    assert max(map(len, batches)) == 60
    assert len(batches) <= 11
    assert sorted(batches[0]) == sorted([*numbers(1, 28), *numbers(1, 29), *numbers(1, 3)])
    made.stop()


def test_the_cap_holds_while_entries_arrive(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Batches do not exceed ``maxEntriesPerTrigger`` while entries arrive."""
    made = reader(real_redis, startingOffsets="earliest", maxEntriesPerTrigger="50")
    client.xgroup_create("s", "g", "$", mkstream=True)
    at, seen, sizes = made.initialOffset(), [], []
    for step in range(40):
        fill(client, "s", 40 if step < 20 else 0, first=1 + step * 40)
        end = made.latestOffset(at, made.getDefaultReadLimit())
        found = rows(made, at, end)
        seen += found
        sizes.append(len(found))
        at = end
    assert seen == numbers(1, 800)
    assert max(sizes) <= 50
    made.stop()


def test_trigger_once_ignores_the_cap(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Trigger.Once reads everything in one batch, without the cap."""
    fill(client, "s", 30)
    made = reader(real_redis, startingOffsets="earliest", maxEntriesPerTrigger="7")
    assert made.getDefaultReadLimit() == ReadMaxRows(7)
    assert ends(made.latestOffset(made.initialOffset(), ALL)) == {"s": "30-0"}
    made.stop()


def test_available_now_ends_where_it_began_to_look(real_redis: ServerProcess, client: redis.Redis) -> None:
    """AvailableNow ends at the position it saw first, although entries and streams are added."""
    fill(client, "p1", 10)
    source = MillstreamSource(
        {"url": real_redis.url, "streamPattern": "p*", "startingOffsets": "earliest", "maxEntriesPerTrigger": "4"}
    )
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    start = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    fill(client, "p1", 10, first=11)
    fill(client, "p2", 10)
    batches, end = run(made, start)
    assert [ident for batch in batches for ident in batch] == numbers(1, 10)
    assert ends(end) == {"p1": "10-0"}
    made.stop()


def test_a_new_stream_of_a_pattern_joins_at_its_beginning(
    real_redis: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new stream that matches the pattern is read from its first existing entry. Its earlier trims are not a loss."""
    monkeypatch.setattr("millstream.spark.read.planner.SCAN_SECONDS", 0.0)
    fill(client, "p1", 3)
    client.set("p3", "no stream")
    source = MillstreamSource({"url": real_redis.url, "streamPattern": "p?"})
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    _, at = run(made)
    fill(client, "p2", 6)
    client.xtrim("p2", maxlen=4, approximate=False)
    fill(client, "q9", 6)
    batches, at = run(made, at)
    assert batches == [numbers(3, 6)]
    assert ends(at) == {"p1": "3-0", "p2": "6-0"}
    client.delete("p2")
    fill(client, "p2", 3)
    with pytest.raises(DataLossError, match="'p2' went back"):
        run(made, at)
    made.stop()


def test_an_empty_stream_has_no_batch_until_it_has_entries(real_redis: ServerProcess, client: redis.Redis) -> None:
    """An empty stream, created by a group, causes no batch until it has entries."""
    client.xgroup_create("s", "g", "$", mkstream=True)
    made = reader(real_redis, startingOffsets="earliest")
    batches, at = run(made)
    assert batches == []
    fill(client, "s", 2)
    assert run(made, at)[0] == [["1-0", "2-0"]]
    made.stop()


def test_the_streams_of_a_query_may_change_at_a_restart(
    real_redis: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """At a restart, a new stream is read from its beginning.

    A removed one keeps its position, and the log reports it.
    """
    for stream in ("a", "b", "c"):
        fill(client, stream, 3)
    _, at = run(reader(real_redis, stream="a,b", startingOffsets="earliest"))
    for stream in ("a", "b"):
        fill(client, stream, 1, first=7)
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        batches, at = run(reader(real_redis, stream="b,c"), at)
    assert batches == [["7-0", *numbers(1, 3)]]
    assert ends(at) == {"a": "3-0", "b": "7-0", "c": "3-0"}
    assert "'a' is in the checkpoint and not in option 'stream'" in caplog.text
    with pytest.raises(ConfigError, match="option 'stream': 'd' does not exist"):
        run(reader(real_redis, stream="a,d"), at)
    assert run(reader(real_redis, stream="a,b,c"), at)[0] == [["7-0"]]


# --- partitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"minPartitions": "4"}, {"maxEntriesPerPartition": "30"}])
def test_partitions_of_a_batch_hold_each_entry_once(
    real_redis: ServerProcess, client: redis.Redis, options: dict[str, str]
) -> None:
    """The partitions of a batch contain each entry once, for any split, also within one millisecond."""
    fill(client, "s", 100)
    for number in range(50):
        client.xadd("s", {"n": "x"}, id=f"100-{number + 1}")
    made = reader(real_redis, startingOffsets="earliest", **options)
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)
    parts = made.partitions(start, end)
    sizes = [sum(batch.num_rows for batch in made.read(part)) for part in parts]
    assert rows(made, start, end) == [*numbers(1, 100), *(f"100-{number}" for number in range(1, 51))]
    if "minPartitions" in options:
        assert len(parts) == 4
    else:
        assert sizes == [30] * 5
    made.stop()


@pytest.mark.parametrize(
    ("options", "tasks", "most"),
    [({}, 1, 101), ({"minPartitions": "5"}, 8, 20), ({"maxEntriesPerPartition": "30"}, 5, 30)],
)
def test_small_streams_share_a_task(
    real_redis: ServerProcess, client: redis.Redis, options: dict[str, str], tasks: int, most: int
) -> None:
    """Small streams share a task, with each entry once and in order, in the number of tasks from the options."""
    entries = {"a": 20, "b": 1, "c": 70, "d": 5, "e": 5}
    for key, count in entries.items():
        fill(client, key, count)
    made = reader(real_redis, stream="e,d,c,b,a", startingOffsets="earliest", **options)
    start = made.initialOffset()
    parts = made.partitions(start, made.latestOffset(start, ALL))
    found = [[(row["stream"], row["id"]) for batch in made.read(part) for row in batch.to_pylist()] for part in parts]
    expected = [(key, ident) for key, count in entries.items() for ident in numbers(1, count)]
    assert [row for task in found for row in task] == expected
    assert (len(found), max(map(len, found))) == (tasks, most)
    made.stop()


def test_a_task_of_several_streams_sees_which_was_trimmed(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A task of several streams detects which stream was trimmed, and fails."""
    for key in "abc":
        fill(client, key, 10)
    made = reader(real_redis, stream="a,b,c", startingOffsets="earliest")
    start = made.initialOffset()
    (part,) = made.partitions(start, made.latestOffset(start, ALL))
    client.xtrim("b", maxlen=4, approximate=False)
    reading = made.read(part)
    assert next(reading).column("stream").to_pylist() == ["a"] * 10
    with pytest.raises(DataLossError, match=r"stream 'b': .* entries from 1-0 and before 7-0 were removed"):
        next(reading)
    made.stop()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, numbers(1, 40)),
        ({"startingOffsets": '{"s": "10-0"}', "endingOffsets": '{"s": "12-0"}'}, ["11-0", "12-0"]),
        ({"startingTimestamp": "10", "endingTimestamp": "12"}, ["10-0", "11-0"]),
        ({"endingTimestamp": "1970-01-01T00:00:00.003Z"}, ["1-0", "2-0"]),
        ({"startingOffsetsByTimestamp": '{"s": "38"}', "endingOffsetsByTimestamp": '{"s": 40}'}, ["38-0", "39-0"]),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"s": "30-0"}', "endingOffsets": '{"s": "5-0"}'}, []),
        ({"endingOffsets": '{"s": "99-0"}', "maxEntriesPerPartition": "7"}, numbers(1, 40)),
    ],
)
def test_a_batch_read_is_what_xrange_says(
    real_redis: ServerProcess, client: redis.Redis, options: dict[str, str], expected: list[str]
) -> None:
    """A batch read returns what XRANGE does. Id starts are exclusive and ends inclusive; time starts are inclusive."""
    fill(client, "s", 40)
    source = MillstreamSource({"url": real_redis.url, "stream": "s"} | options)
    made = source.reader(source.schema())
    assert isinstance(made, BatchReader)
    assert rows(made) == expected


# --- what is lost ----------------------------------------------------------------------------------------------------


def test_a_stream_that_was_read_and_removed_ends_no_query(
    real_redis: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of a pattern that was read and then deleted does not end the query. A later one of its name is new."""
    for key in ("p1", "p2"):
        fill(client, key, 5)
    monkeypatch.setattr("millstream.spark.read.planner.SCAN_SECONDS", 0.0)
    made = by(real_redis, streamPattern="p?", startingOffsets="earliest")
    batches, at = run(made)
    assert sum(map(len, batches)) == 10
    client.delete("p1")
    fill(client, "p2", 3, first=6)
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        batches, at = run(made, at)
    assert batches == [numbers(6, 8)]
    assert sorted(at) == ["p2"]
    assert "stream 'p1' is gone, after all that was seen of it was read (up to 5-0)" in caplog.text
    fill(client, "p1", 2)
    batches, at = run(made, at)
    assert (batches, sorted(at)) == ([numbers(1, 2)], ["p1", "p2"])
    made.stop()


def test_a_stream_removed_before_all_was_read_is_a_loss(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A stream that was deleted before all its entries were read is an error that names the option."""
    fill(client, "p1", 10)
    fill(client, "p2", 5)
    made = by(real_redis, streamPattern="p?", startingOffsets="earliest", maxEntriesPerTrigger="8")
    start = made.initialOffset()
    at = made.latestOffset(start, made.getDefaultReadLimit())
    rows(made, start, at)
    client.delete("p1")
    with pytest.raises(DataLossError, match=r"'p1' went back.*no longer exists.*'onMissingStream' to 'skip'"):
        made.latestOffset(at, made.getDefaultReadLimit())
    made.stop()
    for which in ({"streamPattern": "p?"}, {"stream": "p1,p2"}):
        again = by(real_redis, **which)
        with pytest.raises(DataLossError, match="onMissingStream"):
            again.latestOffset(at, again.getDefaultReadLimit())
        again.stop()
        skipping = by(real_redis, onMissingStream="skip", **which)
        end = skipping.latestOffset(at, skipping.getDefaultReadLimit())
        assert sorted(end) == ["p2"], which
        assert rows(skipping, at, end)[-1] == "5-0"
        assert rows(skipping, start, at)[0] == "1-0"  # a batch that is repeated, with what there is
        skipping.stop()


def test_trimmed_past_the_checkpoint_names_the_range(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Entries trimmed before a query read them end it with an error that names their range and number."""
    fill(client, "s", 10)
    made = reader(real_redis, startingOffsets="earliest")
    _, at = run(made)
    fill(client, "s", 90, first=11)
    client.xtrim("s", maxlen=60, approximate=False)
    with pytest.raises(
        DataLossError, match=r"'s': 30 entries after 10-0 and before 41-0 were trimmed away.*failOnDataLoss"
    ):
        run(made, at)
    made.stop()


def test_going_on_without_what_was_lost(
    real_redis: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``failOnDataLoss=false``, the remaining entries are read, and the loss is logged once with its number."""
    fill(client, "s", 10)
    made = reader(real_redis, startingOffsets="earliest", failOnDataLoss="false", maxEntriesPerTrigger="50")
    _, at = run(made)
    fill(client, "s", 90, first=11)
    client.xtrim("s", maxlen=60, approximate=False)
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        batches, at = run(made, at)
    assert [ident for batch in batches for ident in batch] == numbers(41, 100)
    assert [record.getMessage() for record in caplog.records] == [
        "stream 's': 30 entries after 10-0 and before 41-0 were trimmed away before they were read; reading goes on"
    ]
    assert at["s"]["n"] == 100
    made.stop()


def test_trimming_what_was_read_is_no_loss(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Trims of entries that the query has read are not a loss."""
    fill(client, "s", 50)
    made = reader(real_redis, startingOffsets="earliest", maxEntriesPerTrigger="10")
    at, seen = made.initialOffset(), []
    while (end := made.latestOffset(at, made.getDefaultReadLimit())) != at:
        client.xtrim("s", minid=f"{int(at['s']['id'].split('-')[0]) + 1}-0", approximate=False)
        seen += rows(made, at, end)
        at = end
    assert seen == numbers(1, 50)
    made.stop()


def test_entries_deleted_one_by_one_are_no_loss(
    real_redis: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries deleted one by one are reported and not a loss."""
    fill(client, "s", 20)
    made = reader(real_redis, startingOffsets="earliest")
    start = made.initialOffset()
    client.xdel("s", *numbers(1, 5), "9-0")
    with caplog.at_level(logging.WARNING, "millstream.spark"):
        assert run(made, start)[0] == [[*numbers(6, 8), *numbers(10, 20)]]
    assert "6 entries after 0-0 and before 6-0 were deleted or trimmed" in caplog.text
    made.stop()


def test_a_batch_trimmed_after_it_was_planned(real_redis: ServerProcess, client: redis.Redis) -> None:
    """If entries are trimmed after planning, a batch returns all of its rows or fails."""
    fill(client, "s", 30)
    made = reader(real_redis, startingOffsets="earliest", minPartitions="3")
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)
    parts = made.partitions(start, end)
    client.xtrim("s", maxlen=25, approximate=False)
    with pytest.raises(DataLossError, match=r"while the batch up to .* entries from 1-0 and before 6-0 were removed"):
        list(made.read(parts[0]))
    with pytest.raises(DataLossError, match="trimmed away"):  # and so does planning it again, as a restart does
        made.partitions(start, end)
    client.delete("s")
    with pytest.raises(DataLossError, match="was deleted"):
        list(made.read(parts[2]))
    made.stop()


def test_trimming_up_to_the_batch_while_it_is_read(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A trim exactly up to the batch's start does not disturb the batch."""
    fill(client, "s", 30)
    made = reader(real_redis, startingOffsets='{"s": "10-0"}')
    start = made.initialOffset()
    end = made.latestOffset(start, ALL)
    parts = made.partitions(start, end)
    client.xtrim("s", maxlen=20, approximate=False)
    assert [
        ident for part in parts for batch in made.read(part) for ident in batch.column("id").to_pylist()
    ] == numbers(11, 30)
    made.stop()


@pytest.mark.parametrize(("first", "count"), [(1, 0), (1, 3), (100, 10)])
def test_a_stream_that_went_back_is_always_an_error(
    real_redis: ServerProcess, client: redis.Redis, first: int, count: int
) -> None:
    """A stream that was deleted or recreated ends its Spark query, whatever its new ids are."""
    fill(client, "s", 20)
    made = reader(real_redis, startingOffsets="earliest", failOnDataLoss="false")
    _, at = run(made)
    client.delete("s")
    fill(client, "s", count, first=first)
    with pytest.raises(DataLossError, match=r"'s' went back: this query has read up to 20-0.*checkpointLocation"):
        run(made, at)
    made.stop()


# --- the group that shows progress -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_stream_made_anew_between_two_looks_is_an_error(
    real_redis: ServerProcess, client: redis.Redis, trimmed: bool
) -> None:
    """A stream recreated between two plans is an error, even if its counters are ahead of the reader's."""
    for number in range(1, 101):
        client.xadd("a", {"n": number}, id=f"{number}-0")
    made = reader(real_redis, stream="a", startingOffsets="earliest")
    start = made.latestOffset(made.initialOffset(), None)
    if trimmed:
        client.xtrim("a", minid="101-0", approximate=False)
        start = made.latestOffset(start, None)
    with client.pipeline() as anew:
        anew.delete("a")
        for number in range(50, 250):
            anew.xadd("a", {"n": number}, id=f"{number}-0")
        anew.execute()
    with pytest.raises(DataLossError, match="stream 'a' went back"):
        made.latestOffset(start, None)
    made.stop()


def test_a_stream_made_anew_with_the_same_first_id_is_an_error(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A stream recreated with the same first id is recognized by its first entry's content."""
    fill(client, "a", 100)
    made = reader(real_redis, stream="a", startingOffsets="earliest")
    start = made.latestOffset(made.initialOffset(), None)
    client.xadd("a", {"n": 101}, id="101-0")
    start = made.latestOffset(start, None)
    with client.pipeline() as anew:
        anew.delete("a")
        for number in range(1, 251):
            anew.xadd("a", {"other": number}, id=f"{number}-0")
        anew.execute()
    with pytest.raises(DataLossError, match="'a' went back: its first entry 1-0 holds other fields"):
        made.latestOffset(start, None)
    made.stop()


def test_a_trim_that_a_failover_undid_is_no_loss(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A trim that a failover undid is not an error, and the query continues."""
    for number in range(1, 101):
        client.xadd("a", {"n": number}, id=f"{number}-0")
    dump = client.dump("a")
    made = reader(real_redis, stream="a", startingOffsets="earliest")
    start = made.latestOffset(made.initialOffset(), None)
    client.xtrim("a", minid="61-0", approximate=False)
    start = made.latestOffset(start, None)
    client.restore("a", 0, dump, replace=True)
    client.xadd("a", {"n": 101}, id="101-0")
    assert ends(made.latestOffset(start, None)) == {"a": "101-0"}
    made.stop()


def group_of(client: redis.Redis) -> dict[str, Any]:
    (found,) = client.xinfo_groups("s")
    assert isinstance(found, dict)
    return found


def test_the_group_shows_what_is_done_and_the_lag(real_redis: ServerProcess, client: redis.Redis) -> None:
    """The query's group shows its finished position and its lag.

    A batch counts only once it is known to be finished.
    """
    fill(client, "s", 100)
    made = reader(real_redis, startingOffsets="earliest", maxEntriesPerTrigger="40", group="lake")
    start = made.initialOffset()
    end = made.latestOffset(start, made.getDefaultReadLimit())
    assert (group_of(client)["last-delivered-id"], group_of(client)["lag"]) == ("0-0", 100)
    made.latestOffset(end, made.getDefaultReadLimit())
    found = group_of(client)
    assert (found["name"], found["last-delivered-id"], found["entries-read"], found["lag"]) == ("lake", "40-0", 40, 60)
    fill(client, "s", 10, first=101)
    assert group_of(client)["lag"] == 70
    client.xgroup_destroy("s", "lake")  # someone's mistake: it comes back with the next news
    _, at = run(made, end)
    assert (group_of(client)["lag"], group_of(client)["entries-read"]) == (0, 110)
    assert ends(at) == {"s": "110-0"}
    assert made.reportLatestOffset() == {"s": {"from": "110-0", "from_n": 110, "id": "110-0", "n": 110}}
    made.stop()


def test_a_group_in_use_is_not_touched(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A group with consumers or pending entries is refused, and its position is not changed."""
    fill(client, "s", 10)
    client.xgroup_create("s", "workers", "0")
    client.xreadgroup("workers", "w1", {"s": ">"}, count=2)
    made = reader(real_redis, startingOffsets="latest", group="workers")
    with pytest.raises(
        ConfigError, match=r"option 'group': 'workers' of stream 's' is in use \(1 consumers, 2 pending\)"
    ):
        made.latestOffset(made.initialOffset(), ALL)
    assert group_of(client)["last-delivered-id"] == "2-0"
    made.stop()


# --- a server that goes away -----------------------------------------------------------------------------------------


def test_a_server_that_comes_back_is_read_on(tmp_path: Path) -> None:
    """If the server restarts while a batch is planned or read, Spark continues, and each entry is read once."""
    server = redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    with server:
        with server.client() as setup:
            fill(setup, "s", 3000)
        made = reader(server, startingOffsets="earliest")
        start = made.initialOffset()
        end = made.latestOffset(start, ALL)
        (part,) = made.partitions(start, end)
        batches = made.read(part)
        found = next(batches).column("id").to_pylist()
        server.kill()
        server.start()
        found += [ident for batch in batches for ident in batch.column("id").to_pylist()]
        assert found == numbers(1, 3000)
        assert made.latestOffset(end, ALL) == end
        made.stop()


def test_a_page_whose_reply_never_came_is_asked_for_again(tmp_path: Path) -> None:
    """If the server dies before it replies to a page request, the request is sent again."""
    server = redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    with server:
        with server.client() as setup:
            fill(setup, "s", 10)
        pages = Pages(server.url, "s", Id(2, 0), Id(8, 0))
        pages.ask(1)
        pages.decode(pages.receive(), Want())
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        pages.ask()
        server.kill()
        server.start()
        page, first = pages.decode(pages.receive(), Want())
        assert page is not None
        assert page.ids.to_pylist() == numbers(4, 8)
        assert (first, pages.done) == (Id(1, 0), True)
        pages.close()


def test_a_unix_socket_and_a_password(tmp_path: Path) -> None:
    """Unix sockets and passwords in the URL work. A wrong password is reported at once and not shown."""
    path = tmp_path / "r.sock"
    server = redis_server(tmp_path, "--requirepass", "secret", "--unixsocket", str(path))
    url = server.url
    server.url = url.replace("//", "//:secret@")
    with server:
        with server.client() as setup:
            fill(setup, "s", 5)
        for good in (f"unix://:secret@{path}?db=0", server.url):
            made = reader(server, url=good, startingOffsets="earliest")
            assert run(made)[0] == [numbers(1, 5)]
            made.stop()
        for bad in (url, url.replace("//", "//:wrong@")):
            made = reader(server, url=bad)
            with pytest.raises(ConfigError, match="option 'url': cannot connect to") as caught:
                made.initialOffset()
            assert "wrong" not in str(caught.value).split("(")[0]


def test_offsets_of_another_checkpoint_are_refused(real_redis: ServerProcess, client: redis.Redis) -> None:
    """An offset of another source's checkpoint is refused."""
    fill(client, "s", 1)
    made = reader(real_redis)
    with pytest.raises(UsageError, match="checkpointLocation"):
        made.latestOffset({"topic": {"0": 17}}, ALL)
    made.stop()
