"""Putting back without a server: the commands after a lost reply, and the outcome of each letter."""

from collections.abc import Callable
from typing import Any

import pytest

from millstream.client.dead_letter.letter import DeadLetter, pack, returning
from millstream.client.dead_letter.put_back import PutBack, PutBackOutcome, stored
from millstream.client.dead_letter.transaction import LettersRefusedError

FULL = ValueError("full")


def letter(number: int) -> DeadLetter:
    return DeadLetter((b"n", b"1"), "s", f"{number}-0", "g", "c", 1, "reject", "", "", 0, 0)


def row(number: int) -> list[Any]:
    """Return an XRANGE row of a dead letter with its entry's id."""
    return [f"{number}-0".encode(), pack(letter(number))]


def info(last: bytes) -> list[Any]:
    """Return the reply to XINFO STREAM."""
    return [b"last-generated-id", last]


def begun(*numbers: int) -> tuple[PutBack, PutBackOutcome]:
    outcome = PutBackOutcome()
    return PutBack("s:dead", [f"{number}-0" for number in numbers], outcome, 0, all_groups=True), outcome


def begin(exchange: Any) -> Any:
    """Answer the probe for transactions; return the next commands."""
    assert next(exchange) == [("UNWATCH",), ("MULTI",), ("EXEC",)]
    return exchange.send([b"OK", b"OK", []])


def sent(batch: PutBack, *numbers: int) -> Any:
    """Answer the reads, so that the transaction is sent next."""
    exchange = batch.run()
    assert begin(exchange)[0] == ("WATCH", "s:dead")
    looks = exchange.send([b"OK", *([row(number)] for number in numbers), info(b"5-0")])
    assert looks == [("TYPE", "s"), ("XINFO", "STREAM", "s"), ("XINFO", "GROUPS", "s")]
    assert exchange.send([b"stream", info(b"7-0"), []])[0] == ("MULTI",)
    return exchange


def ended(step: Callable[[], Any]) -> Any:
    with pytest.raises(StopIteration) as end:
        step()
    return end.value.value


def test_what_was_put_back_beside_a_refused_letter_is_reported_and_that_letter_stays_in_hand() -> None:
    """Letters that EXEC put back are returned at once.

    A letter refused in it is unsettled until it is written again.
    """
    batch, outcome = begun(1, 2, 3)
    exchange = sent(batch, 1, 2, 3)
    look = exchange.send([b"OK", *[b"QUEUED"] * 6, [b"9-0", 1, FULL, 1, FULL, 1]])
    assert outcome.returned == [("1-0", "s", "9-0")]
    assert [command[0] for command in look] == ["WATCH", "XRANGE", "XRANGE", "XINFO"]
    assert exchange.send([b"OK", [], [], info(b"5-0")]) == [("XRANGE", "s:dead", "(5-0", "+", "COUNT", 100)]
    exchange.send([[]])
    assert [command[:2] for command in exchange.send([[]])][1:3] == [("XADD", "s:dead")] * 2
    with pytest.raises(LettersRefusedError, match="OOM"):
        exchange.send([b"OK", b"QUEUED", b"QUEUED", [b"8-0", ValueError("OOM")]])
    assert batch.unsettled == [stored(row(3))]
    again = batch.run()
    begin(again)
    again.send([b"OK", [], info(b"8-0")])
    again.send([[[b"8-0", pack(letter(2))]]])
    again.send([[]])
    assert ended(lambda: again.send([b"OK", b"QUEUED", [b"8-1"]])) is True
    assert outcome.refused == [("2-0", "s: full; the letter is now 8-0"), ("3-0", "s: full; the letter is now 8-1")]
    assert batch.unsettled == []


def test_a_transaction_that_was_not_run_cannot_arrive_late() -> None:
    """After a lost reply with the letter still there, its key is changed so that a late EXEC fails."""
    batch, outcome = begun(1)
    sent(batch, 1).close()
    assert batch.unsettled == [stored(row(1))]
    again = batch.run()
    begin(again)
    assert again.send([b"OK", [row(1)], info(b"5-0")]) == [("MULTI",), ("XSETID", "s:dead", b"5-0"), ("EXEC",)]
    assert again.send([b"OK", b"QUEUED", [b"OK"]])[0] == ("WATCH", "s:dead")
    assert batch.unsettled == []
    again.send([b"OK", [row(1)], info(b"5-0")])
    again.send([b"stream", info(b"7-0"), []])
    assert ended(lambda: again.send([b"OK", b"QUEUED", b"QUEUED", [b"9-0", 1]])) is True
    assert outcome.returned == [("1-0", "s", "9-0")]


@pytest.mark.parametrize(
    ("there", "last", "says"),
    [(True, b"9-0", None), (False, b"7-0", "takes no entry"), (False, b"9-0", "look before you put it back again")],
)
def test_a_lost_reply_is_read_off_both_streams(there: bool, last: bytes, says: str | None) -> None:
    """After a lost reply the target stream decides: entry found is done, unchanged is refused, otherwise unknown."""
    batch, outcome = begun(1)
    sent(batch, 1).close()
    again = batch.run()
    begin(again)
    assert again.send([b"OK", [], info(b"5-0")]) == [("XRANGE", "s", "(7-0", "+", "COUNT", 100)]
    strange = [b"8-0", [b"n", b"1"]]
    if there:
        end = [[strange, [b"9-0", returning(letter(1), 0, all_groups=True)]]]
        assert again.send(end) == [("UNWATCH",)]
        assert ended(lambda: again.send([b"OK"])) is True
        assert (outcome.returned, outcome.refused) == ([("1-0", "s", "9-0")], [])
        return
    assert again.send([[strange]]) == [("XRANGE", "s", "(8-0", "+", "COUNT", 100)]
    assert again.send([[]]) == [("XINFO", "STREAM", "s")]
    assert again.send([info(last)])[0][:2] == ("XRANGE", "s:dead")
    assert again.send([[]])[1][:2] == ("XADD", "s:dead")
    assert ended(lambda: again.send([b"OK", b"QUEUED", [b"8-0"]])) is True
    ((ident, why),) = outcome.refused
    assert ident == "1-0"
    assert says is not None
    assert says in why
    assert why.endswith("; the letter is now 8-0")
    assert outcome.returned == []


def test_letters_that_nobody_could_ask_for_are_in_the_outcome() -> None:
    """If the server stays away, the outcome contains the unsettled letters themselves."""
    batch, outcome = begun(1)
    sent(batch, 1).close()
    batch.give_up()
    assert outcome.unsettled == [stored(row(1))]
