"""The fence: nothing is done to an entry that is not ours any more, however late we come.

A process may be frozen at any moment, for any time, also between two lines of its code; when it wakes it may own
nothing. So whatever changes a pending entry goes through here, and the server looks whose the entry is and acts in one
step, a script (``fence_scripts.py``). An entry's row in the failure log is written in the same step.

If scripts may not be run, the look and the act are two steps. Entries that have not been surely ours for long are
looked up first. Commands are written only while all of them are fresh (:meth:`Line.calls`, ``only_if``). The remaining
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

#: Seconds after its last row a record is kept.
KEEP_SECONDS = 7 * 24 * 3600

_CHUNK = 200
_OF_ROWS = ("HSET", "EXPIRE", "HDEL")
_OF_DUE_TIMES = ("ZREMRANGEBYSCORE", "ZADD", "ZREM")
_warned: WeakSet[Line] = WeakSet()  # one warning for all subscribers of an app, which share the line


@dataclass(slots=True)
class FenceStep:
    """Something to do with entries that must be ours."""

    move: Move | None  # The command; None only writes the rows
    entries: Sequence[Held]  # All with the same delivery count
    # Rows of the record, one for each entry: the text to write, ``FORGET``, or empty; None for no rows at all
    rows: Sequence[str] | None = None
    # Milliseconds until the entries are due, which is noted; 0 forgets when they were; None leaves it
    due: int | None = None
    # The name is enough. For what does no harm to another process of our name, while the count may be about to change
    # by something of our own that is on its way.
    any_count: bool = False
    result: ResultRow | None = None  # The record of its end, with one entry whose publisher wants it


@dataclass(slots=True)
class Answer:
    """The server's answer to a step, or to a part of one."""

    step: FenceStep  # It
    reply: Reply  # To the command; a ResponseError when it was not run
    entries: Sequence[Held]  # Those it was run on, or would have been
    # Those that were not ours: who had them, and the delivery count, -1 for what is not pending
    refused: list[tuple[Held, bytes, int]] = field(default_factory=list)
    trouble: ResponseError | None = None  # Why the rows were not written
    late: ResponseError | None = None  # Why the due times were not written
    unkept: ResponseError | None = None  # Why the result was not written


