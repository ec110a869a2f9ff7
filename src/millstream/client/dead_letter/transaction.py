"""The dead-letter transaction: a letter into the dead-letter stream and its entry out of the pending list, once.

One guard makes three checks: the consumer still owns the entry, it is pending, and its letter can be written. Owner and
delivery count together prove the ownership: any claim, even by the same consumer name, changes the count. There are two
ways to check and act:

``by_script``
    The server makes all three checks and acts in one step; the XACK follows only an XADD that worked.
``by_transaction``
    WATCH of the dead-letter stream, the checks, then MULTI with XADD and XACK. Another client that writes the same
    letter writes to that stream and so breaks the transaction. Inside EXEC an XADD that fails does not stop the XACK
    after it. So the transaction first looks for the known causes of a failure (:func:`hindrance`). If the XADD fails
    all the same, the entry is made pending again. Until that is confirmed the entry stays ours, even if the connection
    breaks.

The second way is for servers whose user may not run scripts, and for letters with more words than a script can pass on.
Spark's recovery uses it too, since it does not need speed.

A reply may be lost. Callers keep the ids that were sent (:data:`Unsure`) and start over, and the guard queries the
server. A pending entry was not acknowledged. An entry that is no longer pending has its letter if a script did it.
After EXEC the letter is searched among newer ones; an entry without one is made pending again and written. So an entry
is dead at most once, and its letter exists whenever the entry is acknowledged.

One gap is left: a process that dies between EXEC and that repair, after the server queued a letter and then refused it.
In EXEC no later command can depend on the outcome of an earlier one. The gap needs rights that were withdrawn within
that round trip, or a letter beyond the server's largest entry.

Sans I/O: each function is an :data:`Exchange`, a generator that yields the commands to send over one connection. The
caller sends it their replies, with an exception in place of an error reply. If no command was run, the caller sends
None, and the function checks again. When the connection breaks, the caller drops the generator.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha1
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from millstream.client import emulate
from millstream.client.dead_letter.letter import DeadLetter, is_of, pack
from millstream.client.line import Command
from millstream.client.ranges import LAST, behind, order_of
from millstream.errors import MillstreamError
from millstream.paths import packaged

Result = TypeVar("Result")
Item = TypeVar("Item")

#: A dialogue with the server, run by a caller: it yields commands, receives replies, and returns a result.
Exchange: TypeAlias = Generator[list[Command], list[Any] | None, Result]

#: Entries whose letters were sent without a reply: their ids, and the id after which EXEC would have written the
#: letter. The latter is None if "no longer pending" is enough: a script was sent, or the user may not read the last id.
Unsure: TypeAlias = dict[bytes, bytes | None]

#: Number of letters in one step: few enough that their script or transaction does not block other clients.
BATCH = 50

#: Largest number of names and values of an entry that a script can move: Lua's limit is 8,000 arguments.
FIELDS_LIMIT = 7_500

_PART_MAX = 2**64 - 1  # highest value of either half of an id


class Fate(Enum):
    """The result of the guard, or of the whole step, for an entry."""

    OURS = "ours"  #: it is pending for this consumer; its letter can be written
    DEAD = "dead"  #: its letter is written, and it is acknowledged
    LOST = "lost"  #: another consumer has it, or it is no longer pending for another reason


class FailedEntry(Protocol):
    """An entry to set aside, with what the transaction needs of it."""

    @property
    def id(self) -> bytes:
        """Id of the entry in its stream."""

    @property
    def deliveries(self) -> int:
        """Number of its deliveries, by the server's count when this consumer got it."""

    @property
    def letter(self) -> DeadLetter:
        """Dead letter to write."""

    @property
    def unsettled(self) -> bool:
        """False once its fate is known, or the entry was lost in another way; the transaction then skips it."""


Failed = TypeVar("Failed", bound=FailedEntry)


@dataclass(frozen=True, slots=True)
class DeadLetterRoute:
    """The pending list that entries leave, and the dead-letter stream that they enter."""

    stream: str  # Key of the stream
    group: str  # Name of the group
    consumer: str  # Consumer that must hold the entries
    dead: str  # Key of the dead-letter stream
    failures: str = ""  # Key of the hash of earlier failures, removed with the entries; empty for none
    due: str = ""  # Key of the due times, also removed with the entries; empty for none
    maxlen: int | None = None  # Approximate bound of the dead-letter stream in entries; None for no bound
    no_ack: bool = False  # The group's entries are never pending, so there is nothing to guard or acknowledge

    @property
    def trim(self) -> tuple[str | int, ...]:
        """Arguments of XADD that limit the dead-letter stream."""
        return () if self.maxlen is None else ("MAXLEN", "~", self.maxlen)


