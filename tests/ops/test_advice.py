"""Advice on a group from facts read on real servers, and from facts made by hand."""

from dataclasses import replace
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client import emulate
from millstream.ops.findings.advice import Advice, Case, advise
from millstream.ops.findings.reading import read_case
from millstream.ops.findings.status import advice_on, by_kind, letters_waiting
from millstream.ops.groups.status import GroupRate
from millstream.ops.pending.status import FATAL, PendingEntry
from millstream.ops.streams.reading import overview
from millstream.ops.streams.status import WAITING
from millstream.ops.watching.servers import ConsoleServer
from millstream.ops.workers.status import EndedWorker, VanishedWorker, WorkersSeen, worker_status
from millstream.worker.model.pause import HandlerPause
from ops.conftest import Look
from ops.test_fleet import FACTS

KEY, NAME = "orders", "billing"

pytestmark = pytest.mark.realserver


@pytest.fixture
def case(client: redis.Redis, look: Look[Any]) -> Case:
    """A group of ten entries with five delivered: c1 holds three and c2 two."""
    for number in range(1, 11):
        client.xadd(KEY, {"n": number}, id=f"{number}-0")
    client.xgroup_create(KEY, NAME, id="0")
    client.xreadgroup(NAME, "c1", {KEY: ">"}, count=3)
    client.xreadgroup(NAME, "c2", {KEY: ">"}, count=2)
    found: Case = look(lambda line: read_case(line, KEY, NAME))
    return found


def idle(case: Case, **consumers: int) -> Case:
    """Return the case with other idle times."""
    found = tuple(replace(one, idle_ms=consumers[one.name]) for one in case.seen.consumers)
    return replace(case, seen=replace(case.seen, consumers=found))


def codes(case: Case) -> list[str]:
    return [advice.code for advice in advise(case)]


def only(case: Case, code: str) -> Advice:
    (found,) = [advice for advice in advise(case) if advice.code == code]
    return found


def test_a_group_that_works_needs_no_advice(case: Case) -> None:
    """A group with entries in work and waiting consumers gets no advice."""
    assert codes(case) == []


def test_a_consumer_that_holds_entries_and_is_gone_is_found(case: Case) -> None:
    """Advice names a consumer that is gone, its entries, its idle time, and a consumer that could take them."""
    found = only(idle(case, c1=400_000, c2=5), "stuck-consumer")
    assert (found.level, found.consumer, found.evidence["pending"], found.evidence["idle_ms"]) == (
        "problem",
        "c1",
        3,
        400_000,
    )
    assert found.remedy == ("millstream", "pending", "claim", KEY, NAME, "--consumer", "c1", "--to", "c2")
    assert codes(idle(case, c1=59_999, c2=5)) == []
    alone = [advice for advice in advise(idle(case, c1=400_000, c2=400_000)) if advice.code == "stuck-consumer"]
    looks = [("millstream", "pending", "ls", KEY, NAME, "--consumer", name, "--payload") for name in ("c1", "c2")]
    assert [advice.remedy for advice in alone] == looks


def named(case: Case, **names: str) -> Case:
    """Return the case with other consumer names."""
    found = tuple(replace(one, name=names.get(one.name, one.name)) for one in case.seen.consumers)
    return replace(case, seen=replace(case.seen, consumers=found))


def test_what_waits_for_its_next_try_is_no_consumer(case: Case) -> None:
    """Entries that wait for a retry are not advised to be claimed.

    They are a finding only if no worker reads the group.
    """
    assert emulate.WAITING.decode() == WAITING
    beside = named(idle(case, c1=400_000, c2=5), c2=WAITING)
    stuck = only(beside, "stuck-consumer")
    assert (stuck.consumer, stuck.remedy[1:3] if stuck.remedy else ()) == ("c1", ("pending", "ls"))
    alone = named(idle(case, c1=400_000, c2=400_000), c2=WAITING)
    assert (
        only(alone, "untried").says
        == "2 entries wait for their next try, and no worker reads the group: start its workers"
    )
    worker = replace(worker_status(FACTS), blocked_at=None)
    unknown = replace(named(idle(case, c1=5, c2=400_000), c2=WAITING), workers=WorkersSeen(1, (), why="may not look"))
    for somebody in (replace(alone, workers=WorkersSeen(1, (worker,))), unknown):
        assert "untried" not in codes(somebody)


