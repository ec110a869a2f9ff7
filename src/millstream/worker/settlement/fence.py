"""The fence: no command changes an entry that this consumer no longer owns, however late it comes.

A process may be frozen at any moment, for any time, even between two lines of code. When it wakes up, it may own
nothing. So each change of a pending entry goes through the fence. A script on the server checks the owner of the entry
and acts, in one step (``fence_scripts.py``). The same step writes an entry's row in the failure log.

If scripts are not allowed, checking and acting are two steps. Entries whose ownership was not confirmed lately are
looked up first. Commands are written only while all leases are fresh (:meth:`Line.calls`, ``only_if``). The remaining
risk is a freeze between that last look at the clock and the server's reading of the bytes.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakSet

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from millstream.client.dead_letter import transaction
from millstream.client.emulate import Move
from millstream.client.jobs.record import ResultRow
from millstream.client.line import Command, Line, Reply, Withheld, passes
from millstream.worker.settlement.consumer import Held, Membership
from millstream.worker.settlement.fence_scripts import ANY, FORGET, MOVE, MOVE_SHA

log = logging.getLogger("millstream.worker")

#: Seconds for which a record is kept after the last write of a row.
KEEP_SECONDS = 7 * 24 * 3600

_CHUNK = 200
_OF_ROWS = ("HSET", "EXPIRE", "HDEL")
_OF_DUE_TIMES = ("ZREMRANGEBYSCORE", "ZADD", "ZREM")
_warned: WeakSet[Line] = WeakSet()  # all subscribers of an app share the line, so one warning is enough


@dataclass(slots=True)
class FenceStep:
    """A command for entries that this consumer must own."""

    move: Move | None  # Command to run; None only writes the rows
    entries: Sequence[Held]  # Entries, all with the same delivery count
    # Rows of the record, one for each entry: the text to write, ``FORGET``, or empty; None for no rows
    rows: Sequence[str] | None = None
    # Milliseconds before the entries are due; 0 deletes the due times; None leaves them
    due: int | None = None
    # Compare only the consumer's name: for harmless commands, while another command may change the count.
    any_count: bool = False
    result: ResultRow | None = None  # Record of the end, for a single entry with a requested result


@dataclass(slots=True)
class Answer:
    """The server's answer to a step, or to a part of a step."""

    step: FenceStep  # The step
    reply: Reply  # Reply to the command; a ResponseError if it did not run
    entries: Sequence[Held]  # Entries on which it ran, or would have run
    # Entries that this consumer does not own, with owner and delivery count; -1 if not pending
    refused: list[tuple[Held, bytes, int]] = field(default_factory=list)
    trouble: ResponseError | None = None  # Reason why the rows were not written
    late: ResponseError | None = None  # Reason why the due times were not written
    unkept: ResponseError | None = None  # Reason why the result was not written


def by_count(entries: Iterable[Held]) -> list[list[Held]]:
    """Group the entries by delivery count, as a step requires."""
    whole = list(entries)
    if not whole:
        return []
    # A shortcut, since grouping costs more than comparing
    first = whole[0].deliveries
    if all(held.deliveries == first for held in whole):  # nearly always
        return [whole]
    parts: dict[int, list[Held]] = {}
    for held in whole:
        parts.setdefault(held.deliveries, []).append(held)
    return list(parts.values())


