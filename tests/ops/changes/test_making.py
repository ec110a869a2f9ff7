"""Changes on redis-server and Millstream: their effects, their limits, and their undo."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from cli.test_worker import FACTS, enrol
from millstream.client.emulate import WAITING
from millstream.client.line import Line
from millstream.client.open import open_line
from millstream.ops import audit, making
from millstream.ops.asking import NotReadableError
from millstream.ops.audit import Actor
from millstream.ops.every import BY_NAME
from millstream.ops.groups.reading import rewind_facts
from millstream.ops.guard import STEPS, ChangeOutcome, StepResult
from millstream.ops.making import Prepared
from millstream.ops.parameters import StreamPlace
from millstream.ops.plan import BeforeAfter, ChangeRefusedError, HeldEntry
from millstream.ops.rights import rights_on
from millstream.worker.registry import protocol
from support.accounts import user
from support.changes import planned
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

WHO = Actor("alice@laptop", "127.0.0.1", "console")
ORDERS = ("orders", "billing")
Look = Callable[[Callable[[Line], Awaitable[Any]]], Any]


def fill(client: redis.Redis, entries: int = 10, read: int = 6, key: str = "orders") -> None:
    """Add entries 1-0 to n-0, some of them delivered to ``web`` in the group ``billing``."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(1, entries + 1):
            pipe.xadd(key, {"n": number}, id=f"{number}-0")
        pipe.xgroup_create(key, "billing", id="0")
        if read:
            pipe.xreadgroup("billing", "web", {key: ">"}, count=read)
        pipe.execute()


def group(client: redis.Redis, name: str = "billing") -> dict[str, Any]:
    found: list[dict[str, Any]] = client.xinfo_groups("orders")
    return next(each for each in found if each["name"] == name.encode())


def held(client: redis.Redis) -> dict[str, tuple[str, int]]:
    """Return a mapping from pending id to consumer and delivery count."""
    rows: list[dict[str, Any]] = client.xpending_range("orders", "billing", "-", "+", 10_000)
    return {row["message_id"].decode(): (row["consumer"].decode(), row["times_delivered"]) for row in rows}


def do(look: Look, make: Callable[[Line], Awaitable[Prepared]], between: Callable[[], object] | None = None) -> Any:
    """Prepare a change, run an action in between, and carry the change out."""
    prepared: Prepared = look(make)
    if between is not None:
        between()
    return prepared, look(lambda line: making.carry_out(line, prepared, WHO, "c1"))


def changes(look: Look) -> list[audit.AuditEntry]:
    async def every(line: Line) -> list[audit.AuditEntry]:
        return [one async for one in audit.entries(line)]

    found: list[audit.AuditEntry] = look(every)
    return found


REWINDS = {
    "start": ("0-0", 10), "end": ("10-0", 0), "-2": ("4-0", 6), "+2": ("8-0", 2), "-99": ("0-0", 10),
    "+99": ("10-0", 0),
    "3-0": ("3-0", 7), "4": ("3-0", 7), "1": ("0-0", 10), "+0": ("6-0", 4), "5-7": ("5-7", 5), "2": ("1-0", 9),
}  # fmt: skip


@pytest.mark.parametrize("to", REWINDS)
def test_a_group_is_set_to_a_place_and_its_lag_stays_known(look: Look, client: redis.Redis, to: str) -> None:
    """After ``group rewind`` the server reports the lag that the preview showed. The undo restores the position."""
    fill(client)
    before = group(client)
    place, lag = REWINDS[to]
    prepared, outcome = do(look, lambda line: planned(line, "group rewind", *ORDERS, to=to))
    after = group(client)
    assert (after["last-delivered-id"].decode(), after["lag"]) == (place, lag)
    assert BeforeAfter("lag", 4, lag) in prepared.plan.table
    assert abs(lag - 4) == prepared.plan.facts["again"] + prepared.plan.facts["skipped"]
    assert outcome.whole
    if to != "+0":
        do(look, lambda line: planned(line, "group rewind", *ORDERS, to="6-0"))
    assert group(client) == before


