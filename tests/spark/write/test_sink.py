"""Tasks and driver of the sink with real servers, without Spark: each row once despite any kill, and no key left."""

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis.crc import key_slot

from millstream import failpoints
from millstream.errors import ConfigError, UsageError
from millstream.spark.arrow.encode_rows import RowLayout
from millstream.spark.connection.connection import BlockingConnection
from millstream.spark.model import keys
from millstream.spark.options.write import SinkOptions
from millstream.spark.write import staging
from millstream.spark.write.sink import BatchSink, Staged, StreamSink, settle, stage, withdraw
from support.servers import ServerProcess, redis_server

pytestmark = [pytest.mark.realserver]

NUMBERS = RowLayout("out", has_id=False, fields=("n",))
BY_ROW = RowLayout(None, has_id=False, fields=("n",))
WITH_IDS = RowLayout("out", has_id=True, fields=("n",))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set pieces of three rows, for many steps."""
    monkeypatch.setattr(staging, "PIECE_ROWS", 3)


def numbers(first: int, last: int) -> pa.RecordBatch:
    """Build rows with the column ``n``."""
    return pa.record_batch({"n": list(range(first, last))})


def staged(server: ServerProcess, *batches: pa.RecordBatch, layout: RowLayout = NUMBERS, **options: Any) -> Staged:
    """Stage rows as one task for the writer ``q``."""
    return stage(SinkOptions(server.url, layout.target, **options), layout, "q", batches)


def commit(server: ServerProcess, version: int, *messages: Staged, lasting: bool = True, **options: Any) -> None:
    """Commit a batch as the driver does."""
    settle(SinkOptions(server.url, "out", **options), "q", version, messages, lasting=lasting)


def there(client: redis.Redis, stream: str = "out") -> list[int]:
    """Return the field ``n`` of all entries."""
    return [int(fields["n"]) for _, fields in client.xrange(stream)]


def helpers(client: redis.Redis) -> set[str]:
    """Return the sink's own keys."""
    return set(client.keys("millstream:*"))


# --- once ------------------------------------------------------------------------------------------------------------


def test_rows_are_seen_when_committed_and_once(both: ServerProcess, both_client: redis.Redis) -> None:
    """Rows are visible only after the commit, in order. A repeated batch adds nothing, and one key is left."""
    first, second = staged(both, numbers(0, 2500)), staged(both, numbers(2500, 2510))
    assert there(both_client) == []
    commit(both, 7, first, second)
    assert there(both_client) == list(range(2510))
    commit(both, 7, staged(both, numbers(0, 2510)))
    commit(both, 6, staged(both, numbers(0, 2510)))
    assert there(both_client) == list(range(2510))
    assert helpers(both_client) == {"millstream:sink:q"}
    commit(both, 8, staged(both, numbers(0, 1)))
    assert len(there(both_client)) == 2511


class Killed(BaseException):
    """The death of the driver."""


