"""Views: a server's state as tables equals the output of its own commands, and reading changes nothing."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner
from pyspark.errors import AnalysisException

from millstream.cli.main import main
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.errors import ConfigError
from millstream.spark import dispatch
from millstream.spark.model.offsets import Id
from millstream.spark.options.read import parse
from millstream.spark.views import rows as view_rows
from millstream.spark.views.columns import COLUMNS, VIEWS, ViewPartition
from support.answers import WRONG, same_answer
from support.ports import free_port
from support.servers import ServerProcess, millstream_server, redis_server
from support.streams import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

Reading = Callable[..., "DataFrame"]

LETTER = DeadLetter(
    fields=(b"n", b"7", b"raw", b"\xff\r\n"), stream="a", id="7-0", group="g", consumer="w1", deliveries=5,
    reason="error", error="KeyError: 'n'", traceback="Traceback ...", published_ms=7, died_ms=1_700_000_000_123,
    history=({"id": "1-0"},),
)  # fmt: skip


@pytest.fixture(scope="module", params=["redis", "millstream"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a server with two streams, three groups, pending entries of three consumers, and dead letters."""
    folder = tmp_path_factory.mktemp("views")
    with redis_server(folder) if request.param == "redis" else millstream_server(folder, "--memory") as server:
        with server.client() as client:
            state(client)
        yield server


def state(client: redis.Redis) -> None:
    """Create that state."""
    fill(client, "a", 3000)
    fill(client, "b", 10)
    for stream, group in (("a", "g"), ("a", "h"), ("b", "g")):
        client.xgroup_create(stream, group, "0")
    client.xreadgroup("g", "w1", {"a": ">"}, count=1200)
    client.xreadgroup("g", "w2", {"a": ">"}, count=800)
    client.xreadgroup("g", "w3", {"b": ">"}, count=4)
    client.xdel("a", "2500-0")  # ahead of the group: its lag is unknown from now on
    flat = pack(LETTER)
    client.execute_command("XADD", "a:dead", "8-0", *flat)  # type: ignore[no-untyped-call]  # untyped in redis-py
    client.execute_command("XADD", "a:dead", "9-0", "what", "is this")  # type: ignore[no-untyped-call]  # as above


def told(server: ServerProcess, *command: Any) -> Any:
    """Return the server's own reply."""
    with server.client(decode_responses=True) as client:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]  # untyped in redis-py


def test_groups_and_consumers_are_what_xinfo_says(server: ServerProcess, reading: Reading) -> None:
    """Each group and each consumer is a row as in XINFO. An unknown lag is null."""
    rows = reading(server.url, streamPattern="?", view="groups").orderBy("stream", "group").collect()
    assert [(r.stream, r.group, r.consumers, r.pending, r.last_delivered_id, r.entries_read) for r in rows] == [
        ("a", "g", 2, 2000, "2000-0", 2000),
        ("a", "h", 0, 0, "0-0", None),
        ("b", "g", 1, 4, "4-0", 4),
    ]
    with server.client(decode_responses=True) as client:
        assert [r.lag for r in rows] == [
            row["lag"] for stream in "ab" for row in sorted(client.xinfo_groups(stream), key=lambda row: row["name"])
        ]
    assert (rows[0].lag, rows[2].lag) == (None, 6)
    found = reading(server.url, stream="a,b", view="consumers").collect()
    assert {(r.stream, r.group, r.consumer, r.pending) for r in found} == {
        ("a", "g", "w1", 1200), ("a", "g", "w2", 800), ("b", "g", "w3", 4),
    }  # fmt: skip
    assert all(r.idle_ms >= 0 for r in found)


