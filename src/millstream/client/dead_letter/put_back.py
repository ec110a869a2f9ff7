"""Putting dead letters back: the entry onto the stream it came from, and its letter out of the dead-letter stream.

Both happen in one transaction, which watches the dead-letter stream and then looks whether the letter is still there.
Whoever else puts it back writes to that stream and so breaks the transaction; after a lost reply the next look finds
the letter gone. So nothing is put back twice, and nothing gets lost in between.

A stream is shared by its groups, and an entry that is put back is new to all of them. Unless all are to have it, it
says in its history which group gave up on it, and workers of other groups acknowledge it unrun. (To make the old entry
pending again in that one group would need no such word; but it may be trimmed by now, and its deaths would be lost.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.client.dead_letter.letter import DeadLetter, returning, unpack
from millstream.client.dead_letter.transaction import Exchange, LettersRefusedError, Relocation, relocate, undo

if TYPE_CHECKING:
    from millstream.client.line import Command

#: Looks before a batch is given up because others keep writing to the dead-letter stream.
TRIES = 100


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """One entry of a dead-letter stream.

    Attributes:
        id: its id there, which tells when it was written.
        flat: its fields and values in turn.
        letter: what it says; None when it is no dead letter.
    """

    id: str
    flat: tuple[bytes, ...]
    letter: DeadLetter | None


def stored(row: Sequence[Any]) -> StoredLetter:
    """An entry of a dead-letter stream, from a row of XRANGE."""
    flat = tuple(row[1])
    try:
        letter = unpack(flat)
    except (ValueError, RecursionError):
        letter = None
    return StoredLetter(row[0].decode(), flat, letter)


#: A letter as it is stored, and what it says.
Parted: TypeAlias = tuple[StoredLetter, DeadLetter]


@dataclass(slots=True)
class PutBackOutcome:
    """What became of the letters that were to be put back.

    Attributes:
        returned: id of each letter, the stream it went to, and its id there.
        gone: ids of letters that were not there (any more).
        refused: id of each letter that stays, and why.
        groupless: streams without any group, or of which that is not known, and the groups that are to have entries
            there.
    """

    returned: list[tuple[str, str, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    groupless: set[tuple[str, str]] = field(default_factory=set)


def put_back(key: str, ids: Sequence[str], outcome: PutBackOutcome, now_ms: int, *, all_groups: bool) -> Exchange[bool]:
    """Put a batch of letters back; False when others wrote to the dead-letter stream a hundred times first.

    Args:
        key: of the dead-letter stream.
        ids: of the letters, few enough for one transaction.
        outcome: counts them.
        now_ms: when they are put back, wall milliseconds since 1970.
        all_groups: for every group of its stream; else each for the group that gave up on it.

    Raises:
        LettersRefusedError: nothing of the batch was put back.
    """
    found = PutBackOutcome()  # of the last look alone: what an earlier one found may have changed

    def plan() -> Exchange[list[Relocation[Parted]]]:
        found.gone, found.refused, found.groupless = [], [], set()
        replies = (yield [("WATCH", key), *(("XRANGE", key, wanted, wanted) for wanted in ids)]) or []
        for reply in replies:
            if isinstance(reply, Exception):
                raise LettersRefusedError(f"{key}: {reply}", reply)
        rows = [rows[0] if rows else None for rows in replies[1:]]
        found.gone += [wanted for wanted, row in zip(ids, rows, strict=True) if row is None]
        letters = {row[0]: stored(row) for row in rows if row is not None}  # 5, 5-0 and 05-0 are one letter
        fit = yield from _that_fit(list(letters.values()), found, all_groups)
        return [_relocation(key, one, letter, now_ms, all_groups) for one, letter in fit]

    moves = yield from relocate(plan, TRIES)
    if moves is None:
        return False
    for move in moves:
        one, letter = move.item
        if not move.failed:
            outcome.returned.append((one.id, letter.stream, move.added.decode()))
    for move, again in (yield from undo(moves)):
        # as when the stream's last id is the highest there is: EXEC removed the letter all the same
        one, letter = move.item
        where = f"is gone, since {again}" if isinstance(again, Exception) else f"is now {again.decode()}"
        outcome.refused.append((one.id, f"{letter.stream}: {move.added}; the letter {where}"))
    outcome.gone += found.gone
    outcome.refused += found.refused
    outcome.groupless |= found.groupless
    return True


def _relocation(key: str, one: StoredLetter, letter: DeadLetter, now_ms: int, all_groups: bool) -> Relocation[Parted]:
    return Relocation(
        (one, letter),
        add=("XADD", letter.stream, "*", *returning(letter, now_ms, all_groups=all_groups)),
        remove=("XDEL", key, one.id),
        undo=("XADD", key, "*", *one.flat),
    )


def _that_fit(letters: Sequence[StoredLetter], found: PutBackOutcome, all_groups: bool) -> Exchange[list[Parted]]:
    """Those that can be put back; ``found`` says why others cannot: inside EXEC a failing XADD holds up no XDEL.

    Where the group that gave up on an entry is not there and others are (it was renamed), these would acknowledge the
    entry unrun, and with ``on_ack="delete"`` it would be gone. Where a stream has no group at all, it waits for one.
    """
    streams = list({one.letter.stream for one in letters if one.letter is not None})
    looks: list[Command] = [look for name in streams for look in (("TYPE", name), ("XINFO", "GROUPS", name))]
    replies = ((yield looks) or []) if looks else []
    there = dict(zip(streams, zip(replies[::2], replies[1::2], strict=True), strict=True))
    fit: list[Parted] = []
    for one in letters:
        letter = one.letter
        if letter is None:
            found.refused.append((one.id, "it is no dead letter"))
            continue
        kind, groups = there[letter.stream]
        names = _names(groups) if isinstance(groups, list) else set()
        if kind not in (b"stream", b"none"):
            shown = kind.decode() if isinstance(kind, bytes) else kind
            found.refused.append((one.id, f"{letter.stream} is no stream: {shown}"))
        elif names and letter.group not in names and not all_groups:
            why = f"{letter.stream} has no group {letter.group!r} any more, and its others would not run the entry"
            found.refused.append((one.id, f"{why}: put it back for all of them (--all-groups)"))
        else:
            if not names and not all_groups:
                found.groupless.add((letter.stream, letter.group))
            fit.append((one, letter))
    return fit


def _names(groups: Sequence[Sequence[Any]]) -> set[str]:
    """The names in a reply to XINFO GROUPS."""
    rows = (dict(zip(row[::2], row[1::2], strict=True)) for row in groups)
    return {row[b"name"].decode(errors="surrogateescape") for row in rows}