def test_a_consumer_that_may_be_stuck_is_to_be_looked_at(case: Case) -> None:
    """A consumer that is idle while others work is a warning if worker records are readable."""
    found = only(idle(case, c1=60_000, c2=5), "idle-consumer")
    assert (found.level, found.consumer, found.evidence["pending"], found.evidence["others"]) == ("warning", "c1", 3, 1)
    assert found.remedy == ("millstream", "pending", "ls", KEY, NAME, "--consumer", "c1", "--payload")
    quiet = idle(case, c1=59_000, c2=59_000)
    for one in (idle(case, c1=60_000, c2=60_000), replace(quiet, workers=WorkersSeen(1, why="no rights"))):
        assert "idle-consumer" not in codes(one)
    told = idle(case, c1=60_000, c2=5)
    assert codes(replace(told, workers=None)) == codes(replace(told, workers=WorkersSeen(1, why="no rights"))) == []


def test_what_helps_a_group_that_nobody_reads_fits_who_reads_it(case: Case) -> None:
    """The remedy for an unread group lists its workers or consumers, or else starts a worker."""
    away = idle(case, c1=100_000, c2=60_000)
    assert only(away, "nobody-reads").remedy == ("millstream", "consumer", "ls", KEY, NAME)
    worker = replace(worker_status(FACTS), blocked_at=None, beat_ms=away.seen.at_ms)
    named = replace(away, workers=WorkersSeen(1, (worker,)))
    assert only(named, "nobody-reads").remedy == ("millstream", "worker", "ls")
    nobody = only(replace(away, seen=replace(away.seen, consumers=())), "nobody-reads")
    assert (nobody.remedy, "XREADGROUP" in nobody.says) == (("millstream", "run", "MODULE:APP"), False)
    assert ConsoleServer("redis://other:1/0").command_line(*(nobody.remedy or ())[1:])[1:] == ["run", "MODULE:APP"]


def test_frozen_workers_are_the_reason_that_nobody_reads(case: Case) -> None:
    """If all workers of an unread group are blocked or silent, advice names them with source line or silence."""
    away = idle(case, c1=100_000, c2=60_000)
    blocked = worker_status(FACTS)
    silent = replace(blocked, id="web-2", blocked_at=None, beat_ms=away.seen.at_ms - 18_000)
    found = only(replace(away, workers=WorkersSeen(1, (silent, blocked))), "nobody-reads")
    assert found.says == "entries wait and all 2 workers of the group are frozen: web-1 is blocked at bill.py:7 in bill"
    assert (found.remedy, found.evidence["frozen"]) == (("millstream", "worker", "show", "web-2"), ["web-2", "web-1"])
    alone = only(replace(away, workers=WorkersSeen(1, (silent,))), "nobody-reads")
    assert alone.says.endswith("the worker that reads the group is frozen: web-2 has sent no heartbeat for 18.0 s")
    # The server would have dropped an older record, so its host's clock is behind
    skewed = replace(silent, beat_ms=away.seen.at_ms - 40_000)
    assert "frozen" not in only(replace(away, workers=WorkersSeen(1, (skewed,))), "nobody-reads").says
    awake = replace(silent, id="web-3", beat_ms=away.seen.at_ms)
    assert "frozen" not in only(replace(away, workers=WorkersSeen(1, (blocked, awake))), "nobody-reads").says


def test_only_a_worker_that_read_the_group_is_named_as_gone(case: Case) -> None:
    """A vanished worker is named if the group has a consumer of its process, a drained one if its last record says so.

    A worker of other groups is not named, whatever became of it.
    """
    away = idle(case, c1=100_000, c2=60_000)
    now = away.seen.at_ms
    frozen = VanishedWorker("web-4-71-0a0b0c", now - 90_000)
    plain = only(away, "nobody-reads").says

    def said(case: Case, *ended: EndedWorker) -> str:
        return only(replace(case, workers=WorkersSeen(now, vanished=(frozen,), ended=ended)), "nobody-reads").says

    others = EndedWorker("web-5-72-0a0b0c", now - 60_000, "drain", (("bill", KEY, "audit"),))
    assert said(away, others) == plain
    mine = named(away, c1="web-4-71-ffffff")
    gone = f"{plain}; 1 worker of it vanished without signing off, web-4-71-0a0b0c 1 min 30 s ago"
    assert said(mine, others) == gone
    for order, how in (("drain", "was drained"), ("stop", "was stopped by order"), (None, "ended")):
        last = EndedWorker("web-6-73-0a0b0c", now - 60_000, order, (("bill", KEY, NAME),))
        nobody = replace(away, seen=replace(away.seen, consumers=()))
        for one in (away, mine, nobody):
            assert said(one, others, last).endswith(f"; its last worker web-6-73-0a0b0c {how} 1 min 0 s ago")
        assert said(mine, replace(last, at_ms=now - 95_000)) == gone


