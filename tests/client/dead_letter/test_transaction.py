"""The dead-letter transaction without a server: the order of commands, and the state after a lost reply."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.dead_letter.transaction import (
    BATCH,
    DeadLetterRoute,
    DeadLetterTransaction,
    Fate,
    LettersRefusedError,
    Unsure,
)

ROUTE = DeadLetterRoute("s", "g", "me", "s:dead", failures="tries")
NO_STREAM_YET = ValueError("no such key")


@dataclass
class Entry:
    """An entry that becomes a dead letter."""

    id: bytes
    deliveries: int = 1
    unsettled: bool = True

    @property
    def letter(self) -> DeadLetter:
        """Return the dead letter of the entry."""
        return DeadLetter((b"n", b"1"), "s", self.id.decode(), "g", "me", 1, "reject", "", "", 0, 0)


Fates = dict[bytes, Fate]


def begun(route: DeadLetterRoute = ROUTE) -> tuple[DeadLetterTransaction[Entry], Fates, Unsure]:
    """Build a transaction with its reported fates and its unsure entries."""
    fates: Fates = {}
    unsure: Unsure = {}

    def report(entry: Entry, fate: Fate) -> None:
        fates[entry.id] = fate
        entry.unsettled = fate is Fate.OURS

    return DeadLetterTransaction(route, unsure, report), fates, unsure


def pending(entry: Entry, owner: bytes = b"me", deliveries: int = 1) -> list[Any]:
    """Return the reply to XPENDING for one id."""
    return [[entry.id, owner, 0, deliveries]]


def names(commands: list[Any]) -> list[str]:
    """Return the commands' names."""
    return [command[0] for command in commands]


def ended(step: Callable[[], Any]) -> Any:
    """Return the result of an exchange that has ended."""
    with pytest.raises(StopIteration) as end:
        step()
    return end.value.value


def begin(exchange: Generator[Any, Any, Any]) -> list[Any]:
    """Answer the probe for transactions; return the next commands."""
    assert names(next(exchange)) == ["UNWATCH", "MULTI", "EXEC"]
    commands: list[Any] = exchange.send([b"OK", b"OK", []])
    return commands


def looked(exchange: Generator[Any, Any, Any], *replies: Any) -> list[Any]:
    """Begin, answer the reads, and return the commands that follow."""
    assert names(begin(exchange))[:3] == ["WATCH", "TYPE", "XINFO"]
    commands: list[Any] = exchange.send([b"OK", b"none", NO_STREAM_YET, *replies])
    return commands


def test_only_what_is_ours_and_pending_is_written() -> None:
    """Only entries that are pending with the own consumer and delivery count get a letter. The others count as lost."""
    entries = [Entry(b"%d-0" % n) for n in range(4)]
    transaction, fates, unsure = begun()
    exchange = transaction.by_transaction(entries, 9)
    rows = [pending(entries[0]), pending(entries[1], b"other"), pending(entries[2], deliveries=2), []]
    assert names(looked(exchange, *rows)) == ["MULTI", "XADD", "XACK", "EXEC"]
    assert unsure == {b"0-0": b"0-0"}
    assert exchange.send([b"OK", b"QUEUED", b"QUEUED", [b"9-0", 1]]) == [("HDEL", "tries", b"0-0")]
    assert ended(lambda: exchange.send([1])) is True
    assert fates == {b"0-0": Fate.DEAD, b"1-0": Fate.LOST, b"2-0": Fate.LOST, b"3-0": Fate.LOST}
    assert unsure == {}


@pytest.mark.parametrize("there", [True, False])
def test_a_lost_reply_is_read_off_the_pending_list(there: bool) -> None:
    """After a connection lost at EXEC, an entry that is not pending and has a letter is dead.

    A pending one is retried.
    """
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    exchange = transaction.by_transaction([entry], 9)
    looked(exchange, pending(entry))
    exchange.close()
    assert unsure == {b"1-0": b"0-0"}
    again = transaction.by_transaction([entry], 9)
    commands = looked(again, pending(entry) if there else [])
    if not there:
        assert commands == [("XRANGE", "s:dead", "(0-0", "+", "COUNT", BATCH)]
        commands = again.send([[[b"7-0", [b"no", b"letter"]], [b"9-0", pack(entry.letter)]]])
    assert names(commands) == (["MULTI", "XADD", "XACK", "EXEC"] if there else ["UNWATCH"])
    assert fates == {b"1-0": Fate.OURS if there else Fate.DEAD}


@pytest.mark.parametrize("nothing_ran", [None, [b"OK", b"QUEUED", b"QUEUED", None]])
def test_what_was_not_run_is_not_taken_for_written(nothing_ran: Any) -> None:
    """If EXEC did not run, an entry that is gone at the next read was settled by another consumer."""
    entry = Entry(b"1-0")
    transaction, fates, _ = begun()
    exchange = transaction.by_transaction([entry], 9)
    looked(exchange, pending(entry))
    assert names(exchange.send(nothing_ran))[0] == "WATCH"
    assert names(exchange.send([b"OK", b"none", NO_STREAM_YET, []])) == ["UNWATCH"]
    assert fates == {b"1-0": Fate.LOST}