@contextlib.contextmanager
def before_piece(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` before the driver first sends the piece of this number."""
    pieces = itertools.count()

    def reached() -> None:
        if next(pieces) == number:
            act()

    failpoints.on("publishing", reached)
    try:
        yield
    finally:
        failpoints.clear()


def kill() -> None:
    """End the driver."""
    raise Killed


@contextlib.contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, at: int, error: type[BaseException], where: str) -> Iterator[None]:
    """Let the ``at``-th send or receive of the connection end the driver or the connection."""
    calls = itertools.count()
    real = getattr(BlockingConnection, where)

    def call(self: BlockingConnection, argument: Any) -> Any:
        if next(calls) == at:
            raise error("here")
        return real(self, argument)

    with monkeypatch.context() as patch:
        patch.setattr(BlockingConnection, where, call)
        yield


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("where", ["send", "passes", "receive"])
@pytest.mark.parametrize("layout", [NUMBERS, BY_ROW, WITH_IDS], ids=["one", "many", "ids"])
def test_a_driver_killed_at_any_step_is_repeated_to_the_same_end(
    both: ServerProcess, both_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, where: str, layout: RowLayout
) -> None:
    """A driver killed at any step of a commit and repeated publishes each row once.

    It is killed before each command or reply, and the batch runs again in another order. No key is left over. Rows that
    were published before the kill keep their order.
    """
    rows = list(range(1, 11))
    columns: dict[str, Any] = {"n": rows, "stream": ["out", "{x}more"] * 5, "id": [f"{row}-0" for row in rows]}
    batch = pa.record_batch(columns)
    again = batch if layout.has_id else batch.take(pa.array(list(range(9, -1, -1))))
    for at in range(100):
        both_client.flushall()
        messages = [staged(both, part, layout=layout) for part in (batch.slice(0, 4), batch.slice(4))]
        killed = False
        with dying(monkeypatch, at, Killed, where):
            try:
                commit(both, 0, *messages)
            except Killed:
                killed = True
        seen = there(both_client)
        commit(both, 0, staged(both, again, layout=layout))
        found = there(both_client) + there(both_client, "{x}more")
        assert sorted(found) == rows, f"killed at {where} {at}"
        assert there(both_client)[: len(seen)] == seen
        assert helpers(both_client) == {"millstream:sink:q"}
        if not killed:
            break
    assert at >= (4 if where == "passes" else 6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("where", ["send", "passes", "receive"])
def test_a_connection_that_breaks_at_any_step_does_not_matter(
    both: ServerProcess, both_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """If the connection breaks at any step, task and driver reconnect, and each row is written once."""
    for at in range(100):
        both_client.flushall()
        broken = False

        def note(*_: object) -> ConnectionResetError:
            nonlocal broken
            broken = True
            return ConnectionResetError("broken")

        with dying(monkeypatch, at, note, where):  # type: ignore[arg-type] # a maker of errors does as well
            commit(both, 0, staged(both, numbers(0, 10)))
        assert there(both_client) == list(range(10)), f"broken at {where} {at}"
        assert helpers(both_client) == {"millstream:sink:q"}
        if not broken:
            break
    assert at >= (4 if where == "passes" else 6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_piece_that_somebody_else_added_meanwhile_is_not_added_again(
    both: ServerProcess, both_client: redis.Redis, number: int
) -> None:
    """A piece that another driver of the batch has already published is not published again."""
    message = staged(both, numbers(0, 10))
    with before_piece(number, lambda: commit(both, 0, message)):
        commit(both, 0, message)
    assert there(both_client) == list(range(10))
    assert helpers(both_client) == {"millstream:sink:q"}


@pytest.mark.usefixtures("small")
def test_two_drivers_of_one_query_publish_a_batch_once(both: ServerProcess, both_client: redis.Redis) -> None:
    """Two drivers of one query publish a batch once."""
    told: list[BaseException] = []
    start = threading.Barrier(2)

    def work(version: int, message: Staged) -> None:
        start.wait()
        try:
            commit(both, version, message)
        except UsageError as reason:  # it may find its own rows removed by the other
            told.append(reason)

    for version in range(5):
        messages = [staged(both, numbers(0, 30)), staged(both, numbers(0, 30))]
        threads = [threading.Thread(target=work, args=(version, message)) for message in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert there(both_client) == list(range(30)) * (version + 1), told


def test_an_attempt_that_nobody_committed_is_removed_with_the_next_commit(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """Rows of an attempt that was never committed are removed with the next commit."""
    staged(both, numbers(100, 200))
    commit(both, 0, staged(both, numbers(0, 5)))
    assert there(both_client) == list(range(5))
    assert helpers(both_client) == {"millstream:sink:q"}


def test_an_abort_removes_everything(both: ServerProcess, both_client: redis.Redis) -> None:
    """Staged rows expire, and an abort removes them at once."""
    message = staged(both, numbers(0, 5), staging_ms=60_000)
    keys = helpers(both_client)
    assert keys == {message.parts[0].key, "millstream:sink:q:staged"}
    assert all(0 < both_client.pttl(key) <= 60_000 for key in keys)
    withdraw(SinkOptions(both.url, "out"), "q", lasting=True)
    assert both_client.keys() == []


@pytest.mark.usefixtures("small")
def test_an_abort_after_a_decision_leaves_the_rows_for_the_next_try(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """An abort after a started commit keeps the staged rows, and the next try publishes them."""
    message = staged(both, numbers(0, 9))
    with before_piece(1, kill), pytest.raises(Killed):
        commit(both, 0, message)
    assert there(both_client) == [0, 1, 2]
    withdraw(SinkOptions(both.url, "out"), "q", lasting=True)
    assert both_client.ttl(message.parts[0].key) == -1
    commit(both, 0, staged(both, numbers(0, 9)))
    assert there(both_client) == list(range(9))


@pytest.mark.usefixtures("small")
def test_a_batch_left_half_published_is_finished_before_the_next(both: ServerProcess, both_client: redis.Redis) -> None:
    """A half-published batch is finished before the next one."""
    first = staged(both, numbers(0, 9))
    with before_piece(1, kill), pytest.raises(Killed):
        commit(both, 0, first)
    assert there(both_client) == [0, 1, 2]
    commit(both, 1, staged(both, numbers(9, 11)))
    assert there(both_client) == list(range(11))
    assert helpers(both_client) == {"millstream:sink:q"}


@pytest.mark.usefixtures("small")
def test_a_half_published_batch_whose_rows_are_gone_stops_the_next(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """If a half-published batch cannot be finished, the next batch fails until a user accepts the loss."""
    first = staged(both, numbers(0, 9))
    with before_piece(1, kill), pytest.raises(Killed):
        commit(both, 0, first)
    both_client.delete(first.parts[0].key)
    with pytest.raises(UsageError, match=r"batch 0 of writer q, .* cannot be finished .*DEL millstream:sink:q to give"):
        commit(both, 1, staged(both, numbers(9, 11)))
    assert there(both_client) == [0, 1, 2]


@pytest.mark.usefixtures("small")
def test_rows_that_were_decided_upon_go_though_their_register_has_ended(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """A half-published batch is finished even after the register of staged rows has expired."""
    with before_piece(1, kill), pytest.raises(Killed):
        commit(both, 0, staged(both, numbers(0, 9)))
    both_client.delete("millstream:sink:q:staged")
    commit(both, 0, staged(both, numbers(0, 9)))
    assert there(both_client) == list(range(9))
    assert helpers(both_client) == {"millstream:sink:q"}


def test_a_checkpoint_that_is_behind_loses_no_row_silently(both: ServerProcess, both_client: redis.Redis) -> None:
    """With a checkpoint older than the target, a batch with an already used number is an error."""
    options = SinkOptions(both.url, "out")
    sink = StreamSink(options, NUMBERS)
    for batch in range(3):
        sink.commit([staged(both, numbers(batch, batch + 1))], batch)
    sink.commit([staged(both, numbers(2, 3))], 2)
    with pytest.raises(UsageError, match=r"batch 1 of query q comes after its batch 2 was written.*old copy"):
        sink.commit([staged(both, numbers(1, 9))], 1)
    assert there(both_client) == [0, 1, 2]


def test_a_batch_cut_anew_under_a_number_that_was_written_is_refused(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """A batch with a used number and another number of rows is refused."""
    sink = StreamSink(SinkOptions(both.url, "out"), NUMBERS)
    sink.commit([staged(both, numbers(0, 50))], 0)
    with pytest.raises(
        UsageError, match=r"batch 0 of writer q was written with 50 rows and now has 80: the checkpoint's"
    ):
        sink.commit([staged(both, numbers(0, 80))], 0)
    assert there(both_client) == list(range(50))
    sink.commit([staged(both, numbers(0, 50))], 0)
    both_client.delete("millstream:sink:q")
    sink.commit([staged(both, numbers(50, 80))], 0)
    assert there(both_client) == list(range(80))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("killed", [False, True])
def test_a_batch_of_the_same_number_and_count_keeps_the_rows_that_were_decided_first(
    both: ServerProcess, both_client: redis.Redis, killed: bool
) -> None:
    """A repeated batch with other rows, as with ``rand()``, publishes the rows of the first try."""
    if killed:
        with before_piece(1, kill), pytest.raises(Killed):
            commit(both, 0, staged(both, numbers(0, 9)))
    else:
        commit(both, 0, staged(both, numbers(0, 9)))
    commit(both, 0, staged(both, numbers(100, 109)))
    assert there(both_client) == list(range(9))
    commit(both, 1, staged(both, numbers(9, 12)))
    assert there(both_client) == list(range(12))
    assert helpers(both_client) == {"millstream:sink:q"}


def cut(checkpoint: Path, batch: int, end: str) -> None:
    """Write the offset file that Spark writes before it runs a batch, with a new time for each write."""
    folder = checkpoint / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text(f'v1\n{{"batchTimestampMs":{next(TIMES)}}}\n{end}')


TIMES = itertools.count()


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_a_batch_cut_anew_with_as_many_rows_is_refused(
    both: ServerProcess, both_client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """A batch with a used number and as many rows, but another range of its sources, is refused."""
    sink = StreamSink(SinkOptions(both.url, "out", checkpoint=form.format(tmp_path)), NUMBERS)
    cut(tmp_path, 0, '{"s":"50"}')
    sink.commit([staged(both, numbers(0, 50))], 0)
    sink.commit([staged(both, numbers(100, 150))], 0)  # random values, or times: the batch is the same
    cut(tmp_path, 0, '{"s":"50"}')
    sink.commit([staged(both, numbers(0, 50))], 0)
    cut(tmp_path, 0, '{"s":"100"}')
    with pytest.raises(UsageError, match=r"batch 0 of writer q was written from another range of its sources than it"):
        sink.commit([staged(both, numbers(50, 100))], 0)
    assert there(both_client) == list(range(50))
    cut(tmp_path, 1, '{"s":"100"}')
    sink.commit([staged(both, numbers(50, 100))], 1)
    assert there(both_client) == list(range(100))


def test_a_batch_whose_driver_died_is_known_by_its_range(
    both: ServerProcess, both_client: redis.Redis, tmp_path: Path
) -> None:
    """A half-published batch is finished with its own rows, and refused for another range under its number."""
    sink = StreamSink(SinkOptions(both.url, "out", checkpoint=str(tmp_path)), NUMBERS)
    cut(tmp_path, 0, "5")
    with before_piece(0, kill), pytest.raises(Killed):
        sink.commit([staged(both, numbers(0, 5))], 0)
    cut(tmp_path, 0, "10")
    with pytest.raises(UsageError, match="from another range of its sources"):
        sink.commit([staged(both, numbers(5, 10))], 0)
    cut(tmp_path, 0, "5")
    sink.commit([staged(both, numbers(0, 5))], 0)
    assert there(both_client) == list(range(5))


@pytest.mark.parametrize("kept", ['"rows": 5', '"rows": 5, "range": null', '"rows": null'])
def test_a_record_of_an_older_version_is_taken(
    both: ServerProcess, both_client: redis.Redis, tmp_path: Path, kept: str
) -> None:
    """A commit record of an older version lacks the range of the sources, so only the count is compared."""
    both_client.set("millstream:sink:q", f'{{"version": 0, "parts": null, {kept}}}')
    sink = StreamSink(SinkOptions(both.url, "out", checkpoint=str(tmp_path)), NUMBERS)
    cut(tmp_path, 0, "5")
    sink.commit([staged(both, numbers(0, 5))], 0)
    assert there(both_client) == []


def test_a_job_that_begins_anew_under_an_old_name_is_warned(
    both: ServerProcess, both_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A write under a used name and number adds nothing, and the log reports this with a correction."""
    for version in (7, 7, 0, 1):
        sink = BatchSink(SinkOptions(both.url, "out", app="load", version=version), NUMBERS)
        sink.commit([sink.write(iter([numbers(0, 3)]))])
    assert there(both_client) == [0, 1, 2]
    told = [record.getMessage() for record in caplog.records if "adds nothing" in record.getMessage()]
    assert len(told) == 2
    assert "write 7 was done before. A job that starts from nothing needs a txnAppId of its own" in told[0]


def test_a_numbered_write_is_known_by_its_stream_too(both: ServerProcess, both_client: redis.Redis) -> None:
    """A numbered write is identified by its stream too, so one name and number may write two streams."""
    for stream in ("out", "more", "out"):
        options = SinkOptions(both.url, stream, app="load", version=4)
        sink = BatchSink(options, RowLayout(stream, has_id=False, fields=("n",)))
        sink.commit([sink.write(iter([numbers(0, 3)]))])
    assert there(both_client) == there(both_client, "more") == [0, 1, 2]


def test_a_batch_write_leaves_no_record(both: ServerProcess, both_client: redis.Redis) -> None:
    """A batch write leaves no commit record."""
    commit(both, 0, staged(both, numbers(0, 5)), lasting=False)
    assert both_client.keys() == ["out"]


# --- where to, and what ----------------------------------------------------------------------------------------------


def test_each_row_to_its_stream(both: ServerProcess, both_client: redis.Redis) -> None:
    """Each row goes to the stream of its column ``stream``, in order."""
    batch = pa.record_batch({"stream": [f"k{row % 3}" for row in range(5000)], "n": list(range(5000))})
    commit(both, 0, staged(both, batch, batch, layout=BY_ROW))
    for number in range(3):
        assert there(both_client, f"k{number}") == list(range(number, 5000, 3)) * 2


@pytest.mark.parametrize("stream", ["orders", "{a}b", "a{b}{c}", "{}x{", "naïve"])
def test_rows_wait_in_the_slot_of_their_stream(stream: str) -> None:
    """Staged rows are in the slot of their stream, since a cluster transaction needs one slot."""
    key = keys.staged(stream, "query", "token:0")
    if stream != "{}x{":  # no tag, and a brace that would end one: it can have no neighbour
        assert key_slot(key.encode()) == key_slot(stream.encode())


def test_ids_of_ones_own(both: ServerProcess, both_client: redis.Redis) -> None:
    """A column ``id`` sets the entries' ids, across pieces and partitions."""
    ids = [f"{row}-7" for row in range(1, 2501)]
    batch = pa.record_batch({"id": ids, "n": list(range(2500))})
    parts = (batch.slice(0, 1700), batch.slice(1700))
    commit(both, 0, *(staged(both, part, layout=WITH_IDS) for part in parts))
    assert [ident for ident, _ in both_client.xrange("out")] == ids


@pytest.mark.parametrize(
    ("ids", "there_before", "told"),
    [
        ([["5-0", "4-9"]], None, "'id': 4-9 comes after 5-0 in stream 'out'.*drop the column"),
        ([["5-0", "5"]], None, "5-0 comes after 5-0"),
        ([["7-0"], ["6-0"]], None, "6-0 comes after 7-0"),
        ([["7-0", "8-0"]], "7-0", "7-0 comes after 7-0"),
        ([["x"]], None, "'id' is 'x', which is not an entry id"),
        ([["18446744073709551616-0"]], None, "greater than any entry id"),
        ([["0"]], None, "0-0, below every entry id"),
        ([[None]], None, "'id' is null"),
    ],
)
def test_ids_that_cannot_be_added_are_an_error_before_anything_is_seen(
    real_redis: ServerProcess, client: redis.Redis, ids: list[list[str | None]], there_before: str | None, told: str
) -> None:
    """Ids that cannot be added are an error before any row is visible, and no key is left."""
    if there_before:
        client.xadd("out", {"n": "0"}, id=there_before)
    before = client.xrange("out")
    parts = [pa.record_batch({"id": pa.array(part, pa.string()), "n": list(range(len(part)))}) for part in ids]
    with pytest.raises(UsageError, match=told):
        commit(real_redis, 0, *(staged(real_redis, part, layout=WITH_IDS) for part in parts))
    withdraw(SinkOptions(real_redis.url, "out"), "q", lasting=True)
    assert client.xrange("out") == before
    assert helpers(client) == set()


@pytest.mark.usefixtures("small")
def test_an_id_overtaken_while_publishing_is_an_error_and_loses_nothing(
    real_redis: ServerProcess, client: redis.Redis
) -> None:
    """If another client adds a later id during a commit, the commit fails and the other rows stay staged."""
    batch = pa.record_batch({"id": [f"{row}-0" for row in range(1, 8)], "n": list(range(7))})
    message = staged(real_redis, batch, layout=WITH_IDS)
    with (
        before_piece(1, lambda: client.xadd("out", {"n": "-1"}, id="9-0")),
        pytest.raises(UsageError, match="'id': 4-0 comes after 9-0"),
    ):
        commit(real_redis, 0, message)
    assert there(client) == [0, 1, 2, -1]
    assert client.hlen(message.parts[0].key) > 0


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"max_len": 5, "approximate": False}, 5),
        ({"max_len": 5}, 500),
        ({"min_id": "18446744073709551615-0", "approximate": False}, 0),
        ({"retention_ms": 3_600_000, "approximate": False}, 500),
    ],
)
def test_trimming_as_asked(both: ServerProcess, both_client: redis.Redis, options: dict[str, Any], kept: int) -> None:
    """The target is trimmed by count, id or age, exactly or approximately."""
    both_client.xadd("out", {"n": "0"}, id="1-1")
    commit(both, 0, staged(both, numbers(0, 500), **options), **options)
    if options == {"max_len": 5}:  # whole blocks of a hundred
        assert 5 <= both_client.xlen("out") <= 105
    else:
        assert both_client.xlen("out") == kept


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_staged_rows_that_vanished_are_an_error_before_anything_is_seen(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """If staged rows have expired or were lost, the commit fails before any row is visible."""
    first, second = staged(both, numbers(0, 2500)), staged(both, numbers(0, 5))
    both_client.delete(second.parts[0].key)
    with pytest.raises(
        UsageError, match=r"rows on their way to stream 'out' are gone.*'stagingTimeout'.*start this again"
    ):
        commit(both, 0, first, second)
    both_client.hdel(first.parts[0].key, "1")
    with pytest.raises(UsageError, match="are gone"):
        commit(both, 0, first)
    assert there(both_client) == []


def wire(*commands: tuple[str, ...]) -> bytes:
    """Encode commands for the wire."""
    words = [[word.encode() for word in command] for command in commands]
    return b"".join(
        b"*%d\r\n" % len(each) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in each) for each in words
    )


ROW = ("XADD", "out", "*", "n", "7")


@pytest.mark.parametrize(
    "piece",
    [
        b"1 \n" + wire(("DEL", "secret")),
        b"1 \n" + wire(ROW, ("DEL", "secret")),
        b"1 \n" + wire(("XADD", "secret-stream", "*", "n", "7")),
        b"1 \n" + wire(("XADD", "out", "MAXLEN", "0", "*", "n", "7")),
        b"1 \n" + wire(("XADD", "out", "NOMKSTREAM", "*", "n", "7")),
        b"1 \n" + wire(("XADD", "out")),
        b"2 \n" + wire(ROW),
        b"1 \n" + wire(ROW) + b"*1\r\n$4\r\nPI",
        b"1 \n" + wire(ROW)[:-3],
        b"1 \nDEL secret\r\n",
        b"1 \n*5\r\n$4\r\nXADD\r\n$3\r\nout\r\n*1\r\n$1\r\n*\r\n$1\r\nn\r\n$1\r\n7\r\n",
        b"1 \n",
    ],
)
def test_staged_rows_that_somebody_changed_send_nothing_else(
    both: ServerProcess, both_client: redis.Redis, piece: bytes
) -> None:
    """Spark's sink never sends staged bytes that another client changed. The batch fails and names them."""
    both_client.set("secret", "kept")
    one = staged(both, numbers(0, 3))
    (part,) = one.parts
    both_client.hset(part.key, "0", piece)
    with pytest.raises(UsageError, match="were changed by another client"):
        commit(both, 1, one)
    assert both_client.get("secret") == "kept"
    assert not both_client.exists("out", "secret-stream")


def test_keys_that_somebody_put_on_the_register_stay(
    both: ServerProcess, both_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Other keys in the sink's register of staged rows are not removed."""
    strange = {"secret": "kept", "millstream:{out}:staged:another:1": "kept", b"\xff": "kept"}
    both_client.mset(strange)  # type: ignore[arg-type] - a key may be bytes
    one = staged(both, numbers(0, 3))
    both_client.sadd(keys.register("q"), *strange)
    commit(both, 1, one)
    assert there(both_client) == [0, 1, 2]
    assert both_client.mget(list(strange)) == ["kept"] * 3
    assert "names keys that this writer never made" in caplog.text


OWN = keys.staged("out", "q", "1:0")


@pytest.mark.parametrize("version", [0, 1], ids=["of the batch before", "of the batch"])
@pytest.mark.parametrize(
    "part",
    [
        ["out", "secret", 0, 0, None, None],
        ["out", "secret", 1, 1, None, None],
        ["out", "\ud800", 1, 1, None, None],
        ["\ud800", OWN, 1, 1, None, None],
        ["out", OWN, -1, 1, None, None],
        ["out", OWN, 2, 1, None, None],
    ],
    ids=lambda part: repr(part[:4]),
)
def test_a_record_that_somebody_forged_removes_and_sends_nothing(
    both: ServerProcess, both_client: redis.Redis, part: list[object], version: int
) -> None:
    """A forged commit record neither removes nor sends anything, and the error names it."""
    both_client.set("secret", "kept")
    one = staged(both, numbers(0, 3))
    both_client.set(keys.record("q"), json.dumps({"version": version, "parts": [part]}))
    with pytest.raises(UsageError, match="last batch in millstream:sink:q was changed by another program"):
        commit(both, 1, one)
    assert both_client.get("secret") == "kept"
    assert not both_client.exists("out")


def test_a_record_with_more_pieces_than_memory_holds(both: ServerProcess, both_client: redis.Redis) -> None:
    """A commit record with a huge number of pieces fails at its first missing piece."""
    record = {"version": 0, "parts": [["out", OWN, 10**15, 10**15, None, None]]}
    both_client.set(keys.record("q"), json.dumps(record))
    with pytest.raises(UsageError, match=r"rows of it were lost .*piece 0 of 1000000000000000"):
        commit(both, 1, staged(both, numbers(0, 3)))


@pytest.mark.usefixtures("small")
def test_rows_lost_while_being_published_are_told_with_the_way_out(
    both: ServerProcess, both_client: redis.Redis
) -> None:
    """If rows are lost during their commit, the error names the batch and the way out."""
    message = staged(both, numbers(0, 9))
    with before_piece(1, kill), pytest.raises(Killed):
        commit(both, 4, message)
    both_client.delete(message.parts[0].key)
    with pytest.raises(UsageError, match=r"batch 4 of writer q was being published.*DEL millstream:sink:q to have"):
        commit(both, 4, staged(both, numbers(0, 9)))


def test_a_target_that_is_no_stream(both: ServerProcess, both_client: redis.Redis) -> None:
    """A target of another type is named before any row is visible."""
    both_client.set("k", "text")
    batch = pa.record_batch({"stream": ["out", "k"], "n": [1, 2]})
    with pytest.raises(ConfigError, match=r"option 'stream': 'k' on redis://.* is a string and no stream"):
        commit(both, 0, staged(both, batch, layout=BY_ROW))
    assert both_client.exists("out") == 0


@pytest.mark.usefixtures("small")
def test_a_target_replaced_while_publishing_loses_no_row(both: ServerProcess, both_client: redis.Redis) -> None:
    """If the target is replaced by another type during a commit, no row counts as published that is not."""
    message = staged(both, numbers(0, 9))
    with (
        before_piece(1, lambda: both_client.set("out", "text")),
        pytest.raises(ConfigError, match=r"WRONGTYPE.*option 'stream'"),
    ):
        commit(both, 0, message)
    both_client.delete("out")
    commit(both, 0, staged(both, numbers(0, 9)))
    assert there(both_client) == [3, 4, 5, 6, 7, 8]


def test_a_server_out_of_memory_says_so_and_shows_nothing(tmp_path: Path) -> None:
    """A server without memory is an error while staging and publishing. With memory again, the batch is completed."""
    with (
        redis_server(tmp_path, "--maxmemory-policy", "noeviction") as server,
        server.client(decode_responses=True) as client,
    ):
        client.config_set("maxmemory", "1mb")
        message = staged(server, numbers(0, 5))
        assert "OOM" in str(message.problem)
        assert "raise its maxmemory, or keep fewer entries by option 'maxLen'" in str(message.problem)
        with pytest.raises(UsageError, match="OOM"):
            commit(server, 0, message)
        client.config_set("maxmemory", "0")
        message = staged(server, numbers(0, 5))
        client.config_set("maxmemory", "1mb")
        with pytest.raises(UsageError, match="OOM"):
            commit(server, 0, message)
        assert there(client) == []
        client.config_set("maxmemory", "0")
        commit(server, 0, message)
        assert there(client) == list(range(5))


def test_a_server_restarted_while_rows_are_staged_and_published(tmp_path: Path, small: None) -> None:
    """If the server restarts with its data during staging and commit, both continue."""
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:

        def restart() -> None:
            server.kill()
            server.start()

        def batches() -> Iterator[pa.RecordBatch]:
            yield numbers(0, 20)
            restart()
            yield numbers(20, 40)

        message = stage(SinkOptions(server.url, "out"), NUMBERS, "q", batches())
        with before_piece(5, restart):
            commit(server, 0, message)
        with server.client(decode_responses=True) as client:
            assert there(client) == list(range(40))


def test_a_task_that_fails_takes_its_rows_back(both: ServerProcess, both_client: redis.Redis) -> None:
    """A task whose input fails removes its staged rows."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 2000)
        raise RuntimeError("upstream")

    with pytest.raises(RuntimeError, match="upstream"):
        stage(SinkOptions(both.url, "out"), NUMBERS, "q", batches())
    assert helpers(both_client) == set()
