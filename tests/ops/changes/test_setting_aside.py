"""Pending entries turned into dead letters by an operator, on redis-server and Millstream."""

from dataclasses import replace
from typing import Any

import pytest
import redis

from millstream.client.dead_letter.letter import HISTORY, DeadLetter, unpack
from millstream.client.delays import due
from millstream.client.line import Line
from millstream.ops import making
from millstream.ops.making import Prepared
from millstream.ops.plan import ChangeRefusedError
from ops.changes.test_making import WHO, Look, by, changes, do, fill, held
from support.accounts import user
from support.changes import planned
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

DIED = 1_763_721_600_000


def dying(*ids: str, **texts: str) -> Any:
    """Prepare the change for the given or matching entries."""
    chosen = {"ids": " ".join(ids)} if ids else {}
    words = {"reason": "it crashes every worker", "at_ms": str(DIED), **chosen, **texts}

    async def make(line: Line) -> Prepared:
        return await planned(line, "pending dead", "orders", "billing", **words)

    return make


def letters(client: redis.Redis, key: str = "orders:dead") -> list[DeadLetter]:
    rows: Any = client.xrange(key)
    return [unpack([part for pair in fields.items() for part in pair]) for _, fields in rows]


def test_one_entry_is_set_aside_alone(look: Look, client: redis.Redis) -> None:
    """``pending dead`` turns one entry into a dead letter with its fields, owner and deliveries, and is audited."""
    fill(client, 3, 3)
    client.xclaim("orders", "billing", "web", 0, ["2-0"], retrycount=7)
    prepared, outcome = do(look, dying("2-0"))
    assert prepared.plan.question == "Make dead letters of 1 entry pending in 'billing' of 'orders'?"
    assert (outcome.whole, outcome.done) == (True, 1)
    assert held(client) == {"1-0": ("web", 1), "3-0": ("web", 1)}
    assert letters(client) == [
        DeadLetter((b"n", b"2"), "orders", "2-0", "billing", "web", 7, "reject", "it crashes every worker", "", 2, DIED)
    ]
    (written,) = changes(look)
    assert (written.action, written.done, "millstream dead retry" in written.note) == ("pending dead", 1, True)


def test_what_moved_since_the_preview_stays(look: Look, client: redis.Redis) -> None:
    """An entry that was claimed or acknowledged since the preview gets no dead letter."""
    fill(client, 4, 4)
    prepared = look(dying("1-0", "2-0", "3-0"))
    client.xclaim("orders", "billing", "other", 0, ["1-0"])
    client.xack("orders", "billing", "2-0")
    shown = replace(prepared, pages=None)  # the previewed steps, without another check
    outcome = look(lambda line: making.carry_out(line, shown, WHO, "c1"))
    assert [one.became for one in outcome.results] == ["moved", "moved", "done"]
    assert [letter.id for letter in letters(client)] == ["3-0"]
    assert held(client) == {"1-0": ("other", 2), "4-0": ("web", 1)}


def test_an_entry_without_its_letter_stays_pending(look: Look, client: redis.Redis) -> None:
    """If the dead letter cannot be written, the entry stays pending and the outcome has the server's error."""
    fill(client, 2, 2)
    client.set("orders:dead", 1)
    _, outcome = do(look, dying("1-0"))
    (refused,) = outcome.of("refused")
    assert "WRONGTYPE" in refused.why
    assert set(held(client)) == {"1-0", "2-0"}


@pytest.mark.parametrize(
    ("rules", "named"), [(["~orders", "+@all"], "orders:dead"), (["~*", "+@all", "-eval"], "no scripts")]
)
def test_rights_that_could_lose_an_entry_are_refused(
    server: ServerProcess, client: redis.Redis, rules: list[str], named: str
) -> None:
    """``pending dead`` is refused for a user without scripts or without the right to write dead letters."""
    fill(client, 2, 2)

    async def made(line: Line) -> object:
        return await making.carry_out(line, await dying("1-0")(line), WHO, "c1")

    with user(client, *rules) as account, pytest.raises(ChangeRefusedError, match=named):
        by(server, account, made)
    assert (set(held(client)), client.exists("orders:dead")) == ({"1-0", "2-0"}, 0)


def test_what_is_gone_from_the_stream_stays(look: Look, client: redis.Redis) -> None:
    """An entry that is gone from the stream is not dead-lettered. The preview names the command that removes it."""
    fill(client, 3, 3)
    client.xdel("orders", "1-0")
    prepared, outcome = do(look, dying(all="1"))
    assert any("pending ack --gone" in note for note in prepared.plan.notes)
    assert (outcome.done, [letter.id for letter in letters(client)]) == (2, ["2-0", "3-0"])
    assert set(held(client)) == {"1-0"}
    assert ("of these in orders:dead", 0, 2) in [(row.fact, row.before, row.after) for row in prepared.plan.table]
    gone = look(dying("1-0"))
    assert gone.nothing
    assert [(row.fact, row.before, row.after) for row in gone.plan.table] == [("of these in orders:dead", 0, 0)]
    assert not any("commands shown" in note for note in gone.plan.notes)


def test_many_are_chosen_by_their_deliveries(look: Look, client: redis.Redis) -> None:
    """``pending dead`` by delivery count takes exactly the matching entries, in several steps."""
    fill(client, 130, 130)
    many = [f"{number}-0" for number in range(1, 121)]
    client.execute_command("XCLAIM", "orders", "billing", "web", 0, *many, "RETRYCOUNT", 12)  # type: ignore[no-untyped-call]  # redis-py has no types there
    _, outcome = do(look, dying(deliveries="10"))
    assert (outcome.done, outcome.whole) == (120, True)
    assert [letter.id for letter in letters(client)] == many
    assert len(held(client)) == 10


def test_the_history_of_an_entry_goes_on(look: Look, client: redis.Redis) -> None:
    """A second dead letter of an entry keeps its earlier deaths. Its retry delay ends."""
    fill(client, 1, 0)
    client.xadd("orders", {"n": "x", HISTORY: b'[{"id":"1-1","group":"billing"}]'}, id="5-0")
    client.xreadgroup("billing", "web", {"orders": ">"})
    client.zadd(due.key("orders", "billing"), {"5-0": client.time()[0] * 1000 + 3_600_000})
    do(look, dying("5-0"))
    (letter,) = letters(client)
    assert (letter.fields, [death["id"] for death in letter.history]) == ((b"n", b"x"), ["1-1"])
    assert client.zcard(due.key("orders", "billing")) == 0


def test_another_dead_letter_stream_is_named(look: Look, client: redis.Redis) -> None:
    """The dead-letter stream can be given. For entries of a dead-letter stream it must be."""
    fill(client, 1, 1)
    do(look, dying("1-0", to="graveyard"))
    assert [letter.id for letter in letters(client, "graveyard")] == ["1-0"]