class LettersRefusedError(MillstreamError):
    """The server refused dead letters; an entry without a letter stays pending.

    What to do: give the user the right to write the dead-letter stream, or remove a key of another type that has its
    name. The worker tries pending entries again by itself.
    """

    def __init__(
        self, text: str, reply: Exception | None = None, *, failed: int = 0, hindrance: str | None = None
    ) -> None:
        super().__init__(text)
        self.reply = reply  # The server's error, if there was one
        self.failed = failed  # Number of letters that failed inside a transaction; 0 if all of it was refused
        self.hindrance = hindrance  # Fault of the key, see :func:`hindrance`; nothing was tried then


# -- the guard --------------------------------------------------------------------------------------------------------


def hindrance(kind: object, info: object, letters: int) -> str | None:
    """Return the reason why a transaction cannot add letters to a key, such as "holds a list"; None without one."""
    if isinstance(kind, bytes) and kind not in (b"stream", b"none"):
        return f"holds a {kind.decode()} and no stream"
    if isinstance(info, Exception) and str(info).startswith("WRONGTYPE"):
        return "holds no stream"
    last = last_id(info) or b"0-0"
    ms, seq = order_of(last)
    if ms == _PART_MAX and seq + letters > _PART_MAX:
        return f"has the last id {last.decode()}, and no {letters} ids are left after it"
    return None


def fate(entry: FailedEntry, rows: Sequence[Sequence[Any]], consumer: str, *, sent: bool) -> Fate:
    """Return an entry's fate according to the pending list."""
    if not rows:
        return Fate.DEAD if sent else Fate.LOST
    ours = rows[0][1] == consumer.encode() and rows[0][3] == entry.deliveries
    return Fate.OURS if ours else Fate.LOST


def last_id(info: object) -> bytes | None:
    """Return the id after which new letters come, from the reply to XINFO STREAM; None if the user may not read it."""
    if isinstance(info, list):
        found: bytes = dict(zip(info[::2], info[1::2], strict=True)).get(b"last-generated-id", b"0-0")
        return found
    text = str(info)
    return b"0-0" if text.startswith("WRONGTYPE") or "no such key" in text.lower() else None


def _result(entry: FailedEntry) -> tuple[str, str, str, int] | None:
    """Return key, field, record and milliseconds of an entry's result; None if its publisher did not request one."""
    return getattr(entry, "result", None)


SCRIPT = packaged("millstream.client.dead_letter", "dead_letter.lua")
SCRIPT_SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

#: Replies of the script for a letter that are not errors.
_WRITTEN = 1
_NOT_PENDING = 0


# -- moving entries ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Relocation(Generic[Item]):
    """An entry to take out of one place and to add to a stream."""

    item: Item  # Caller's object for the entry
    add: Command  # The XADD command
    remove: Command | None = None  # Command that removes it from its old place; None if it has none
    added: Any = None  # Reply to ``add``; an exception if the server refused it
    removed: Any = 0  # Reply to ``remove``

    @property
    def failed(self) -> bool:
        """True if the server refused to add it."""
        return isinstance(self.added, Exception)


def try_transaction() -> Exchange[None]:
    """Run an empty transaction: if the user may not send MULTI, the commands after it would run one by one."""
    _check((yield [("UNWATCH",), ("MULTI",), ("EXEC",)]) or [])


def relocate(
    plan: Callable[[], Exchange[list[Relocation[Item]]]], tries: int
) -> Exchange[list[Relocation[Item]] | None]:
    """Move entries in one transaction that a watched key guards; None if other clients were faster ``tries`` times.

    It serves both directions: from the pending list to the dead-letter stream, and from there back to a stream. A
    move may have failed although the item was taken from its place: the caller repairs that.
    """
    for _ in range(tries):
        try:
            moves = yield from plan()
        except LettersRefusedError:
            yield [("UNWATCH",)]
            raise
        if not moves:
            yield [("UNWATCH",)]
            return []
        queued = [command for move in moves for command in (move.add, move.remove) if command is not None]
        replies = yield [("MULTI",), *queued, ("EXEC",)]
        if replies is None:
            continue  # nothing was sent
        _check(replies)
        if replies[-1] is None:
            continue  # another client wrote to the watched key after the check
        ran = iter(replies[-1])
        for move in moves:
            move.added, move.removed = next(ran), 0 if move.remove is None else next(ran)
        return moves
    return None


