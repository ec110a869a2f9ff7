"""Planning of a change without a server: positions, plans, command lines and the data of an undo."""

import subprocess
import zlib
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UsageError
from millstream.ops.audit import entry_of, packed, unpacked
from millstream.ops.every import ACTIONS
from millstream.ops.groups.changes import plan_rewind
from millstream.ops.groups.status import Ahead, Between
from millstream.ops.parameters import StreamPlace, entry_id, place_of
from millstream.ops.pending.changes import FIRST, PendingList, Tally, plan_acknowledge, previewed
from millstream.ops.pending.undo import plan_put_back
from millstream.ops.plan import (
    ABSENT,
    MOST_SHOWN,
    BeforeAfter,
    ChangeRefusedError,
    HeldEntry,
    entry_check,
    group_check,
    joined,
)
from millstream.ops.streams.status import GroupStatus, Lag, StreamStatus
from millstream.ops.words import raw_line, shell_line

NOW = 1_772_366_400_000

PLACES = {
    "start": StreamPlace("start"), "END": StreamPlace("end"), "1h-ago": StreamPlace("time", ms=NOW - 3_600_000),
    "-5": StreamPlace("shift", shift=-5),
    "+12": StreamPlace("shift", shift=12), "5-0": StreamPlace("id", id="5-0"), "007-01": StreamPlace("id", id="7-1"),
    "2026-03-01T12:00:00": StreamPlace("time", ms=NOW), "1772366400000": StreamPlace("time", ms=NOW),
    "1969-01-01": StreamPlace("time"),
}  # fmt: skip


@pytest.mark.parametrize("text", PLACES)
def test_a_place_in_a_stream(text: str) -> None:
    """A position in a stream may be start, end, a time, an id or a shift, as the help documents."""
    assert place_of(text, NOW) == PLACES[text]


@pytest.mark.parametrize(
    "text", ["", "soon", "5-", "-", "+", "--5", "$", f"{2**64}-0", "9" * 21, "0-99999999999999999999"]
)
def test_what_is_no_place(text: str) -> None:
    """An invalid position is refused with the valid forms."""
    with pytest.raises(UsageError) as refused:
        place_of(text, NOW)
    assert str(refused.value).count("must be") <= 1


@given(st.text(max_size=30))
def test_no_text_ends_the_reader_of_places(text: str) -> None:
    """Any text as a position is parsed or refused with a message."""
    for read in (lambda text: place_of(text, NOW), entry_id):
        with suppress(UsageError):
            read(text)


STREAM = StreamStatus("orders", 10, "10-0", "1-0", "10-0", 12, "0-0")
GROUP = GroupStatus("orders", "billing", 1, 3, "6-0", 8, Lag(4, 4))


def test_a_rewind_sets_the_entries_read_so_that_the_lag_stays_known() -> None:
    """A rewind sets entries-read to the entries added minus those after the position, so that the lag stays known."""
    plan = plan_rewind(STREAM, GROUP, Ahead("6-0", 4, "7-0"), Ahead("3-0", 7, "4-0"), Between(3, 2))
    assert plan.commands == (("XGROUP", "SETID", "orders", "billing", "3-0", "ENTRIESREAD", 5),)
    assert plan.undo.commands == (("XGROUP", "SETID", "orders", "billing", "6-0", "ENTRIESREAD", 8),)
    assert shell_line(plan.undo.words) == "millstream group rewind orders billing --to 6-0"
    assert BeforeAfter("lag", 4, 7) in plan.table
    assert plan.notes[0] == "3 entries are delivered again."
    assert "2 of them are still pending" in plan.notes[1]


def test_the_count_alone_is_set_where_the_place_stays() -> None:
    """A rewind to the same position only sets the counter: the preview names it, and the undo does not count again."""
    here = Ahead("6-0", 4, "7-0")
    for flag in (False, True):
        plan = plan_rewind(STREAM, replace(GROUP, entries_read=None), here, here, Between(0, 0), even_if_moved=flag)
        assert plan.commands == (("XGROUP", "SETID", "orders", "billing", "6-0", "ENTRIESREAD", 8),)
        assert plan.notes[0].startswith("The group keeps its position")
        assert (plan.undo.words, plan.undo.commands) == ((), (("XGROUP", "SETID", "orders", "billing", "6-0"),))
        same = plan_rewind(STREAM, GROUP, here, here, Between(0, 0), even_if_moved=flag)
        assert (same.steps, same.notes) == ((), ())


