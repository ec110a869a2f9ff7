"""``millstream stream get`` and ``add``: an entry and its state in each group, and the adding of entries."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.client.payloads import envelope
from millstream.worker.handlers.publish import fields_of
from support.servers import ServerProcess


def stream(server: ServerProcess, *words: str, code: int = 0, **options: Any) -> Result:
    """Run a subcommand of ``millstream stream`` in this process."""
    done = CliRunner().invoke(main, ["stream", *words, "--url", server.url], **options)
    assert done.exit_code == code, done.output
    return done


def facts(server: ServerProcess, *words: str, **options: Any) -> Any:
    return json.loads(stream(server, *words, "-o", "json", **options).stdout)


def test_where_an_entry_stands(server: ServerProcess, client: redis.Redis) -> None:
    """``stream get`` shows an entry as not delivered, pending with its consumer, or acknowledged in each group."""
    for number in (1, 2, 3):
        client.execute_command("XADD", "s", f"{number}-0", "n", number)
    for group in ("done", "busy", "new"):
        client.xgroup_create("s", group, id="0")
    for group in ("done", "busy"):
        client.xreadgroup(group, "c1", {"s": ">"}, count=2)
    client.xack("s", "done", "2-0")
    groups = {row["group"]: row for row in facts(server, "get", "s", "2-0")["groups"]}
    assert [groups[name]["state"] for name in ("done", "busy", "new")] == ["passed", "pending", "undelivered"]
    assert (groups["busy"]["consumer"], groups["busy"]["deliveries"], groups["busy"]["fatal"]) == ("c1", 1, False)
    people = stream(server, "get", "s", "2").stdout
    assert "acknowledged, or passed over" in people
    assert "not delivered yet" in people


def test_an_entry_that_is_gone_is_shown_while_it_is_pending(server: ServerProcess, client: redis.Redis) -> None:
    """A deleted entry is still shown while it is pending. Otherwise it is an error with a hint."""
    client.execute_command("XADD", "s", "1-0", "n", 1)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "c1", {"s": ">"})
    client.xdel("s", "1-0")
    found = facts(server, "get", "s", "1-0")
    assert (found["gone"], found["fields"], found["groups"][0]["consumer"]) == (True, [], "c1")
    assert "gone from the stream" in stream(server, "get", "s", "1-0").stderr
    assert "has no entry 9-9" in stream(server, "get", "s", "9-9", code=4).stderr
    assert "there is no stream 'none'" in stream(server, "get", "none", "9-9", code=4).stderr
    assert "not an entry's id" in stream(server, "get", "s", "x", code=2).stderr


def test_an_entry_is_shown_decoded(server: ServerProcess, client: redis.Redis) -> None:
    """``stream get`` decodes fields and envelope headers. Hostile bytes are escaped."""
    flat = [*fields_of({"a": {"b": 1}}, {"correlation_id": "c-1"}), b"na\x1bme", b"\x1b[2Jx", b"bin", b"\xff\0"]
    client.execute_command("XADD", "s", "1000-0", *flat)
    found = facts(server, "get", "s", "1000-0")
    assert [row["form"] for row in found["fields"]] == ["envelope", "text", "hex"]
    assert found["fields"][0]["value"]["body"] == {"a": {"b": 1}}
    assert found["fields"][2]["value"] == {"base64": "/wA="}
    assert {"name": "correlation_id", "value": "c-1"} in found["headers"]
    people = stream(server, "get", "s", "1000-0").stdout
    assert "\x1b" not in people
    assert "1970-01-01T00:00:01.000Z" in people
    assert "json (no JSON)" not in people
    assert "text (not JSON)" in stream(server, "get", "s", "1000-0", "--as", "json").stdout


def fields(client: redis.Redis, key: str = "s") -> list[Any]:
    found: Any = client.execute_command("XRANGE", key, "-", "+")
    return [list(row[1].items()) if isinstance(row[1], dict) else row[1] for row in found]


def test_words_and_json_are_added_as_an_app_adds_them(server: ServerProcess, client: redis.Redis) -> None:
    """``stream add`` takes ordered fields, JSON as ``publish`` writes it, bytes, and headers in an envelope."""
    assert facts(server, "add", "s", "b=1", "a=x=y", "--id", "5-1") == {
        "stream": "s", "added": 1, "first_id": "5-1", "last_id": "5-1",
    }  # fmt: skip
    content = {"text": "t", "n": 1.5, "on": True, "parts": [1, {"a": "b"}]}
    stream(server, "add", "s", "--json", json.dumps({**content, "no": None, "bin": {"base64": "/wA="}}))
    stream(server, "add", "s", "item=tea", "--header", "correlation_id=c-1")
    first, second, third = fields(client)
    assert first == [(b"b", b"1"), (b"a", b"x=y")]
    expected = fields_of({**content, "bin": b"\xff\0"}, None)
    assert second == list(zip(expected[::2], expected[1::2], strict=True))
    opened = envelope.parse(dict(third)[b"__data__"])
    assert (json.loads(opened.body), opened.headers["correlation_id"]) == ({"item": "tea"}, "c-1")


def test_a_file_is_added_line_by_line(server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """``stream add`` of a file adds line by line and skips empty lines.

    A dry run checks everything and adds nothing.
    """
    file = tmp_path / "x.jsonl"
    file.write_text("\n\n".join(json.dumps({"n": number}) for number in range(250)))
    dry = facts(server, "add", "s", "--from", str(file), "--maxlen", "500", "--dry-run")
    assert (dry["entries"], len(dry["fields"]), client.exists("s")) == (250, 10, 0)
    assert dry["commands"][:2] == ["XADD s MAXLEN ~ 500 * n 0", "XADD s MAXLEN ~ 500 * n 1"]
    done = facts(server, "add", "s", "--from", str(file))
    assert (done["added"], client.xlen("s")) == (250, 250)
    again = stream(server, "add", "s", "--from", "-", input='{"n": 1}\n').stdout
    assert "added" in again
    assert client.xlen("s") == 251


def test_adding_is_written_down(server: ServerProcess, client: redis.Redis) -> None:
    """Each adding command writes one audit entry, also for the entries before a wrong line."""
    stream(server, "add", "s", "a=1", "--id", "5-1")
    stream(server, "add", "s", "--from", "-", input='{"n": 1}\n{"n": 2}\nno\n', code=2)
    stream(server, "add", "none", "a=1", "--no-create", code=4)
    kept: Any = [fields for _, fields in client.xrange("millstream:audit")]
    assert [(one[b"line"], one[b"done"]) for one in kept] == [
        (b"millstream stream add s a=1", b"1"), (b"millstream stream add s --from -", b"2"),
    ]  # fmt: skip
    assert b"5-1" in kept[0][b"note"]


@pytest.mark.parametrize("words", [("--id", "abc"), ("--id", "5-5-5"), ("--id", "x-*"), ("--minid", "x")])
def test_an_id_that_is_none_is_refused_before_the_server_is_asked(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """An invalid id is refused with an example before the server is contacted."""
    done = stream(server, "add", "s", "a=1", *words, code=2)
    assert "is not an entry's id. Give one such as 1763721600000-0." in done.stderr
    assert client.exists("s") == 0
    stream(server, "add", "s", "a=1", "--id", "5-*", "--minid", "4")


def test_a_line_that_is_none_ends_it(server: ServerProcess, client: redis.Redis) -> None:
    """A wrong line of a file ends the adding. The lines before are added and counted, and the line is named."""
    text = '{"n": 1}\n{"n": 2}\nnot json\n{"n": 3}\n'
    done = stream(server, "add", "s", "--from", "-", "-o", "json", input=text, code=2)
    assert "line 3 is invalid: 'not json" in done.stderr
    assert "2 entries before it were added" in done.stderr
    assert (json.loads(done.stdout)["added"], client.xlen("s")) == (2, 2)
    done = stream(server, "add", "one", "--from", "-", input='{"n": 1}\nno\n', code=2)
    assert "1 entry before it was added" in done.stderr
    dry = stream(server, "add", "other", "--from", "-", "--dry-run", input=text, code=2)
    assert ("line 3" in dry.stderr, client.exists("other")) == (True, 0)
    cut = stream(server, "add", "s", "--json", "{", code=2).stderr
    assert "--json is invalid: '{' is not a JSON object (it ends too early). Give one such as" in cut
    for bad in ("[1]", '"x"', "{}", '{"a": null}', '{"a": "\\ud800"}', "[" * 5000):
        stream(server, "add", "s", "--json", bad, code=2)
    assert client.xlen("s") == 2


def test_conditions_of_adding(server: ServerProcess, client: redis.Redis) -> None:
    """``stream add`` may require an existing stream, trim it, and reports the server's refusal."""
    assert (
        "there is no stream 'none' (--no-create)" in stream(server, "add", "none", "a=1", "--no-create", code=4).stderr
    )
    assert client.exists("none") == 0
    for _ in range(3):
        stream(server, "add", "s", "a=1", "--maxlen", "2", "--exact")
    assert client.xlen("s") == 2
    assert "equal or smaller" in stream(server, "add", "s", "a=1", "--id", "1-1", code=5).stderr
    client.set("text", "x")
    assert "WRONGTYPE" in stream(server, "add", "text", "a=1", code=5).stderr