def test_a_connection_that_breaks_at_the_look_leaves_nothing_unsure() -> None:
    """A connection lost before EXEC leaves nothing unsure. An entry gone afterwards counts as lost."""
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    exchange = transaction.by_transaction([entry], 9)
    begin(exchange)
    exchange.close()
    assert unsure == {}
    assert names(looked(transaction.by_transaction([entry], 9), [])) == ["UNWATCH"]
    assert fates == {b"1-0": Fate.LOST}


def test_what_was_acked_without_a_letter_is_pending_again_before_anything_else_is_asked() -> None:
    """An entry acknowledged without its letter is made pending again before any other command."""
    entries = [Entry(b"1-0"), Entry(b"2-0", 3)]
    transaction, fates, _ = begun()
    exchange = transaction.by_transaction(entries, 9)
    looked(exchange, pending(entries[0]), pending(entries[1], deliveries=3))
    refused = ValueError("OOM")
    (back,) = exchange.send([b"OK", *[b"QUEUED"] * 4, [b"9-0", 1, refused, 1]])
    assert back == ("XCLAIM", "s", "g", "me", 0, b"2-0", "RETRYCOUNT", 3, "JUSTID", "FORCE")
    assert names(exchange.send([[b"2-0"]])) == ["HDEL"]
    with pytest.raises(LettersRefusedError, match="OOM") as error:
        exchange.send([1])
    assert (error.value.reply, error.value.failed) == (refused, 1)
    assert fates == {b"1-0": Fate.DEAD, b"2-0": Fate.OURS}


def test_an_entry_that_others_acked_in_between_is_not_made_pending_again() -> None:
    """If EXEC's XACK removed nothing, the entry is not made pending again."""
    entry = Entry(b"1-0")
    transaction, _, _ = begun()
    exchange = transaction.by_transaction([entry], 9)
    looked(exchange, pending(entry))
    with pytest.raises(LettersRefusedError):
        exchange.send([b"OK", b"QUEUED", b"QUEUED", [ValueError("OOM"), 0]])


def test_a_key_that_hinders_is_let_go_of_and_nothing_is_written() -> None:
    """If the dead-letter key has another type, nothing is written and the error gives the type."""
    entry = Entry(b"1-0")
    transaction, fates, _ = begun()
    exchange = transaction.by_transaction([entry], 9)
    begin(exchange)
    assert exchange.send([b"OK", b"list", NO_STREAM_YET, pending(entry)]) == [("UNWATCH",)]
    with pytest.raises(LettersRefusedError) as error:
        exchange.send([b"OK"])
    assert error.value.hindrance == "holds a list and no stream"
    assert fates == {}


def test_the_script_says_the_fate_of_each() -> None:
    """The script reports each entry as written, lost or refused. One gone after a lost reply counts as written."""
    entries = [Entry(b"%d-0" % n) for n in range(4)]
    transaction, fates, unsure = begun()
    unsure[b"3-0"] = None
    exchange = transaction.by_script(entries)
    assert names(next(exchange)) == ["EVALSHA"]
    assert unsure == dict.fromkeys(entry.id for entry in entries)
    with pytest.raises(LettersRefusedError, match="OOM no room"):
        exchange.send([[1, -1, b"OOM no room", 0]])
    assert fates == {b"0-0": Fate.DEAD, b"1-0": Fate.LOST, b"3-0": Fate.DEAD}
    assert unsure == {}


def test_a_user_who_may_not_ask_for_the_type_writes_letters() -> None:
    """A user without the right to TYPE writes letters, since XINFO also reports a wrong type."""
    denied = NoPermissionError("no permissions to run the 'type' command")
    entry = Entry(b"1-0")
    transaction, fates, _ = begun()
    exchange = transaction.by_transaction([entry], 9)
    begin(exchange)
    commands = exchange.send([b"OK", denied, NO_STREAM_YET, pending(entry)])
    assert names(commands) == ["MULTI", "XADD", "XACK", "EXEC"]
    other = transaction.by_transaction([entry], 9)
    begin(other)
    assert other.send([b"OK", denied, ValueError("WRONGTYPE Operation"), pending(entry)]) == [("UNWATCH",)]
    with pytest.raises(LettersRefusedError, match="holds no stream"):
        other.send([b"OK"])
    assert fates == {b"1-0": Fate.OURS}


def test_a_transaction_that_arrives_late_is_known_as_ours() -> None:
    """A first EXEC that runs late, after its reply was lost, breaks the second one's WATCH and counts as written."""
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    exchange = transaction.by_transaction([entry], 9)
    looked(exchange, pending(entry))
    exchange.close()
    again = transaction.by_transaction([entry], 9)
    looked(again, pending(entry))
    assert names(again.send([b"OK", b"QUEUED", b"QUEUED", None]))[0] == "WATCH"
    assert names(again.send([b"OK", b"stream", NO_STREAM_YET, []])) == ["XRANGE"]
    assert names(again.send([[[b"9-0", pack(entry.letter)]]])) == ["UNWATCH"]
    assert (fates, unsure) == ({b"1-0": Fate.DEAD}, {})


