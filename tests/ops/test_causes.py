"""Findings grouped by cause, from facts made by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from millstream.ops.findings.advice import Advice, Case
from millstream.ops.findings.causes import Cause, cause_facts, causes_of, explained, find_causes
from millstream.ops.findings.status import advice_on, evidence_text, servers_advice
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
from millstream.ops.workers.status import WorkersSeen, WorkerStatus, worker_status
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