def test_a_preview_says_who_reads_the_group_and_how_it_stands_still(look: Look, client: redis.Redis) -> None:
    """The preview of a rewind names the readers of an active group, and the commands that stop them.

    A quiet group needs none.
    """
    fill(client)
    start = lambda line: planned(line, "group rewind", *ORDERS, to="start")  # noqa: E731 - used twice
    note = next(each for each in look(start).plan.notes if "being read" in each)
    assert "by 'web'. If it moves on before you confirm" in note
    assert "stop 'web' first (no worker reports these names); or add --even-if-moved." in note
    subscriber = {**FACTS["subscribers"][0], "stream": "orders", "group": "billing", "consumer": "web"}
    enrol(client, "w", json.dumps({**FACTS, "id": "w", "subscribers": [subscriber]}))
    note = next(each for each in look(start).plan.notes if "being read" in each)
    assert "pause its workers first (`millstream worker pause orders billing --reason rewind`, and" in note
    client.hset(protocol.CONTROL, protocol.pause_field("orders", "billing"), "whatever stands there")
    assert not any("being read" in each for each in look(start).plan.notes)
    client.xgroup_createconsumer("orders", "billing", WAITING)  # the name under which retries wait, not a reader
    assert not any("being read" in each for each in look(start).plan.notes)
    fill(client, read=0, key="quiet")
    quiet = look(lambda line: planned(line, "group rewind", "quiet", "billing", to="end")).plan
    assert (any("being read" in each for each in quiet.notes), "worker pause" in quiet.if_moved) == (False, True)


READ_ON: dict[str, tuple[str, str, str]] = {  # place, where the group stands by then: what becomes of it
    "back": ("start", "9-0", "done"),
    "back, as it was": ("start", "6-0", "done"),
    "back, set back by others": ("start", "3-0", "moved"),
    "on": ("+4", "9-0", "done"),
    "on, just there": ("+3", "9-0", "done"),
    "on, past it": ("+2", "9-0", "moved"),
    "on, two digits": ("end", "10-0", "done"),
}


@pytest.mark.parametrize("case", READ_ON)
@pytest.mark.parametrize("scripts", [True, False], ids=["script", "transaction"])
def test_a_group_that_is_read_on_is_set_all_the_same(
    server: ServerProcess, client: redis.Redis, case: str, scripts: bool
) -> None:
    """A rewind with ``even_if_moved`` of a group that moved only goes in the previewed direction.

    Its lag is known afterwards.
    """
    fill(client)
    place, by_then, became = READ_ON[case]
    with user(client, "~*", "+@all", *(() if scripts else ("-eval",))) as account:
        prepared = by(server, account, lambda line: planned(line, "group rewind", *ORDERS, to=place, even_if_moved="1"))
        client.execute_command("XGROUP", "SETID", "orders", "billing", by_then)
        outcome = by(server, account, lambda line: making.carry_out(line, prepared, WHO, "c1"))
    assert [one.became for one in outcome.results] == [became], outcome.results
    assert outcome.unguarded == (not scripts)
    there = prepared.plan.words[prepared.plan.words.index("--to") + 1]
    assert group(client)["last-delivered-id"].decode() == (there if became == "done" else by_then)
    if became == "done":
        assert group(client)["lag"] == client.xlen("orders") - int(there.partition("-")[0])


def test_ids_of_sixty_four_bits_are_told_apart(look: Look, client: redis.Redis) -> None:
    """64-bit ids that differ in their last digit are told apart, although Lua numbers have 53 bits."""
    high = 2**64 - 10
    for number in (high, high + 1, high + 2):
        client.xadd("orders", {"n": 1}, id=f"{number}-{number}")
    client.xgroup_create("orders", "billing", id=f"{high + 1}-{high + 1}")
    _, outcome = do(
        look,
        lambda line: planned(line, "group rewind", *ORDERS, to="start", even_if_moved="1"),
        lambda: client.xgroup_setid("orders", "billing", f"{high + 1}-{high}"),
    )
    assert [one.why for one in outcome.results] == [
        f"the group 'billing': last-delivered-id is {high + 1}-{high}, before {high + 1}-{high + 1}"
    ]


