"""``millstream stream tail``: the requested entries in order, decoded and escaped."""

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.worker.handlers.publish import fields_of
from support.servers import ServerProcess
from support.waiting import eventually


def tail(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream stream tail`` in this process."""
    return CliRunner().invoke(main, ["stream", "tail", *words, "--url", server.url])


def objects(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def ids(server: ServerProcess, *words: str) -> list[str]:
    """Return the ids of the shown entries."""
    return [row["id"] for row in objects(tail(server, *words, "-o", "jsonl"))]


def add(client: redis.Redis, key: str, entry: str, *flat: Any) -> None:
    client.execute_command("XADD", key, entry, *flat)


def fill(client: redis.Redis, key: str, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        add(client, key, f"{number * 1000}-0", "n", number)


def test_the_oldest(server: ServerProcess, client: redis.Redis) -> None:
    """With --oldest the command shows the first matching entries, ten unless said otherwise."""
    fill(client, "orders", 2500)
    every = [f"{number * 1000}-0" for number in range(1, 2501)]
    assert ids(server, "orders", "--oldest") == every[:10]
    assert ids(server, "orders", "--oldest", "-n", "0") == []
    assert ids(server, "orders", "--oldest", "-n", "1500") == every[:1500]
    assert ids(server, "orders", "--oldest", "-n", "2", "--after", "5000-0") == every[5:7]
    assert ids(server, "orders", "--oldest", "-n", "2", "--where", "n>1999") == every[1999:2001]
    fill(client, "others", 2)
    assert ids(server, "orders", "others", "--oldest", "-n", "3") == [every[0], every[0], every[1]]
    done = tail(server, "orders", "--oldest", "--follow")
    assert (done.exit_code, "exclude each other" in done.output) == (2, True)


def test_the_last_ten_unless_said_otherwise(server: ServerProcess, client: redis.Redis) -> None:
    """``stream tail`` shows the last ten entries, or those of -n, --since, --until and --after."""
    fill(client, "orders", 250)
    every = [f"{number * 1000}-0" for number in range(1, 251)]
    assert ids(server, "orders") == every[-10:]
    assert ids(server, "orders", "-n", "130") == every[-130:]
    assert ids(server, "orders", "-n", "0") == []
    assert ids(server, "orders", "--after", "0") == every
    assert ids(server, "orders", "--after", "247000-0") == every[-3:]
    assert ids(server, "orders", "--since", "1970-01-01T00:04:09") == every[-2:]
    assert ids(server, "orders", "--after", "0", "--until", "1970-01-01T00:00:03") == every[:2]
    assert ids(server, "orders", "--until", "1970-01-01T00:00:03", "-n", "1") == every[1:2]
    assert ids(server, "orders", "--since", "1970-01-01", "-n", "2") == every[-2:]
    assert ids(server, "orders", "--since", "1m") == []


def test_several_streams_are_one_by_id(server: ServerProcess, client: redis.Redis) -> None:
    """Entries of several streams are in order of id, for any page sizes."""
    fill(client, "a", 230)
    for number in range(1, 4):
        add(client, "b", f"{number * 50_000}-1", "x", "y")
    rows = objects(tail(server, "a", "b", "--after", "0", "-o", "jsonl"))
    places = [tuple(map(int, row["id"].split("-"))) for row in rows]
    assert (len(rows), places) == (233, sorted(places))
    assert [row["id"] for row in rows if row["stream"] == "b"] == ["50000-1", "100000-1", "150000-1"]
    assert ids(server, "a", "b", "-n", "1", "--where", "x") == ["150000-1"]
    assert "  a  " in tail(server, "a", "b", "-n", "1").stdout
    assert "  a  " not in tail(server, "a", "a", "-n", "1").stdout


def test_what_a_group_was_not_delivered(server: ServerProcess, client: redis.Redis) -> None:
    """``--group`` shows the entries after a group's position, without creating a consumer or pending entries."""
    fill(client, "orders", 5)
    client.xgroup_create("orders", "g", id="3000-0")
    assert ids(server, "orders", "--group", "g") == ["4000-0", "5000-0"]
    assert client.xinfo_consumers("orders", "g") == []
    missing = tail(server, "orders", "--group", "nobody")
    assert (missing.exit_code, "has no group 'nobody'" in missing.stderr) == (4, True)


def test_filters_look_into_values(server: ServerProcess, client: redis.Redis) -> None:
    """``--where`` and ``--grep`` search fields, JSON, MessagePack and envelopes, and together narrow."""
    add(client, "s", "1-0", "amount", "50", "status", "ok")
    add(client, "s", "2-0", *fields_of({"amount": 150, "status": "failed"}, {"correlation_id": "c"}))
    add(client, "s", "3-0", "data", json.dumps({"amount": 250, "status": "failed"}))
    add(client, "s", "4-0", "body", msgpack.packb({"amount": 350}))
    assert ids(server, "s", "--where", "amount>100") == ["2-0", "3-0"]
    assert ids(server, "s", "--where", "amount>100 or body.amount>100", "--where", "not amount=150") == ["3-0", "4-0"]
    assert ids(server, "s", "--grep", "FAILED", "--where", "amount<200") == ["2-0"]
    refused = tail(server, "s", "--where", "amount>")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--where 'amount>': the value after > is missing at its end" in refused.stderr


def test_each_form_shows_decoded_values(server: ServerProcess, client: redis.Redis) -> None:
    """Each format shows decoded values: lines, uniform JSON, CSV with a column per field, or raw bytes."""
    add(client, "s", "1000-0", "a", "x", "a", "y", "j", '{"b": [1, 2]}', "bin", b"\xff\0")
    people = tail(server, "s").stdout
    assert people == '1970-01-01T00:00:01.000Z  1000-0  a=x  a=y  j={"b": [1, 2]}  bin=0xff00\n'
    (row,) = objects(tail(server, "s", "-o", "jsonl"))
    fields = {"a": "y", "j": {"b": [1, 2]}, "bin": {"base64": "/wA="}}
    assert row == {"stream": "s", "id": "1000-0", "time_ms": 1000, "fields": fields, "repeated": [["a", "x"]]}
    assert json.loads(tail(server, "s", "-o", "json").stdout) == [row]
    cells = list(csv.reader(io.StringIO(tail(server, "s", "-o", "csv", "--field", "j.b", "--field", "no").stdout)))
    assert cells == [["stream", "id", "time_ms", "j.b", "no"], ["s", "1000-0", "1000", "[1, 2]", ""]]
    assert tail(server, "s", "-o", "raw", "--field", "bin", "--field", "j.b.1").stdout_bytes == b"\xff\0\t2\n"
    assert tail(server, "s", "--as", "hex", "--field", "a").stdout.endswith("  a=0x79\n")
    assert tail(server, "s", "--as", "text", "--field", "j").stdout.endswith('  j={"b": [1, 2]}\n')


def test_what_others_wrote_moves_no_cursor(server: ServerProcess, client: redis.Redis) -> None:
    """Names, values and keys are escaped, and an entry is one line."""
    key = b"k\x1b[2J\xff\n"
    client.execute_command("XADD", key, "1-0", b"na\x1bme\n", b"v\x07\x1b[31m\nnext", b"m", b'{"a": "\\u001b[1m"}')
    name = key.decode(errors="surrogateescape")
    for form in ("table", "json", "jsonl", "csv"):
        done = tail(server, name, "-o", form)
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        assert "\x07" not in done.output
    assert tail(server, name).stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["nowhere"], 4, "there is no stream 'nowhere'"),
        (["text"], 4, "the key 'text' holds no stream"),
        (["s", "--since", "soon"], 2, "--since: 'soon' is not a time"),
        (["s", "--since", "1h", "--after", "0"], 2, "each set the start"),
        (["s", "--follow", "--until", "1h"], 2, "give one of them"),
        (["s", "--after", "x"], 2, "is not an entry's id"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_shown_is_said(
    server: ServerProcess, client: redis.Redis, words: list[str], code: int, why: str
) -> None:
    """A stream that cannot be shown is an error, not a traceback or an empty success."""
    client.set("text", "x")
    add(client, "s", "1-0", "a", "b")
    done = tail(server, *words)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert why in done.stderr


def started(server: ServerProcess, *words: str, **streams: Any) -> "subprocess.Popen[bytes]":
    command = Path(sys.executable).with_name("millstream")
    return subprocess.Popen([command, "stream", "tail", *words, "--url", server.url], **streams)


def test_followed_until_interrupted(server: ServerProcess, client: redis.Redis) -> None:
    """``-f`` prints entries as they are added, after the existing ones, until Ctrl-C."""
    fill(client, "orders", 2)
    process = started(server, "orders", "late", "-f", "-n", "1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert b"2000-0" in process.stdout.readline()
        for number in range(3, 6):
            fill(client, "orders" if number < 5 else "late", 1, first=number)
            assert f"{number}000-0" in process.stdout.readline().decode()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.decode().splitlines() == [
        "nothing was ever added to late; waiting for it",
        "millstream stream tail: interrupted",
    ]


def test_a_closed_pipe_ends_it_quietly(server: ServerProcess, client: redis.Redis) -> None:
    """``-f`` ends quietly when its pipe is closed, also without new entries."""
    fill(client, "orders", 1)
    url = server.url + "?socket_timeout=0.4"  # reads then wait for half of that
    command = [Path(sys.executable).with_name("millstream"), "stream", "tail", "orders", "-f", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"1000-0" in process.stdout.readline()
        process.stdout.close()
        eventually(lambda: process.poll() is not None, what="it ends")
        assert (process.returncode, process.stderr.read()) == (141, b"")
