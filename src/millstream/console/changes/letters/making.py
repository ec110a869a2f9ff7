"""Changes of dead letters, from what a person asked for to a plan, and how each is carried out.

Letters are put back in transactions of a few (:mod:`millstream.worker.dead_letter_admin`), in the pace that was asked
for; whoever breaks that off finds the rest as it was, and the same change again goes on with it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TypeAlias

from millstream.client.dead_letter.put_back import PutBackOutcome, StoredLetter
from millstream.client.line import Line
from millstream.console.changes.gather import Counting
from millstream.console.changes.guard import StepResult
from millstream.console.changes.letters import plans
from millstream.console.changes.letters.plans import LetterTally
from millstream.console.changes.making import Prepared, require_rights
from millstream.console.changes.plan import ChangeRefusedError, Step, TargetMissingError
from millstream.console.changes.rights import Rights, rights_on
from millstream.console.changes.writing import shell_line
from millstream.console.model.names import command_words
from millstream.console.payloads.editing import difference, document_of
from millstream.errors import UsageError
from millstream.worker.dead_letter_admin import DeadLetterAdmin, LetterFilter

ChosenLetters: TypeAlias = LetterFilter | Sequence[str]
"""Which letters of a dead-letter stream: those that fit, or those of these ids."""

Pairs: TypeAlias = Sequence[tuple[bytes, bytes]]

RATE = 100.0
"""Entries a second that are put back at most, unless asked otherwise."""

_STREAMS = 20  # whose rights are looked at before letters are put back there


def admin_of(line: Line, key: str) -> DeadLetterAdmin:
    """What reads and changes one dead-letter stream, on the node of a cluster that has it."""
    return DeadLetterAdmin(line.near(key), key)


async def retry(
    line: Line,
    key: str,
    chosen: ChosenLetters,
    words: tuple[str, ...],
    *,
    all_groups: bool = False,
    rate: float | None = RATE,
    outcome: PutBackOutcome | None = None,
    tell: Counting | None = None,
) -> Prepared:
    """Put letters back on the streams they came from.

    Args:
        line: to the server; whoever carries it out gives a line that nobody else uses meanwhile.
        key: of the dead-letter stream.
        chosen: which letters.
        words: the command line.
        all_groups: for every group of its stream; else each for the group that gave up on it.
        rate: most entries a second; None for as fast as it goes.
        outcome: is told what became of each letter, also when it is interrupted.
        tell: called with how many letters were looked at so far.

    Raises:
        ChangeRefusedError: the user may not.
        DeadLetterStreamError: the key is no stream, or may not be read.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "dead retry", key)
    found = await tally(line, key, chosen, tell)
    await _may_add(line, list(found.streams))
    returned = PutBackOutcome() if outcome is None else outcome

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        try:
            await admin_of(line, key).put_back(
                found.wanted, all_groups=all_groups, rate=rate, progress=tell, outcome=returned, stop=stop
            )
        finally:
            results += _results(returned)

    plan = plans.retry(found, words, all_groups=all_groups, rate=rate)
    return Prepared(plan, rights, len(found.wanted), work=work)


