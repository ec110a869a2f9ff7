"""Findings grouped by cause, from facts made by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from millstream.ops.findings.advice import Advice, Case
from millstream.ops.findings.causes import Cause, cause_facts, causes_of, explained, find_causes
from millstream.ops.findings.status import (
    LOOKED_AT,
    advice_on,
    evidence_text,
    letters_waiting,
    servers_advice,
    worst_groups,
)
from millstream.ops.groups.status import GroupRate
from millstream.ops.pending.status import PendingEntry
from millstream.ops.server.status import ServerStatus, parse_info, server_status
from millstream.ops.streams.status import (
    ConsumerStatus,
    GroupSeen,
    GroupStatus,
    Lag,
    OldestEntry,
    StreamsSeen,
    StreamStatus,
)
from millstream.ops.workers.status import VanishedWorker, WorkersSeen, WorkerStatus, worker_status
from millstream.worker.model.pause import HandlerPause
from ops.test_fleet import FACTS, SUBSCRIBER

NOW = 1_763_721_700_000
OLD = OldestEntry(f"{NOW - 900_000}-0")


def worker(name: str, *subscribers: tuple[str, str, str], blocked: bool = False, **more: Any) -> WorkerStatus:
    """Return a worker that reads streams: key, group and consumer of each."""
    rows = [
        {**SUBSCRIBER, "stream": stream, "group": group, "consumer": consumer, "jobs": [], **more}
        for stream, group, consumer in subscribers
    ]
    state = FACTS["blocked"] if blocked else None
    facts = {**FACTS, "id": name, "beat_ms": NOW, "blocked": state, "subscribers": rows, "last_error": None}
    return worker_status(facts)


def case(
    stream: str, group: str, *consumers: tuple[str, int, int], lag: int = 0, workers: WorkersSeen | None = None
) -> Case:
    """Return the facts about a group: name, pending entries and idle milliseconds of each consumer."""
    pending = sum(each for _, each, _ in consumers)
    one = GroupStatus(
        stream, group, len(consumers), pending, "1-0", 1, Lag(lag), oldest_pending=OLD, oldest_undelivered=OLD
    )
    whole = StreamStatus(stream, lag + pending, "9-0", "1-0", "9-0", lag + pending, None, (one,))
    rows = tuple(ConsumerStatus(stream, group, name, held, idle, idle) for name, held, idle in consumers)
    return Case(GroupSeen(StreamsSeen(NOW, (whole,)), one, rows), (), workers)


def causes(*cases: Case, servers: tuple[ServerStatus, ...] = (), besides: tuple[Advice, ...] = ()) -> list[Cause]:
    return find_causes(advice_on(cases, [*servers_advice(servers), *besides]), cases, servers)


def short(found: list[Cause]) -> list[tuple[str, str, int]]:
    return [(one.kind, one.head.code, len(one.findings)) for one in found]


def test_a_frozen_worker_is_one_cause_of_all_that_it_holds_up() -> None:
    """A blocked worker with sixteen partitions and another group is one cause, before all others, with sums."""
    places = [(f"orders{{{number}}}", "billing", "c1") for number in range(16)]
    seen = WorkersSeen(NOW, (worker("web-1", ("orders", "billing", "c1"), ("mails", "send", "c1"), blocked=True),))
    cases = [case(stream, group, (name, 3, 400_000), lag=9, workers=seen) for stream, group, name in places]
    cases.append(case("mails", "send", ("c1", 2, 400_000), lag=1, workers=seen))
    found = causes(*cases, case("other", "g", lag=5))
    assert short(found) == [("worker", "blocked-worker", 34), ("group", "nobody-reads", 1)]
    assert found[0].says == "the worker web-1 is blocked at bill.py:7 in bill: its event loop does not run"
    assert [one.text() for one in found[0].affects] == [
        "billing on orders: 144 not delivered, 48 pending, in 16 partitions",
        "send on mails: 1 not delivered, 2 pending",
    ]
    assert found[0].head.since_ms == FACTS["blocked"]["since_ms"] + NOW - FACTS["beat_ms"] - (NOW - FACTS["beat_ms"])
    assert found[0].head.remedy == ("millstream", "worker", "show", "web-1")


def test_a_frozen_worker_beside_others_holds_up_only_what_it_has() -> None:
    """While another worker reads the group, only the entries of the frozen one count as held up."""
    seen = WorkersSeen(
        NOW, (worker("web-1", ("orders", "billing", "c1"), blocked=True), worker("web-2", ("orders", "billing", "c2")))
    )
    (found,) = causes(case("orders", "billing", ("c1", 3, 400_000), ("c2", 5, 5), lag=9, workers=seen))
    assert [one.text() for one in found.affects] == ["billing on orders: 3 pending"]


def test_a_process_that_is_gone_is_one_cause() -> None:
    """Consumers of one process in several groups are one cause, and that nobody reads their groups follows from it."""
    seen = WorkersSeen(NOW)
    names = ["web-4711-abc123", "web-4711-def456"]
    found = causes(
        case("orders", "billing", (names[0], 3, 400_000), lag=9, workers=seen),
        case("mails", "send", (names[1], 2, 400_000), lag=1, workers=seen),
    )
    assert short(found) == [("consumer", "stuck-consumer", 4)]
    assert "the process 'web-4711' has sent no request for" in found[0].says
    assert found[0].head.remedy == ("millstream", "worker", "ls")
    assert sum(one.lag for one in found[0].affects) == 10


def test_a_group_of_several_gone_processes_is_a_group_without_workers() -> None:
    """If several processes of a group are gone, the cause is that the group has no workers."""
    rows = (("a", 3, 400_000), ("b", 2, 500_000))
    (found,) = causes(case("orders", "billing", *rows, lag=9, workers=WorkersSeen(NOW)))
    assert (found.kind, found.head.code, len(found.findings)) == ("group", "nobody-reads", 3)


def test_a_pause_explains_what_waits() -> None:
    """A paused group is one cause, whatever waits in it."""
    pause = HandlerPause("orders", "billing", "the provider is down", "ann", NOW - 5000)
    seen = WorkersSeen(NOW, pauses=(pause,))
    rows = (("a", 3, 400_000), ("", 2, 500_000))
    found = causes(case("orders", "billing", *rows, lag=9, workers=seen))
    assert ("pause", "paused") in [(one.kind, one.head.code) for one in found]
    (paused,) = [one for one in found if one.kind == "pause"]
    assert paused.head.since_ms == NOW - 5000


def test_a_limit_that_holds_a_group_up_is_named() -> None:
    """A limit with waiting entries in a group with old entries is a cause. A young group is not held up."""
    limit = {"name": "crm", "rate": "30/m", "running": None, "by_key": False, "in_use": 0, "granted": 1, "refused": 2}
    rows = worker("web-1", ("calls", "crm", "c1"), limits=[{**limit, "waiting": 12}])
    seen = WorkersSeen(NOW, (rows,))
    held = case("calls", "crm", ("c1", 12, 5), lag=9, workers=seen)
    (found,) = causes(held)
    assert (found.kind, found.says) == (
        "limit",
        "the limit 'crm' holds the group up: 12 entries in hand or put aside for a permit",
    )
    young = replace(held.seen.group, oldest_pending=OldestEntry(f"{NOW}-0"), oldest_undelivered=OldestEntry(f"{NOW}-0"))
    assert causes(replace(held, seen=replace(held.seen, group=young))) == []


def test_a_rate_without_keys_is_the_cause_that_the_lag_grows() -> None:
    """Workers that wait for permits before they read have no waiting entries, and their limit is named all the same.

    A frozen worker beside them gets no blame for it.
    """
    limit = {"name": "mails", "rate": "5/s", "running": None, "by_key": False, "in_use": 0, "granted": 1, "refused": 2}
    awake = worker("web-1", ("mails", "mails", "c1"), limits=[{**limit, "waiting": 0, "refused_ms": 40}])
    frozen = worker("web-2", ("mails", "mails", "c2"), blocked=True)
    young = OldestEntry(f"{NOW - 60_000}-0")
    for others in ((), (frozen,)):
        rows = [("c1", 0, 5), ("c2", 1, 90_000)] if others else [("c1", 0, 5)]
        held = case("mails", "mails", *rows, lag=2107, workers=WorkersSeen(NOW, (awake, *others)))
        fresh = replace(held.seen.group, oldest_pending=young, oldest_undelivered=young)
        grows = replace(
            held,
            seen=replace(held.seen, group=fresh),
            rate=GroupRate(added=6.0, delivered=5.0, lag_change=10, drain_ms=None),
        )
        for one in (held, grows):
            found = {each.kind: each for each in causes(one)}
            assert found["limit"].says == "the limit 'mails' (5/s) holds the group up: its workers wait for permits"
            assert found["limit"].affects[0].text().startswith("mails on mails: 2,107 not delivered")
            assert explained(found.values())["mails", "mails"].kind == "limit"
            if others:
                assert [each.text() for each in found["worker"].affects] == ["mails on mails: 1 pending"]
    earlier = worker("web-1", ("mails", "mails", "c1"), limits=[{**limit, "waiting": 0}])
    assert causes(case("mails", "mails", ("c1", 0, 5), lag=9, workers=WorkersSeen(NOW, (earlier,)))) == []


FULL = "used_memory:100\nmaxmemory:100\n"
DISK = "aof_last_write_status:err\nrole:master\n"
REPLICA = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:up\n"


@pytest.mark.parametrize(
    ("info", "error", "expected"),
    [
        (DISK, None, [("server", "writes-refused", 2)]),
        (FULL, "OOM command not allowed", [("server", "out-of-memory", 2)]),
        (FULL, None, [("server", "out-of-memory", 1), ("group", "nobody-reads", 1)]),
        (REPLICA, None, [("server", "read-only", 2)]),
    ],
)
def test_a_server_in_trouble_explains_what_fails_to_write(
    info: str, error: str | None, expected: list[tuple[str, str, int]]
) -> None:
    """A server that refuses all writes explains groups that stand still. Full memory does if a worker was refused."""
    one = replace(worker("web-1", ("orders", "billing", "c1")), error=error)
    held = case("orders", "billing", ("c1", 0, 400_000), lag=9, workers=WorkersSeen(NOW, (one,)))
    found = causes(held, servers=(server_status(parse_info(info), NOW),))
    assert sorted(short(found)) == sorted(expected)
    assert found[0].says.startswith("the server: ")


def test_an_entry_that_fails_is_one_cause_with_the_key_that_it_blocks() -> None:
    """A failing entry and the key that waits for it are one cause, and notifications do not name the key."""
    held = {"stream": "orders", "key": "customer-7", "id": "5-0", "waiting": 3, "since_ms": NOW - 9, "error": "no card"}
    seen = WorkersSeen(NOW, (worker("web-1", ("orders", "billing", "c1"), held_up=[held]),))
    failing = replace(
        case("orders", "billing", ("c1", 1, 5), workers=seen),
        pending=(PendingEntry("orders", "billing", "5-0", "c1", 5, 9),),
    )
    (found,) = causes(failing)
    assert (found.kind, {one.code for one in found.findings}) == ("entry", {"held-up", "delivered-often"})
    assert "customer-7" in found.says
    assert "customer-7" not in found.plain
    assert "no card" not in found.plain


def test_a_lag_that_is_unknown_counts_as_a_lower_bound() -> None:
    """A group with an unknown lag is held up with at least the known number of entries."""
    held = case("orders", "billing", lag=9)
    unknown = replace(held.seen.group, lag=Lag(None, reason="position-set", at_least=4, why="it was set"))
    found = causes(replace(held, seen=replace(held.seen, group=unknown)))
    (waits,) = [one for one in found if one.head.code == "nobody-reads"]
    assert [one.text() for one in waits.affects] == ["billing on orders: at least 4 not delivered"]
    (hint,) = [one for one in found if one.head.code == "lag-unknown"]
    assert hint.head.evidence["lag_at_least"] == 4


def test_each_finding_has_one_cause_with_a_lasting_name() -> None:
    """Each finding belongs to one cause. Its id is the same in each reading, and differs from all others."""
    found = causes(case("a", "g", lag=5), case("b", "g", lag=5))
    again = causes(case("b", "g", lag=7), case("a", "g", lag=8))
    assert {one.id for one in found} == {one.id for one in again}
    assert len({one.id for one in found}) == 2
    assert sorted(causes_of(found).values()) == sorted(one.id for one in found)
    assert explained(found) == {}
    assert json.loads(json.dumps(cause_facts(found[0])))["affects"][0]["group"] == "g"


def test_evidence_does_not_repeat_the_sentence() -> None:
    """No figure or name of the evidence is in the sentence already."""
    seen = WorkersSeen(NOW, (worker("web-1", ("mails", "send", "c1"), blocked=True),))
    for cause in causes(
        case("orders", "billing", ("consumer-a", 31, 400_000), ("consumer-b", 12, 5), lag=79, workers=WorkersSeen(NOW)),
        case("mails", "send", ("c1", 27, 400_000), lag=58, workers=seen),
        servers=(server_status(parse_info(FULL), NOW),),
    ):
        for one in cause.findings:
            values = [part.rpartition(" ")[2] for part in evidence_text(one).split("; ") if part]
            assert [value for value in values if len(value) > 1 and value in one.says.split()] == [], one


def test_a_frozen_worker_is_first_beside_many_old_groups() -> None:
    """Groups that nobody has ever read hide no frozen worker, and a worker without a looked-at group is named too."""
    seen = WorkersSeen(
        NOW,
        (
            worker("web-1", ("orders", "billing", "c1"), blocked=True),
            replace(worker("web-2", ("mails", "send", "c2")), beat_ms=NOW - 17_000),
            worker("web-3", ("mails", "send", "c3")),
        ),
    )
    young = OldestEntry(f"{NOW - 60_000}-0")
    rows = [case(f"legacy-{number}", "old-group", lag=1, workers=seen) for number in range(30)]
    rows += [case("orders", "billing", ("c1", 3, 90_000), lag=2, workers=seen)]
    streams = [one.seen.stream for one in rows[:-1]]
    group = replace(rows[-1].seen.group, oldest_pending=young, oldest_undelivered=young)
    streams.append(replace(rows[-1].seen.stream, groups=(group,)))
    chosen = worst_groups(StreamsSeen(NOW, tuple(streams)), seen)
    assert chosen[0] is group
    assert [one.stream for one in chosen[1:]] == [f"legacy-{number}" for number in range(LOOKED_AT)]
    looked = [one for one in rows if one.seen.group.stream in {each.stream for each in chosen}]
    for cases in (looked, looked[:-1]):
        found = find_causes(advice_on(cases, workers=seen), cases, workers=seen)
        assert [one.head.code for one in found[:3]] == ["blocked-worker", "silent-worker", "nobody-reads"]
        assert found[1].says == "the worker web-2 has sent no heartbeat for 17.0 s: its process is frozen or gone"
        assert found[1].affects[0].text() == "send on mails: 4 pending"


def test_groups_with_old_pending_entries_have_their_turn() -> None:
    """Groups with many undelivered entries and idle consumers leave room for those with the oldest pending entries."""
    rows = [case(f"a-{number}", "g", ("c", 0, 5), lag=9) for number in range(30)]
    young = OldestEntry(f"{NOW - 60_000}-0")
    rows = [replace(one.seen.group, oldest_pending=OldestEntry()) for one in rows]
    rows.append(replace(case("orders", "billing", ("c1", 3, 5)).seen.group, oldest_pending=young))
    streams = [StreamStatus(one.stream, 9, "9-0", "1-0", "9-0", 9, None, (one,)) for one in rows]
    assert "orders" in [one.stream for one in worst_groups(StreamsSeen(NOW, tuple(streams)))[:2]]


def test_a_handler_that_freezes_each_new_process_is_one_cause() -> None:
    """The name of a cause has the handlers of a worker and not its id, so a restart does not change it."""

    def found(*names: str) -> list[Cause]:
        rows = [worker(name, ("orders", "billing", f"c-{name}"), blocked=True) for name in names]
        seen = WorkersSeen(NOW, (*rows, worker("web-9", ("orders", "billing", "c9"), ("mails", "send", "c9"))))
        one = case("orders", "billing", *((f"c-{name}", 3, 90_000) for name in names), workers=seen)
        return causes(one)

    (first,), (again,), (both,) = found("web-1-71-aaaaaa"), found("web-1-72-bbbbbb"), found("web-1-73-c", "web-2-74-d")
    assert first.id == again.id == both.id
    assert both.says.endswith("its event loop does not run; 1 other worker of its handlers froze too")
    assert both.affects[0].text() == "billing on orders: 6 pending"


def test_the_text_of_an_alert_names_the_group() -> None:
    """Alerts have no page with a title beside them, so the text of each has its stream and group."""
    rows = [case(f"legacy-{number}", "old-group", lag=1, workers=WorkersSeen(NOW)) for number in range(2)]
    texts = [one.plain for one in causes(*rows)]
    assert [text.partition(": ")[0] for text in texts] == ["old-group on legacy-0", "old-group on legacy-1"]


def test_a_finding_has_the_beginning_that_is_known() -> None:
    """An unread group has waited since its oldest entry, dead letters since the first one; no fact is stated twice."""
    alone = case("orders", "billing", lag=5, workers=WorkersSeen(NOW))
    (found,) = causes(alone)
    assert (found.head.since_ms, evidence_text(found.findings[0])) == (NOW - 900_000, "lag 5")
    group = replace(alone.seen.group, lag=Lag(None, at_least=5, reason="position"))
    found, unknown = causes(replace(alone, seen=replace(alone.seen, group=group)))
    assert (unknown.head.code, unknown.head.since_ms) == ("lag-unknown", NOW - 900_000)
    letters = StreamStatus("orders:dead", 3, "9-0", f"{NOW - 70_000}-0", f"{NOW - 5}-0", 3, None, ())
    (dead,) = letters_waiting(StreamsSeen(NOW, (letters,)))
    assert dead.since_ms == NOW - 70_000


def test_a_stopped_process_comes_before_old_groups() -> None:
    """The record of a stopped process ends after seconds. Its consumer then connects it with the entries it holds."""
    names = ("web-1-4711-abc123", "web-2-4712-def456")
    gone = tuple(VanishedWorker(name, NOW - 90_000) for name in names)
    seen = WorkersSeen(NOW, (worker("web-3", ("orders", "billing", "c3")),), vanished=gone)
    rows = [case(f"legacy-{number}", "old-group", lag=1, workers=seen) for number in range(20)]
    rows.append(case("orders", "billing", ("web-1-4711-ffffff", 3, 90_000), ("c3", 1, 5), lag=2, workers=seen))
    first = causes(*rows)[0]
    assert (first.kind, first.level) == ("consumer", "problem")
    assert first.says == (
        "the worker web-1-4711-abc123 has sent no heartbeat for 1 min 30 s: its process is frozen or gone, "
        "and holds 3 entries"
    )
