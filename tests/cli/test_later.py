"""``millstream later`` and ``millstream schedule``: lists of waiting schedules and their changes."""

import asyncio
import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream import App
from millstream.cli.changes import changing
from millstream.cli.main import main
from millstream.client.later import recurring, schedule
from millstream.client.later.recurring import KEY, SILENT_MS, Recurring
from millstream.client.later.timetable import timetable
from support.accounts import user
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

DUE, CONTENT, PLACED = schedule.due_key("mails"), schedule.content_key("mails"), schedule.placed_key("mails")
NOW = int(time.time() * 1000)
HOUR = 3_600_000


def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, [*words[:2], "--url", server.url, *words[2:]])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def facts(server: ServerProcess, *words: str, code: int = 0) -> Any:
    """Return the JSON of a subcommand."""
    return json.loads(run(server, *words[:2], "-o", "json", *words[2:], code=code).stdout)


def publish(server: ServerProcess, ident: str, content: Mapping[str, Any], **when: Any) -> None:
    """Publish to ``mails`` for later."""

    async def work() -> None:
        app = App(server.url, registry=False)
        await app.publish("mails", content, id=ident, **when)
        await app.close()

    asyncio.run(work())


def put(client: redis.Redis, name: str = "report", stream: str = "mails", **facts: Any) -> None:
    """Add a recurring schedule, as a worker declares it or ``put`` writes it."""
    one = Recurring(name, timetable(name, every="1h"), stream, (b"*", b"tenant", b"7"))
    client.hset(KEY, name, replace(one, **facts).to_json())


def place(client: redis.Redis, at_ms: int, name: str = "report") -> None:
    """Add a waiting firing."""
    client.hset(PLACED, name, at_ms)
    client.hset(CONTENT, f"{name}@{at_ms}", b"-:" + schedule.packed(["*", "tenant", "7"]))
    client.zadd(DUE, {f"{name}@{at_ms}": at_ms})


def state(client: redis.Redis) -> Any:
    """Return everything that a change could have changed."""
    keys = [CONTENT, PLACED, KEY]
    return (
        client.zrange(DUE, 0, -1, withscores=True),
        [client.hgetall(key) for key in keys],
        client.xlen("mails"),
        client.exists("millstream:audit"),
    )


def test_what_waits_is_listed_by_its_time(server: ServerProcess, client: redis.Redis) -> None:
    """``later ls`` lists schedules by time with delays, expiries and fields. Without a stream it lists the streams."""
    publish(server, "b", {"to": "x@y.z", "n": 7}, delay="1h", expires="2h")
    publish(server, "a", {"n": 1}, at=NOW - 60_000)
    client.delete(schedule.INDEX)  # never trusted to be complete
    first, second = facts(server, "later", "ls", "mails")
    assert (first["id"], first["due_in_ms"], second["id"], second["overdue_ms"]) == ("a", None, "b", None)
    assert first["overdue_ms"] >= 60_000
    assert second["expires_ms"] - second["at_ms"] == 2 * HOUR
    assert [(field["name"], field["value"]) for field in second["fields"]] == [("to", "x@y.z"), ("n", "7")]
    (stream,) = facts(server, "later", "ls")
    assert (stream["stream"], stream["waiting"]) == ("mails", 2)
    assert stream["overdue_ms"] >= 60_000
    shown = run(server, "later", "ls", "mails", "--limit", "1")
    assert "1 shown of 2" in shown.stderr
    assert "n=1" in shown.stdout
    whole = facts(server, "later", "show", "mails", "b")
    assert (whole["id"], whole["fields"][0]["value"]) == ("b", "x@y.z")
    assert "x@y.z" in run(server, "later", "show", "mails", "b").stdout
    client.xadd("empty", {"n": 1})
    assert facts(server, "later", "ls", "empty") == []
    assert "No schedules wait." in run(server, "later", "ls", "empty").stdout