async def remove(
    line: Line, key: str, chosen: ChosenLetters, words: tuple[str, ...], *, tell: Counting | None = None
) -> Prepared:
    """Delete letters for good.

    Args:
        line: to the server.
        key: of the dead-letter stream.
        chosen: which letters.
        words: the command line.
        tell: called with how many letters were looked at so far.

    Raises:
        ChangeRefusedError: the user may not.
        DeadLetterStreamError: the key is no stream, or may not be read.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "dead rm", key)
    found = await tally(line, key, chosen, tell)
    wanted = found.wanted

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        for at in range(0, len(wanted), _PAGE):
            if stop.is_set():
                return
            ids = wanted[at : at + _PAGE]
            removed = await admin_of(line, key).remove(ids)
            # which of them were gone already is not told: so many were, whichever
            results += [StepResult(Step((), entry=each), "done", 1) for each in ids[:removed]]
            results += [StepResult(Step((), entry=each), "moved", why="it was gone already") for each in ids[removed:]]
            tell(at + len(ids))

    return Prepared(plans.remove(found, words), rights, len(wanted), work=work)


_PAGE = 200


async def edit(line: Line, key: str, ident: str, fields: Pairs, *, outcome: PutBackOutcome | None = None) -> Prepared:
    """Put the corrected entry of a letter back for the group that gave up on it, and remove the letter.

    Args:
        line: to the server, as for :func:`retry`.
        key: of the dead-letter stream.
        ident: the letter's id.
        fields: names and values as they are to be.
        outcome: is told what became of the letter.

    Raises:
        ChangeRefusedError: the user may not.
        TargetMissingError: there is no such letter.
        UsageError: it is no dead letter.
        Disconnected: no answer came.
    """
    rights = await require_rights(line, "dead edit", key)
    one, before = await editable(line, key, ident)
    assert one.letter is not None
    await _may_add(line, [one.letter.stream])
    returned = PutBackOutcome() if outcome is None else outcome
    flat = [part for pair in fields for part in pair]

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        try:
            await admin_of(line, key).put_back(
                [one.id], progress=tell, outcome=returned, edited={one.id: flat}, stop=stop
            )
        finally:
            results += _results(returned)

    lines = difference(document_of(before), document_of(list(fields)))
    return Prepared(plans.edit(key, one, flat, lines), rights, 1, work=work)


async def editable(line: Line, key: str, ident: str) -> tuple[StoredLetter, list[tuple[bytes, bytes]]]:
    """A letter, and the fields of its entry.

    Args:
        line: to the server.
        key: of the dead-letter stream.
        ident: the letter's id.

    Raises:
        TargetMissingError: there is none of that id.
        UsageError: it is no dead letter.
        Disconnected: no answer came.
    """
    found, _ = await admin_of(line, key).find([ident])
    if not found:
        raise TargetMissingError(
            f"there is no letter {ident} in {key}; `{shell_line(command_words('dead ls', key))}` lists them"
        )
    if found[0].letter is None:
        raise UsageError(f"{ident} in {key} is {found[0].strange}")
    flat = found[0].letter.fields
    return found[0], list(zip(flat[::2], flat[1::2], strict=True))


async def tally(line: Line, key: str, chosen: ChosenLetters, tell: Counting | None = None) -> LetterTally:
    """The letters that are chosen, counted.

    Args:
        line: to the server.
        key: of the dead-letter stream.
        chosen: which letters; an id that comes twice counts once.
        tell: called with how many were looked at so far.

    Raises:
        DeadLetterStreamError: the key is no stream, or may not be read.
        Disconnected: no answer came.
    """
    admin = admin_of(line, key)
    found = LetterTally(key, await admin.count())
    if not isinstance(chosen, LetterFilter):
        ids = list(dict.fromkeys(chosen))
        for at in range(0, len(ids), _PAGE):
            there, missing = await admin.find(ids[at : at + _PAGE])
            for one in there:
                found.add(one)
            found.missing += missing
        return found
    async with aclosing(admin.letters(chosen)) as letters:
        async for one in letters:
            found.add(one)
            if tell is not None and len(found.ids) % _PAGE == 0:
                tell(len(found.ids))
    return found


async def _may_add(line: Line, streams: Sequence[str]) -> None:
    """Refuse what the user may not add to the streams that the letters came from.

    Raises:
        ChangeRefusedError: it may not add to one of them.
        Disconnected: no answer came.
    """
    for stream in streams[:_STREAMS]:
        rights: Rights = await rights_on(line, stream)
        if (why := rights.refusal("XADD")) is not None:
            raise ChangeRefusedError(f"{stream}: {why}")


def _results(outcome: PutBackOutcome) -> list[StepResult]:
    """What became of each letter."""
    done = [StepResult(_step(one), "done", 1, f"{entry} on {stream}") for one, stream, entry in outcome.returned]
    gone = [StepResult(_step(one), "moved", why="the letter was not there any more") for one in outcome.gone]
    refused = [StepResult(_step(one), "refused", why=why) for one, why in outcome.refused]
    lost = "nobody could ask where it is: look for it before you add it again"
    return [*done, *gone, *refused, *(StepResult(_step(one.id), "refused", why=lost) for one in outcome.unsettled)]


def _step(letter: str) -> Step:
    return Step((), entry=letter)