def test_a_group_is_set_like_another(look: Look, client: redis.Redis) -> None:
    """``group rewind`` to another group's position gives the same lag. A missing group is refused."""
    fill(client)
    client.xgroup_create("orders", "second", id="2-0")
    do(look, lambda line: planned(line, "group rewind", "orders", "second", like="billing"))
    assert (group(client, "second")["last-delivered-id"], group(client, "second")["lag"]) == (b"6-0", 4)
    with pytest.raises(ChangeRefusedError, match="no group 'third'"):
        look(lambda line: planned(line, "group rewind", *ORDERS, like="third"))


def test_a_rewind_mends_a_lag_that_nobody_knew(look: Look, client: redis.Redis) -> None:
    """After XGROUP SETID without ENTRIESREAD the lag is unknown. A rewind to the same position makes it known again."""
    fill(client)
    client.execute_command("XGROUP", "SETID", "orders", "billing", "5-0")
    assert group(client)["lag"] is None
    prepared, _ = do(look, lambda line: planned(line, "group rewind", *ORDERS, to="+0"))
    assert prepared.plan.facts == {"again": 0, "skipped": 0, "pending_in_between": 0}
    assert group(client)["lag"] == 5


def test_a_group_that_moved_since_the_preview_is_left_alone(look: Look, client: redis.Redis) -> None:
    """A group that moved since the preview is not changed.

    The outcome reports the move, and no audit entry is written.
    """
    fill(client)
    make = lambda line: planned(line, "group rewind", *ORDERS, to="start")  # noqa: E731 - used once
    _, outcome = do(look, make, lambda: client.xreadgroup("billing", "web", {"orders": ">"}, count=1))
    assert [(each.became, each.why) for each in outcome.results] == [
        ("moved", "the group 'billing': last-delivered-id was 6-0 and is 7-0")
    ]
    assert group(client)["last-delivered-id"] == b"7-0"
    assert changes(look) == []


def test_more_entries_than_are_counted_leave_the_lag_unknown(look: Look, client: redis.Redis) -> None:
    """If a rewind spans more entries than the count limit, the preview gives the limit as a lower bound and no lag."""
    fill(client, 5_000, 2_500)
    facts = look(lambda line: rewind_facts(line, "orders", "billing", StreamPlace("id", id="1000-0"), most=100))
    assert (facts.between.entries, facts.between.more, facts.there.after) == (100, True, None)
    facts = look(lambda line: rewind_facts(line, "orders", "billing", StreamPlace("id", id="1000-0")))
    assert (facts.between.entries, facts.between.pending, facts.there.after) == (1_500, 1_500, 4_000)


def test_a_group_is_made_where_it_is_to_begin(look: Look, client: redis.Redis) -> None:
    """``group create`` sets the position with a known lag, works once, and creates the stream only on request."""
    fill(client)
    do(look, lambda line: planned(line, "group create", "orders", "second", at="4-0"))
    assert (group(client, "second")["last-delivered-id"], group(client, "second")["lag"]) == (b"4-0", 6)
    with pytest.raises(ChangeRefusedError, match="already"):
        look(lambda line: planned(line, "group create", "orders", "second", at="end"))
    with pytest.raises(ChangeRefusedError, match="--mkstream"):
        look(lambda line: planned(line, "group create", "nowhere", "g", at="end"))
    do(look, lambda line: planned(line, "group create", "nowhere", "g", at="end", mkstream="1"))
    assert client.xinfo_groups("nowhere")[0]["name"] == b"g"
    client.set("text", "x")
    with pytest.raises(NotReadableError, match="holds no stream"):
        look(lambda line: planned(line, "group create", "text", "g", at="end", mkstream="1"))


def test_a_group_that_was_made_meanwhile_is_not_taken_for_ours(look: Look, client: redis.Redis) -> None:
    """A group that another user created since the preview is left as it is, as is its stream."""
    make = lambda line: planned(line, "group create", *ORDERS, at="end", mkstream="1")  # noqa: E731 - used once
    _, outcome = do(look, make, lambda: fill(client))
    assert [each.why for each in outcome.results] == ["the key 'orders' was 0 and is 1"]