def test_a_forged_schedule_is_listed_and_can_be_removed(server: ServerProcess, client: redis.Redis) -> None:
    """A forged schedule is shown as damaged and escaped, hides no other, and can be removed."""
    forged: dict[str, tuple[Any, bytes | None]] = {
        "\x1b[2Jfar\nid": (NOW + HOUR, b"-:" + schedule.packed(["*", "\x1b[31m", "\x1b]0;x\x07"])),
        "-o": (NOW, b"-:" + schedule.packed(["*", "n", "1"])),
        "short": (NOW, b"-:99:x"),
        "odd": (NOW, b"-:" + schedule.packed(["*", "n"])),
        "none": (NOW, None),
        "endless": ("inf", b"-:" + schedule.packed(["*", "n", "1"])),
        "before": ("-inf", b"9" * 40 + b":" + schedule.packed(["*", "n", "1"])),
        "huge": (NOW, b"-:" + schedule.packed(["*", "n", b"x" * 1_000_000])),
        "\udcff\udcfe": (1.5, b"\xff"),
    }
    for ident, (score, content) in forged.items():
        name = ident.encode(errors="surrogateescape")
        client.execute_command("ZADD", DUE, score, name)
        if content is not None:
            client.hset(CONTENT, name, content)
    found = {str(one["id"]): one for one in facts(server, "later", "ls", "mails")}
    assert len(found) == len(forged)
    problems = {ident for ident, one in found.items() if one["problem"]}
    assert {"short", "odd", "none", "huge"} <= problems
    assert not {"-o", "endless", "before"} & problems
    shown = run(server, "later", "ls", "mails").stdout
    assert not {"\x1b", "\x07"} & set(shown)
    for form in ("csv", "jsonl"):
        assert "\x1b" not in run(server, "later", "ls", "mails", "-o", form).stdout
    assert "\x1b" not in run(server, "later", "ls").stdout
    assert facts(server, "later", "show", "mails", "huge")["problem"] is None
    for ident in ("short", "odd", "none"):
        assert "later cancel" in run(server, "later", "fire", "mails", ident, "--yes", code=5).stderr
    done = facts(server, "later", "cancel", "--yes", "mails", "--", *forged)
    assert (done["done"], done["moved"]) == (len(forged), 0)
    assert client.exists(DUE, CONTENT) == 0
    assert "\x1b" not in run(server, "audit", "ls").stdout


CHANGES = [
    ("later", "cancel", "mails", "a"),
    ("later", "move", "mails", "a", "--delay", "3h"),
    ("later", "fire", "mails", "a"),
    ("schedule", "pause", "report"),
    ("schedule", "resume", "idle"),
    ("schedule", "fire", "report"),
    ("schedule", "rm", "report"),
]


