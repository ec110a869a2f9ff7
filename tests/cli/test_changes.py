"""``group rewind``, ``pending ack`` and other changes in the shell: previews, questions, exit codes.

The texts are those of the table of actions.
"""

import json
import shlex
from contextlib import nullcontext
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.changes import changing
from millstream.cli.main import main
from millstream.cli.shared.output import Output
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.ops.pending import changes as pending
from support.accounts import user
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver


def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, [*words, "--url", server.url])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def facts(server: ServerProcess, *words: str, code: int = 0) -> Any:
    """Return the JSON of a subcommand."""
    return json.loads(run(server, *words, "-o", "json", code=code).stdout)


def fill(client: redis.Redis, key: str = "orders", entries: int = 10, read: int = 6) -> None:
    """Add entries 1-0 to n-0, some of them delivered to ``web`` in the group ``billing``."""
    for number in range(1, entries + 1):
        client.xadd(key, {"n": number}, id=f"{number}-0")
    client.xgroup_create(key, "billing", id="0")
    client.xreadgroup("billing", "web", {key: ">"}, count=read)


def state(client: redis.Redis) -> Any:
    """Return everything that a change could have changed."""
    pending = client.xpending_range("orders", "billing", "-", "+", 100)
    rows = [(row["message_id"], row["consumer"], row["times_delivered"]) for row in pending]
    return rows, client.xinfo_groups("orders"), client.xlen("orders"), client.exists("millstream:audit")


CHANGES = [
    ("group", "rewind", "orders", "billing", "--to", "start"),
    ("group", "create", "orders", "second", "--at", "1h-ago"),
    ("group", "rm", "orders", "billing"),
    ("consumer", "rm", "orders", "billing", "web", "--claim-to", "other"),
    ("pending", "ack", "orders", "billing", "1-0"),
    ("pending", "claim", "orders", "billing", "--all", "--to", "other"),
    ("pending", "nack", "orders", "billing", "--consumer", "web", "--mode", "silent"),
    ("pending", "dead", "orders", "billing", "1-0", "--reason", "crashes every worker"),
    ("stream", "rm", "orders"),
]