def test_a_lag_that_the_server_will_not_report_is_shown_as_bounds() -> None:
    """If a deleted entry keeps the lag unknown, the preview of a rewind shows its bounds."""
    deleted = replace(STREAM, max_deleted_id="7-0")
    here = Ahead("6-0", 4, "7-0")
    plan = plan_rewind(deleted, replace(GROUP, entries_read=None), here, here, Between(0, 0))
    assert BeforeAfter("lag", 4, "2 to 4") in plan.table
    assert plan.notes[0].endswith("narrows the range of its lag.")
    assert "Until then it is known to be 2 to 4." in plan.notes[1]


def test_an_old_server_and_a_long_stream_leave_the_entries_read_alone() -> None:
    """Without the server's counters, or with an incomplete count, a rewind sets no entries-read."""
    old = StreamStatus("orders", 10, "10-0", "1-0", "10-0", None, None)
    there = Ahead("3-0", 7, "4-0")
    for stream, place in ((old, there), (STREAM, Ahead("3-0", None, "4-0"))):
        plan = plan_rewind(stream, GROUP, Ahead("6-0", 4, "7-0"), place, Between(3, 0))
        assert plan.commands == (("XGROUP", "SETID", "orders", "billing", "3-0"),)
        assert len(plan.notes) == 2


def test_a_group_is_not_set_behind_the_last_id() -> None:
    """A rewind beyond the stream's last id is refused, since the group would skip the next entries."""
    with pytest.raises(ChangeRefusedError, match="Use --to end"):
        plan_rewind(STREAM, GROUP, Ahead("6-0", 4, "7-0"), Ahead("11-0", 0, None), Between(4, 0))


def test_a_fact_that_moved_is_named() -> None:
    """The error for a changed fact has the old and new values, also for unknown, missing and 64-bit ones."""
    check = group_check("orders", "billing", last_delivered_id="6-0", entries_read=None)
    row = [b"name", b"billing", b"last-delivered-id", b"6-0", b"entries-read", None]
    assert check.moved([row]) is None
    assert check.moved([[*row[:3], b"7-0", *row[4:]]]) == "the group 'billing': last-delivered-id was 6-0 and is 7-0"
    assert check.moved([[*row[:5], 4]]) == "the group 'billing': entries-read was unknown and is 4"
    assert check.moved([]) == "the group 'billing' does not exist any more"
    assert group_check("orders", "billing").moved([row]) == "the group 'billing' exists by now"
    fatal = entry_check("orders", "billing", HeldEntry("1-0", "", 0, 2**63 - 1))
    assert fatal.moved([[b"1-0", b"", -1, 2**63 - 1]]) is None
    assert fatal.moved([[b"1-0", b"web", 5, 1]]) == "entry 1-0: its consumer was unknown and is web"
    assert fatal.moved([]) == "entry 1-0 does not exist any more"
    assert str(ABSENT) not in str(2**63 - 1)


def test_commands_on_many_entries_are_shown_as_one() -> None:
    """A preview joins commands that differ only in their id into one command."""
    claims = [("XCLAIM", "s", "g", "c", 0, f"{n}-0", "JUSTID") for n in (1, 2)]
    nacks = [("XNACK", "s", "g", "FAIL", "IDS", 1, f"{n}-0") for n in (1, 2, 3)]
    acks = [("XACK", "s", "g", "1-0"), ("XACK", "s", "g", "2-0"), ("XACK", "s", "h", "2-0")]
    assert joined([*acks, *claims, *nacks, ("DEL", "s")]) == (
        ("XACK", "s", "g", "1-0", "2-0"),
        ("XACK", "s", "h", "2-0"),
        ("XCLAIM", "s", "g", "c", 0, "1-0", "2-0", "JUSTID"),
        ("XNACK", "s", "g", "FAIL", "IDS", 3, "1-0", "2-0", "3-0"),
        ("DEL", "s"),
    )
    again = [("XCLAIM", "s", "g", "c", 0, f"{n}-0", "TIME", n, "RETRYCOUNT", 1, "FORCE", "JUSTID") for n in (1, 2)]
    assert joined(again) == tuple(again)


