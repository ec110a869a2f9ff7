"""``millstream report``: its content and its limits. The shell and the console read it like a server."""

import gzip
import json
import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis
from click.testing import CliRunner, Result
from redis.exceptions import ResponseError

from cli import hostile
from cli.test_worker import FACTS, enrol
from millstream.cli.main import main
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.partitions.lease import owner_key
from millstream.client.recorded.report import MOST
from millstream.ops.every import BY_NAME
from millstream.ops.report.redact import Redactor
from millstream.spark.monitoring import store as queries
from support.clusters import Three
from support.console import ConsoleThread
from support.partitioned import partition
from support.ports import free_port
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

SECRET = "hunter2"
STRANGE = b"<b>x</b>\xff\x1b[2J\n"


def run(*words: str, code: int = 0) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, words, prog_name="millstream")
    assert not isinstance(done.exception, Exception), (words, done.exception)
    assert done.exit_code == code, (words, done.output)
    return done


def fill(client: redis.Redis) -> None:
    """Add streams, one with strange names, a group with an unknown lag, dead letters, a worker and a query."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(1, 301):
            pipe.xadd("orders", {"amount": number, "card": f"{SECRET}-{number}"}, id=f"{number}-0")
            pipe.xadd("long", {"n": number}, id=f"{number}-0")
        pipe.execute()
    client.xgroup_create("orders", "billing", id="0")
    client.xgroup_create("orders", "shipping", id="10-0")
    client.xreadgroup("billing", "web-1", {"orders": ">"}, count=80)
    client.xclaim("orders", "billing", "web-2", 0, ["7-0"], retrycount=9)
    with suppress(ResponseError):  # if supported: an entry without owner and idle time
        client.execute_command("XNACK", "orders", "billing", "FAIL", "IDS", 1, "5-0")
    client.xdel("orders", "200-0")
    client.xadd(STRANGE, {STRANGE: SECRET}, id="1-1")
    client.xgroup_create(STRANGE, STRANGE, id="0")
    client.xreadgroup(STRANGE, STRANGE, {STRANGE: ">"})
    error = f"app.errors.CardError: {SECRET}"
    letter: Any = DeadLetter(("card", SECRET), "orders", "1-0", "billing", "web-1", 5, "error", error, SECRET, 1, 1001)
    client.execute_command("XADD", "orders:dead", "5-0", *pack(letter))
    enrol(client, "web-1", json.dumps({**FACTS, "last_error": {"at_ms": 1, "entry": "1-0", "error": f"E: {SECRET}"}}))
    query = {**queries.NEW, "id": "q-1", "state": "failed", "driver": "d", "at_ms": 1, "error": f"Bad: {SECRET}"}
    client.hset(queries.QUERIES, "q-1", json.dumps(query))


@pytest.fixture
def filled(server: ServerProcess, client: redis.Redis) -> ServerProcess:
    """A server with this data."""
    fill(client)
    return server


def written(server: ServerProcess, folder: Path, *words: str, name: str = "r.json", code: int = 0) -> Path:
    """Write a report and return its file."""
    path = folder / name
    assert run("report", "-o", str(path), "--url", server.url, *words, code=code).stdout == f"{path}\n"
    return path


def without_ages(value: Any) -> Any:
    """Drop growing figures and entry values from facts."""
    if isinstance(value, list):
        return [without_ages(each) for each in value]
    if not isinstance(value, dict):
        return value
    moving = {"fields", "at_ms", "behind", "error", "entries", "size", "last_error"}
    return {
        name: without_ages(each)
        for name, each in value.items()
        if name not in moving and not name.endswith(("age_ms", "idle_ms", "inactive_ms", "lease_ms", "_second"))
    }


QUESTIONS = [
    ("stream", "ls"),
    ("stream", "ls", "ord*"),
    ("stream", "show", "orders"),
    ("stream", "tail", "orders", "-n", "20"),
    ("stream", "get", "orders", "299-0"),
    ("group", "ls"),
    ("group", "show", "orders", "billing"),
    ("consumer", "ls", "orders", "billing"),
    ("pending", "ls", "orders", "billing", "--limit", "30"),
    ("pending", "ls", "orders", "billing", "--sort", "deliveries", "--payload", "--limit", "10"),
    ("pending", "ls", "orders", "billing", "--consumer", "web-2"),
    ("worker", "ls"),
    ("dead", "ls"),
    ("dead", "ls", "orders"),
]


def test_the_shell_reads_it_as_the_server(filled: ServerProcess, tmp_path: Path) -> None:
    """The shell shows the same rows from a report as from its server. Errors keep their type, and values their size."""
    path = written(filled, tmp_path)
    for words in QUESTIONS:
        live, kept = (rows(*words, "--url", url) for url in (filled.url, f"report:{path}"))
        assert without_ages(kept) == without_ages(live), words
    assert "app.errors.CardError: (7 bytes)" in run("dead", "ls", "orders", "--url", f"report:{path}").stdout
    assert "card=(11 bytes)" in run("stream", "tail", "orders", "-n", "5", "--url", f"report:{path}").stdout
    off = ("--pending", "off", "--pending-age", "off", "--behind", "off")
    run("check", "orders", *off, "--lag", "10", "--url", f"report:{path}", code=2)


def test_a_partitioned_stream_in_it_is_one_stream(server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A partitioned stream in a report is one stream with partitions and owners."""
    client.flushall()
    partition(server.url, "orders", 2)
    for at in range(2):
        client.xgroup_create(f"orders{{{at}}}", "billing", "0", mkstream=True)
        client.xadd(f"orders{{{at}}}", {"n": at})
    client.xreadgroup("billing", "worker-7", {"orders{1}": ">"}, count=1)
    client.set(owner_key("orders{1}", "billing"), "worker-7:4", px=60_000)
    path = written(server, tmp_path)
    for words in (("stream", "ls"), ("group", "show", "orders", "billing"), ("pending", "ls", "orders", "billing")):
        live, kept = (rows(*words, "--url", url) for url in (server.url, f"report:{path}"))
        assert without_ages(kept) == without_ages(live), words
    owners = rows("group", "owners", "orders", "billing", "--url", f"report:{path}")
    assert [(one["owner"], one["fence"]) for one in owners] == [(None, None), ("worker-7", 4)]


