"""``millstream dead``: streams of any name are found, letters are readable, and no letter's bytes end a command."""

import json
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.cli.worker.letters import readable, users_part
from millstream.client.dead_letter.letter import REASONS, DeadLetter, pack
from millstream.client.payloads import envelope
from millstream.worker.model.retry import Failure
from support.servers import ServerProcess


def run(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream dead`` in this process."""
    command, *rest = words
    return CliRunner().invoke(main, ["dead", command, *rest, "--url", server.url])


def letter(**changes: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "fields": (b"n", b"1"), "stream": "orders", "id": "1-0", "group": "billing", "consumer": "c", "deliveries": 5,
        "reason": "error", "error": "ValueError: no", "traceback": "Traceback ...", "published_ms": 1, "died_ms": 1001,
    }  # fmt: skip
    return DeadLetter(**{**values, **changes})


def add_letter(client: redis.Redis, key: str | bytes, entry: str = "*", **changes: Any) -> str:
    made: Any = client.execute_command("XADD", key, entry, *pack(letter(**changes)))
    return str(made.decode())


def test_a_dead_letter_stream_of_any_name_is_found(server: ServerProcess, client: redis.Redis) -> None:
    """A dead-letter stream of any name is listed, and found by its own name and by the source stream's name."""
    stored = add_letter(client, "failed-cd")
    client.xadd("plain", {"n": 1})
    rows = json.loads(run(server, "ls", "-o", "json").stdout)
    assert [(row["key"], row["letters"], row["streams"]) for row in rows] == [("failed-cd", 1, ["orders"])]
    for name in ("orders", "failed-cd"):
        assert [row["id"] for row in json.loads(run(server, "ls", name, "-o", "json").stdout)] == [stored]
        assert run(server, "show", name, stored).exit_code == 0
    add_letter(client, "failed-ef")
    twice = run(server, "ls", "orders")
    assert (twice.exit_code, "failed-cd, failed-ef" in twice.stderr) == (2, True)
    assert run(server, "retry", "orders", "--key", "failed-cd", stored).exit_code == 0
    add_letter(client, "orders:dead", "7-7")  # the usual key wins if it exists
    assert "7-7" in run(server, "ls", "orders").stdout


@pytest.mark.parametrize(
    "words",
    [("ls",), ("show", "1-0"), ("retry", "1-0"), ("retry", "--all", "--yes"), ("rm", "1-0", "--yes"), ("export",)],
)
def test_a_stream_that_is_not_there_is_an_error(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """A missing dead-letter stream is an error that names it and the command to look."""
    command, *rest = words
    done = run(server, command, "nowhere", *rest)
    assert (done.exit_code, done.stdout) == (4, ""), done.output
    assert "there is neither a stream 'nowhere' nor a dead-letter stream of it" in done.stderr
    client.xadd("orders", {"n": 1})
    add_letter(client, "orders:dead", "5-5")
    if "1-0" in words:
        missing = run(server, command, "orders", *rest)
        assert missing.exit_code != 0
        assert "1-0" in missing.output or command == "rm"
        reason = "not in orders:dead: it was put back, removed or trimmed, or never existed"
        assert command == "show" or reason in " ".join(missing.output.split())


def test_a_stream_without_letters_has_none(server: ServerProcess, client: redis.Redis) -> None:
    """A stream without dead letters has an empty list and is not an error."""
    client.xadd("orders", {"n": 1})
    done = run(server, "ls", "orders")
    assert (done.exit_code, done.stdout) == (0, "No dead letters.\n")


def test_an_envelope_is_opened(server: ServerProcess, client: redis.Redis) -> None:
    """An envelope in a dead letter is shown with headers and JSON payload. Raw fields are in JSON output only."""
    packed = envelope.build({"correlation_id": "c-1", "content-type": "application/json"}, b'{"item": "tea"}')
    stored = add_letter(client, "orders:dead", fields=(b"__data__", packed, b"more", b"text"))
    people = run(server, "show", "orders", stored).stdout
    assert '{"item": "tea"}' in people
    assert "correlation_id  c-1" in people
    assert "more" in people
    assert "BIN" not in people
    facts = json.loads(run(server, "show", "orders", stored, "-o", "json").stdout)
    assert facts["payload"] == {"item": "tea"}
    assert {"name": "correlation_id", "value": "c-1"} in facts["headers"]
    assert [field["name"] for field in facts["fields"]] == ["__data__", "more"]
    assert readable([[b"__data__", packed[:14]]]) == ({}, None)
    assert readable([[b"__data__", envelope.build({}, b"\xff")]]) == ({}, b"\xff")


def fails() -> None:
    raise KeyError("amount")


def test_a_traceback_begins_with_the_users_code() -> None:
    """A shown traceback begins at the handler in each part of an exception chain."""

    def handler() -> None:
        try:
            fails()
        except KeyError as error:
            raise ValueError("no order") from error

    try:
        with ThreadPoolExecutor() as pool:
            pool.submit(handler).result()
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    worker = (
        '  File "/venv/lib/python3.11/site-packages/millstream/worker/calls.py", line 70, in one\n    await run()\n'
    )
    library = '  File "/usr/lib/python3.11/contextlib.py", line 81, in inner\n    return func()\n'
    begin = "Traceback (most recent call last):\n"
    whole = text.replace(begin, begin + library + worker + library)
    shown = users_part(whole)
    assert "millstream/worker" not in shown
    assert shown.count("frames of the worker before; -o json shows them") == 2
    first = shown.splitlines()[2]
    assert "test_dead.py" in first
    assert first.endswith("in handler")
    assert "in fails" in shown
    assert "The above exception was the direct cause" in shown
    assert shown.endswith("ValueError: no order")
    ours = begin + worker + "ValueError: damaged envelope"
    assert users_part(ours) == ours
    assert users_part("Traceback ...") == "Traceback ..."


NOTES = {
    "fields": "1", "stream": "orders", "id": "1-0", "group": "billing", "consumer": "c", "deliveries": "5",
    "reason": "error", "error": "E", "traceback": "T", "published_at": "1", "died_at": "2026-01-01T00:00:00+00:00",
}  # fmt: skip
HOSTILE: list[dict[str, str | bytes]] = [
    {"history": "[[["}, {"history": "[" * 1500}, {"history": "[" * 100_000},
    {"history": '[{"id":' + "[" * 400 + "]" * 400 + "}]"},
    {"history": '[{"died_ms": 1e999, "returned_ms": NaN, "id": null}]'}, {"history": b"\xff"}, {"history": "[{}]"},
    {"tries": '[[5, "\\u001b[2J", "\\ud800"], [9007199254740991, null, null]]'}, {"tries": "[" * 100_000},
    {"history": '[{"for": ["x"], "id": {}}]'}, {"history": '[{"id": "\\ud800", "group": "\\u001b[2J"}]'},
    {"died_at": "2026-01-01"}, {"died_at": "9" * 5000}, {"died_at": "-" * 9 + "5"}, {"died_at": "²"},
    {"died_at": b"\xff"},
    {"published_at": "0001-01-01T00:00:00+23:59"}, {"fields": "-1"}, {"fields": "9" * 5000}, {"fields": "1e9"},
    {"deliveries": "x"}, {"deliveries": "9" * 4000}, {"stream": b"\xff\xfe"}, {"stream": ""}, {"group": b"\xff"},
    {"error": "\x1b]0;owned\x07\x9b31m\u202e"}, {"traceback": b"\x1b[2J\xff"}, {"reason": "\r\nfake"},
]  # fmt: skip


def test_no_letter_ends_a_command(server: ServerProcess, client: redis.Redis) -> None:
    """A dead letter with hostile notes can be listed, shown, exported and put back or refused, without a traceback."""
    for number, notes in enumerate(HOSTILE):
        key = f"orders{number}:dead"
        flat = [word for name, value in {**NOTES, **notes}.items() for word in (f"_dead.{name}", value)]
        client.execute_command("XADD", key, "1-1", "n", b"\xff\x1b", *flat)
        for form in ("table", "json", "csv"):
            for words in (("ls", key), ("show", key, "1-1"), ("export", key)):
                given = words if words[0] == "export" else (*words, "-o", form)
                done = run(server, *given)
                assert done.exit_code == 0, (notes, words, done.exception)
                assert not set(done.output) & set("\x1b\x07\x9b\u202e\r"), (notes, words)
                if form == "json" and words[0] != "export":
                    json.loads(done.stdout)
        done = run(server, "retry", key, "--all", "--yes")
        assert done.exit_code in {0, 1}, (notes, done.exception)
        assert not isinstance(done.exception, Exception), notes
    assert run(server, "ls").exit_code == 0


@pytest.mark.parametrize(
    "words", [("ls",), ("ls", "orders"), ("show", "orders", "1-1"), ("rm", "orders", "--all", "--yes")]
)
def test_a_key_that_is_not_there_is_an_error(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """A missing stream given by ``--key`` is an error, not an empty list."""
    client.xadd("orders:dead", {"n": 1}, id="1-1")
    done = run(server, *words, "--key", "order:dead")
    assert (done.exit_code, client.xlen("orders:dead")) == (4, 1)
    assert "there is no stream 'order:dead' (--key)" in done.stderr


def test_what_is_no_letter_is_said_with_the_reason(server: ServerProcess, client: redis.Redis) -> None:
    """``dead show`` of an entry that is not a dead letter gives the reason.

    Options that match no letter report that.
    """
    client.xadd("orders:dead", {"n": 1}, id="1-1")
    flat = [word for name, value in (NOTES | {"died_at": "x"}).items() for word in (f"_dead.{name}", value)]
    client.execute_command("XADD", "orders:dead", "1-2", "n", "1", *flat)
    for entry, why in (("1-1", "it has no field _dead."), ("1-2", "the time ")):
        done = run(server, "show", "orders", entry)
        assert f"{entry} in orders:dead is not a dead letter: {why}" in done.stderr
    for words in (("retry", "orders", "--reason", "overdue"), ("rm", "orders", "--error", "nothing")):
        done = run(server, *words)
        assert (done.exit_code, client.xlen("orders:dead")) == (0, 2)
        assert "No letter of orders:dead is chosen by these options" in done.stderr


def test_many_letters_are_in_the_audit_stream_from_the_start(server: ServerProcess, client: redis.Redis) -> None:
    """``dead retry`` of many letters writes an audit entry at its start and at its end."""
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", id="$")
    for _ in range(60):
        add_letter(client, "orders:dead")
    assert run(server, "retry", "orders", "--all", "--yes").exit_code == 0
    (_, begun), (_, ended) = client.xrange("millstream:audit")
    assert begun[b"change"] == ended[b"change"]
    assert (begun[b"done"], begun[b"note"].startswith(b"started"), ended[b"done"]) == (b"0", True, b"60")


def test_an_id_that_is_none_is_refused_in_plain_words(memory_server: ServerProcess) -> None:
    """An invalid id is refused with an example before the server is contacted."""
    found = run(memory_server, "show", "orders", "xx")
    assert (found.exit_code, "Give one such as 1763721600000-0" in found.stderr) == (2, True)


@pytest.mark.parametrize("words", [("ls",), ("export",), ("retry", "--yes"), ("rm", "--yes")])
def test_an_unknown_reason_is_refused_with_the_known_ones(memory_server: ServerProcess, words: tuple[str, ...]) -> None:
    """An unknown reason is refused with the known ones."""
    command, *rest = words
    done = run(memory_server, command, "orders", "--reason", "err", *rest)
    assert (done.exit_code, done.stdout) == (2, "")
    assert all(reason in done.stderr for reason in ("'err'", *REASONS))
    assert tuple(failure.value for failure in Failure) == REASONS


def test_letters_are_chosen_by_text_and_by_type_of_error(server: ServerProcess, client: redis.Redis) -> None:
    """``--text`` also looks into the fields, and ``--kind`` compares the whole type of the error; others stay."""
    add_letter(client, "orders:dead", "1-0", fields=(b"order", b"1705"))
    add_letter(client, "orders:dead", "2-0", error="KeyError: order 1705")
    add_letter(client, "orders:dead", "3-0", error="KeyError: ValueError")
    add_letter(client, "orders:dead", "4-0", error="", reason="overdue")
    for words, ids in {
        ("--text", "Order 1705"): ["1-0", "2-0"],
        ("--kind", "ValueError"): ["1-0"],
        ("--kind", "overdue"): ["4-0"],
        ("--kind", "KeyError", "--text", "1705"): ["2-0"],
    }.items():
        assert [row["id"] for row in json.loads(run(server, "ls", "orders", *words, "-o", "json").stdout)] == ids
    assert run(server, "rm", "orders", "--kind", "KeyError", "--text", "1705", "--yes").exit_code == 0
    assert [one[0] for one in client.xrange("orders:dead")] == [b"1-0", b"3-0", b"4-0"]