def test_pending_entries_are_those_of_xpending_and_stay_as_they_are(server: ServerProcess, reading: Reading) -> None:
    """Each pending entry is read once by any number of tasks, and its delivery count stays."""
    before = told(server, "XPENDING", "a", "g")
    frame = reading(server.url, stream="a", view="pending", minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    rows = sorted(frame.collect(), key=lambda row: row.timestamp)
    assert [row.id for row in rows] == [f"{number}-0" for number in range(1, 2001)]
    assert [row.consumer for row in rows] == ["w1"] * 1200 + ["w2"] * 800
    assert {(row.stream, row.group, row.deliveries) for row in rows} == {("a", "g", 1)}
    assert all(row.idle_ms >= 0 for row in rows)
    with server.client() as client:
        now = datetime.fromtimestamp(client.time()[0] + 1, UTC).replace(tzinfo=None)
    assert now - timedelta(hours=1) < min(row.delivered for row in rows) <= max(row.delivered for row in rows) < now
    assert told(server, "XPENDING", "a", "g") == before
    with server.client() as client:
        assert {row["times_delivered"] for row in client.xpending_range("a", "g", "-", "+", 10)} == {1}


def test_pages_of_pending_entries_have_each_once(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task reads pending entries page by page, each once."""
    monkeypatch.setattr(view_rows, "PAGE", 7)
    view = dispatch.special_read({"url": server.url, "stream": "a", "view": "pending"})
    assert view is not None

    part = ViewPartition(("a",), b"g", Id(0, 0), Id(50, 0))
    parsed = parse({"url": server.url, "stream": "a"})
    pages = list(view_rows.read("pending", parsed, view.schema(), part))
    assert [page.num_rows for page in pages] == [7] * 7 + [1]
    assert [ident for page in pages for ident in page.column("id").to_pylist()] == [f"{n}-0" for n in range(1, 51)]


def test_dead_letters_are_taken_apart(server: ServerProcess, reading: Reading) -> None:
    """A dead letter's row has the entry's position, its cause and its content. Other entries show their fields."""
    letter, other = reading(server.url, stream="a", view="dead").orderBy("letter_id").collect()
    assert (letter.stream, letter.id, letter.group, letter.consumer, letter.deliveries) == ("a", "7-0", "g", "w1", 5)
    assert (letter.reason, letter.error, letter.traceback) == ("error", "KeyError: 'n'", "Traceback ...")
    assert (letter.returned, letter.letter_stream, letter.letter_id) == (1, "a:dead", "8-0")
    assert letter.died.isoformat() == "2023-11-14T22:13:20.123000"
    assert (letter.fields["n"], sorted(letter.fields)) == ("7", ["n", "raw"])
    assert (other.stream, other.id, other.reason, other.fields) == (None, None, None, {"what": "is this"})
    for pattern in ("*", "a*", "[ab]"):
        assert reading(server.url, streamPattern=pattern, view="dead").count() == 2
    assert reading(server.url, stream="b", view="dead").count() == 0


def test_a_view_gives_the_columns_of_a_schema(server: ServerProcess, reading: Reading) -> None:
    """A schema may select columns of a view, but not change their types."""
    frame = reading(server.url, "consumer string, deliveries bigint", stream="b", view="pending")
    assert [tuple(row) for row in frame.collect()] == [("w3", 1)] * 4
    assert reading(server.url, stream="b", view="entries").count() == 10
    with pytest.raises(AnalysisException, match="column 'deliveries' of the view 'pending' is bigint"):
        reading(server.url, "deliveries string", stream="b", view="pending").collect()
    with pytest.raises(AnalysisException, match="the view 'pending' has no column 'lag'; it has stream, group"):
        reading(server.url, "lag bigint", stream="b", view="pending").collect()
    with pytest.raises(AnalysisException, match="option 'stream': 'nope' does not exist on redis://"):
        reading(server.url, stream="nope", view="groups").collect()


GOOD = {"url": "redis://h:1/0", "stream": "orders"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"view": "peding"}, "option 'view' is 'peding': it must be one of entries, groups, consumers, pending, dead"),
        ({"view": "groups", "group": "g"}, "option 'group' does nothing in the view 'groups'"),
        ({"view": "dead", "startingOffsets": "latest"}, "option 'startingOffsets' does nothing in the view 'dead'"),
        ({"view": "dead", "strem": "a"}, "unknown option 'strem': did you mean 'stream'"),
    ],
)
def test_a_wrong_option_of_a_view_is_named(given: dict[str, str], says: str) -> None:
    """An invalid option of a view is named in one line."""
    with pytest.raises(ConfigError, match=says):
        dispatch.special_read(GOOD | given)
    assert dispatch.special_read(GOOD | {"view": "entries"}) is None


def test_no_view_is_a_stream() -> None:
    """A view as a stream is refused, with the right read to use."""
    view = dispatch.special_read(GOOD | {"view": "groups"})
    assert view is not None
    with pytest.raises(ConfigError, match=r"option 'view' is 'groups'.*Use spark\.read"):
        view.stream_reader(view.schema())


def test_every_view_has_its_reader() -> None:
    """Every view has columns and a reader."""
    assert set(COLUMNS) == set(view_rows.READERS) == set(VIEWS)


@pytest.mark.either_server
def test_sql_answers_as_a_table_and_as_json(server: ServerProcess, spark: "SparkSession") -> None:
    """``millstream sql`` prints a query's result as a table or JSON, and names the fault of a wrong query."""
    assert spark is not None  # the command takes the session that is there
    query = "SELECT consumer, count(*) AS n, max(idle_ms) >= 0 AS known FROM pending GROUP BY 1 ORDER BY 1"
    asked = ["sql", query, "--url", server.url, "--stream", "a"]
    shown = CliRunner().invoke(main, [*asked, "-o", "json"])
    assert (shown.exit_code, json.loads(shown.stdout)) == (
        0, [{"consumer": "w1", "n": 1200, "known": True}, {"consumer": "w2", "n": 800, "known": True}],
    )  # fmt: skip
    table = CliRunner().invoke(main, asked)
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["CONSUMER", "N", "KNOWN"], ["w1", "1200", "yes"], ["w2", "800", "yes"],
    ]  # fmt: skip
    when = CliRunner().invoke(main, ["sql", "SELECT died FROM dead WHERE id = '7-0'", "--url", server.url, "-o", "csv"])
    assert when.stdout.split() == ["died", "1700000000123"]
    local = "SELECT timestamp_ntz'2026-01-01 00:00:00' AS w FROM dead LIMIT 1"
    shown = CliRunner().invoke(main, ["sql", local, "--url", server.url])
    assert shown.stdout.split()[1].startswith("2026-01-01T00:00:00")
    other = CliRunner().invoke(main, ["sql", "SELECT * FROM orders", "--url", server.url])
    assert "`orders` cannot be found." in other.stderr
    assert "The tables here are entries, groups, consumers, pending, dead;" in other.stderr
    wrong = CliRunner().invoke(main, ["sql", "SELECT nope FROM groups", "--url", server.url])
    assert wrong.exit_code == 2
    assert "nope" in wrong.stderr
    assert '"logger"' not in wrong.stderr
    absent = CliRunner().invoke(main, ["sql", "SELECT * FROM groups", "--url", server.url, "--stream", "nope"])
    assert absent.exit_code == 4
    assert "option 'stream': 'nope' does not exist" in absent.stderr


def test_sql_ends_with_the_exit_codes_of_its_help(server: ServerProcess, spark: "SparkSession") -> None:
    """``millstream sql`` ends with the documented exit codes, although errors come through Spark as text."""
    assert spark is not None  # as above
    place = server.url.removeprefix("redis://")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "guest", "reset", "on", ">pw", "~other", "+@all")
        client.execute_command("ACL", "SETUSER", "blind", "reset", "on", ">pw", "~*", "+@all", "-xrange")
        before = client.xlen("a")
    ask = "SELECT * FROM entries"
    with same_answer(WRONG["OK"]) as strange:
        cases = [
            (0, "DESCRIBE groups", server.url, "stream"),
            (1, ask, strange, f"the reply of {strange} cannot be read"),
            (2, "", server.url, "empty statement"),
            (2, "SELECT 1/0", server.url, "Division by zero"),
            (2, "INSERT INTO entries SELECT * FROM entries", server.url, "only answers questions"),
            (2, "FROM entries INSERT INTO entries SELECT *", server.url, "only answers questions"),
            (2, "WITH b AS (SELECT 1) INSERT INTO entries SELECT * FROM b", server.url, "only answers questions"),
            (2, "CREATE TABLE made AS SELECT 1", server.url, "only answers questions"),
            (3, ask, f"redis://127.0.0.1:{free_port()}/0", "Start the server, or correct the URL"),
            (5, ask, f"redis://nobody:pw@{place}", "refuses the login"),
            (5, ask, f"redis://guest:pw@{place}", "NOPERM"),
            (5, ask, f"redis://blind:pw@{place}", "NOPERM"),
        ]
        for code, query, url, said in cases:
            done = CliRunner().invoke(main, ["sql", query, "--url", url, "--stream-pattern", "a"])
            assert (query, url, done.exit_code) == (query, url, code), done.output
            assert said in done.output
            assert code == 0 or done.stderr.startswith("millstream sql: ")
    with server.client() as client:
        assert client.xlen("a") == before
