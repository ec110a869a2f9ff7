"""Delayed entries in all interfaces: shown with their due time, without an early alert, and run at once on request."""

import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.client.delays.due import key
from millstream.ops import making
from millstream.ops.audit import Actor
from millstream.ops.findings.advice import advise
from millstream.ops.findings.reading import read_case
from millstream.ops.groups.status import is_left, is_stuck
from support.changes import planned
from support.console import ConsoleThread
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

HOUR = 3_600_000
T = "176372160000"  # of ids, but for their last digit
ONE, TWO, THREE = (f"{T}{number}-0" for number in (1, 2, 3))
DUE = key("orders", "billing")


@pytest.fixture
def delayed(client: redis.Redis) -> redis.Redis:
    """Two entries that are due in 42 minutes and whose workers are gone, and one that a worker left pending."""
    client.xgroup_create("orders", "billing", "0", mkstream=True)
    for number in (1, 2, 3):
        client.xadd("orders", {"n": number}, id=f"{T}{number}-0")
    client.xreadgroup("billing", "web", {"orders": ">"})
    client.xclaim("orders", "billing", "(retry)", 0, [ONE, TWO], idle=HOUR, retrycount=1, justid=True)
    seconds, micros = client.time()
    due = int(seconds) * 1000 + int(micros) // 1000 + 42 * 60_000 + 30_000
    client.zadd(DUE, {ONE: due, TWO: due, "9-9": due, "old": 1})
    return client


def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, [*words, "--url", server.url])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


@pytest.mark.usefixtures("delayed")
def test_each_door_shows_when_an_entry_is_due(server: ServerProcess) -> None:
    """The shell, JSON and the console's page show when a delayed entry is due."""
    rows = json.loads(run(server, "pending", "ls", "orders", "billing", "-o", "json").stdout)
    assert [(row["id"], (row["due_in_ms"] or 0) // 60_000) for row in rows] == [(ONE, 42), (TWO, 42), (THREE, 0)]
    assert rows[2]["due_in_ms"] is None
    for words in (("pending", "ls", "orders", "billing"), ("stream", "get", "orders", ONE)):
        assert "42 min" in run(server, *words).stdout
    (group,) = json.loads(run(server, "group", "ls", "-o", "json").stdout)
    assert (group["pending"], group["delayed"]) == (3, 2)
    with ConsoleThread(server.url) as console:
        for path in ("/group?key=orders&group=billing", f"/entry?key=orders&id={ONE}"):
            assert "due in 42 min" in console.ask(path).text
        assert "due in" not in console.ask(f"/entry?key=orders&id={THREE}").text
        (place,) = console.ask(f"/entry.json?key=orders&id={ONE}").facts["groups"]
        assert place["due_in_ms"] // 60_000 == 42


def test_what_is_delayed_is_neither_stuck_nor_an_alert(server: ServerProcess, look: Any, delayed: redis.Redis) -> None:
    """A delayed entry is neither a finding nor part of the oldest-pending alert."""
    case = look(lambda line: read_case(line, "orders", "billing"))
    assert case.seen.group.oldest_pending.id == THREE
    delayed.xack("orders", "billing", THREE)
    case = look(lambda line: read_case(line, "orders", "billing"))
    assert (case.seen.group.oldest_pending.id, case.seen.group.delayed) == (None, 2)
    assert not is_stuck(case.seen.group, case.seen.at_ms)
    assert not any(is_left(entry) for entry in case.pending)
    assert {one.code for one in advise(case)} & {"untried", "stuck-consumer", "idle-consumer"} == set()
    run(server, "check", "--pending-age", "1m,5m")
    delayed.delete(DUE)
    case = look(lambda line: read_case(line, "orders", "billing"))
    assert case.seen.group.oldest_pending.id == ONE
    assert any(is_left(entry) for entry in case.pending)


@pytest.mark.parametrize("what", ["claim", "nack", "ack"])
def test_a_persons_word_ends_a_delay_and_the_preview_says_so(look: Any, delayed: redis.Redis, what: str) -> None:
    """An operator's claim, nack or ack ends an entry's delay in the same step.

    The preview says so, and no undo restores it.
    """
    make: Any = {
        "claim": lambda line, ids: planned(line, "pending claim", "orders", "billing", ids=ids, to="me"),
        "nack": lambda line, ids: planned(line, "pending nack", "orders", "billing", ids=ids),
        "ack": lambda line, ids: planned(line, "pending ack", "orders", "billing", ids=ids),
    }[what]
    prepared = look(lambda line: make(line, f"{ONE} {THREE}"))
    assert any(note.startswith("1 entry of them waits until a delay is over") for note in prepared.plan.notes)
    assert sum(command[0] == "ZREM" for command in prepared.plan.commands) == 1
    outcome = look(lambda line: making.carry_out(line, prepared, Actor("alice", "here", "console"), "c1"))
    assert outcome.whole
    assert outcome.done == 2
    assert delayed.zscore(DUE, ONE) is None
    assert delayed.zscore(DUE, TWO)
    plain = look(lambda line: make(line, THREE))
    assert not any("delay" in note for note in plain.plan.notes)


def test_a_hostile_key_of_due_times_hides_nothing(server: ServerProcess, delayed: redis.Redis) -> None:
    """An invalid key of due times hides no pending entries."""
    for hostile in (("SET", DUE, "x"), ("ZADD", DUE, "inf", ONE, "-inf", TWO, "1e300", THREE)):
        delayed.delete(DUE)
        delayed.execute_command(*hostile)
        rows = json.loads(run(server, "pending", "ls", "orders", "billing", "-o", "json").stdout)
        assert [row["due_in_ms"] for row in rows] == [None] * 3
        assert json.loads(run(server, "group", "ls", "-o", "json").stdout)[0]["delayed"] in (None, 0)
        run(server, "stream", "get", "orders", ONE)
