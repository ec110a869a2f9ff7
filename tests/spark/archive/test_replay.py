"""A replay writes each entry once, in order and unchanged, despite interruptions."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.errors import ConfigError, UsageError
from millstream.spark.archiving.replay import replay
from millstream.spark.archiving.replay_model import Replay, ReplayError
from millstream.spark.archiving.store import ArchiveSettings
from millstream.spark.archiving.trim import Keep
from support.archives import archive_once
from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

pytestmark = pytest.mark.realserver


@pytest.fixture
def client(both: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of an emptied server."""
    with both.client() as made:
        made.flushall()
        yield made


@pytest.fixture
def archive(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> str:
    """Return an archive of 1,200 entries of the emptied stream ``s``, one of them with binary and repeated fields."""
    fill(client, "s", 1199)
    client.execute_command("XADD", "s", "2000-7", b"\xff", b"\r\n\x00", "a", "1", "a", "2")
    archive_once(ArchiveSettings(both.url, ("s",), tmp_path / "a"))
    client.delete("s")
    return str(tmp_path / "a")


def raw(client: redis.Redis, key: str) -> list[list[Any]]:
    """Return the entries as the server sends them, with repeated field names."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command("XRANGE", key, "-", "+")
        return connection.read_response(disable_decoding=True)
    finally:
        client.connection_pool.release(connection)


def test_an_archive_comes_back_as_it_was(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """A replay with kept ids reproduces the stream.

    With new ids it keeps the order and stores the old id in a field.
    """
    done = replay(Replay(archive, "s", both.url, "s2", ids="keep"))
    assert (done.read, done.written, done.last, done.finished) == (1200, 1200, "2000-7", True)
    found = raw(client, "s2")
    assert [ident for ident, _ in found[:2]] == [b"1-0", b"2-0"]
    assert found[-1] == [b"2000-7", [b"\xff", b"\r\n\x00", b"a", b"1", b"a", b"2"]]
    replay(Replay(archive, "s", both.url, "s3", id_field=b"was"))
    assert [[fields[1], fields[2:]] for _, fields in raw(client, "s3")] == [[ident, fields] for ident, fields in found]


def test_ranges_and_filters(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """A replay can be limited to a time range and to entries with all the named values."""
    what = Replay(archive, "s", both.url, "t", since_ms=11, until_ms=31, where=((b"kind", b"odd"),), ids="keep")
    done = replay(what)
    assert (done.read, done.skipped, done.written) == (20, 10, 10)
    assert [ident for ident, _ in client.xrange("t")] == [b"%d-0" % number for number in range(11, 31, 2)]
    both_values = ((b"kind", b"odd"), (b"n", b"13"))
    assert replay(Replay(archive, "s", both.url, "u", where=both_values)).written == 1
    assert replay(Replay(archive, "s", both.url, "v", where=((b"kind", b"none"),))).written == 0
    assert not client.exists("v")


def test_from_a_stream_to_another_server(both: ServerProcess, client: redis.Redis, real_redis: ServerProcess) -> None:
    """A replay from one server to another copies the stream's entries and changes neither the source nor its groups."""
    ids = fill(client, "s", 700)
    done = replay(Replay(both.url, "s", real_redis.url, "copy", ids="keep"))
    assert (done.written, done.finished) == (700, True)
    with real_redis.client(decode_responses=True) as other:
        assert [ident for ident, _ in other.xrange("copy")] == ids
    assert client.xlen("s") == 700


def test_a_replay_that_is_stopped_goes_on(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """A stopped replay continues when it runs again. A finished one reports that, and a new name starts it over."""
    what = Replay(archive, "s", both.url, "t", ids="keep")
    stops = iter([False, False, True])
    done = replay(what, stop=lambda: next(stops))
    assert (done.finished, done.written) == (False, 1000)
    done = replay(what)
    assert (done.finished, done.resumed_after, done.read, done.written) == (True, "1000-0", 200, 1200)
    assert client.xlen("t") == 1200
    assert 0 < client.ttl(what.cursor_key) <= 7 * 86400
    again = replay(what)
    assert (again.before, again.finished, again.read, again.written) == (True, True, 0, 1200)
    assert (again.resumed_after, client.xlen("t")) == ("2000-7", 1200)
    replay(Replay(archive, "s", both.url, "t", name="again"))
    assert client.xlen("t") == 2400
    with pytest.raises(UsageError, match="'again' at the target has another source or target"):
        replay(Replay(archive, "s", both.url, "t", since_ms=5, name="again"))


def test_two_of_the_same_do_not_mix(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """If two identical replays run at once, the second finds the cursor moved and ends. Each entry is written once."""
    what = Replay(archive, "s", both.url, "t", ids="new", id_field=b"was")
    told = []

    def stop() -> bool:
        if not told:
            told.append(replay(what))
        return False

    with pytest.raises(ReplayError, match="was moved to 2000-7 by another program"):
        replay(what, stop=stop)
    assert told[0].finished
    assert len({fields[b"was"] for _, fields in client.xrange("t")}) == client.xlen("t") == 1200


def test_nothing_is_written_when_it_cannot_be(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """A replay is refused before it writes if the target is ahead, has another type or is the source."""
    client.xadd("t", {"a": "1"}, id="600-0")
    with pytest.raises(ReplayError, match=r"'t' has ids up to 600-0, and 1-0 would come after it.*or --ids new"):
        replay(Replay(archive, "s", both.url, "t", ids="keep"))
    assert client.xlen("t") == 1
    assert client.keys("millstream:replay:*") == []
    assert replay(Replay(archive, "s", both.url, "t", since_ms=601, ids="keep")).written == 600
    client.set("text", "x")
    with pytest.raises(ConfigError, match=r"'text' at the target is a string\. Name a stream"):
        replay(Replay(archive, "s", both.url, "text"))
    with pytest.raises(ConfigError, match="'s' would be replayed into itself"):
        replay(Replay(both.url, "s", both.url, "s"))
    client.xadd("s", {"a": "1"})
    other = both.url.replace("127.0.0.1", "localhost")
    assert other != both.url
    with pytest.raises(ConfigError, match="'s' would be replayed into itself"):
        replay(Replay(other, "s", both.url, "s"))
    assert client.xlen("s") == 1
    with pytest.raises(ConfigError, match="the part after the port must be the number of a database"):
        replay(Replay(archive, "s", both.url.rpartition("/")[0] + "/orders", "y"))
    with pytest.raises(ConfigError, match=r"has no stream 'x'\. Name one of its streams: s"):
        replay(Replay(archive, "x", both.url, "y"))
    with pytest.raises(ConfigError, match="'nope' does not exist on redis://"):
        replay(Replay(both.url, "nope", both.url, "y"))
    with pytest.raises(ConfigError, match=r"--to: cannot connect to redis://me:\*\*\*@127.0.0.1:1: connection"):
        replay(Replay(archive, "s", "redis://me:secret@127.0.0.1:1", "y"))


def test_a_target_replaced_meanwhile_is_not_passed_over(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """If the target is replaced by another type during a replay, the cursor does not pass entries that failed."""
    for told in ("at the beginning", "in the midst"):
        client.delete("t")
        what = Replay(archive, "s", both.url, "t", name=told.split()[-1])

        def replaced(_what: str, done: int, _all: int, first: bool = told == "at the beginning") -> None:
            if first or done:
                client.set("t", "x")

        with pytest.raises(ReplayError, match=r"refused the entries .*WRONGTYPE.*run the same command again"):
            replay(what, tell=replaced)
        there = 0 if told == "at the beginning" else 500
        client.delete("t")
        done = replay(what)
        assert client.xlen("t") == 1200 - there, told
        assert done.written == 1200


def test_a_target_that_runs_out_of_ids_is_not_passed_over(
    both: ServerProcess, client: redis.Redis, archive: str
) -> None:
    """If the target runs out of ids, the cursor stays at the last entry that was added."""
    greatest = 2**64 - 1
    client.xadd("s2", {"a": "1"}, id=f"{greatest}-{greatest - 700}")
    what = Replay(archive, "s", both.url, "s2")
    with pytest.raises(ReplayError, match="the target refused the entries"):
        replay(what)
    assert client.xlen("s2") == 701
    client.delete("s2")
    done = replay(what)
    assert (done.resumed_after, done.written, client.xlen("s2")) == ("700-0", 1200, 500)


def test_the_target_keeps_no_password_of_the_source(both: ServerProcess, client: redis.Redis) -> None:
    """The cursor at the target contains no password of the source, and a new password does not start a new replay."""
    replays = [Replay(f"redis://me:{word}@h:1/0", "s", both.url, "t") for word in ("secret", "other")]
    assert replays[0].cursor_key == replays[1].cursor_key
    assert b"secret" not in replays[0].description


def test_a_lost_reply_is_not_written_twice(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """If the reply to a transaction is lost, the replay finds its cursor and does not write the entries twice."""
    what = Replay(archive, "s", both.url, "t", ids="new")
    broken = []
    execute = redis.client.Pipeline.execute

    def breaking(self: Any, **options: Any) -> Any:
        replies = execute(self, **options)
        if len(broken) < 2:
            broken.append(len(replies))
            raise redis.ConnectionError("the reply never came")
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.client.Pipeline, "execute", breaking)
        done = replay(what)
    assert len(broken) == 2
    assert (done.written, client.xlen("t")) == (1200, 1200)


def test_speed_is_kept(both: ServerProcess, client: redis.Redis) -> None:
    """``speed`` spaces the entries as recorded, divided by the factor. Entries close in time are written together."""
    for ms in (0, 10, 20, 1000, 1010, 5000):
        client.xadd("s", {"ms": str(ms)}, id=f"{1_000_000 + ms}-0")
    now = [100.0]
    seen: dict[float, int] = {}

    def wait(seconds: float) -> None:
        seen[round(now[0] - 100, 3)] = client.xlen("t")
        now[0] += seconds

    replay(Replay(both.url, "s", both.url, "t", speed=2.0), wait=wait, clock=lambda: now[0])
    assert client.xlen("t") == 6
    assert now[0] - 100 == pytest.approx(2.5)
    assert (seen[0.0], seen[0.5], max(seen.values())) == (3, 5, 5)


# --- the command -----------------------------------------------------------------------------------------------------


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["replay", *words])


def test_the_command(both: ServerProcess, client: redis.Redis, archive: str) -> None:
    """The options of ``replay`` work as the help states, and facts go to standard output."""
    words = [archive, "s", "--to", both.url, "--as", "t", "--where", "kind=odd", "--until", "1970-01-01T00:00:00.100"]
    done = run(*words, "--id-field", "was", "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert '"written": 50' in done.stdout
    assert client.xrange("t", count=1)[0][1] == {b"was": b"1-0", b"n": b"1", b"kind": b"odd"}
    again = run(*words, "--id-field", "was", "-o", "json")
    assert (again.exit_code, json.loads(again.stdout)["written"], client.xlen("t")) == (0, 50, 50)
    assert "this replay was done before: its 50 entries are in 't'" in again.stderr
    done = run(archive, "s", "--to", both.url, "--as", "none", "--until", "1970-01-01")
    assert (done.exit_code, client.xlen("none")) == (0, 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--where", "kind"], "--where kind: it must be FIELD=VALUE"),
        (["--speed", "fast"], "--speed fast: it must be full, or a factor"),
        (["--speed", "0"], "--speed 0: it must be full, or a factor"),
        (["--since", "1h"], "--since 1h: give a time (ISO, or milliseconds since 1970), not a span"),
        (["--ids", "keep", "--id-field", "x"], "--id-field is for --ids new"),
        (["--since", "soon"], "--since: 'soon' is not a time"),
        (["--until", "9999999999999d"], "--until: '9999999999999d' is not a time: it must not be longer than"),
        (["--since", "5", "--until", "3"], "--until 3 is not after --since 5: nothing would be replayed"),
        (["--as", ""], "--as is empty"),
        (["--name", ""], "--name is empty"),
        (["--id-field", ""], "--id-field is empty"),
        (["--to", "http://x"], "the target (--to): option 'url' must start with"),
    ],
)
def test_a_command_line_that_cannot_be_meant(words: list[str], told: str) -> None:
    """An invalid command line ends with one line that names the correction, and exit code 2."""
    done = run("/nowhere", "s", "--to", "redis://127.0.0.1:1", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.parametrize("source", ["s3:/bucket/x", "file://elsewhere/x", "http://127.0.0.1:1/x"])
def test_a_source_elsewhere_is_refused(source: str) -> None:
    """A source that is neither a server nor an archive is refused."""
    with pytest.raises(ConfigError, match="nor an archive's place"):
        replay(Replay(source, "s", "redis://127.0.0.1:1", "t", name="never"))


def test_killed_and_run_again(real_redis: ServerProcess, tmp_path: Path) -> None:
    """A replay that is killed, then stopped, then finished writes each entry once and in order."""
    words = [str(Path(sys.executable).with_name("millstream")), "replay", str(tmp_path / "a"), "s"]
    words += ["--to", real_redis.url, "--as", "t", "--id-field", "was", "--speed"]
    with real_redis.client() as client:
        ids = fill(client, "s", 1000)
        archive_once(ArchiveSettings(real_redis.url, ("s",), tmp_path / "a"))
        for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
            before = client.xlen("t")
            process = subprocess.Popen([*words, "0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            eventually(lambda goal=before: client.xlen("t") > goal, what="entries are replayed")
            process.send_signal(number)
            assert process.wait(timeout=30) == code
        assert client.xlen("t") < 1000
        subprocess.run([*words, "full"], check=True, capture_output=True)
        assert [fields[b"was"].decode() for _, fields in client.xrange("t")] == ids


def test_a_stream_trimmed_under_a_replay_is_said(
    both: ServerProcess, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If entries are trimmed before a replay reads them, the replay fails instead of writing a shorter copy."""
    from millstream.spark.read import pages

    monkeypatch.setattr(pages, "FIRST_COUNT", 100)
    monkeypatch.setattr(pages, "MOST_COUNT", 100)
    fill(client, "s", 1000)
    told = []

    def stop() -> bool:
        if client.xlen("t") >= 200 and not told:
            told.append(archive_once(ArchiveSettings(both.url, ("s",), tmp_path / "b", keep=Keep(entries=300))))
        return False

    with pytest.raises(UsageError, match=r"were removed|trimmed"):
        replay(Replay(both.url, "s", both.url, "t"), stop=stop)
    assert told