NAMES = [
    "plain",
    "two words",
    "it's",
    "",
    "-x",
    "a\x1b[2Jb",
    "$(rm -rf /)",
    "\udcff\udc80",
    "a\nb",
    "ü",
    "\u202ex",
    '"q"',
    "\\",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_line_is_read_back_by_a_shell_as_it_is(name: str) -> None:
    """A previewed command line is one printable line that a shell reads back word by word, for any bytes."""
    if "\0" in name:
        return
    line = shell_line(("printf", "%s", name))
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout == name.encode(errors="surrogateescape")


@given(st.binary(max_size=40))
def test_a_raw_command_is_one_printable_line(name: bytes) -> None:
    """A raw command is one printable line for any bytes of a key."""
    assert raw_line(("XLEN", name)).isascii()
    assert raw_line(("XLEN", name)).isprintable()
    assert raw_line(("XLEN", name)) == raw_line(("XLEN", name.decode(errors="surrogateescape")))


HELD = st.builds(
    HeldEntry,
    st.integers(0, 2**64 - 1).map(lambda ms: f"{ms}-0"),
    st.binary(max_size=20).map(lambda name: name.decode(errors="surrogateescape")),
    st.integers(0, 2**50),
    st.integers(0, 2**63 - 1),
)


@given(st.lists(HELD, max_size=20))
def test_what_is_kept_for_an_undo_is_read_back(held: list[HeldEntry]) -> None:
    """The undo data of pending entries is read back unchanged, with any consumer bytes and the largest numbers."""
    assert unpacked(packed(tuple(held))) == tuple(held)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", zlib.compress(b"[[1]]"), zlib.compress(b'[["1-0", ["!"], 0, 0]]'), zlib.compress(b'[["x", "c", 0, 0]]'),
     zlib.compress(b'[["1-0", "c", -1, 0]]'), zlib.compress(b'[["1-0", "c", true, 0]]'), zlib.compress(b"[" * 100_000),
     zlib.compress(b"0" * 10_000_000), zlib.compress(b"{}")[:-3], zlib.compress(b'[["1-0", [], 0, 0]]'),
     zlib.compress(b'[["1-0", "c", 0, 0]]')[:-2]],
)  # fmt: skip
def test_what_somebody_else_wrote_there_is_refused(data: bytes) -> None:
    """Foreign undo data that is not a list, too deep or too large is refused without an exception."""
    assert unpacked(data) is None


@given(
    st.lists(st.tuples(st.sampled_from([b"change", b"done", b"held", b"who", b"\xff", b"now"]), st.binary(max_size=9)))
)
def test_any_entry_of_the_audit_stream_can_be_shown(pairs: list[tuple[bytes, bytes]]) -> None:
    """An entry of any writer can be shown."""
    found = entry_of([b"5-0", [word for pair in pairs for word in pair]])
    assert (found.id, found.done >= 0) == ("5-0", True)


def test_a_preview_of_many_entries_counts_all_and_shows_the_first() -> None:
    """A preview of many entries lists the first ones, and counts each consumer's before and after."""
    held = [HeldEntry(f"{n}-0", "web", 5, 1) for n in range(1, FIRST + 1)]
    where = PendingList("orders", "billing")
    plan = previewed(plan_acknowledge(where, held), Tally(Counter(web=1_000, other=5)))
    assert plan.question == "Acknowledge 1005 entries pending in 'billing' of 'orders'?"
    assert plan.table[0] == BeforeAfter("of these held by web", 1_000, 0)
    assert plan.table[-1] == BeforeAfter("acknowledged", 0, 1_005)
    assert plan.digest == previewed(plan_acknowledge(where, held), Tally(Counter(web=1_000, other=5))).digest
    assert plan.digest != previewed(plan_acknowledge(where, held), Tally(Counter(web=999, other=5))).digest


def test_the_commands_of_a_long_plan_are_those_of_its_beginning() -> None:
    """A plan with many entries shows the commands of the first ones only."""
    held = [HeldEntry(f"{n}-0", "web", 5, 1) for n in range(1, 2_001)]
    for plan in (plan_put_back(PendingList("s", "g"), held, None), plan_acknowledge(PendingList("s", "g"), held)):
        ids = [word for command in plan.commands for word in command if str(word).endswith("-0")]
        assert ids == [each.id for each in held[:MOST_SHOWN]]


def test_what_nobody_held_is_put_back_to_nobody() -> None:
    """The undo gives entries without an owner back by XNACK, or else to the consumer with an empty name."""
    held = [HeldEntry("1-0", "", 0, 3)]
    assert plan_put_back(PendingList("s", "g", xnack=True), held, None).commands == (
        ("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0", "RETRYCOUNT", 3, "FORCE"),
    )
    assert plan_put_back(PendingList("s", "g"), held, None).commands == (
        ("XCLAIM", "s", "g", "", 0, "1-0", "TIME", 0, "RETRYCOUNT", 3, "FORCE", "JUSTID"),
    )


def test_every_action_says_what_it_needs() -> None:
    """Action names are unique, each has its required rights, and the undo is an action."""
    names = [action.name for action in ACTIONS]
    assert len(set(names)) == len(names)
    assert [action.name for action in ACTIONS if action.undo and action.undo not in names] == []
