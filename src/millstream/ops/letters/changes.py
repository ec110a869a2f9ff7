"""The actions ``dead retry``, ``dead edit`` and ``dead rm``, with their plans.

A plan shows the commands of its first letters. :mod:`millstream.client.dead_letter.put_back` puts letters back, one
transaction after the other.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.client.dead_letter.admin import LetterFilter
from millstream.client.dead_letter.letter import REASONS, DeadLetter
from millstream.client.dead_letter.put_back import PutBackOutcome, StoredLetter
from millstream.client.jsontext import fault
from millstream.client.line import Line
from millstream.errors import UsageError
from millstream.ops.actions import NothingChosenError, Spread, Together, Word, action
from millstream.ops.guard import Became, StepResult
from millstream.ops.letters.reading import (
    _PAGE,
    FIRST,
    ChosenLetters,
    LetterTally,
    admin_of,
    after_newest,
    editable,
    parts_of_letters,
    tally,
)
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import IDS, Stream, entry_id, instant
from millstream.ops.payloads.editing import difference, document_of, fields_from
from millstream.ops.plan import BeforeAfter, ChangePlan, ChangeRefusedError, Counting, Step, Undo, Words, counted
from millstream.ops.rights import rights_on
from millstream.ops.streams.partitioned import known_by

RATE = 100.0
"""Default limit of letters put back per second."""

_STREAMS = 20  # largest number of streams for which rights are checked before letters are put back

FITTING = (
    Word("option", says="Only letters with this reason.", name="reason", title="or of this reason", hint="overdue",
         values=REASONS),
    Word("option", "TEXT", "Only letters with this text in the error, ignoring case.", name="error",
         title="with this error", hint="timeout"),
    Word("option", "CLASS", "Only letters with exactly this type of error; without an error, with this reason.",
         name="kind", title="of this type", hint="ValueError"),
    Word("option", "TEXT", "Only letters with this text in the error or in a field, ignoring case.", name="text",
         title="with this text", hint="order 1705"),
    Word("option", says="Only letters of this group.", name="group", title="of this group", hint="billing"),
    Word("option", "TIME", "Only letters written at this time or later.", name="since", title="since",
         hint="1h-ago", read=instant),
    Word("option", "TIME", f"Only letters written before: {times.TIME_HELP}.", name="until",
         title="until", hint="10m-ago", read=instant),
)  # fmt: skip
"""Options that select letters, also for ``dead ls`` and ``dead export``."""


def fitting(values: Mapping[str, Any]) -> LetterFilter:
    """Return the filter for these options; it matches all letters if no option is given."""
    names = ("reason", "error", "group", "since", "until", "kind", "text")
    return LetterFilter(*(None if values[name] == "" else values[name] for name in names))


def _chosen(values: Mapping[str, Any]) -> ChosenLetters:
    ids, choice = values["ids"], fitting(values)
    if ids and (values["all"] or not choice.everything):
        raise UsageError("IDs and options exclude each other: name letters by ID, or choose them by options")
    if not ids and choice.everything and not values["all"]:
        raise NothingChosenError("No letters are chosen. Give their IDs, options such as --reason, or --all.")
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
        raise ValueError("it must be a number of entries a second, 0.1 or more")
    return rate


_PARTS = Spread(parts_of_letters, known_by(lambda texts: ("XRANGE", texts["key"], texts["ids"], texts["ids"])))


@action("dead retry", "Put dead letters back on the streams they came from.", "XDEL", parts=_PARTS)
async def retry(
    change: ActionCall,
    key: Stream,
    chosen: Letters,
    all_groups: Annotated[
        bool, Word("flag", says="Deliver to every group of the stream, not only the one that gave up.")
    ] = False,
    rate: Annotated[
        float,
        Word("option", says="Maximum rate in entries a second.", title="at most a second", hint="100", read=_rate,
             usual="100", least=0.1),
    ] = RATE,
) -> Prepared:  # fmt: skip
    """Put entries back on the streams they came from, and remove their letters.

    Both happen in one transaction, so a letter is put back once, even if several users try at the same time. The
    entry's fields are unchanged. Its history is added as a field _dead.history, which Millstream's workers remove
    before they call the handler. If the entry dies again, the history is in the new letter.

    The entry is added at the end of the stream, for the group that gave up: workers of other groups acknowledge it
    without running it. With --all-groups every group runs it. Other readers, Spark or your own programs, get it either
    way.

    STREAM is the stream or its dead-letter stream. Name letters by ID, choose them by options, or use --all: without
    IDs the command prompts first. After an interruption, the same command line continues with the letters left.

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
    plan = plan_retry(found, all_groups=all_groups, rate=rate)
    return _putting_back(plan, key, found.wanted, all_groups=all_groups, rate=rate)