@pytest.mark.parametrize("words", CHANGES, ids=lambda words: " ".join(words[:2]))
def test_a_change_is_shown_before_it_is_made(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """With ``--dry-run``, or without a terminal, nothing changes. With ``--yes`` the change is made and audited."""
    publish(server, "a", {"n": 1}, delay="1h", expires="1h")
    put(client)
    put(client, "idle")
    place(client, NOW + HOUR)
    client.hset(PLACED, "paused:idle", 1)
    before = state(client)
    shown = facts(server, *words, "--dry-run")
    assert (shown["applied"], shown["action"]) == (False, " ".join(words[:2]))
    assert shown["commands"]
    assert shown["before_after"]
    assert shown["undo"] or shown["undo_note"]
    assert "use --yes" in run(server, *words, code=2).stderr
    assert state(client) == before
    done = facts(server, *words, "--yes")
    assert (done["applied"], done["moved"], done["refused"]) == (True, 0, 0)
    assert state(client)[:3] != before[:3]
    assert facts(server, "audit", "ls")[0]["action"] == " ".join(words[:2])


def test_the_undo_note_of_a_removal_names_one_way_back(server: ServerProcess) -> None:
    """The undo note of a removal names the undo commands only if they restore everything."""
    publish(server, "a", {"n": 1}, delay="1h")
    publish(server, "b", {"n": "x" * 70_000}, delay="1h")
    small = facts(server, "later", "cancel", "mails", "a", "--dry-run")
    assert (len(small["undo_commands"]), "send the undo commands with redis-cli" in small["undo_note"]) == (2, True)
    great = facts(server, "later", "cancel", "mails", "b", "--dry-run")
    assert (great["undo_commands"], "redis-cli" in great["undo_note"]) == ([], False)


def test_an_undo_puts_time_and_expiry_back(server: ServerProcess, client: redis.Redis) -> None:
    """The undo of a move restores a schedule's time and expiry."""
    publish(server, "a", {"n": 1}, at=NOW + HOUR, expires="1h")
    before = state(client)[:2]
    done = facts(server, "later", "move", "mails", "a", "--at", "2126-01-01T00:00+01:00", "--yes")
    (moved,) = facts(server, "later", "ls", "mails")
    assert moved["expires_ms"] - moved["at_ms"] == HOUR
    run(server, *shlex.split(done["undo"])[1:], "--yes")
    assert state(client)[:2] == before


def test_a_fired_schedule_is_one_entry(server: ServerProcess, client: redis.Redis) -> None:
    """``later fire`` adds the entry once without a worker. A refused entry keeps the schedule."""
    publish(server, "a", {"n": 1}, delay="1h")
    publish(server, "b", {"n": 2}, delay="1h")
    client.set("mails", "no stream")
    before = client.zrange(DUE, 0, -1, withscores=True)
    assert facts(server, "later", "fire", "mails", "a", "--yes", code=1)["refused"] == 1
    assert client.zrange(DUE, 0, -1, withscores=True) == before
    client.delete("mails")
    done = facts(server, "later", "fire", "mails", "a", "gone", "--yes")
    assert "1 of the 2 ids is not waiting there." in done["notes"]
    rows: Any = client.xrange("mails")
    assert [row[1] for row in rows] == [{b"n": b"1"}]
    assert [one["id"] for one in facts(server, "later", "ls", "mails")] == ["b"]
    assert client.hkeys(CONTENT) == [b"b"]


def test_a_fired_firing_has_the_time_that_its_handler_takes(server: ServerProcess, client: redis.Redis) -> None:
    """``schedule fire`` for a handler's schedule carries its time, also while the schedule is paused."""
    put(client, "nightly", "schedule:nightly", words=(b"*", b"name", b"nightly"))
    client.hset(schedule.placed_key("schedule:nightly"), "paused:nightly", 1)
    run(server, "schedule", "fire", "nightly", "--yes")
    rows: Any = client.xrange("schedule:nightly")
    ((_, fields),) = rows
    assert (fields[b"name"], abs(int(fields[b"scheduled"]) - time.time() * 1000) < 60_000) == (b"nightly", True)


def test_what_changed_since_the_preview_is_left_alone(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule whose content changed since the preview stays, and the exit code is 1."""
    publish(server, "a", {"n": 1}, at=NOW + HOUR)
    monkeypatch.setattr(
        changing, "confirm", lambda *_, **__: publish(server, "a", {"n": 2}, at=NOW + HOUR, replace=True)
    )
    done = run(server, "later", "cancel", "mails", "a", code=1)
    assert "schedule 'a'" in done.stderr
    assert [one["fields"][0]["value"] for one in facts(server, "later", "ls", "mails")] == ["2"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("later", "move", "mails", "a"), 2, "either --at or --delay"),
        (("later", "move", "mails", "a", "--at", "2126-01-01T00:00Z", "--delay", "1h"), 2, "either --at or --delay"),
        (("later", "move", "mails", "a", "--at", "2126-01-01T00:00"), 2, "no time zone"),
        (("later", "move", "mails", "a", "--at", "tomorrow"), 2, "not a time"),
        (("later", "move", "mails", "a", "--at", "1960-01-01T00:00Z"), 2, "1970"),
        (("later", "move", "mails", "a", "--delay", "-1h"), 2, "--delay"),
        (("later", "cancel", "mails"), 2, "ID"),
        (("later", "cancel", "mails", ""), 2, "No schedules are named"),
        (("later", "cancel", "mails", "gone"), 4, "later ls mails"),
        (("later", "show", "mails", "gone"), 4, "later ls mails"),
        (("later", "ls", "nope"), 4, "there is no stream 'nope'"),
        (("schedule", "show", "gone"), 4, "schedule ls"),
        (("schedule", "pause", "gone"), 4, "schedule ls"),
        (("schedule", "rm", "gone"), 4, "schedule ls"),
    ],
)
def test_bad_input_is_one_sentence(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...], code: int, says: str
) -> None:
    """Wrong input is one error with its exit code and the correct form. Nothing changes."""
    publish(server, "a", {"n": 1}, delay="1h")
    before = state(client)
    assert says in run(server, *words, code=code).stderr
    assert state(client) == before


def test_keys_of_another_type_are_an_error_in_one_sentence(server: ServerProcess, client: redis.Redis) -> None:
    """A key of another type is one error that names it, in both lists."""
    client.set(DUE, "x")
    client.sadd(schedule.INDEX, "mails")
    (row,) = facts(server, "later", "ls")
    assert (row["waiting"], bool(row["problem"])) == (None, True)
    assert DUE in run(server, "later", "ls", "mails", code=4).stderr
    client.set(KEY, "x")
    assert KEY in run(server, "schedule", "ls", code=4).stderr


def test_recurring_schedules_are_listed_with_their_delays(server: ServerProcess, client: redis.Redis) -> None:
    """``schedule ls`` shows each schedule's source, pause, next time, and firings that no worker placed."""
    grid = int(time.time() * 1000) // HOUR * HOUR
    put(client, "put")
    client.hset(PLACED, "put", grid - 5 * HOUR)
    put(client, "code", in_code=True, seen_ms=int(time.time() * 1000))
    client.hset(PLACED, "code", grid + HOUR)
    put(client, "nobody", in_code=True, seen_ms=NOW - 2 * SILENT_MS)
    put(client, "paused")
    client.hset(PLACED, "paused:paused", 1)
    put(client, "late")
    place(client, grid - HOUR, "late")
    client.hset(KEY, "damaged\x1b[2J", '{"name": "x"}')
    client.hset(KEY, "renamed", client.hget(KEY, "put") or b"")
    client.hset(
        KEY, "typed", json.dumps(json.loads(client.hget(KEY, "put") or b"") | {"name": "typed", "seen_ms": "x"})
    )
    client.hset(PLACED, "nobody", "9" * 30)
    rows = {row["schedule"]: row for row in facts(server, "schedule", "ls")}
    hours = (int(time.time() * 1000) // HOUR * HOUR - grid) // HOUR  # 1 where an hour ended between the two readings
    assert len(rows) == 8
    assert {name: row["declared_by"] for name, row in rows.items() if not row["problem"]} == {
        "put": "put",
        "code": "code",
        "nobody": "nobody",
        "paused": "put",
        "late": "put",
    }
    assert 5 <= rows["put"]["missed"] <= 5 + hours
    assert rows["put"]["late_ms"] >= 4 * HOUR
    if not hours:
        assert (rows["code"]["missed"], rows["code"]["late_ms"], rows["code"]["next_ms"]) == (0, None, grid + HOUR)
    assert (rows["paused"]["paused"], rows["paused"]["next_ms"]) == (True, None)
    assert rows["late"]["late_ms"] >= HOUR
    shown = run(server, "schedule", "ls").stdout
    assert "nobody" in shown
    assert "\x1b" not in shown
    whole = facts(server, "schedule", "show", "put")
    assert (whole["every_ms"], whole["catch_up"], len(whole["times"])) == (HOUR, "latest", 5)
    assert whole["fields"][0]["value"] == "7"
    assert "damaged" in facts(server, "schedule", "show", "typed")["problem"]
    assert "schedule rm" in run(server, "schedule", "pause", "typed", code=5).stderr
    run(server, "schedule", "rm", "damaged\x1b[2J", "--yes")
    assert "damaged\x1b[2J" not in [row["schedule"] for row in facts(server, "schedule", "ls")]


def test_a_pause_takes_the_firing_that_waits(server: ServerProcess, client: redis.Redis) -> None:
    """``schedule pause`` removes the waiting firing, which counts as missed.

    After ``resume`` workers place it again.
    """
    put(client)
    at = (int(time.time() * 1000) // HOUR + 2) * HOUR
    place(client, at)
    run(server, "schedule", "pause", "report", "--yes")
    assert client.exists(DUE, CONTENT) == 0
    assert client.hgetall(PLACED) == {b"report": b"%d" % (at - 1), b"paused:report": b"1"}
    again = facts(server, "schedule", "pause", "report", "--yes")
    assert again["commands"] == []
    run(server, "schedule", "resume", "report", "--yes")
    assert client.hgetall(PLACED) == {b"report": b"%d" % (at - 1)}
    placed = recurring.placing(timetable("report", every="1h"), at - 1, at + 1)
    assert (placed.at_ms if placed else None) == at


def test_a_user_without_the_rights_is_told_so(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with read rights sees the lists. A change is refused with the command's name, and nothing changes."""
    publish(server, "a", {"n": 1}, delay="1h")
    put(client)
    before = state(client)
    with user(client, "~*", "+@read", "+@connection", "+time", "+info") as name:
        monkeypatch.setattr(server, "url", server.url.replace("//", f"//{name}"))
        assert len(facts(server, "later", "ls", "mails")) == 1
        assert len(facts(server, "schedule", "ls")) == 1
        assert "ZREM" in run(server, "later", "cancel", "mails", "a", "--yes", code=5).stderr
        assert "XADD" in run(server, "schedule", "fire", "report", "--yes", code=5).stderr
    assert state(client) == before


@pytest.mark.parametrize("form", ["json", "nagios", "prometheus"])
def test_a_check_finds_what_is_overdue(server: ServerProcess, client: redis.Redis, form: str) -> None:
    """``check --overdue`` is critical if a schedule is overdue beyond the threshold, and ok without one."""
    words = ("check", "--overdue=1m", "--behind", "off", "--pending-age", "off", "-o", form)
    run(server, *words)
    publish(server, "a", {"n": 1}, delay="1h")
    run(server, *words)
    publish(server, "b", {"n": 1}, at=NOW - 2 * HOUR)
    assert "mails" in run(server, *words, code=2).stdout
    run(server, "check", "--overdue=1d", *words[2:])
    client.set(DUE, "x")
    assert DUE in run(server, *words, code=3).stdout or form == "prometheus"
    assert "--overdue" in run(server, "check", "--overdue=soon", code=3).stdout