class Fence:
    """Changes the pending entries of one consumer."""

    def __init__(self, member: Membership, record: str, due: str) -> None:
        self._member = member
        self._record = record
        self._due = due
        #: Reason why the server runs no scripts; None if it does
        self.refusal: str | None = None

    async def prepare(self, line: Line, *further: Command) -> list[Reply]:
        """Find out whether scripts are allowed, and load the fence's script into the server.

        Returns:
            the replies to ``further``.
        """
        member = self._member
        # Without entries this changes nothing, but the server checks the user's rights and caches the script for
        # EVALSHA
        move = ("EVAL", MOVE, 1, member.stream, *self._words(FenceStep(Move("XACK", member.group), [])))
        dead = ("EVAL", transaction.SCRIPT, 2, member.stream, member.dead, member.group, member.consumer, "", "", 0)
        replies = await line.calls([move, ("EVALSHA", MOVE_SHA, *move[2:]), dead, *further])
        # The last one may be refused because of its second key, which is logged when a letter is to be written
        refused = next((reply for reply in replies[:2] if isinstance(reply, ResponseError)), None)
        # A loading or busy server will reply differently soon, so do not give up scripts
        if refused is not None and passes(refused):
            return replies[3:]
        self.refusal = refusal = None if refused is None else str(refused)
        if refusal is not None and member.line not in _warned:
            _warned.add(member.line)
            log.warning(
                "%s: the server runs no scripts for us, so acks are checked and sent in two steps, and a process that "
                "freezes between them may ack an entry that another consumer has by then: %s",
                member.stream,
                refusal,
            )
        return replies[3:]

    async def take(self, steps: Iterable[FenceStep], line: Line | None = None) -> list[Answer]:
        """Carry out all steps, in order."""
        parts = [part for step in steps for part in _cut(step)]
        line = line or self._member.line
        if self.refusal is not None:
            return await self._in_two_steps(parts, line)
        answers = await self._at_once(parts, line)
        # The script cache was flushed, or a right was removed meanwhile
        again = [answer.step for answer in answers if no_script(answer.reply)]
        if not again:
            return answers
        await self.prepare(line)
        way = self._at_once if self.refusal is None else self._in_two_steps
        return [*(answer for answer in answers if not no_script(answer.reply)), *await way(again, line)]

    # -- by a script ------------------------------------------------------------------------------------------------

    async def _at_once(self, steps: Sequence[FenceStep], line: Line) -> list[Answer]:
        stream = self._member.stream
        replies = await line.calls([("EVALSHA", MOVE_SHA, 1, stream, *self._words(step)) for step in steps])
        return [_answer(step, reply) for step, reply in zip(steps, replies, strict=True)]

    def _words(self, step: FenceStep) -> list[bytes | str | int | float]:
        member = self._member
        ids = [held.id for held in step.entries]
        lowest, highest = span(ids)
        count = step.entries[0].deliveries if step.entries and not step.any_count else ANY
        head, tail = (step.move.head, step.move.tail) if step.move is not None else ((), ())
        rows = step.rows or ()
        record = self._record if rows else ""
        due = ("", 0) if step.due is None else (self._due, step.due)
        fixed = (member.group, member.consumer, count, lowest, highest, record, KEEP_SECONDS, *due)
        return [*fixed, len(head), *head, len(tail), *tail, len(ids), *ids, *rows, *(step.result or ())]

    # -- without scripts --------------------------------------------------------------------------------------------

    async def _in_two_steps(self, steps: Sequence[FenceStep], line: Line) -> list[Answer]:
        """Look up entries whose ownership is in doubt, then act while all leases are fresh."""
        # It ends: each check makes the entries fresh, and only another suspension withholds the commands
        while True:
            lost = await self._look(steps, line)
            answers = [Answer(step, None, [held for held in step.entries if held not in lost]) for step in steps]
            for answer in answers:
                answer.refused = [(held, *lost[held]) for held in answer.step.entries if held in lost]
            now = await self._server_time(steps, line)
            plain = [self._plain(answer, now) for answer in answers]
            try:
                replies = await line.calls([one for part in plain for one in part], only_if=self._fresh(answers))
            except Withheld:
                continue  # this process was suspended, or had no connection for long
            # The replies are in one list; each answer takes those of its own commands
            for answer, part in zip(answers, plain, strict=True):
                _note(answer, part, replies[: len(part)])
                del replies[: len(part)]
            return answers

    async def _look(self, steps: Sequence[FenceStep], line: Line) -> dict[Held, tuple[bytes, int]]:
        """Look up stale entries, and return those that this consumer no longer owns; the others become fresh."""
        member = self._member
        doubtful = [(held, step) for step in steps for held in member.stale_among(step.entries)]
        lost: dict[Held, tuple[bytes, int]] = {}
        if not doubtful:
            return lost
        now = member.clock.now().mono
        replies = await line.calls(
            [("XPENDING", member.stream, member.group, held.id, held.id, 1) for held, _ in doubtful]
        )
        for (held, step), rows in zip(doubtful, replies, strict=True):
            if isinstance(rows, ResponseError) and not str(rows).startswith("NOGROUP"):
                continue  # the server could not report it, and will not accept the command either
            # A count of -1 means that the entry is not pending
            row = rows[0] if isinstance(rows, list) and rows else (held.id, b"", 0, -1)
            if row[1] == member.consumer.encode() and (step.any_count or row[3] == held.deliveries):
                # The time before the request: the entry may have been claimed after the reply
                held.leased = now
            else:
                lost[held] = (row[1], row[3])
        return lost

    def _fresh(self, answers: Sequence[Answer]) -> Callable[[], bool]:
        return lambda: not any(self._member.stale_among(answer.entries) for answer in answers)

    async def _server_time(self, steps: Sequence[FenceStep], line: Line) -> int:
        """Return the server's time in milliseconds if a step writes a due time, else 0.

        It is the local time if the server refuses TIME.
        """
        if not any(step.due for step in steps):
            return 0
        (reply,) = await line.calls((("TIME",),))
        if isinstance(reply, ResponseError):
            return self._member.clock.now().wall
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    def _plain(self, answer: Answer, now: int) -> list[Command]:
        """Return the step's commands, rows first, so that they are stored before the entry can be delivered again."""
        step, stream = answer.step, self._member.stream
        # An empty row leaves the record unchanged
        rows = {held: row for held, row in zip(step.entries, step.rows or (), strict=False) if row}
        kept = [word for held in answer.entries if rows.get(held, FORGET) != FORGET for word in (held.id, rows[held])]
        gone = [held.id for held in answer.entries if rows.get(held) == FORGET]
        commands: list[Command] = []
        if kept:
            commands += [("HSET", self._record, *kept), ("EXPIRE", self._record, KEEP_SECONDS)]
        due = [word for held in answer.entries for word in (now + (step.due or 0), held.id)]
        if step.due and due:
            # Without a time to live, which only Redis 7 can extend without shortening, so past due times are removed
            # here
            commands += [("ZREMRANGEBYSCORE", self._due, "-inf", now), ("ZADD", self._due, *due)]
        if step.move is not None and answer.entries:
            commands.append(step.move.command(stream, [held.id for held in answer.entries]))
        # Last: before the entry is acknowledged, a crash must still find its record
        if gone:
            commands.append(("HDEL", self._record, *gone))
        if step.due == 0 and due:
            commands.append(("ZREM", self._due, *due[1::2]))
        if step.result is not None and answer.entries:
            commands += step.result.commands
        return commands