def rows(*words: str) -> Any:
    """Return the rows of a subcommand's output."""
    if words[1] == "tail":
        return [json.loads(line) for line in run(*words, "-o", "jsonl").stdout.splitlines()]
    return json.loads(run(*words, "-o", "json").stdout)


def test_no_secret_is_in_it(server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A report has no payloads, addresses or secrets. Options add payloads and addresses, never secrets."""
    host = urlsplit(server.url).hostname
    set_all(client, {"masterauth": SECRET, "slowlog-log-slower-than": "0"})
    try:
        fill(client)
        text = written(server, tmp_path).read_text()
        found = json.loads(text)
        assert SECRET not in text
        assert f"{host}:" not in text
        assert (found["payloads"], found["addresses"], found["left_out"]) == (False, False, {})
        whole = written(server, tmp_path, "--payloads", "--addresses", name="open.json").read_text()
        assert f"{SECRET}-300" in whole
        assert f"{host}:" in whole
        assert f'"masterauth","{SECRET}"' not in whole
    finally:
        set_all(client, {"masterauth": "", "slowlog-log-slower-than": "10000"})


def set_all(client: redis.Redis, values: dict[str, str]) -> None:
    """Set the parameters that this server has."""
    for name, value in values.items():
        if client.config_get(name):
            client.config_set(name, value)


def test_a_slow_command_keeps_names_and_options(real_server: ServerProcess, tmp_path: Path) -> None:
    """A slow command in a report has its stream and group, but not its values."""
    with real_server.client() as client:
        client.flushall()
        client.config_set("slowlog-log-slower-than", "0")
        fill(client)
        client.slowlog_reset()
        client.execute_command("XADD", "orders", "MAXLEN", "~", "1000000", "*", "pin", "4711")
        client.execute_command("XREADGROUP", "GROUP", "billing", "web-1", "COUNT", "5", "STREAMS", "orders", ">")
        client.config_set("slowlog-log-slower-than", "10000")
    path = written(real_server, tmp_path)
    found = json.loads(run("server", "slow", "-o", "json", "--limit", "1000", "--url", f"report:{path}").stdout)
    lines = [row["command"] for row in found]
    assert "XADD orders MAXLEN ~ 1000000 * (3 bytes) (4 bytes)" in lines
    assert "XREADGROUP GROUP billing web-1 COUNT 5 STREAMS orders >" in lines
    assert {row["client"].partition("-")[0] for row in found} == {"address"}


SLOW = {
    ("XADD", "orders", "7-7", "count", "4711", "limit", "4712", "at", "4713-1"): "XADD orders 7-7 " + "(N bytes) " * 6,
    ("XADD", "orders", "5000", "count", "4714"): "XADD orders " + "(N bytes) " * 3,
    ("XADD", "orders", "MINID", "~", "1-0", "LIMIT", "9", "*", "idle", "4715"): "XADD orders MINID ~ 1-0 LIMIT 9 * ",
    ("RPUSH", "COUNT", "4716", "4717-1"): "RPUSH COUNT (N bytes) (N bytes)",
    ("EVAL", "return 1", "0", "LIMIT", "4718"): "EVAL (N bytes) (N bytes) LIMIT (N bytes)",
}
"""Slow commands with their beginning in a report."""


def test_a_value_that_looks_like_an_option_is_a_value(real_server: ServerProcess, tmp_path: Path) -> None:
    """In a slow command, values that look like options, numbers or ids are removed."""
    with real_server.client() as client:
        client.flushall()
        client.xadd("orders", {"a": 1}, id="1-0")
        client.slowlog_reset()
        client.config_set("slowlog-log-slower-than", "0")
        for words in SLOW:
            client.execute_command(*words)
        client.config_set("slowlog-log-slower-than", "10000")
    path = written(real_server, tmp_path)
    assert "471" not in json.dumps(
        [one for one in json.loads(path.read_text())["asked"] if "SLOWLOG" in one["command"]]
    )
    found = json.loads(run("server", "slow", "-o", "json", "--limit", "1000", "--url", f"report:{path}").stdout)
    lines = [re.sub(r"\(\d+ bytes\)", "(N bytes)", row["command"]) for row in found]
    for expected in SLOW.values():
        assert any(line.startswith(expected.rstrip()) for line in lines), (expected, lines)


def test_an_address_in_a_name_or_a_refusal_goes_too(real_server: ServerProcess, tmp_path: Path) -> None:
    """Addresses in client names and server errors are replaced in a report."""
    with real_server.client() as client:
        client.flushall()
        client.client_setname("billing-10.9.8.7")
        assert "10.9.8.7" not in written(real_server, tmp_path).read_text()
    refused = Redactor().redacted([b"XLEN", b"orders"], ResponseError("MOVED 866 10.9.8.7:7001"))
    assert str(refused) == "MOVED 866 address-1:7001"


PAGES = [
    "/overview.json",
    "/stream.json?key=orders",
    "/group.json?key=orders&group=billing",
    "/group.json?key=orders&group=billing&sort=deliveries",
    "/group.json?key=orders&group=billing&sort=idle",
    "/entry.json?key=orders&id=299-0",
    "/dead.json",
    "/dead.json?key=orders:dead",
    "/workers.json",
    "/spark.json",
    "/query.json?id=q-1",
    "/server.json",
    "/search.json?q=order",
    f"/stream.json?key={quote(STRANGE)}",
    f"/group.json?key={quote(STRANGE)}&group={quote(STRANGE)}",
]


def test_every_page_is_made_of_it(filled: ServerProcess, tmp_path: Path) -> None:
    """Every console page works on a report, marked as not live, shows missing data as missing, and allows no change."""
    path = written(filled, tmp_path, name="r.json.gz")
    with ConsoleThread(f"report:{path}") as console:
        for page in PAGES:
            assert console.ask(page).status == 200, page
            html = console.ask(page.replace(".json", "").replace("/overview", "/")).text
            assert "a report, not live" in html
            assert "data-live" not in html
            assert SECRET not in html
            assert "<b>x</b>" not in html
            for line in re.findall("<code>millstream ([^<]+ --url report:[^<]+)</code>", html):
                assert not line.startswith(tuple(f"{name} " for name in (*BY_NAME, "spark"))), line
        assert "spark ls --url SERVER</code>" in console.ask("/spark").text
        lines = re.findall("<code>millstream (dead[^<]+)</code>", console.ask("/dead?key=orders:dead").text)
        assert any(line.endswith("--all --url SERVER") for line in lines), lines
        at_ms = json.loads(gzip.decompress(path.read_bytes()))["at_ms"]
        assert console.ask("/stream.json?key=orders").facts["at_ms"] == at_ms
        groups = console.ask("/overview.json").facts["streams"][0]["groups"]
        assert all((group["undelivered_age_ms"] or 0) <= at_ms for group in groups)
        answer = console.ask("/stream?key=long&after=150-0&order=oldest")
        assert (answer.status, "not in this report" in answer.text) == (404, True)
        assert console.ask("/stream?key=nowhere").status == 404
    refused = run("console", "--report", str(path), "--allow-changes", code=2)
    assert "A report cannot be changed. Omit --allow-changes" in refused.stderr


def test_what_is_not_in_it_is_said(filled: ServerProcess, tmp_path: Path) -> None:
    """Data that a report lacks is reported in words, with the exit codes of a missing or refused name."""
    url = f"report:{written(filled, tmp_path)}"
    assert "there is no stream 'nope'" in run("stream", "show", "nope", "--url", url, code=4).stderr
    assert "report: names no file" in run("dead", "ls", "--url", "report:", code=2).stderr
    assert "not in this report" in run("stream", "gaps", "long", "--url", url, code=4).stderr
    for words in (("ls",), ("ls", "orders"), ("show", "orders", "x")):
        assert "not in this report" in run("later", *words, "--url", url, code=4).stderr
    refused = run("group", "rm", "orders", "billing", "--yes", "--url", url, code=5).stderr
    assert (
        refused
        == "millstream group rm: a report is only read: give the URL of the server with --url to change something\n"
    )
    assert "not in this report" in run("stream", "tail", "orders", "--follow", "--url", url, code=4).stderr
    assert "a recorded report cannot be used here" in run("spark", "ls", "--url", url, code=2).stderr
    assert "cannot be read: No such file" in run("stream", "ls", "--url", "report:/nowhere", code=2).stderr
    done = run("stream", "add", "orders", "n=1", "--url", url, code=5)
    assert "a report is only read" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("later", "ls"), ("later", "ls", "orders"), ("later", "show", "orders", "x"), ("schedule", "ls"),
     ("schedule", "show", "x"), ("limit", "ls"), ("job", "show", "orders", "1-1")],
)  # fmt: skip
def test_a_question_that_a_report_does_not_answer_is_not_a_matter_of_rights(
    filled: ServerProcess, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A read that a report does not cover is an error with code 4 that names the report."""
    done = run(*words, "--url", f"report:{written(filled, tmp_path)}", code=4)
    assert ("not in this report" in done.stderr, "NOPERM" in done.stderr) == (True, False)


@pytest.mark.parametrize(
    "words",
    [("later", "cancel", "orders", "x"), ("later", "fire", "orders", "x"), ("schedule", "pause", "x"),
     ("limit", "set", "x", "3/s"), ("dead", "retry", "orders:dead", "1-1"), ("audit", "undo", "x"),
     ("pending", "ack", "orders", "billing", "1-1"), ("stream", "rm", "orders")],
)  # fmt: skip
def test_every_change_of_a_report_is_refused(filled: ServerProcess, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Every change of a report is refused with the same error, before anything is read."""
    done = run(*words, "--yes", "--url", f"report:{written(filled, tmp_path)}", code=5)
    assert "a report is only read: give the URL of the server with --url" in done.stderr


def test_it_is_bounded_and_says_what_is_left_out(server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A report is limited in streams, time and size. It names the omitted streams and ends with code 1."""
    for number in range(5):
        client.xadd(f"s{number}", {"n": "x" * 300_000})
        client.xadd(f"s{number}", {"n": "x" * 300_000})
    few = written(server, tmp_path, "--limit", "2", name="few.json", code=1)
    assert json.loads(few.read_text())["left_out"] == {"3 streams": "beyond --limit, or the time was up"}
    assert [row["key"] for row in rows("stream", "ls", "--url", f"report:{few}")] == ["s0", "s1"]
    said = "3 streams (s2, s3, s4): left out of this report"
    assert said in run("stream", "ls", "--url", f"report:{few}").stderr
    assert said in run("group", "ls", "--url", f"report:{few}").stderr
    assert "left out of this report" in run("stream", "show", "s4", "--url", f"report:{few}", code=4).stderr
    for figure in ("--lag", "--dead"):  # unread data is not reported as ok
        assert "left out of this report" in run("check", figure, "9", "--url", f"report:{few}", code=3).stdout
    assert "OK" in run("check", "s0", "--url", f"report:{few}").stdout
    with ConsoleThread(f"report:{few}") as console:
        assert said in console.ask("/").text
    early = tmp_path / "early.json"
    early.write_text(json.dumps({**json.loads(few.read_text()), "streams_left_out": None}))
    assert "the time was up" in run("stream", "ls", "--url", f"report:{early}", code=4).stderr
    assert "the time was up" in run("check", "--url", f"report:{early}", code=3).stdout
    late = written(server, tmp_path, "--timeout", "1ms", name="late.json", code=1)
    assert "the time was up" in str(json.loads(late.read_text())["left_out"])
    small = written(server, tmp_path, "--max-size", "1", "--payloads", name="small.json", code=1)
    assert small.stat().st_size < 1.2 * (1 << 20)
    assert "the report is full" in str(json.loads(small.read_text())["left_out"])
    assert len(rows("stream", "ls", "--url", f"report:{small}")) <= 5


def test_a_file_is_new_and_private(
    memory_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report file is new and private. An existing file is not overwritten, and without a server none is left."""
    path = written(memory_server, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    again = run("report", "-o", str(path), "--url", memory_server.url, code=2)
    assert "is not overwritten" in again.stderr
    assert "cannot be written" in run("report", "-o", "/nowhere/x", "--url", memory_server.url, code=2).stderr
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    assert "cannot connect to" in run("report", "-o", str(tmp_path / "none"), "--url", nobody, code=3).stderr
    assert not (tmp_path / "none").exists()
    monkeypatch.chdir(tmp_path)
    name = run("report", "--url", memory_server.url).stdout.strip()
    assert json.loads(gzip.decompress((tmp_path / name).read_bytes()))["millstream_report"] == 1
    assert json.loads(run("report", "-o", "-", "--url", memory_server.url).stdout)["streams_left_out"] == 0


def test_what_the_user_may_not_see_is_missing_with_its_reason(
    server: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """In a report by a user with few rights, missing data has the reason."""
    client.xadd("orders", {"n": 1})
    client.xadd("other", {"n": 1})
    client.execute_command("ACL", "SETUSER", "guest", "on", ">pw", "~orders", "+@all", "-info", "-config", "-client")
    place = urlsplit(server.url)
    try:
        path = tmp_path / "r.json"
        run("report", "-o", str(path), "--url", f"redis://guest:pw@{place.hostname}:{place.port}/0")
    finally:
        client.execute_command("ACL", "DELUSER", "guest")
    assert "pw" not in path.read_text().split("guest")[0]
    assert [row["key"] for row in rows("stream", "ls", "--url", f"report:{path}")] == ["orders"]
    assert "no permissions" in run("server", "show", "--url", f"report:{path}").stderr


def test_a_report_of_a_cluster_has_every_node(tmp_path: Path) -> None:
    """A report of a cluster has the streams, groups and figures of all nodes."""
    with Three(tmp_path / "nodes") as cluster:
        for key in ("orders", "a", "b"):
            with cluster.owner(key).client() as client:
                client.xadd(key, {"n": SECRET})
                client.xgroup_create(key, "g", id="0")
        path = tmp_path / "r.json"
        run("report", "-o", str(path), "--url", cluster.url)
        alone = [tmp_path / f"{node.port}.json" for node in cluster.nodes]
        for node, one in zip(cluster.nodes, alone, strict=True):
            run("report", "-o", str(one), "--url", f"redis://127.0.0.1:{node.port}/0")
        live = rows("stream", "ls", "--url", cluster.url)
    # a single node redirects for other keys
    assert [word for one in alone for word in (SECRET, "127.0.0.1") if word in one.read_text()] == []
    assert any('"error":"' in one.read_text() for one in alone)
    url = f"report:{path}"
    assert SECRET not in path.read_text()
    assert without_ages(rows("stream", "ls", "--url", url)) == without_ages(live)
    assert [row["lag"] for row in rows("group", "ls", "--url", url)] == [1, 1, 1]
    assert run("server", "show", "--url", url).stdout.count("memory limit") == 3


BROKEN = {
    "empty": b"",
    "text": b"hello\n",
    "half": b'{"millstream_report": 1, "asked": [',
    "list": b"[1, 2]",
    "number": b"7",
    "nested": b'{"millstream_report": 1, "at_ms": 1, "asked": ' + b"[" * 90_000,
    "deep": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": ["X"], "reply": '
    + b"[" * 500
    + b"]" * 500
    + b"}]}",
    "newer": b'{"millstream_report": 2}',
    "true": b'{"millstream_report": true, "at_ms": 1, "asked": []}',
    "no time": b'{"millstream_report": 1, "asked": []}',
    "no gzip": b"\x1f\x8bxxxxxxxxxxxxxxxx",
    "half gzip": gzip.compress(b'{"millstream_report": 1}' * 999)[:60],
    "bytes": b'{"millstream_report": 1, "at_ms": 1, "asked": "\xff"}',
    "command": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": [1], "reply": 1}]}',
    "reply": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": ["XINFO", "GROUPS", "s"], "reply": [[1]]}]}',
    "float": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": ["XLEN", "s"], "reply": 1.5}]}',
    "half pair": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": ["\\ud800"], "reply": 1}]}',
    "range": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": ["XRANGE", "s", "x", "+"], "reply": []}]}',
    "id": b'{"millstream_report": 1, "at_ms": 1, "asked": [{"command": ["XREVRANGE", "s", "+", "-"], "reply": [[9]]}]}',
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_report_is_one_sentence(tmp_path: Path, case: str) -> None:
    """An invalid report is one sentence, in the shell and at the console's start."""
    path = tmp_path / "x.json"
    path.write_bytes(BROKEN[case])
    for words in (["stream", "ls", "--url", f"report:{path}"], ["console", "--report", str(path)]):
        said = run(*words, code=2).stderr
        assert str(path) in said
        assert said.count("\n") == 1


def test_a_report_of_a_user_that_there_is_not_is_one_sentence() -> None:
    """A report path with an unknown ``~NAME`` is one sentence."""
    said = run("stream", "ls", "--url", "report:~no_such_user/x.json", code=2).stderr
    assert ("cannot be read" in said, said.count("\n")) == (True, 1)


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    """A huge report, plain or compressed, is refused before it is read whole."""
    for name, write in (("bomb.json.gz", gzip.open), ("long.json", open)):
        with write(tmp_path / name, "wb") as file:
            piece = b" " * (1 << 20)
            for _ in range((MOST >> 20) + 2):
                file.write(piece)
        said = run("stream", "ls", "--url", f"report:{tmp_path / name}", code=2).stderr
        assert "it is larger than" in said
        (tmp_path / name).unlink()


def test_a_changed_report_ends_nobody(memory_server: ServerProcess, tmp_path: Path) -> None:
    """A damaged report is an error sentence, or is shown without a failure."""
    with memory_server.client() as client:
        client.flushall()
        fill(client)
        client.xtrim("orders", 3)
    whole = json.loads(written(memory_server, tmp_path).read_text())
    chance = Random("reports")
    urls = []
    opened = 0
    for number in range(60):
        path = tmp_path / f"{number}.json"
        changed = json.loads(json.dumps(whole))
        one = chance.choice(changed["asked"])
        one["reply"] = hostile.value(chance, one["reply"])
        path.write_text(json.dumps(changed))
        for words in (["group", "show", "orders", "billing"], ["pending", "ls", "orders", "billing", "--payload"]):
            done = CliRunner().invoke(main, [*words, "--url", f"report:{path}"])
            assert not isinstance(done.exception, Exception), (number, words, done.exception)
            assert done.exit_code in {0, 2, 4, 5}, done.output
            assert "\x1b" not in done.output
        opened += done.exit_code == 0
        urls.append(f"report:{path}")
    assert opened > 0
    with ConsoleThread(*urls) as console:
        for number in range(len(urls)):
            for page in ("/?", "/server?", "/workers?", "/dead?key=orders:dead&", "/group?key=orders&group=billing&"):
                answer = console.ask(f"{page}server={number}")
                assert answer.status in {200, 404, 500}, (number, page)
                assert answer.status != 500 or "is a damaged report" in answer.text, (number, page, answer.text)