def by_count(entries: Iterable[Held]) -> list[list[Held]]:
    """The entries in parts of one delivery count each, as a step needs them."""
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
    """Acts on the pending entries of one consumer."""

    def __init__(self, member: Membership, record: str, due: str) -> None:
        self._member = member
        self._record = record
        self._due = due
        #: why the server runs no scripts; None while it does
        self.refusal: str | None = None

    async def prepare(self, line: Line, *further: Command) -> list[Reply]:
        """Find out whether scripts may be run, and leave ours with the server.

        Returns:
            the replies to ``further``.
        """
        member = self._member
        # Without entries it changes nothing, but the server checks our rights and keeps the script for EVALSHA
        move = ("EVAL", MOVE, 1, member.stream, *self._words(FenceStep(Move("XACK", member.group), [])))
        dead = ("EVAL", transaction.SCRIPT, 2, member.stream, member.dead, member.group, member.consumer, "", "", 0)
        replies = await line.calls([move, ("EVALSHA", MOVE_SHA, *move[2:]), dead, *further])
        # the last may be refused for its second key, which is logged when a letter is to be written
        refused = next((reply for reply in replies[:2] if isinstance(reply, ResponseError)), None)
        # A server that loads or is busy answers otherwise soon: no reason to give scripts up
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
        """Do all of it, in order."""
        parts = [part for step in steps for part in _cut(step)]
        line = line or self._member.line
        if self.refusal is not None:
            return await self._in_two_steps(parts, line)
        answers = await self._at_once(parts, line)
        # The cache of scripts was flushed, or a right was taken away since
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
        """Look up what is not surely ours, then act while everything is fresh."""
        # Ends: each look makes the entries fresh, and only another freeze withholds the commands
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
                continue  # we were frozen, or there was no connection for long
            # The replies come in one list; each answer takes those of its own commands
            for answer, part in zip(answers, plain, strict=True):
                _note(answer, part, replies[: len(part)])
                del replies[: len(part)]
            return answers

    async def _look(self, steps: Sequence[FenceStep], line: Line) -> dict[Held, tuple[bytes, int]]:
        """Those entries that are not their owner's, of those that were not surely so for long; the others are fresh."""
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
                continue  # the server could not say; it will not take the command either
            # A count of -1 stands for an entry that is not pending
            row = rows[0] if isinstance(rows, list) and rows else (held.id, b"", 0, -1)
            if row[1] == member.consumer.encode() and (step.any_count or row[3] == held.deliveries):
                # As of before the question: it may have been claimed since it was answered
                held.leased = now
            else:
                lost[held] = (row[1], row[3])
        return lost

    def _fresh(self, answers: Sequence[Answer]) -> Callable[[], bool]:
        return lambda: not any(self._member.stale_among(answer.entries) for answer in answers)

    async def _server_time(self, steps: Sequence[FenceStep], line: Line) -> int:
        """Wall milliseconds of the server where a step notes a due time, ours where it does not tell; else 0."""
        if not any(step.due for step in steps):
            return 0
        (reply,) = await line.calls((("TIME",),))
        if isinstance(reply, ResponseError):
            return self._member.clock.now().wall
        return int(reply[0]) * 1000 + int(reply[1]) // 1000

    def _plain(self, answer: Answer, now: int) -> list[Command]:
        """The step's commands: rows first, so that they are there before the entry can be delivered again."""
        step, stream = answer.step, self._member.stream
        # An empty row leaves the record as it is
        rows = {held: row for held, row in zip(step.entries, step.rows or (), strict=False) if row}
        kept = [word for held in answer.entries if rows.get(held, FORGET) != FORGET for word in (held.id, rows[held])]
        gone = [held.id for held in answer.entries if rows.get(held) == FORGET]
        commands: list[Command] = []
        if kept:
            commands += [("HSET", self._record, *kept), ("EXPIRE", self._record, KEEP_SECONDS)]
        due = [word for held in answer.entries for word in (now + (step.due or 0), held.id)]
        if step.due and due:
            # no time to live, which only Redis 7 could lengthen without shortening: what has passed goes here
            commands += [("ZREMRANGEBYSCORE", self._due, "-inf", now), ("ZADD", self._due, *due)]
        if step.move is not None and answer.entries:
            commands.append(step.move.command(stream, [held.id for held in answer.entries]))
        # Last: until the entry is acked, a crash must still find its record
        if gone:
            commands.append(("HDEL", self._record, *gone))
        if step.due == 0 and due:
            commands.append(("ZREM", self._due, *due[1::2]))
        if step.result is not None and answer.entries:
            commands += step.result.commands
        return commands


def _cut(step: FenceStep) -> list[FenceStep]:
    """A step in parts of a size that suits a script."""
    if len(step.entries) <= _CHUNK:
        return [step]
    return [
        replace(step, entries=step.entries[at : at + _CHUNK], rows=step.rows and step.rows[at : at + _CHUNK])
        for at in range(0, len(step.entries), _CHUNK)
    ]


def no_script(reply: Reply) -> bool:
    """True if a script was not run because it is not there, or may not be run (any more)."""
    return isinstance(reply, NoScriptError | NoPermissionError)


def _answer(step: FenceStep, reply: Reply) -> Answer:
    if isinstance(reply, ResponseError):
        return Answer(step, reply, step.entries)
    # Nothing was refused, which is nearly always so
    if not reply[0]:
        refused, entries = [], step.entries
    else:
        # Lua counts from 1
        refused = [(step.entries[place - 1], owner, count) for place, owner, count in reply[0]]
        gone = {held for held, _, _ in refused}
        entries = [held for held in step.entries if held not in gone]
    faults = [ResponseError(text.decode()) if text else None for text in (reply[2:5] or (None,) * 3)]
    return Answer(step, reply[1] if len(reply) > 1 else None, entries, refused, *faults)


def _note(answer: Answer, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
    """Tell the reply to the command from those to the rows' commands."""
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
    """The first and the last of these, as long as their times have equally many digits; a hint for the script."""
    if not ids:
        return b"-", b"+"
    lowest, highest = min(ids), max(ids)
    if len({*map(len, ids)}) > 1:  # the order of bytes is not that of numbers
        lowest = min(_of_one_time(ids, lowest))[1]
        highest = max(_of_one_time(ids, highest))[1]
    return lowest, highest


def _of_one_time(ids: Sequence[bytes], like: bytes) -> list[tuple[int, bytes]]:
    """Those with the time of one of them, behind their lengths: so they sort by their numbers."""
    time = like[: like.index(b"-") + 1]
    return [(len(one), one) for one in ids if one.startswith(time)]