def _check(replies: Sequence[Any]) -> None:
    """Raise if the server refused any of the commands."""
    refused = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if refused is not None:
        raise LettersRefusedError(str(refused), refused)


def _claimed(reply: object) -> bool:
    """Return True if an XCLAIM of one entry took it; XCLAIM takes no entry that was deleted from its stream."""
    return bool(reply) and not isinstance(reply, Exception)


def _forget(unsure: Unsure, ids: Iterable[bytes]) -> None:
    for ident in ids:
        unsure.pop(ident, None)


# -- the transaction --------------------------------------------------------------------------------------------------


class DeadLetterTransaction(Generic[Failed]):
    """Both ways to set entries aside: by script, and by MULTI and EXEC."""

    def __init__(self, route: DeadLetterRoute, unsure: Unsure, report: Callable[[Failed, Fate], None]) -> None:
        self._route = route
        self._unsure = unsure
        self._report = report
        self._after: bytes | None = None  # last id of the dead-letter stream at the last check

    def by_script(self, entries: Sequence[Failed]) -> Exchange[None]:
        """Set entries aside in one step on the server.

        No entry may have more than :data:`FIELDS_LIMIT` words, or be unsure since an EXEC: a script does not look for
        letters.
        """
        route, unsure = self._route, self._unsure
        words: list[bytes | str | int] = [route.group, route.consumer, route.failures, route.due]
        words += [len(route.trim), *route.trim]
        for entry in entries:
            packed = pack(entry.letter)
            words += [entry.id, entry.deliveries, len(packed), *packed, *(_result(entry) or ("", "", "", 0))]
        before = set(unsure)
        for entry in entries:
            unsure.setdefault(entry.id, None)
        replies = (yield [("EVALSHA", SCRIPT_SHA, 2, route.stream, route.dead, *words)]) or []
        _forget(unsure, [entry.id for entry in entries if entry.id not in before])
        _check(replies)
        refused: bytes | None = None
        for entry, found in zip(entries, *replies, strict=True):
            if isinstance(found, bytes):
                refused = found
                continue
            dead = found == _WRITTEN or (found == _NOT_PENDING and entry.id in unsure)
            unsure.pop(entry.id, None)
            self._report(entry, Fate.DEAD if dead else Fate.LOST)
        if refused is not None:
            raise LettersRefusedError(refused.decode(errors="replace"))

    def by_transaction(self, entries: Sequence[Failed], tries: int) -> Exchange[bool]:
        """Set entries aside in MULTI and EXEC; return False if other clients wrote first, ``tries`` times."""
        unsure, sent = self._unsure, set[bytes]()

        def plan() -> Exchange[list[Relocation[Failed]]]:
            _forget(unsure, sent)  # no command of the previous attempt has run
            ours = yield from self._ours([entry for entry in entries if entry.unsettled])
            sent.clear()
            # An unsure letter stays unsure, even if this attempt fails: the previous attempt may arrive late
            sent.update(entry.id for entry in ours if entry.id not in unsure)
            for entry in ours:  # pending at this check, so no letter that was sent before is older
                unsure[entry.id] = self._after or unsure.get(entry.id)
            return [self._relocation(entry) for entry in ours]

        yield from try_transaction()
        try:
            moves = yield from relocate(plan, tries)
        except LettersRefusedError:
            _forget(unsure, sent)
            raise
        _forget(unsure, sent)  # not in ``finally``: a broken connection ends the generator at a yield
        if moves is None:
            return False
        dead, failed = [], []
        for move in moves:
            unsure.pop(move.item.id, None)
            if move.failed:
                failed.append(move)
                if move.removed == 1:
                    unsure[move.item.id] = LAST  # no letter can follow it: the entry stays ours until it is pending
            else:
                dead.append(move.item.id)
                self._report(move.item, Fate.DEAD)
        back = yield from self._undo([move.item for move in failed if move.removed == 1])  # now: this process may die
        _forget(unsure, [entry.id for entry, reply in back if _claimed(reply)])
        forgotten = (("HDEL", self._route.failures), ("ZREM", self._route.due))
        commands: list[Command] = [(name, key, *dead) for name, key in forgotten if key]
        for move in moves:
            key, field, text, keep_ms = ("", "", "", 0) if move.failed else _result(move.item) or ("", "", "", 0)
            if key:
                commands += [("HSET", key, field, text), ("PEXPIRE", key, keep_ms)]
        if dead and commands:
            yield commands
        for entry, reply in back:
            if isinstance(reply, Exception):
                raise LettersRefusedError(
                    f"{failed[0].added}; and {entry.id.decode()} is no longer pending, since {reply}", reply
                )
        if failed:
            raise LettersRefusedError(str(failed[0].added), failed[0].added, failed=len(failed))
        return True

    def _undo(self, entries: Sequence[Failed]) -> Exchange[list[tuple[Failed, Any]]]:
        """Make entries pending again that EXEC acknowledged without a letter; return them with the replies."""
        if not entries or self._route.no_ack:
            return []
        replies = (yield [self._again(entry) for entry in entries]) or []
        return list(zip(entries, replies, strict=True))

    def _ours(self, entries: Sequence[Failed]) -> Exchange[list[Failed]]:
        """Watch, make the guard's three checks, and return the entries whose letters may be written."""
        route = self._route
        if route.no_ack or not entries:
            return list(entries)
        look: list[Command] = [("WATCH", route.dead), ("TYPE", route.dead), ("XINFO", "STREAM", route.dead)]
        look += [("XPENDING", route.stream, route.group, entry.id, entry.id, 1) for entry in entries]
        watched, kind, info, *pending = (yield look) or []
        # A stream that does not exist yet has no info; a user without the right to read gets no type
        _check([watched, *pending])
        self._after = last_id(info)
        missing = yield from self._missing([entry for entry, rows in zip(entries, pending, strict=True) if not rows])
        if hinders := hindrance(kind, info, len(entries)):
            raise LettersRefusedError(f"the key {hinders}", hindrance=hinders)
        ours = []
        for entry, rows in zip(entries, pending, strict=True):
            if not entry.unsettled:
                continue
            sent = entry.id in self._unsure
            found = Fate.OURS if entry.id in missing else fate(entry, rows, route.consumer, sent=sent)
            if found is Fate.OURS:
                ours.append(entry)
            else:
                self._unsure.pop(entry.id, None)
            self._report(entry, found)
        return ours

    def _missing(self, entries: Sequence[Failed]) -> Exchange[set[bytes]]:
        """Make entries pending again that are without a letter after EXEC; return their ids.

        The dead-letter stream is watched, so a letter that is missing now cannot be added before this transaction ends.
        """
        sent_after = {entry.id: after for entry in entries if (after := self._unsure.get(entry.id)) is not None}
        missing = {entry.id: entry for entry in entries if entry.id in sent_after}
        start = behind(min(sent_after.values(), key=order_of)) if missing else None
        while missing and start is not None:
            (rows,) = (yield [("XRANGE", self._route.dead, start, "+", "COUNT", BATCH)]) or [[]]
            if isinstance(rows, Exception) and str(rows).startswith("WRONGTYPE"):
                break
            _check([rows])
            for _, flat in rows:
                missing = {ident: entry for ident, entry in missing.items() if not is_of(flat, entry.letter)}
            start = behind(rows[-1][0]) if rows else None
        if missing:
            replies = (yield [self._again(entry) for entry in missing.values()]) or []
            for ident, reply in zip(missing, replies, strict=True):
                if _claimed(reply):
                    del self._unsure[ident]
                else:  # for example, deleted from its stream: its letter is written anyway
                    self._unsure[ident] = self._after
        return set(missing)

    def _again(self, entry: Failed) -> Command:
        """Return the command that makes an entry pending again, with its earlier count of deliveries."""
        again = emulate.recount(self._route.group, self._route.consumer, entry.deliveries)
        return (*again.command(self._route.stream, [entry.id]), "FORCE")

    def _relocation(self, entry: Failed) -> Relocation[Failed]:
        route = self._route
        add = ("XADD", route.dead, *route.trim, "*", *pack(entry.letter))
        if route.no_ack:
            return Relocation(entry, add)
        return Relocation(entry, add, ("XACK", route.stream, route.group, entry.id))