def test_a_repetition_adds_nothing(server: ServerProcess, client: redis.Redis) -> None:
    """A repeated add with an idempotent id adds nothing. A server without support is an error, and nothing is added."""
    words = ("add", "s", "--from", "-", "--idempotent-by", "id")
    if server.log.name.startswith("redis"):
        assert "this server does not support" in stream(server, *words, input='{"id": 1}\n', code=2).stderr
        assert client.exists("s") == 0
        return
    ids = [facts(server, *words, input='{"id": 1}\n{"id": 2}\n') for _ in range(2)]
    assert (ids[0], client.xlen("s")) == (ids[1], 2)
    one = [facts(server, "add", "s", "a=1", "--idempotent", "k") for _ in range(2)]
    assert (one[0], client.xlen("s")) == (one[1], 3)
    assert "no such field" in stream(server, *words, input='{"x": 1}\n', code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        (), ("a=1", "--json", "{}"), ("novalue",), ("=x",), ("a=1", "--header", "x"), ("a=1", "--exact"),
        ("a=1", "--maxlen", "1", "--minid", "1"), ("--from", "-", "--id", "1-1"), ("--from", "-", "--idempotent", "k"),
        ("--from", "/no/such/file"),
    ],
)  # fmt: skip
def test_a_command_line_that_is_invalid(server: ServerProcess, words: tuple[str, ...]) -> None:
    """A wrong command line is refused before the server is contacted."""
    done = CliRunner().invoke(main, ["stream", "add", "s", *words, "--url", "redis://127.0.0.1:1"])
    assert done.exit_code in {1, 2}
    assert "cannot connect to" not in done.stderr