def test_findings_of_one_kind_are_together(case: Case) -> None:
    """Findings are grouped by kind over all groups, in order of first appearance. Problems and warnings stay apart."""
    away = idle(case, c1=400_000, c2=400_000)
    found = advice_on([away, replace(away, rate=GroupRate(9.0, 5.0, 3, None))])
    assert [(kind[0].code, len(kind)) for kind in by_kind(found)] == [
        ("stuck-consumer", 4), ("nobody-reads", 2), ("falling-behind", 1),
    ]  # fmt: skip


def test_a_worker_that_stands_still_is_named_with_the_place(case: Case) -> None:
    """Advice for a stuck worker has the worker, the source line and the time from the registry."""
    seen = WorkersSeen(1, (worker_status(FACTS),))
    found = only(replace(case, workers=seen), "blocked-worker")
    assert (found.evidence["where"], found.evidence["blocked_ms"]) == ("bill.py:7 in bill", 3000)
    assert found.remedy == ("millstream", "worker", "show", "web-1")


def test_a_handler_that_takes_long_is_named(case: Case) -> None:
    """A consumer whose worker is alive is not reported as gone. Its longest job is."""
    worker = replace(worker_status(FACTS), blocked_at=None, beat_ms=case.seen.at_ms)
    sub, job = worker.subscribers[0], worker.jobs[0]
    for long, codes_then in ((299_999, []), (300_000, ["long-job"])):
        there = (replace(sub, jobs=(replace(job, for_ms=long),)),)
        seen = WorkersSeen(1, (replace(worker, subscribers=there),))
        found = [one for one in advise(replace(idle(case, c1=10**7, c2=5), workers=seen)) if one.code == "long-job"]
        assert [one.code for one in found] == codes_then
    assert (found[0].evidence["entry"], found[0].evidence["for_ms"]) == ("1-0", 300_000)


def test_a_group_that_nobody_reads_is_found(case: Case) -> None:
    """Advice reports a group that no consumer reads, and a pause as the reason if there is one."""
    away = idle(case, c1=100_000, c2=60_000)
    assert codes(away) == ["nobody-reads"]
    pause = HandlerPause(KEY, NAME, "the card provider is down", "ann", 5)
    paused = only(replace(away, workers=WorkersSeen(1, pauses=(pause,))), "paused")
    assert paused.remedy == ("millstream", "worker", "resume", KEY, NAME)


def test_entries_that_fail_again_and_again_are_found(case: Case) -> None:
    """Advice reports entries that were delivered often, released as fatal, or gone from the stream."""

    def entry(number: int, deliveries: int, gone: bool = False) -> PendingEntry:
        return PendingEntry(KEY, NAME, f"{number}-0", "c1", 5, deliveries, gone=gone)

    found = replace(case, pending=(entry(1, 4), entry(2, 5), entry(3, 9), entry(4, FATAL), entry(5, 1, gone=True)))
    assert codes(found) == ["fatal", "delivered-often", "gone"]
    assert only(found, "delivered-often").evidence == {"entries": 2, "worst": "3-0", "deliveries": 9}
    assert only(found, "gone").raw == (("XACK", KEY, NAME, "5-0"),)
    assert only(found, "gone").remedy == ("millstream", "pending", "ack", KEY, NAME, "--gone")


def test_what_was_trimmed_too_early_is_found(client: redis.Redis, look: Look[Any], case: Case) -> None:
    """Advice reports entries that were trimmed before delivery, and pending entries that are gone."""
    client.xtrim(KEY, maxlen=2, approximate=False)
    found = look(lambda line: read_case(line, KEY, NAME))
    assert codes(found) == ["lost-entries", "gone"]
    assert only(found, "lost-entries").evidence["entries_added"] == 10
    assert only(found, "lost-entries").says.endswith(": 3 entries")
    assert only(found, "gone").evidence["entries"] == 5


def test_an_unknown_lag_is_said_with_its_repair(client: redis.Redis, look: Look[Any], case: Case) -> None:
    """Advice for an unknown lag gives ``group rewind`` as the remedy, and the raw command with a warning."""
    client.xgroup_setid(KEY, NAME, "5-0")
    found = only(look(lambda line: read_case(line, KEY, NAME)), "lag-unknown")
    assert found.raw == (("XGROUP", "SETID", KEY, NAME, "5-0", "ENTRIESREAD", "5"),)
    assert found.remedy == ("millstream", "group", "rewind", KEY, NAME, "--to", "+0")
    assert "delivered again" in str(found.evidence["note"])