def test_a_removed_group_comes_back_with_what_was_pending(look: Look, client: redis.Redis) -> None:
    """The undo of ``group rm`` creates the group again with its position and its pending entries."""
    fill(client)
    before, pending = group(client), held(client)
    prepared, outcome = do(look, lambda line: planned(line, "group rm", *ORDERS))
    assert (outcome.whole, client.xinfo_groups("orders")) == (True, [])
    assert prepared.plan.undo.words[:3] == ("millstream", "group", "create")
    do(look, lambda line: planned(line, "group create", *ORDERS, at="6-0"))
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert held(client) == pending
    assert group(client) == before


def test_a_group_whose_pending_entries_changed_is_not_removed(look: Look, client: redis.Redis) -> None:
    """A group with other pending entries than in the preview is not removed."""
    fill(client)
    make = lambda line: planned(line, "group rm", *ORDERS)  # noqa: E731 - used once
    _, outcome = do(look, make, lambda: client.xack("orders", "billing", "1-0"))
    assert [each.why for each in outcome.results] == ["the group 'billing': pending was 6 and is 5"]
    assert group(client)["pending"] == 5


def test_a_removed_consumer_drops_what_it_holds_and_gets_it_back(look: Look, client: redis.Redis) -> None:
    """``consumer rm`` previews the number of dropped entries.

    Its undo restores consumer, entries and delivery counts.
    """
    fill(client)
    pending = held(client)
    prepared, _ = do(look, lambda line: planned(line, "consumer rm", *ORDERS, consumer="web"))
    assert prepared.plan.facts == {"pending_moved": 0, "pending_dropped": 6}
    assert any("drops 6 entries" in note for note in prepared.plan.notes)
    assert (held(client), client.xinfo_consumers("orders", "billing")) == ({}, [])
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert held(client) == pending