def test_what_is_missing_is_told_of(server: ServerProcess, client: redis.Redis) -> None:
    """``stream gaps`` counts missing entries from the server's counters, and locates them by ids."""
    for ident in ("1-0", "5-0", "5-1", "5-2", "5-3", "9-0", "10-0", "11-0"):
        client.execute_command("XADD", "s", ident, "a", "b")
    whole = facts(server, "gaps", "s")
    assert (whole["missing"], whole["gaps"], whole["pending"]) == (0, [], [])
    assert whole["says"].startswith("Nothing is missing")
    client.execute_command("XADD", "chosen", "5-0", "a", "b")
    client.execute_command("XADD", "chosen", "5-5", "a", "b")
    shown = stream(server, "gaps", "chosen").stdout
    assert "producers chose their own" in " ".join(shown.split())
    assert "IDS SKIPPED" in shown.upper()
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "c", {"s": ">"}, count=3)
    client.xtrim("s", minid="5-0", approximate=False)
    trimmed = facts(server, "gaps", "s")
    assert (trimmed["missing"], trimmed["deleted_inside"]) == (1, False)
    assert "all older than the oldest entry" in trimmed["says"]
    client.xdel("s", "5-1", "5-2", "10-0")
    found = facts(server, "gaps", "s")
    assert (found["missing"], found["deleted_inside"], found["max_deleted_id"]) == (4, True, "10-0")
    assert [(gap["after"], gap["before"], gap["missing"]) for gap in found["gaps"]] == [
        ("5-0", "5-3", 2), ("9-0", "11-0", 1),
    ]  # fmt: skip
    assert found["pending"] == [{"group": "g", "entries": 2, "first": "1-0", "last": "5-1"}]
    part = stream(server, "gaps", "s", "--scan", "2")
    assert "--scan 4 scans all" in part.stderr
    client.xdel("s", "11-0")
    assert facts(server, "gaps", "s")["gaps"][-1]["before"] == "11-0"
    assert "there is no stream 'none'" in stream(server, "gaps", "none", code=4).stderr