@action("dead edit", "Correct the entry of a dead letter, and put it back for the group that gave up.", "XDEL",
        parts=_PARTS)  # fmt: skip
async def edit(
    change: ActionCall,
    key: Stream,
    ident: Annotated[str, Word("argument", "ID", name="ids", typed="id", read=entry_id, needed=True)],
    document: Annotated[str, Word("hidden")] = "",
) -> Prepared:
    """Correct the entry of one letter in your editor, put it back for the group that gave up, and remove the letter.

    VISUAL or EDITOR opens its fields as JSON. JSON, MessagePack and the workers' envelope are decoded, other bytes are
    {"base64": ...}, and unchanged values keep their bytes. Then the command shows the difference and prompts. The
    entry is put back as `retry` does, in one transaction with the letter's removal, and its history records the edit.
    If the editor fails, or the entry cannot be put back, the letter stays, and the text is kept in a file.

    STREAM is the stream or its dead-letter stream, ID the letter's own id from `ls`.

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
        raise UsageError(f"the edited text is invalid: {fault(reason)}") from None
    assert one.letter is not None
    await _may_add(change.line, [one.letter.stream])
    flat = [part for pair in fields for part in pair]
    lines = difference(document_of(before), document_of(fields))
    return _putting_back(plan_edit(key, one, flat, lines), key, [one.id], edited={one.id: flat})


@action("dead rm", "Delete dead letters for good.", "XDEL", loses=True, parts=_PARTS)
async def remove(change: ActionCall, key: Stream, chosen: Letters) -> Prepared:
    """Delete letters for good. `millstream dead export` keeps a copy.

    STREAM is the stream or its dead-letter stream. Name letters by ID, choose them by options, or use --all.

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
            # The reply is only a number, so assume that the last ids are those that were already gone
            results += [StepResult(Step((), entry=each), "done", 1) for each in ids[:removed]]
            results += [StepResult(Step((), entry=each), "moved", why="it was gone already") for each in ids[removed:]]
            tell(at + len(ids))

    return Prepared(plan_remove(found), len(wanted), work=work)


def _putting_back(plan: ChangePlan, key: str, ids: Sequence[str], **options: Any) -> Prepared:
    """Return the change that puts letters back; the options go to ``put_back``."""
    outcome = PutBackOutcome()

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        try:
            await admin_of(line, key).put_back(ids, progress=tell, outcome=outcome, stop=stop, **options)
        finally:
            results += _results(outcome)

    return Prepared(plan, len(ids), work=work, letters=outcome)


async def _settled(change: ActionCall, key: str, chosen: ChosenLetters) -> ChosenLetters:
    """Return the selection; if the preview is not kept, its time range is fixed so that later letters stay out."""
    if not change.kept or not isinstance(chosen, LetterFilter):
        return chosen
    until = chosen.until if chosen.until is not None else await after_newest(change.line, key)
    since = None if chosen.since is None else str(chosen.since)
    change.settle(all=None, since=since, until=str(until))
    return replace(chosen, until=until)


async def _may_add(line: Line, streams: Sequence[str]) -> None:
    """Refuse the change if the user may not add to the streams from which the letters came."""
    for stream in streams[:_STREAMS]:
        rights = await rights_on(line, stream)
        if (why := rights.refusal("XADD")) is not None:
            raise ChangeRefusedError(f"{stream}: {why}")


def _results(outcome: PutBackOutcome) -> list[StepResult]:
    """Return one result for each letter."""
    lost = "its state is unknown: look for it before you add it again"
    found: list[tuple[str, Became, int, str]]
    found = [(one, "done", 1, f"{entry} on {stream}") for one, stream, entry in outcome.returned]
    found += [(one, "moved", 0, "the letter did not exist any more") for one in outcome.gone]
    found += [(one, "refused", 0, why) for one, why in outcome.refused]
    found += [(one.id, "refused", 0, lost) for one in outcome.unsettled]
    return [StepResult(Step((), entry=one), became, count, why) for one, became, count, why in found]


_NAMED = 8  # largest number of streams and errors that a preview shows

