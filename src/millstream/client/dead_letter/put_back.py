"""Putting dead letters back: the entry onto the stream it came from, and its letter out of the dead-letter stream.

Both happen in one transaction, which watches the dead-letter stream and then checks that the letter is still there.
Another client that puts it back writes to that stream and so breaks the transaction. So nothing is put back twice.

Inside EXEC, an XADD that fails does not stop the XDEL after it. So the transaction first looks for the known causes of
a failure (:func:`~millstream.client.dead_letter.transaction.hindrance`). If the XADD fails all the same, the letter is
written again, under a new id.

A connection may break before that. So a letter that was sent stays with its :class:`PutBack` until its place is known.
It may still be in the dead-letter stream, be back on its stream, or be written again. Each stream is searched after the
last id that it had when the transaction was planned. Writing again is a transaction with a check of its own, since the
previous one may arrive late.

The reply to EXEC may be lost and the entry be nowhere. Either it was refused, or it was handled and deleted (or
trimmed) since. The two cases look the same, so the letter is written again and the outcome warns that the entry may
have run.

Groups share a stream, and an entry that is put back is new to all of them. Unless it is for all of them, its history
names the group that gave up on it. Workers of other groups acknowledge it without running it. (The old entry could be
made pending again in that one group, without a name. But it may be trimmed by now, and its deaths would be lost.)
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millstream.client.dead_letter.letter import DeadLetter, is_return, returning, unpack
from millstream.client.dead_letter.transaction import (
    Exchange,
    LettersRefusedError,
    Relocation,
    hindrance,
    last_id,
    relocate,
    try_transaction,
)
from millstream.client.line import Command
from millstream.client.ranges import behind

#: Largest number of attempts for a batch while other clients keep writing to the dead-letter stream.
TRIES = 100

#: Number of entries in one reply when searching for an entry or a letter.
_PAGE = 100


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """One entry of a dead-letter stream."""

    id: str  # Id in the dead-letter stream, which contains the time of writing
    flat: tuple[bytes, ...]  # Fields and values, alternating
    letter: DeadLetter | None  # Parsed contents; None if the entry is not a dead letter

    @property
    def strange(self) -> str | None:
        """The reason why the entry cannot be read as a letter; None if it can."""
        try:
            unpack(self.flat)
        except (ValueError, RecursionError) as reason:
            return str(reason)
        return None


def stored(row: Sequence[Any]) -> StoredLetter:
    """Return an entry of a dead-letter stream, from a row of XRANGE."""
    flat = tuple(row[1])
    try:
        letter = unpack(flat)
    except (ValueError, RecursionError):
        letter = None
    return StoredLetter(row[0].decode(), flat, letter)


@dataclass(slots=True)
class PutBackOutcome:
    """The outcomes of a batch of letters to put back."""

    # Id of each letter, its target stream, and its new id there
    returned: list[tuple[str, str, str]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # Ids of letters that do not exist, or not any more
    refused: list[tuple[str, str]] = field(default_factory=list)  # Id of each letter that stays, and the reason
    # Streams without any group, or without the letter's group, each with the group that should get the entry
    groupless: set[tuple[str, str]] = field(default_factory=set)
    # Letters that were sent, but that may or may not have arrived
    unsettled: list[StoredLetter] = field(default_factory=list)

    def add(self, found: "PutBackOutcome") -> None:
        """Add the outcomes of another batch."""
        self.returned += found.returned
        self.gone += found.gone
        self.refused += found.refused
        self.groupless |= found.groupless


@dataclass(slots=True)
class SentLetter:
    """A letter that is on its way back."""

    stored: StoredLetter  # The letter, as found in the dead-letter stream
    letter: DeadLetter  # Parsed contents, with other fields if a person edited them
    # Last id of the target stream before the command: the entry follows it. None if the user may not read it.
    entry_after: bytes | None
    letter_after: bytes | None  # Last id of the dead-letter stream before the letter is written back
    why: str | None = None  # Server's error for the XADD inside EXEC; None until known

    def is_entry(self, flat: Sequence[bytes]) -> bool:
        """Return True if these are the fields of its entry, put back by this process or unchanged by another client."""
        was = self.stored.letter
        return is_return(flat, self.letter) or (was is not None and is_return(flat, was))

    def is_again(self, flat: Sequence[bytes]) -> bool:
        """Return True if these are the fields of this letter."""
        return tuple(flat) == self.stored.flat


class PutBack:
    """A batch of letters to put back."""

    def __init__(
        self,
        key: str,
        ids: Sequence[str],
        outcome: PutBackOutcome,
        now_ms: int,
        *,
        all_groups: bool,
        edited: Mapping[str, Sequence[bytes]] | None = None,
    ) -> None:
        self._key = key
        self._ids = ids  # empty once EXEC has certainly run
        self._outcome = outcome
        self._now_ms = now_ms
        self._all_groups = all_groups
        self._edited = edited or {}
        self._found = PutBackOutcome()  # findings of the last check only: earlier ones may be outdated
        self._sent: list[SentLetter] = []

    @property
    def unsettled(self) -> list[StoredLetter]:
        """Letters that were sent, and are now in an unknown place."""
        return [sent.stored for sent in self._sent]

    def run(self) -> Exchange[bool]:
        """Put the letters back; return False if other clients wrote to the dead-letter stream first, a hundred times.

        Call it again after a broken connection, and after an error that left letters unsettled.
        """
        yield from try_transaction()
        return (yield from self._settle()) and (yield from self._move()) and (yield from self._settle())

    def give_up(self) -> None:
        """Report letters that are still unsettled in the outcome, and stop looking for them."""
        self._outcome.unsettled += self.unsettled
        self._sent = []

    def _move(self) -> Exchange[bool]:
        """Run the transaction that adds the entries and removes the letters."""
        if not self._ids:
            return True
        try:
            moves = yield from relocate(self._plan, TRIES)
        except LettersRefusedError:
            self._sent = []
            raise
        self._sent = []
        if moves is None:
            return False
        for move in moves:
            sent = move.item
            if move.failed:
                sent.why = str(move.added)
                self._sent.append(sent)
            else:
                self._outcome.returned.append((sent.stored.id, sent.letter.stream, move.added.decode()))
        self._ran()
        return True

    def _ran(self) -> None:
        """Note that EXEC has run, so that the findings of the check before it are final."""
        self._ids = ()
        self._outcome.add(self._found)
        self._found = PutBackOutcome()

    def _plan(self) -> Exchange[list[Relocation[SentLetter]]]:
        """Watch the dead-letter stream, check the letters, and return the letters to move, now marked as sent."""
        key, ids = self._key, self._ids
        self._found, self._sent = PutBackOutcome(), []  # no command of the previous attempt has run
        look: list[Command] = [("WATCH", key), *(("XRANGE", key, wanted, wanted) for wanted in ids)]
        replies = (yield [*look, ("XINFO", "STREAM", key)]) or []
        *found, info = replies
        self._check(found)
        rows = [rows[0] if rows else None for rows in found[1:]]
        self._found.gone += [wanted for wanted, row in zip(ids, rows, strict=True) if row is None]
        letters = {row[0]: stored(row) for row in rows if row is not None}  # 5, 5-0 and 05-0 name the same letter
        self._sent = yield from self._that_fit(list(letters.values()), last_id(info))
        return [self._relocation(sent) for sent in self._sent]

    def _relocation(self, sent: SentLetter) -> Relocation[SentLetter]:
        edited = sent.stored.id in self._edited
        entry = returning(sent.letter, self._now_ms, all_groups=self._all_groups, edited=edited)
        remove = ("XDEL", self._key, sent.stored.id)
        return Relocation(sent, add=("XADD", sent.letter.stream, "*", *entry), remove=remove)

    def _that_fit(self, letters: Sequence[StoredLetter], letter_after: bytes | None) -> Exchange[list[SentLetter]]:
        """Return the letters that can be put back, and note the reason for each other one.

        The check is needed because in EXEC an XADD that fails does not stop the XDEL.

        The group that gave up on an entry may be missing while others exist, if it was renamed. Those would acknowledge
        the entry without running it, and with ``on_ack="delete"`` it would be lost. So such an entry is not put back.
        In a stream without any group the entry waits for one.
        """
        counts = Counter(one.letter.stream for one in letters if one.letter is not None)
        asked = ("TYPE",), ("XINFO", "STREAM"), ("XINFO", "GROUPS")
        looks: list[Command] = [(*words, name) for name in counts for words in asked]
        replies = ((yield looks) or []) if looks else []
        there = dict(zip(counts, zip(replies[::3], replies[1::3], replies[2::3], strict=True), strict=True))
        fit: list[SentLetter] = []
        for one in letters:
            letter = one.letter
            if letter is None:
                self._found.refused.append((one.id, "it is not a dead letter"))
                continue
            kind, info, groups = there[letter.stream]
            names = _names(groups) if isinstance(groups, list) else set()
            if hinders := hindrance(kind, info, counts[letter.stream]):
                self._found.refused.append((one.id, f"{letter.stream} {hinders}"))
            elif names and letter.group not in names and not self._all_groups:
                why = f"{letter.stream} has no group {letter.group!r} any more, and its others would not run the entry"
                self._found.refused.append((one.id, f"{why}: put it back for all of them (--all-groups)"))
            else:
                if not names and not self._all_groups:
                    self._found.groupless.add((letter.stream, letter.group))
                if one.id in self._edited:
                    letter = replace(letter, fields=tuple(self._edited[one.id]))
                fit.append(SentLetter(one, letter, last_id(info), letter_after))
        return fit

    # -- letters that were sent, but may not have arrived
    # ----------------------------------------------------------------

    def _settle(self) -> Exchange[bool]:
        """Find the letters that were sent, and write again those that are nowhere."""
        if not self._sent:
            return True
        moves = yield from relocate(self._plan_again, TRIES)
        if moves is None:
            return False
        if self._ids:  # EXEC has not run, and can no longer run
            self._sent = []
            return True
        for move in moves:
            if not move.failed:
                self._written_again(move.item, move.added)
        if self._sent:
            refused = next(move.added for move in moves if move.failed)
            raise LettersRefusedError(f"{self._key}: {refused}", refused)
        return True

    def _plan_again(self) -> Exchange[list[Relocation[SentLetter]]]:
        """Watch the dead-letter stream, search, and return the letters to write again."""
        key = self._key
        look: list[Command] = [("WATCH", key), *(("XRANGE", key, one.id, one.id) for one in self.unsettled)]
        *found, info = (yield [*look, ("XINFO", "STREAM", key)]) or [None]
        self._check(found)
        if any(found[1:]):  # EXEC removes all or none; an EXEC that is still under way must fail
            last = last_id(info)
            return [] if last is None else [Relocation(self._sent[0], add=("XSETID", key, last))]
        if self._ids:
            self._ran()
        for sent in list(self._sent):
            if sent.why is None and (entry := (yield from self._entry_of(sent))) is not None:
                self._outcome.returned.append((sent.stored.id, sent.letter.stream, entry.decode()))
                self._sent.remove(sent)
        for sent in list(self._sent):
            again = yield from _search(key, sent.letter_after, sent.is_again)
            if again is not None:
                self._written_again(sent, again)
        return [Relocation(sent, add=("XADD", key, "*", *sent.stored.flat)) for sent in self._sent]

    def _entry_of(self, sent: SentLetter) -> Exchange[bytes | None]:
        """Return the id of the entry that was put back by any client; None, with the reason noted, if it is missing."""
        stream = sent.letter.stream
        found = yield from _search(stream, sent.entry_after, sent.is_entry)
        if found is None:
            (info,) = (yield [("XINFO", "STREAM", stream)]) or [None]
            if isinstance(info, list) and last_id(info) == sent.entry_after:
                sent.why = "it takes no entry"
            else:
                sent.why = (
                    "no reply came, and the entry is not there: it was refused, or it was handled and deleted since, "
                    "so look before you put it back again"
                )
        return found

    def _written_again(self, sent: SentLetter, where: bytes) -> None:
        why = f"{sent.letter.stream}: {sent.why}; the letter is now {where.decode()}"
        self._outcome.refused.append((sent.stored.id, why))
        self._sent.remove(sent)

    def _check(self, replies: Sequence[Any]) -> None:
        for reply in replies:
            if isinstance(reply, Exception):
                raise LettersRefusedError(f"{self._key}: {reply}", reply)


def _search(key: str, after: bytes | None, fits: Callable[[Sequence[bytes]], bool]) -> Exchange[bytes | None]:
    """Return the id of the first entry that fits, after an id or in the whole stream; None without one."""
    start = "-" if after is None else behind(after)
    while start is not None:
        (rows,) = (yield [("XRANGE", key, start, "+", "COUNT", _PAGE)]) or [[]]
        if isinstance(rows, Exception):
            if str(rows).startswith("WRONGTYPE"):
                return None
            raise LettersRefusedError(f"{key}: {rows}", rows)
        for ident, flat in rows:
            if fits(flat):
                found: bytes = ident
                return found
        start = behind(rows[-1][0]) if rows else None
    return None


def _names(groups: Sequence[Sequence[Any]]) -> set[str]:
    """Return the names in a reply to XINFO GROUPS."""
    rows = (dict(zip(row[::2], row[1::2], strict=True)) for row in groups)
    return {row[b"name"].decode(errors="surrogateescape") for row in rows}