def test_an_entry_that_cannot_be_made_pending_again_is_named() -> None:
    """An entry that cannot be made pending again is named in the error."""
    entry = Entry(b"1-0")
    transaction, _, _ = begun()
    exchange = transaction.by_transaction([entry], 9)
    looked(exchange, pending(entry))
    exchange.send([b"OK", b"QUEUED", b"QUEUED", [ValueError("full"), 1]])
    with pytest.raises(LettersRefusedError, match="full; and 1-0 is no longer pending, since not allowed") as error:
        exchange.send([NoPermissionError("not allowed")])
    assert error.value.failed == 0


LAST_ID = [b"last-generated-id", b"5-0"]


@pytest.mark.parametrize(("claimed", "unsure_then"), [([b"1-0"], {}), ([], {b"1-0": b"5-0"})], ids=["there", "deleted"])
def test_what_has_no_letter_behind_a_lost_exec_is_pending_again_and_written(claimed: Any, unsure_then: Unsure) -> None:
    """After a lost EXEC without a letter the entry is made pending again and gets its letter."""
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    first = transaction.by_transaction([entry], 9)
    begin(first)
    first.send([b"OK", b"stream", LAST_ID, pending(entry)])
    first.close()
    assert unsure == {b"1-0": b"5-0"}
    exchange = transaction.by_transaction([entry], 9)
    begin(exchange)
    commands = exchange.send([b"OK", b"stream", LAST_ID, []])
    assert commands == [("XRANGE", "s:dead", "(5-0", "+", "COUNT", BATCH)]
    other = pack(Entry(b"2-0").letter)
    assert exchange.send([[[b"6-0", other], [b"7-0", other]]])[0][2] == "(7-0"
    assert exchange.send([[]]) == [("XCLAIM", "s", "g", "me", 0, b"1-0", "RETRYCOUNT", 1, "JUSTID", "FORCE")]
    assert names(exchange.send([claimed])) == ["MULTI", "XADD", "XACK", "EXEC"]
    assert unsure == {b"1-0": b"5-0"}
    assert names(exchange.send([b"OK", b"QUEUED", b"QUEUED", None]))[0] == "WATCH"
    assert unsure == unsure_then
    assert fates == {b"1-0": Fate.OURS}


def test_what_was_acked_without_a_letter_stays_ours_though_the_connection_breaks() -> None:
    """An entry acknowledged without its letter is made pending again over the next connection."""
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    exchange = transaction.by_transaction([entry], 9)
    looked(exchange, pending(entry))
    assert names(exchange.send([b"OK", b"QUEUED", b"QUEUED", [ValueError("OOM"), 1]])) == ["XCLAIM"]
    exchange.close()
    again = transaction.by_transaction([entry], 9)
    begin(again)
    assert names(again.send([b"OK", b"list", ValueError("WRONGTYPE"), []])) == ["XCLAIM"]
    assert again.send([[b"1-0"]]) == [("UNWATCH",)]
    with pytest.raises(LettersRefusedError, match="holds a list"):
        again.send([b"OK"])
    assert (fates, unsure) == ({b"1-0": Fate.OURS}, {})


def test_what_is_pending_again_though_nobody_saw_it_gets_one_letter() -> None:
    """An entry made pending again over lost replies gets exactly one letter."""
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    refused = transaction.by_transaction([entry], 9)
    looked(refused, pending(entry))
    assert names(refused.send([b"OK", b"QUEUED", b"QUEUED", [ValueError("OOM"), 1]])) == ["XCLAIM"]
    refused.close()
    lost = transaction.by_transaction([entry], 9)
    begin(lost)
    assert names(lost.send([b"OK", b"stream", LAST_ID, pending(entry)])) == ["MULTI", "XADD", "XACK", "EXEC"]
    lost.close()
    again = transaction.by_transaction([entry], 9)
    begin(again)
    assert again.send([b"OK", b"stream", LAST_ID, []]) == [("XRANGE", "s:dead", "(5-0", "+", "COUNT", BATCH)]
    assert again.send([[[b"9-0", pack(entry.letter)]]]) == [("UNWATCH",)]
    assert (fates, unsure) == ({b"1-0": Fate.DEAD}, {})


def test_where_nobody_may_ask_for_the_last_id_pending_no_more_means_written() -> None:
    """Without the right to read the stream's last id, an entry no longer pending counts as written."""
    entry = Entry(b"1-0")
    transaction, fates, unsure = begun()
    denied = NoPermissionError("no permissions to run the 'xinfo' command")
    exchange = transaction.by_transaction([entry], 9)
    begin(exchange)
    exchange.send([b"OK", b"none", denied, pending(entry)])
    exchange.close()
    assert unsure == {b"1-0": None}
    again = transaction.by_transaction([entry], 9)
    begin(again)
    assert again.send([b"OK", b"none", denied, []]) == [("UNWATCH",)]
    assert fates == {b"1-0": Fate.DEAD}