_NOT_AS_NEW = "Each becomes a new entry at the end of its stream, with its history, and its letter is removed."


def plan_retry(found: LetterTally, *, all_groups: bool, rate: float | None) -> ChangePlan:
    """Plan to put letters back on the streams from which they came."""
    count = len(found.ids)
    streams = ", ".join(sorted(found.streams)) or "no stream"
    groups = ", ".join(sorted({group for _, group in found.groups}))
    whom = "every group there" if all_groups else f"the group that gave up on it only ({groups})"
    question = f"Put back {counted(count)} of {found.key} on {streams}, each for {whom}?"
    table = [BeforeAfter(f"letters in {found.key}", found.length, found.length - count + found.strange)]
    rows = Counter(found.streams).most_common(_NAMED)
    table += [BeforeAfter(f"put back on {stream}", 0, number) for stream, number in rows]
    notes = [_NOT_AS_NEW, *_causes(found)]
    if all_groups:
        notes.append("Every group of the stream receives it, even those that have processed it.")
    else:
        notes.append("Workers of other groups acknowledge it without running it; readers of other programs receive it.")
    if rate is not None and count > rate:
        notes.append(f"At most {rate:g} a second: it takes about {count / rate:.0f} s.")
    notes += [f"{found.strange} of them are not dead letters, and stay."] if found.strange else []
    notes += _missing(found)
    steps = tuple(_put_back(found.key, one, one.letter) for one in found.letters if one.letter is not None)
    undo = Undo(note="It cannot be undone: the letters are gone, and the entries are on their streams.")
    facts: dict[str, object] = {"letters": count, "groups": "all" if all_groups else "failed"}
    return ChangePlan(
        "dead retry", found.key, "", question, tuple(table), _shown(notes, found), steps, undo, facts,
        selection=found.selection,
    )  # fmt: skip


def plan_remove(found: LetterTally) -> ChangePlan:
    """Plan to delete letters for good."""
    count = len(found.ids)
    table = (BeforeAfter(f"letters in {found.key}", found.length, found.length - count),)
    notes = [*_causes(found), "`millstream dead export` keeps a copy.", *_missing(found)]
    steps = tuple(Step((("XDEL", found.key, one.id),), entry=one.id) for one in found.first)
    undo = Undo(note="It cannot be undone.")
    letters = "dead letter" if count == 1 else "dead letters"
    question = f"Delete {count} {letters} of {found.key} for good?"
    return ChangePlan(
        "dead rm", found.key, "", question, table, _shown(notes, found), steps, undo, {"letters": count},
        selection=found.selection,
    )  # fmt: skip


def plan_edit(key: str, one: StoredLetter, fields: Sequence[bytes], difference: Sequence[str]) -> ChangePlan:
    """Plan to put back the corrected entry of a letter."""
    letter = one.letter
    assert letter is not None
    question = (
        f"Put the corrected entry back on {letter.stream} for the group that gave up on it only ({letter.group}), and "
        "remove its letter?"
    )
    undo = Undo(note="It cannot be undone: its letter is gone, and the corrected entry is on its stream.")
    changed = tuple(fields) != letter.fields
    steps = (_put_back(key, one, replace(letter, fields=tuple(fields))),) if changed else ()
    table = (BeforeAfter(f"put back on {letter.stream}", 0, 1),)
    notes = (_NOT_AS_NEW, "Its history says that it was edited.") if changed else ()
    return ChangePlan(
        "dead edit", letter.stream, letter.group, question, table, notes, steps, undo, {"letter": one.id},
        difference=tuple(difference),
    )  # fmt: skip


def _put_back(key: str, one: StoredLetter, letter: DeadLetter) -> Step:
    add: Words = ("XADD", letter.stream, "*", *letter.fields, "_dead.history", "...")
    return Step((add, ("XDEL", key, one.id)), entry=one.id)


def _causes(found: LetterTally) -> list[str]:
    """Return a note with the most frequent errors of the letters."""
    named = [f"{error} {count}" for error, count in found.errors.most_common(_NAMED) if error]
    return [f"Errors: {', '.join(named)}."] if named else []


def _missing(found: LetterTally) -> list[str]:
    return [f"{len(found.missing)} of the ids do not exist."] if found.missing else []


def _shown(notes: list[str], found: LetterTally) -> tuple[str, ...]:
    if len(found.ids) > FIRST:
        notes.append(f"The commands shown are those of the first {FIRST} letters.")
    return tuple(notes)