def test_a_removed_consumer_hands_over_first(look: Look, client: redis.Redis) -> None:
    """``consumer rm`` with ``claim_to`` moves the pending entries first and drops none. The undo moves them back.

    A consumer that received an entry meanwhile is not removed.
    """
    fill(client, 3_000, 2_500)
    make = lambda line: planned(line, "consumer rm", *ORDERS, consumer="web", claim_to="other")  # noqa: E731 - used twice
    _, outcome = do(look, make)
    assert outcome.whole
    assert {consumer for consumer, _ in held(client).values()} == {"other"}
    assert [each["name"] for each in client.xinfo_consumers("orders", "billing")] == [b"other"]
    assert len(changes(look)) == -(-2_500 // STEPS) + 1  # one a script, and one for the removal
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert {consumer for consumer, _ in held(client).values()} == {"web"}
    prepared: Prepared = look(make)
    client.xreadgroup("billing", "web", {"orders": ">"}, count=1)
    outcome = look(lambda line: making.carry_out(line, prepared, WHO, "c2"))
    assert (outcome.whole, len(held(client))) == (True, 2_501)


def test_entries_are_acknowledged_and_made_pending_again(look: Look, client: redis.Redis) -> None:
    """``pending ack`` acknowledges by id and reports ids that are not pending.

    Its undo restores consumers and counts.
    """
    fill(client)
    client.xclaim("orders", "billing", "other", 0, ["2-0"], retrycount=7, justid=True)
    pending = held(client)
    prepared, outcome = do(look, lambda line: planned(line, "pending ack", *ORDERS, ids="1-0 2-0 9-0"))
    assert (outcome.done, outcome.whole, len(held(client))) == (2, True, 4)
    assert prepared.plan.notes[-1] == "1 of the 3 ids is not pending there."
    assert prepared.plan.commands == (("XACK", "orders", "billing", "1-0", "2-0"),)
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert held(client) == pending


def test_an_entry_that_was_claimed_meanwhile_is_left_alone(look: Look, client: redis.Redis) -> None:
    """An entry that was claimed since the preview is not acknowledged. The other entries are."""
    fill(client, 10, 2)
    prepared: Prepared = look(lambda line: planned(line, "pending ack", *ORDERS, ids="1-0 2-0"))
    client.xclaim("orders", "billing", "other", 0, ["1-0"])
    outcome: ChangeOutcome = look(lambda line: making.carry_out(line, replace(prepared, pages=None), WHO, "c1"))
    assert [each.became for each in outcome.results] == ["moved", "done"]
    assert outcome.of("moved")[0].why == "entry 1-0: its consumer was web and is other"
    assert held(client) == {"1-0": ("other", 2)}
    assert [(one.done, one.moved) for one in changes(look)] == [(1, 1)]


def test_pending_entries_are_chosen_by_what_they_are(look: Look, client: redis.Redis) -> None:
    """``pending ack`` selects by consumer, deliveries or missing owner, and works in pages with an audit entry each."""
    fill(client, 2_600, 2_500)
    client.xclaim("orders", "billing", "other", 0, [f"{number}-0" for number in range(1, 301)])
    prepared, outcome = do(look, lambda line: planned(line, "pending nack", *ORDERS, deliveries="2", mode="fail"))
    assert (prepared.entries, outcome.done, len(changes(look))) == (300, 300, 2)
    held_by = BeforeAfter("of these held by other", 300, 0), BeforeAfter("of these held by no consumer", 0, 300)
    assert prepared.plan.table == held_by
    claim = lambda line: planned(line, "pending claim", *ORDERS, unowned="1", to="third")  # noqa: E731 - once
    assert do(look, claim)[1].done == 300
    seen: list[int] = []
    acked = look(lambda line: planned(line, "pending ack", *ORDERS, all="1", tell=seen.append))
    assert (acked.entries, seen) == (2_500, [1_000, 2_000, 2_500])
    assert look(lambda line: making.carry_out(line, acked, WHO, "c3")).done == 2_500
    assert held(client) == {}


@pytest.mark.parametrize(("mode", "deliveries"), [("silent", 0), ("fail", 1)])
def test_entries_are_given_back(look: Look, client: redis.Redis, mode: Any, deliveries: int) -> None:
    """``pending nack`` gives entries back to no consumer, with or without counting, also without XNACK.

    The undo works.
    """
    fill(client, 3, 2)
    pending = held(client)
    do(look, lambda line: planned(line, "pending nack", *ORDERS, ids="1-0", mode=mode))
    assert held(client) == {**pending, "1-0": ("", deliveries)}
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert held(client) == pending


def test_a_fatal_release_needs_a_server_that_has_it(look: Look, client: redis.Redis) -> None:
    """A release as fatal is refused on a server without XNACK, with an alternative."""
    fill(client, 3, 2)
    make = lambda line: planned(line, "pending nack", *ORDERS, ids="1-0", mode="fatal")  # noqa: E731 - used once
    if not look(lambda line: rights_on(line, "orders")).capabilities.xnack:
        with pytest.raises(ChangeRefusedError, match=r"needs XNACK .*does not have.*pending ack"):
            look(make)
        return
    do(look, make)
    assert held(client)["1-0"] == ("", 2**63 - 1)
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert held(client)["1-0"] == ("web", 1)


def test_what_is_gone_from_the_stream_is_acknowledged_however_much(look: Look, client: redis.Redis) -> None:
    """``pending ack --gone`` acknowledges any number of trimmed or deleted entries, and no entry that still exists."""
    fill(client, 1_300, 1_300)
    client.xtrim("orders", minid="1101-0", approximate=False)
    client.xdel("orders", "1150-0", "1300-0")
    seen: list[int] = []
    prepared, outcome = do(look, lambda line: planned(line, "pending ack", *ORDERS, gone="1", tell=seen.append))
    assert (prepared.entries, outcome.done, outcome.whole, seen[-1]) == (1_102, 1_102, True, 1_102)
    assert (prepared.plan.undo.held, "cannot be pending again" in prepared.plan.undo.note) == ((), True)
    left = held(client)
    assert (len(left), {"1150-0", "1300-0", "1100-0"} & set(left)) == (198, set())
    with pytest.raises(ChangeRefusedError, match="cannot be pending again"):
        look(lambda line: planned(line, "audit undo", change="c1"))
    assert look(lambda line: planned(line, "pending ack", *ORDERS, gone="1")).nothing


def test_an_undo_leaves_alone_what_went_on_since(look: Look, client: redis.Redis) -> None:
    """An undo skips entries that are pending again, claimed by others, or gone from the stream."""
    fill(client)
    do(look, lambda line: planned(line, "pending ack", *ORDERS, ids="1-0 2-0 3-0"))
    client.xclaim("orders", "billing", "other", 0, ["1-0"], force=True, justid=True)
    client.xdel("orders", "2-0")
    _, outcome = do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert [(each.became, each.count) for each in outcome.results] == [("moved", 0), ("done", 0), ("done", 1)]
    assert (held(client)["1-0"][0], "2-0" in held(client), held(client)["3-0"]) == ("other", False, ("web", 1))


def test_a_stream_is_removed_if_it_is_as_it_was(look: Look, client: redis.Redis) -> None:
    """``stream rm`` is refused if an entry was added since the preview."""
    fill(client)
    make = lambda line: planned(line, "stream rm", "orders")  # noqa: E731 - used twice
    prepared, outcome = do(look, make, lambda: client.xadd("orders", {"n": 1}, id="11-0"))
    assert [each.became for each in outcome.results] == ["moved"]
    assert prepared.plan.facts == {"entries": 10, "groups": 1, "pending": 6}
    do(look, make)
    assert client.exists("orders") == 0


def test_a_change_is_written_down(look: Look, client: redis.Redis) -> None:
    """An audit entry has the user, address, command line, server commands and the undo."""
    fill(client)
    do(look, lambda line: planned(line, "group rewind", *ORDERS, to="start"))
    (one,) = changes(look)
    assert (one.action, one.stream, one.group, one.who, one.place, one.via, one.user) == (
        *("group rewind", "orders", "billing", "alice@laptop", "127.0.0.1", "console", "default"),
    )
    assert one.line == "millstream group rewind orders billing --to 0-0"
    assert one.undo == "millstream group rewind orders billing --to 6-0"
    assert one.commands == "XGROUP SETID orders billing 0-0 ENTRIESREAD 0"
    assert (one.change, one.done, one.moved, one.held) == ("c1", 1, 0, ())


@pytest.mark.parametrize("name", [b"\xff\x00{x}", b"two words", b"\x1b[2J", b"-", b"'\"$(x)", b"\xe2\x80\xae", b"0"])
def test_names_may_hold_any_bytes(look: Look, client: redis.Redis, name: bytes) -> None:
    """Names of streams, groups and consumers may have any bytes, in the change and in its undo."""
    text = name.decode(errors="surrogateescape")
    client.xadd(name, {"n": 1}, id="1-0")
    client.xgroup_create(name, name, id="0")
    client.xreadgroup(name, name, {name: ">"})
    do(look, lambda line: planned(line, "pending claim", text, text, ids="1-0", to=text + "2"))
    assert client.xpending(name, name)["consumers"] == [{"name": name + b"2", "pending": 1}]
    do(look, lambda line: planned(line, "audit undo", change="c1"))
    assert client.xpending(name, name)["consumers"] == [{"name": name, "pending": 1}]
    do(look, lambda line: planned(line, "consumer rm", text, text, consumer=text))
    do(look, lambda line: planned(line, "group rewind", text, text, to="start"))
    assert client.xinfo_groups(name)[0]["last-delivered-id"] == b"0-0"


# -- what the user may do ---------------------------------------------------------------------------------------------


def as_user(server: ServerProcess, account: str) -> str:
    return server.url.replace("redis://", f"redis://{account}")


def by(server: ServerProcess, account: str, work: Callable[[Line], Awaitable[Any]]) -> Any:
    """Return the result for a user with few rights."""

    async def main() -> Any:
        line = open_line(as_user(server, account))
        try:
            return await work(line)
        finally:
            await line.close()

    return asyncio.run(main())


@pytest.mark.parametrize("dry", [("+acl|dryrun", "+acl|whoami"), ("+acl|whoami",), ()])
def test_what_the_user_may_not_do_is_known_beforehand(
    server: ServerProcess, client: redis.Redis, dry: tuple[str, ...]
) -> None:
    """The rights of a user are checked before a change, without changing anything. A refusal gives its reason."""
    fill(client)
    before = held(client), group(client)
    rules = ("~orders", "+@read", "+@connection", "+xack", "+xgroup|setid", "+info", "+time", *dry)
    with user(client, *rules) as account:
        rights = by(server, account, lambda line: rights_on(line, "orders"))
        assert rights.why_not(BY_NAME["pending ack"]) is None
        assert rights.why_not(BY_NAME["group rewind"]) is None
        for name in ("group create", "group rm", "consumer rm", "pending claim", "pending nack"):
            assert "does not let the user" in (rights.why_not(BY_NAME[name]) or ""), name
        assert ("stream rm" in rights.closed()) == (len(dry) == 2)
        other = by(server, account, lambda line: rights_on(line, "other"))
        assert other.why_not(BY_NAME["pending ack"]) is not None
        with pytest.raises(ChangeRefusedError, match=r"^the server does not .* XGROUP DESTROY"):
            by(server, account, lambda line: planned(line, "group rm", *ORDERS))
    assert (held(client), group(client)) == before


def test_a_user_without_scripts_looks_right_before_the_change(server: ServerProcess, client: redis.Redis) -> None:
    """Without the right to run scripts, a change is checked by plain reads first.

    The outcome reports that and a missing audit.
    """
    fill(client)
    rules = ("~orders", "+@read", "+@write", "+@connection", "+@transaction", "+time", "-eval")
    with user(client, *rules) as account:
        prepared = by(server, account, lambda line: planned(line, "group rewind", *ORDERS, to="start"))
        outcome = by(server, account, lambda line: making.carry_out(line, prepared, WHO, "c1"))
        assert (outcome.whole, outcome.unguarded, outcome.audit) == (True, True, ())
        assert "millstream:audit" in outcome.unaudited or "permission" in outcome.unaudited
        assert group(client)["last-delivered-id"] == b"0-0"
        again = by(server, account, lambda line: making.carry_out(line, prepared, WHO, "c1"))
        assert [each.became for each in again.results] == ["moved"]
    with user(client, *rules, "~millstream:audit") as account:
        make = lambda line: planned(line, "pending ack", *ORDERS, ids="1-0 2-0")  # noqa: E731 - once
        prepared = by(server, account, make)
        client.xack("orders", "billing", "1-0")
        outcome = by(server, account, lambda line: making.carry_out(line, replace(prepared, pages=None), WHO, "c"))
        assert ([each.became for each in outcome.results], len(outcome.audit)) == (["moved", "done"], 1)


def test_a_user_without_scripts_and_transactions_changes_nothing(server: ServerProcess, client: redis.Redis) -> None:
    """A user with neither scripts nor transactions changes nothing."""
    fill(client)
    with user(client, "~*", "+@all", "-eval", "-multi") as account:
        prepared = by(server, account, lambda line: planned(line, "group rewind", *ORDERS, to="start"))
        outcome = by(server, account, lambda line: making.carry_out(line, prepared, WHO, "c1"))
    assert [each.became for each in outcome.results] == ["refused"]
    assert group(client)["last-delivered-id"] == b"6-0"


def test_a_group_that_is_gone_has_moved(look: Look, client: redis.Redis) -> None:
    """If the group or stream is gone since the preview, the outcome is "moved"."""
    fill(client)
    prepared: Prepared = look(lambda line: planned(line, "pending ack", *ORDERS, ids="1-0"))
    client.xgroup_destroy("orders", "billing")
    outcome = look(lambda line: making.carry_out(line, replace(prepared, pages=None), WHO, "c1"))
    assert [each.became for each in outcome.results] == ["moved"]
    client.delete("orders")
    outcome = look(lambda line: making.carry_out(line, replace(prepared, pages=None), WHO, "c1"))
    assert [each.became for each in outcome.results] == ["moved"]
    client.set("orders", "x")
    outcome = look(lambda line: making.carry_out(line, replace(prepared, pages=None), WHO, "c1"))
    assert [each.became for each in outcome.results] == ["moved"]


def test_a_user_who_may_not_write_the_audit_stream_is_told(server: ServerProcess, client: redis.Redis) -> None:
    """A user without rights to the audit stream can make the change, and is informed of the missing audit entry."""
    fill(client)
    with user(client, "~orders", "+@all") as account:
        prepared = by(server, account, lambda line: planned(line, "group rewind", *ORDERS, to="start"))
        outcome = by(server, account, lambda line: making.carry_out(line, prepared, WHO, "c1"))
    assert (outcome.whole, outcome.unguarded, outcome.audit) == (True, False, ())
    assert outcome.unaudited


def test_a_change_that_the_server_refuses_half_way_is_said(look: Look, client: redis.Redis) -> None:
    """If the server refuses a change midway, its error is reported and no audit entry is written."""
    fill(client)
    prepared: Prepared = look(lambda line: planned(line, "pending ack", *ORDERS, ids="1-0"))
    step = prepared.plan.steps[0]
    broken = replace(
        prepared.plan, steps=(replace(step, commands=(("XCLAIM", "orders", "billing", "c", 0, "no-id"),)),)
    )
    outcome = look(lambda line: making.carry_out(line, replace(prepared, plan=broken, pages=None), WHO, "c1"))
    assert [each.became for each in outcome.results] == ["refused"]
    assert outcome.results[0].why == "ERR Unrecognized XCLAIM option 'no-id'"
    assert changes(look) == []


def test_the_audit_stream_may_hold_anything(look: Look, client: redis.Redis) -> None:
    """Foreign entries in the audit stream are listed. An undo of one is refused."""
    fill(client)
    for fields in ({"x": "y"}, {"change": "c9", "held": b"\xff"}, {"change": "", "done": "9" * 50}):
        client.xadd("millstream:audit", fields)
    loop: Any = client.xadd("millstream:audit", {"change": "9-9"})
    assert len(changes(look)) == 4
    for name in ("c9", loop.decode(), "nothing", "", "1-1"):
        with pytest.raises(ChangeRefusedError):
            look(lambda line: planned(line, "audit undo", change=name))  # noqa: B023 - run at once
    kept = audit.packed((HeldEntry("1-0", "web", 0, 1),))
    for stream in ("orders", "other"):
        client.xadd("millstream:audit", {"change": "two", "stream": stream, "group": "billing", "held": kept})
    with pytest.raises(ChangeRefusedError, match="several groups"):
        look(lambda line: planned(line, "audit undo", change="two"))


def test_what_is_not_there_is_said(look: Look, client: redis.Redis) -> None:
    """A missing stream, group or consumer is an error that lists the existing ones."""
    fill(client)
    for make in (
        lambda line: planned(line, "group rewind", "nowhere", "billing", to="start"),
        lambda line: planned(line, "group rewind", "orders", "nobody", to="start"),
        lambda line: planned(line, "group rm", "orders", "nobody"),
        lambda line: planned(line, "pending ack", "orders", "nobody", ids="1-0"),
        lambda line: planned(line, "pending claim", "nowhere", "billing", ids="1-0", to="c"),
        lambda line: planned(line, "stream rm", "nowhere"),
    ):
        with pytest.raises(NotReadableError, match=r"nowhere|nobody"):
            look(make)
    with pytest.raises(ChangeRefusedError, match="its consumers are: web"):
        look(lambda line: planned(line, "consumer rm", *ORDERS, consumer="nobody"))


def test_what_a_failed_change_did_is_not_said_to_be_written_down_where_it_is_not(
    look: Look, client: redis.Redis
) -> None:
    """If a change fails and its audit entry cannot be written either, the error says so with the reason."""
    fill(client)
    prepared = look(lambda line: planned(line, "group rm", *ORDERS))

    async def work(_: Line, results: list[StepResult], *__: object) -> None:
        results.append(StepResult(prepared.plan.steps[0], "done"))
        raise ChangeRefusedError("the rest is refused")

    said = []
    for _ in range(2):
        with pytest.raises(ChangeRefusedError, match="the rest is refused") as refused:
            look(lambda line: making.carry_out(line, replace(prepared, work=work), WHO, "c1"))
        said.append(audit.until_then("c1", refused.value))
        client.delete(audit.KEY)
        client.set(audit.KEY, "no stream")
    assert said[0] == "The changes made until then are in the audit stream as c1"
    assert said[1].startswith("The changes made until then could not be written to the audit stream: WRONGTYPE")