def _cut(step: FenceStep) -> list[FenceStep]:
    """Split a step into parts that are small enough for a script."""
    if len(step.entries) <= _CHUNK:
        return [step]
    return [
        replace(step, entries=step.entries[at : at + _CHUNK], rows=step.rows and step.rows[at : at + _CHUNK])
        for at in range(0, len(step.entries), _CHUNK)
    ]


def no_script(reply: Reply) -> bool:
    """Report whether a script did not run because it is not loaded or not allowed."""
    return isinstance(reply, NoScriptError | NoPermissionError)


def _answer(step: FenceStep, reply: Reply) -> Answer:
    if isinstance(reply, ResponseError):
        return Answer(step, reply, step.entries)
    # A shortcut: nearly always, nothing was refused
    if not reply[0]:
        refused, entries = [], step.entries
    else:
        # Lua's indexes begin at 1
        refused = [(step.entries[place - 1], owner, count) for place, owner, count in reply[0]]
        gone = {held for held, _, _ in refused}
        entries = [held for held in step.entries if held not in gone]
    faults = [ResponseError(text.decode()) if text else None for text in (reply[2:5] or (None,) * 3)]
    return Answer(step, reply[1] if len(reply) > 1 else None, entries, refused, *faults)


def _note(answer: Answer, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
    """Assign the replies of a step's commands to the fields of its answer."""
    result = None if answer.step.result is None else answer.step.result.key
    for command, reply in zip(commands, replies, strict=True):
        if command[1] == result:
            answer.unkept = reply if isinstance(reply, ResponseError) else answer.unkept
        elif command[0] not in (*_OF_ROWS, *_OF_DUE_TIMES):
            answer.reply = reply
        elif isinstance(reply, ResponseError) and command[0] in _OF_ROWS:
            answer.trouble = reply
        elif isinstance(reply, ResponseError):
            answer.late = reply


def span(ids: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the lowest and the highest of these ids, as a hint for the script.

    If their times have different numbers of digits, the ids are compared within one time only.
    """
    if not ids:
        return b"-", b"+"
    lowest, highest = min(ids), max(ids)
    if len({*map(len, ids)}) > 1:  # byte order differs from the order of numbers
        lowest = min(_of_one_time(ids, lowest))[1]
        highest = max(_of_one_time(ids, highest))[1]
    return lowest, highest


def _of_one_time(ids: Sequence[bytes], like: bytes) -> list[tuple[int, bytes]]:
    """Return the ids with the same time as ``like``, each after its length, so that they sort by number."""
    time = like[: like.index(b"-") + 1]
    return [(len(one), one) for one in ids if one.startswith(time)]
