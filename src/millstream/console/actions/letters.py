"""``dead retry``, ``edit`` and ``rm``: the choice of letters, their plans, and the work on them.

Letters are put back in small transactions (:mod:`millstream.client.dead_letter.admin`), at the requested pace. After an
interruption, the letters that are left are unchanged, and the same change continues with them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.client.dead_letter.admin import DeadLetterAdmin, LetterFilter
from millstream.client.dead_letter.put_back import PutBackOutcome, StoredLetter
from millstream.client.line import Line
from millstream.console.actions.parameters import IDS, Stream, instant
from millstream.console.changes.actions import Together, Word, action
from millstream.console.changes.gather import Counting
from millstream.console.changes.guard import StepResult
from millstream.console.changes.letters import plans
from millstream.console.changes.letters.plans import LetterTally
from millstream.console.changes.making import ActionCall, Prepared
from millstream.console.changes.plan import ChangeRefusedError, Step, TargetMissingError
from millstream.console.changes.positions import entry_id
from millstream.console.changes.rights import rights_on
from millstream.console.changes.writing import shell_line
from millstream.console.model.names import command_words
from millstream.console.payloads.editing import difference, document_of, fields_from
from millstream.console.reading.asking import calls, checked
from millstream.errors import UsageError

ChosenLetters: TypeAlias = LetterFilter | Sequence[str]
"""Chosen letters of a dead-letter stream: those that fit, or those of these ids."""

RATE = 100.0
"""Entries a second that are put back at most, unless asked otherwise."""

_STREAMS = 20  # most streams whose rights are looked at before letters are put back there
_PAGE = 200

FITTING = (
    Word("option", says="Of this reason: error, nack, reject, invalid, overdue.", name="reason",
         title="or of this reason", hint="overdue"),
    Word("option", "TEXT", "With this in the error's text, in any case.", name="error", title="with this error",
         hint="timeout"),
    Word("option", says="Given up by this group.", name="group"),
    Word("option", "TIME", "Written at this time or later.", name="since", read=instant),
    Word("option", "TIME", f"Written before: {times.TIME_HELP}.", name="until", read=instant),
)  # fmt: skip
"""Words that choose among letters, also for ``dead ls`` and ``dead export``."""


def fitting(values: Mapping[str, Any]) -> LetterFilter:
    """The letters that fit; all without any word."""
    names = ("reason", "error", "group", "since", "until")
    return LetterFilter(*(None if values[name] == "" else values[name] for name in names))


def _chosen(values: Mapping[str, Any]) -> ChosenLetters:
    ids, choice = values["ids"], fitting(values)
    if ids and (values["all"] or not choice.everything):
        raise UsageError("name letters by ID or choose them by options, not both")
    if not ids and choice.everything and not values["all"]:
        raise UsageError("which letters? give their IDs, options such as --reason, or --all")
    found: ChosenLetters = ids or choice
    return found


Letters: TypeAlias = Annotated[
    ChosenLetters,
    Together(
        _chosen,
        (
            replace(IDS, title="letters"),
            *FITTING,
            Word("flag", says="All letters of this dead-letter stream.", name="all"),
        ),
    ),
]


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.1 <= rate <= 1e6:
        raise ValueError("it is entries a second, 0.1 or more")
    return rate


@action("dead retry", "Put dead letters back on the streams they came from.", "XDEL")
async def retry(
    change: ActionCall,
    key: Stream,
    chosen: Letters,
    all_groups: Annotated[
        bool, Word("flag", says="For every group of the stream, not only the one that gave up.")
    ] = False,
    rate: Annotated[
        float,
        Word("option", says="Most entries a second.", title="at most a second", hint="100", read=_rate, usual="100",
             least=0.1),
    ] = RATE,
) -> Prepared:  # fmt: skip
    """Put entries back on the streams they came from, and remove their letters.

    Both happen in one transaction that looks first, so a letter is put back once, even if others try at the same time.
    The entry's fields are unchanged. Its history goes with it in a field _dead.history, which our workers take off
    before the handler. If it dies again, the history is in the new letter.

    The entry is new at the stream's end, for the group that gave up: workers of other groups acknowledge it and run
    nothing. With --all-groups every group runs it. Other readers, Spark or your own programs, get it either way.

    STREAM is the stream or its dead-letter stream. Name letters by ID, or choose them by options, or say --all: then it
    asks first. After an interruption, the same command line continues with the letters that are left.

    \b
    Examples:
      millstream dead retry orders 1763721600000-0
      millstream dead retry orders --error timeout --dry-run
      millstream dead retry orders --reason error --since 2026-03-01T12:00:00 --yes
      millstream dead retry orders --all --rate 10
    """
    found = await tally(change.line, key, await _settled(change, key, chosen), change.tell)
    change.settle(rate=None if rate == RATE else f"{rate:g}")
    await _may_add(change.line, list(found.streams))
    returned = PutBackOutcome()

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        try:
            await admin_of(line, key).put_back(
                found.wanted, all_groups=all_groups, rate=rate, progress=tell, outcome=returned, stop=stop
            )
        finally:
            results += _results(returned)

    plan = plans.retry(found, all_groups=all_groups, rate=rate)
    return Prepared(plan, len(found.wanted), work=work, letters=returned)


@action("dead edit", "Correct the entry of a dead letter, and put it back for the group that gave up.", "XDEL")
async def edit(
    change: ActionCall,
    key: Stream,
    ident: Annotated[str, Word("argument", "ID", name="ids", typed="id", read=entry_id, needed=True)],
    document: Annotated[str, Word("hidden")] = "",
) -> Prepared:
    """Correct the entry of one letter in your editor, put it back for the group that gave up, and remove the letter.

    VISUAL or EDITOR opens its fields as JSON. JSON, MessagePack and the workers' envelope are decoded, other bytes are
    {"base64": ...}, and unchanged values keep their bytes. Then the difference is shown and it asks. The entry is put
    back as `retry` does, in one transaction with the letter's removal, and its history says that it was edited. If the
    editor fails, or the entry cannot be put back, the letter stays, and the text is kept in a file.

    STREAM is the stream or its dead-letter stream, ID the letter's own id, as `ls` shows it.

    \b
    Examples:
      millstream dead edit orders 1763721600000-0
      millstream dead edit orders 1763721600000-0 --print | jq '.amount = "7"' > fixed.json
      millstream dead edit orders 1763721600000-0 --from fixed.json --yes
    """
    one, before = await editable(change.line, key, ident)
    try:
        fields = fields_from(document, before)
    except ValueError as reason:
        raise UsageError(f"what was written cannot be read: {reason}") from None
    assert one.letter is not None
    await _may_add(change.line, [one.letter.stream])
    returned = PutBackOutcome()
    flat = [part for pair in fields for part in pair]

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        try:
            await admin_of(line, key).put_back(
                [one.id], progress=tell, outcome=returned, edited={one.id: flat}, stop=stop
            )
        finally:
            results += _results(returned)

    lines = difference(document_of(before), document_of(fields))
    return Prepared(plans.edit(key, one, flat, lines), 1, work=work, letters=returned)


@action("dead rm", "Delete dead letters for good.", "XDEL", loses=True)
async def remove(change: ActionCall, key: Stream, chosen: Letters) -> Prepared:
    """Delete letters for good. It asks first; `millstream dead export` keeps a copy.

    STREAM is the stream or its dead-letter stream. Name letters by ID, or choose them by options, or say --all.

    \b
    Examples:
      millstream dead rm orders 1763721600000-0
      millstream dead rm orders --reason invalid --dry-run
    """
    found = await tally(change.line, key, await _settled(change, key, chosen), change.tell)
    wanted = found.wanted

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        for at in range(0, len(wanted), _PAGE):
            if stop.is_set():
                return
            ids = wanted[at : at + _PAGE]
            removed = await admin_of(line, key).remove(ids)
            # the reply is only a number, so the last ids count as those that were already gone
            results += [StepResult(Step((), entry=each), "done", 1) for each in ids[:removed]]
            results += [StepResult(Step((), entry=each), "moved", why="it was gone already") for each in ids[removed:]]
            tell(at + len(ids))

    return Prepared(plans.remove(found), len(wanted), work=work)


async def _settled(change: ActionCall, key: str, chosen: ChosenLetters) -> ChosenLetters:
    """The choice with its times fixed where the preview is forgotten: entries that die meanwhile are not chosen."""
    if not change.kept or not isinstance(chosen, LetterFilter):
        return chosen
    until = chosen.until if chosen.until is not None else await _after_newest(change.line, key)
    since = None if chosen.since is None else str(chosen.since)
    change.settle(all=None, since=since, until=str(until))
    return replace(chosen, until=until)


async def _after_newest(line: Line, key: str) -> int:
    """The millisecond after the newest dead letter."""
    (rows,) = await calls(line.near(key), [("XREVRANGE", key, "+", "-", "COUNT", 1)])
    newest = checked(rows, key)
    return int(newest[0][0].partition(b"-")[0]) + 1 if newest else 0


def admin_of(line: Line, key: str) -> DeadLetterAdmin:
    """The reader and changer of one dead-letter stream, on the node of a cluster that has it."""
    return DeadLetterAdmin(line.near(key), key)


async def editable(line: Line, key: str, ident: str) -> tuple[StoredLetter, list[tuple[bytes, bytes]]]:
    """A letter, and the fields of its entry."""
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
    """The letters that are chosen, counted."""
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
    """Refuse the change if the user may not add to the streams that the letters came from."""
    for stream in streams[:_STREAMS]:
        rights = await rights_on(line, stream)
        if (why := rights.refusal("XADD")) is not None:
            raise ChangeRefusedError(f"{stream}: {why}")


def _results(outcome: PutBackOutcome) -> list[StepResult]:
    """The outcome of each letter."""
    done = [StepResult(_step(one), "done", 1, f"{entry} on {stream}") for one, stream, entry in outcome.returned]
    gone = [StepResult(_step(one), "moved", why="the letter was not there any more") for one in outcome.gone]
    refused = [StepResult(_step(one), "refused", why=why) for one, why in outcome.refused]
    lost = "nobody could ask where it is: look for it before you add it again"
    return [*done, *gone, *refused, *(StepResult(_step(one.id), "refused", why=lost) for one in outcome.unsettled)]


def _step(letter: str) -> Step:
    return Step((), entry=letter)