@pytest.mark.parametrize("words", CHANGES, ids=lambda words: " ".join(words[:2]))
def test_a_change_is_shown_before_it_is_made(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """With ``--dry-run``, or without a terminal, nothing changes. With ``--yes`` the change is made and audited."""
    fill(client)
    before = state(client)
    shown = facts(server, *words, "--dry-run")
    assert (shown["applied"], shown["action"]) == (False, " ".join(words[:2]))
    assert shown["commands"]
    assert shown["before_after"]
    assert shown["undo"] or shown["undo_note"]
    asked = run(server, *words, code=2)
    assert "use --yes" in asked.stderr
    assert asked.stdout == ""
    assert state(client) == before
    done = facts(server, *words, "--yes")
    assert (done["applied"], done["moved"], done["refused"]) == (True, 0, 0)
    assert facts(server, "audit", "ls")[0]["action"] == " ".join(words[:2])
    assert facts(server, "audit", "ls", "orders")[0]["change"] == done["change"]


def test_a_person_is_asked(server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preview and the question go to standard error, and the answer no changes nothing."""
    fill(client)
    before, asked = state(client), []
    monkeypatch.setattr(changing, "confirm", lambda question, action, *, yes: asked.append((question, action, yes)))
    done = run(server, "group", "rewind", "orders", "billing", "--to", "-2")
    assert asked == [
        ("Deliver 2 entries again to group 'billing' of 'orders', from 1970-01-01 00:00:00 UTC?", "do it", False)
    ]
    assert "2 entries are delivered again." in done.stderr
    assert "LAST" not in done.stdout.partition("FACT")[0]
    run(server, "group", "rewind", "orders", "billing", "--to", "6-0", "--yes")
    assert state(client)[:3] == before[:3]


def test_a_line_that_is_shown_does_what_was_shown(server: ServerProcess, client: redis.Redis) -> None:
    """The printed command line and its undo run as printed, and afterwards everything is as before."""
    fill(client)
    for words in CHANGES[:1] + CHANGES[4:7]:
        before = state(client)[0]
        line = shlex.split(facts(server, *words, "--dry-run")["line"])[1:]
        done = facts(server, *line, "--yes")
        facts(server, *shlex.split(done["undo"])[1:], "--yes")
        assert state(client)[0] == before, words


def test_facts_that_moved_while_somebody_read_the_question(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If facts change while the question is open, the command changes nothing and ends with 1.

    It names the change and a remedy. With ``--even-if-moved`` the change is made.
    """
    fill(client)
    read = lambda *_, **__: client.xreadgroup("billing", "web", {"orders": ">"}, count=1)  # noqa: E731 - used once
    monkeypatch.setattr(changing, "confirm", read)
    done = run(server, "group", "rewind", "orders", "billing", "--to", "start", code=1)
    assert "last-delivered-id was 6-0 and is 7-0" in done.stderr
    assert "`millstream worker pause orders billing --reason rewind`" in done.stderr
    assert client.xinfo_groups("orders")[0]["last-delivered-id"] == b"7-0"
    run(server, "group", "rewind", "orders", "billing", "--to", "start", "--even-if-moved")
    assert client.xinfo_groups("orders")[0]["last-delivered-id"] == b"0-0"


@pytest.mark.parametrize("chosen", [("1-0", "2-0", "3-0"), ("--consumer", "web"), ("--all",)])
@pytest.mark.parametrize("verb", [("ack",), ("claim", "--to", "other"), ("nack",), ("dead",)])
def test_entries_that_changed_after_the_preview_are_skipped(
    server: ServerProcess,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    chosen: tuple[str, ...],
) -> None:
    """An entry that another consumer claims after the preview is skipped.

    The others are changed, and the exit code is 1.
    """
    fill(client, read=3)

    def read(*_: Any, **__: Any) -> None:
        client.xclaim("orders", "billing", "thief", 0, ["1-0"])
        client.xack("orders", "billing", "2-0")

    monkeypatch.setattr(changing, "confirm", read)
    made = run(server, "pending", verb[0], "orders", "billing", *chosen, *verb[1:], "-o", "json", code=1)
    done = json.loads(made.stdout)
    assert (done["done"], done["moved"]) == (1, 2)
    assert all(f"entry {each} was processed, claimed or released" in made.stderr for each in ("1-0", "2-0"))
    thief = client.xpending_range("orders", "billing", "-", "+", 9, "thief")
    assert [row["message_id"] for row in thief] == [b"1-0"]


def test_missing_entries_of_many_are_counted(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more entries than an undo keeps, the command reports the number of entries missing since the preview."""
    monkeypatch.setattr(pending, "MOST_KEPT", 5)
    fill(client)
    monkeypatch.setattr(changing, "confirm", lambda *_, **__: client.xack("orders", "billing", "1-0", "2-0"))
    made = run(server, "pending", "ack", "orders", "billing", "--all", code=1)
    assert "2 entries processed, claimed or released after the preview" in made.stderr
    assert client.xpending("orders", "billing")["pending"] == 0


def test_without_a_question_a_change_is_planned_anew(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--yes`` a rewind is planned again if the group moved meanwhile."""
    fill(client)
    made, tries = changing.made, []

    def late(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            client.xreadgroup("billing", "web", {"orders": ">"}, count=1)
        return made(*arguments)

    monkeypatch.setattr(changing, "made", late)
    done = facts(server, "group", "rewind", "orders", "billing", "--to", "start", "--yes")
    assert (len(tries), done["applied"], done["again"]) == (3, True, 8)


def test_what_was_done_before_an_interruption_is_found(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C between two pages, the message names the change, and its undo restores what was done."""
    fill(client, entries=1_500, read=1_500)

    def interrupted(doing: str, done: int, total: int) -> None:
        if doing == "change" and done < total:
            raise KeyboardInterrupt

    monkeypatch.setattr(Output, "progress", lambda *_, **__: nullcontext(interrupted))
    done = run(server, "pending", "ack", "orders", "billing", "--all", "--yes", code=130)
    monkeypatch.undo()
    name = facts(server, "audit", "ls", "--limit", "1")[0]["change"]
    assert name in done.stderr
    assert client.xpending("orders", "billing")["pending"] == 500
    run(server, "audit", "undo", name, "--yes")
    assert client.xpending("orders", "billing")["pending"] == 1_500


def test_nothing_to_do_is_no_failure(server: ServerProcess, client: redis.Redis) -> None:
    """A change without any matching entry reports that and ends with code 0."""
    fill(client)
    assert "nothing to change" in run(server, "pending", "ack", "orders", "billing", "--idle", "1d").stderr
    assert "nothing to change" in run(server, "group", "rewind", "orders", "billing", "--to", "6-0").stderr
    assert "not pending there" in run(server, "pending", "ack", "orders", "billing", "9-0").stdout


@pytest.mark.parametrize(
    "words", [("dead", "retry", "orders"), ("dead", "rm", "orders"), ("pending", "dead", "orders", "billing")]
)
def test_an_open_choice_names_the_ways_to_choose(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """Without ids or options the command selects nothing, and the error lists the ways to select."""
    fill(client)
    client.xadd("orders:dead", {"a": "1"})
    assert "chosen. Give their IDs, options such as --" in run(server, *words, code=2).stderr


USAGE = [
    ("group", "rewind", "orders", "billing"),
    ("group", "rewind", "orders", "billing", "--to", "end", "--like", "x"),
    ("group", "rewind", "orders", "billing", "--to", "soon"),
    ("group", "create", "orders", "second", "--at", "-5"),
    ("pending", "ack", "orders", "billing"),
    ("pending", "ack", "orders", "billing", "1-0", "--all"),
    ("pending", "ack", "orders", "billing", "one"),
    ("pending", "claim", "orders", "billing", "1-0"),
    ("pending", "nack", "orders", "billing", "1-0", "--mode", "loud"),
    ("pending", "ack", "orders", "billing", "--idle", "long"),
]
MISSING = [
    ("group", "rewind", "nowhere", "billing", "--to", "end"),
    ("group", "rewind", "orders", "nobody", "--to", "end"),
    ("group", "rewind", "orders", "billing", "--like", "nobody"),
    ("group", "create", "nowhere", "billing"),
    ("consumer", "rm", "orders", "billing", "nobody"),
    ("stream", "rm", "nowhere"),
    ("audit", "undo", "nothing"),
]
REFUSED = [
    ("group", "rewind", "orders", "billing", "--to", "99-0"),
    ("group", "create", "orders", "billing"),
    ("consumer", "rm", "orders", "billing", "web", "--claim-to", "web"),
]
CODES = [(code, words) for code, every in ((2, USAGE), (4, MISSING), (5, REFUSED)) for words in every]


@pytest.mark.parametrize(("code", "words"), CODES)
def test_what_cannot_be_is_refused(
    server: ServerProcess, client: redis.Redis, code: int, words: tuple[str, ...]
) -> None:
    """Exit codes are 2 for a wrong command line, 4 for a missing name, 5 for a refusal by the facts.

    Nothing changes.
    """
    fill(client)
    before = state(client)
    done = run(server, *words, "--yes", code=code)
    assert (done.stdout, "Traceback" in done.stderr, state(client)) == ("", False, before)


NAMES = ["\x1b[2Jx", "a\nb", "[red]x[/]", "two words", "$(x)", "\udcff", "\u202e", "-x"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_strangers_chose_move_no_cursor(server: ServerProcess, client: redis.Redis, name: str) -> None:
    """Control characters in names of streams, groups and consumers are escaped in all output of changes."""
    raw = name.encode(errors="surrogateescape")
    client.xadd(raw, {"n": 1}, id="1-0")
    client.xgroup_create(raw, raw, id="0")
    client.xreadgroup(raw, raw, {raw: ">"})
    asked = [
        ("pending", "claim", "--all", f"--to={name}2", "--yes"),
        ("group", "rewind", "--to=start", "--dry-run"),
        ("group", "rewind", "--to=99-0", "--dry-run"),
        ("group", "create", "--at=start", "--dry-run"),
        ("pending", "ack", "--all"),
    ]
    every = [CliRunner().invoke(main, (*words, f"--url={server.url}", "--", name, name)) for words in asked]
    words = ("consumer", "rm", "--dry-run", f"--url={server.url}", "--", name, name, "nobody")
    every.append(CliRunner().invoke(main, words))
    every.append(run(server, "audit", "ls"))
    for done in every:
        assert all(char.isprintable() or char == "\n" for char in done.output), ascii(done.output)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


def test_what_is_in_the_audit_stream_is_shown_escaped(server: ServerProcess, client: redis.Redis) -> None:
    """Foreign entries in the audit stream are shown escaped."""
    client.xadd("millstream:audit", {"action": "\x1b[2J", "who": b"\xff", "line": "=cmd()", "undo": "[bold]", "x": "y"})
    for form in ("table", "json", "jsonl", "csv"):
        done = run(server, "audit", "ls", "-o", form)
        assert all(char.isprintable() or char == "\n" for char in done.output)
    assert "'=cmd()" in run(server, "audit", "ls", "-o", "csv").stdout


def test_what_dead_and_worker_change_is_written_down(server: ServerProcess, client: redis.Redis) -> None:
    """Pauses and changes of dead letters are in the audit stream, with the undo of a pause.

    Commands without effect are not.
    """
    fill(client)
    run(server, "worker", "pause", "orders", "billing", "--reason", "the provider is down")
    run(server, "worker", "resume", "orders", "billing")
    run(server, "worker", "reap", "orders")
    rows = facts(server, "audit", "ls")
    assert [(row["action"], row["stream"], row["group"]) for row in rows] == [
        ("worker resume", "orders", "billing"),
        ("worker pause", "orders", "billing"),
    ]
    assert rows[1]["line"] == "millstream worker pause orders billing --reason 'the provider is down'"
    assert rows[1]["undo"] == "millstream worker resume orders billing"
    letter = DeadLetter((b"n", b"1"), "orders", "1-0", "billing", "c", 5, "error", "no", "", 1, 2)
    for number in (1, 2):
        client.execute_command("XADD", "orders:dead", f"{number}-0", *pack(letter))
    run(server, "dead", "retry", "orders", "1-0")
    run(server, "dead", "rm", "orders", "--reason", "error", "--yes")
    run(server, "dead", "rm", "orders", "--reason", "error", "--yes")
    lines = [row["line"] for row in facts(server, "audit", "ls")]
    assert lines[:-2] == ["millstream dead rm orders:dead --reason error", "millstream dead retry orders:dead 1-0"]


def test_letters_and_orders_are_shown_before(server: ServerProcess, client: redis.Redis) -> None:
    """``--dry-run`` of ``dead`` and ``worker`` commands shows a preview and changes nothing."""
    fill(client)
    letter = DeadLetter((b"n", b"1"), "orders", "1-0", "billing", "c", 5, "error", "ValueError: no", "", 1, 2)
    for number in (1, 2):
        client.execute_command("XADD", "orders:dead", f"{number}-0", *pack(letter))
    client.xgroup_createconsumer("orders", "billing", "left")
    before = (state(client), client.xlen("orders:dead"), client.exists("millstream:control"))
    for words in (
        ("dead", "retry", "orders", "1-0", "9-0"),
        ("dead", "retry", "orders", "--error", "valueerror"),
        ("dead", "rm", "orders", "--all"),
        ("worker", "pause", "orders", "billing", "--reason", "r"),
        ("worker", "reap", "orders", "--idle", "0s"),
    ):
        shown = facts(server, *words, "--dry-run")
        assert (shown["applied"], shown["action"]) == (False, " ".join(words[:2]))
        assert shown["commands"]
        assert shown["before_after"]
        assert "(--dry-run)" in run(server, *words, "--dry-run").stderr
    assert (state(client), client.xlen("orders:dead"), client.exists("millstream:control")) == before
    asked = run(server, "dead", "retry", "orders", "--all", "--dry-run").stdout
    assert "Errors: ValueError 2." in asked


def test_consumers_are_removed_by_a_script_or_not_at_all(server: ServerProcess, client: redis.Redis) -> None:
    """Without the right to run scripts ``worker reap`` is refused, since an entry could arrive before the removal."""
    fill(client)
    client.xgroup_createconsumer("orders", "billing", "left")
    with user(client, "+@all", "-@scripting", "~*") as name:
        url = server.url.replace("redis://", f"redis://{name}")
        done = CliRunner().invoke(main, ["worker", "reap", "orders", "--idle", "0s", "--url", url])
    assert (done.exit_code, "runs no scripts" in done.stderr) == (5, True), done.output
    assert len(client.xinfo_consumers("orders", "billing")) == 2