def test_what_nobody_holds_and_what_is_left_behind_is_said(client: redis.Redis, look: Look[Any], case: Case) -> None:
    """Entries without an owner and old empty consumers are reported with their remedies."""
    client.xclaim(KEY, NAME, "", 0, ["2-0"], time=1, justid=True)
    client.xgroup_createconsumer(KEY, NAME, "old")
    found = idle(look(lambda line: read_case(line, KEY, NAME)), **{"": 5, "c1": 5, "c2": 5, "old": 86_400_000})
    assert codes(found) == ["unowned", "left-behind"]


def test_a_lag_that_grows_is_said(case: Case) -> None:
    """A growing lag is reported with both rates. A shrinking one is not."""
    grows = replace(case, rate=GroupRate(20.0, 5.0, 30, None))
    assert codes(grows) == ["falling-behind"]
    assert codes(replace(case, rate=GroupRate(5.0, 20.0, -30, 1000))) == []


def test_advice_is_shown_with_the_command_that_helps(server: Any, client: redis.Redis, case: Case) -> None:
    """The shell and the page show the same findings, each with a command ready to run."""
    client.xtrim(KEY, maxlen=2, approximate=False)
    done = CliRunner().invoke(main, ["group", "show", KEY, NAME, "--url", server.url])
    assert done.exit_code == 0, done.output
    assert "trimmed or deleted before" in done.stdout
    assert "millstream pending ack orders billing --gone" in done.stdout


def parsed(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the parsed parameters of a command line; fail if the command line is invalid."""
    command: click.Command = main
    assert words[0] == "millstream"
    rest = list(words[1:])
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), rest.pop(0))
        assert found is not None, words
        command = found
    return command.make_context("millstream", rest).params


@pytest.mark.parametrize("dashes", [False, True])
def test_every_remedy_is_a_command_line_that_is_taken(case: Case, dashes: bool) -> None:
    """Every remedy is a valid command line, also for a stream, group or consumer named like an option."""
    stream, group, consumer = ("--all", "-g", "--yes") if dashes else (KEY, NAME, "c1")
    named = replace(case.seen.group, name=group, stream=stream, unowned=1)
    named = replace(named, lag=replace(named.lag, entries=None, reason="deleted"))
    gone = [replace(one, name=consumer if one.name == "c1" else one.name) for one in case.seen.consumers]
    seen = replace(case.seen, group=named, consumers=tuple(gone))
    every = idle(replace(case, seen=seen), **{consumer: 10**9, "c2": 5})
    entry = PendingEntry(stream, group, "1-0", consumer, 5, 9, gone=True)
    every = replace(every, pending=(entry, replace(entry, deliveries=FATAL)), rate=GroupRate(9.0, 5.0, 3, None))
    quiet = idle(every, **{consumer: 10**9, "c2": 10**9})
    empty = replace(quiet, seen=replace(seen, consumers=tuple(replace(one, pending=0, idle_ms=10**9) for one in gone)))
    blocked = replace(worker_status(FACTS), subscribers=())
    held = replace(worker_status(FACTS).subscribers[0], stream=stream, group=group, consumer=consumer)
    stuck = replace(every, workers=WorkersSeen(1, (replace(blocked, subscribers=(held,)),)))
    paused = replace(quiet, workers=WorkersSeen(1, pauses=(HandlerPause(stream, group, "why", "ann", 5),)))
    remedies = [one.remedy for each in (every, quiet, empty, stuck, paused) for one in advise(each) if one.remedy]
    assert len({words[1:3] for words in remedies}) >= 6
    for words in remedies:
        values = parsed(words).values()
        assert {stream, group} <= set(values) or words[1] in {"worker", "run"}, words


@pytest.mark.parametrize("key", ["orders:dead", "-x:dead", "\x1b[2J\n<b>:dead"])
def test_dead_letters_wait_for_a_person(client: redis.Redis, look: Look[Any], key: str) -> None:
    """Dead letters are a warning until their stream is empty. The remedy works for any stream name."""
    client.xadd(key, {"n": 1}, id="5-0")
    client.xadd("alive", {"n": 1})
    (found,) = letters_waiting(look(overview))
    assert (found.code, found.level, found.stream, found.group) == ("dead-letters", "warning", key, None)
    assert (found.evidence["letters"], found.remedy[-1] if found.remedy else "") == (1, key)
    assert (
        CliRunner().invoke(main, list(found.remedy or ())[1:], env={"MILLSTREAM_URL": "redis://127.0.0.1:1"}).exit_code
        == 3
    )
    assert advice_on([], [found]) == [found]
    client.xtrim(key, maxlen=0, approximate=False)
    assert letters_waiting(look(overview)) == []
