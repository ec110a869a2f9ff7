"""Changes of a partitioned stream: planned for each partition that they concern, and shown as one change.

A server cannot change several keys in one step, so the partitions are changed one after the other. Each is a change of
its own with its checks and its audit entry. All these audit entries share one name.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace

from millstream.client.line import Line
from millstream.client.recorded.line import RecordedLine
from millstream.errors import MillstreamError
from millstream.ops import making
from millstream.ops.actions import Action, Spread, Texts
from millstream.ops.guard import StepResult
from millstream.ops.making import Page, Prepared
from millstream.ops.plan import BeforeAfter, ChangePlan, ChangeRefusedError, Counting, TargetMissingError, Undo
from millstream.ops.rights import NO_CHANGE
from millstream.ops.streams.partitioned import named_as
from millstream.ops.words import command_words, shell_line
from millstream.worker.registry.lookup import groups

_NAMED = 20  # number of partitions for which a preview shows texts


async def prepare(
    action: Action, line: Line, texts: Texts, tell: Counting | None = None, *, kept: bool = False, who: str = ""
) -> Prepared:
    """Plan a change from a user's texts; a partitioned stream is planned partition by partition."""
    if isinstance(line, RecordedLine):
        raise ChangeRefusedError(NO_CHANGE)
    parts, key = action.parts, texts.get("key", "")
    keys = [] if parts is None or not key else await parts.keys(line, key)
    parts = parts if keys else None
    found, missing = list[Prepared](), list[MillstreamError]()
    for part in [texts] if parts is None else await _chosen(action, parts, line, texts, keys):
        try:
            found.append(await making.prepare(action, line, part, tell, kept=kept, who=who))
        except MillstreamError as error:
            if parts is None:
                raise
            if error.exit_code != TargetMissingError.exit_code:
                raise (named_as(key, error) if parts.has is not None else error) from None
            missing.append(error)
    if parts is None:
        return found[0]
    if not found:
        raise named_as(key, missing[0])
    concerned = [one for one in found if not one.nothing] or found[:1]
    if len(concerned) > 1:
        whole = _joined(action, texts, key, concerned)
    elif parts.has is not None:
        whole = _alone(key, concerned[0])
    else:  # a group's position belongs to one partition, but the stream's name would move all
        return concerned[0]
    words = action.typed({**whole.texts, "key": key})
    return replace(whole, plan=replace(whole.plan, words=words))


def _alone(stream: str, one: Prepared) -> Prepared:
    """Return the change of the only partition concerned, with an undo that names the stream."""
    back = tuple(stream if word == one.texts["key"] else word for word in one.plan.undo.words)
    return replace(one, plan=replace(one.plan, undo=replace(one.plan.undo, words=back)))


async def _chosen(action: Action, parts: Spread, line: Line, texts: Texts, keys: Sequence[str]) -> list[Texts]:
    """Return the texts for each partition; if ids are given, each partition gets the ids that it has."""
    word = next((one for one in action.words if one.name in {"ids", "id"}), None)
    named = word.several(texts.get(word.name, "")) if word is not None and parts.has is not None else []
    if word is None or parts.has is None or not any(map(str.strip, named)):
        return [{**texts, "key": key} for key in keys]
    ids = [word.value({word.name: one}, None) for one in named]
    ids = list(dict.fromkeys(one[0] if isinstance(one, tuple) else one for one in ids))
    found = {}
    for key in keys:
        there = await parts.has(line, [{**texts, "key": key, word.name: one} for one in ids])
        found[key] = [one for one, known in zip(ids, there, strict=True) if known]
    missing = [one for one in ids if not any(one in there for there in found.values())]
    if len(missing) == len(ids):
        group = texts.get("group")
        if group is not None and action.noun != "dead" and not await _in_any(line, keys, group):
            shows = shell_line(command_words("group ls", texts["key"]))
            raise TargetMissingError(f"no partition of {texts['key']!r} has a group {group!r}: `{shows}` lists them")
        raise TargetMissingError(f"{', '.join(map(repr, ids[:3]))}: no partition of {texts['key']!r} has it")
    chosen = {key: there for key, there in found.items() if there}
    chosen[next(iter(chosen))] += missing  # its plan reports them
    return [{**texts, "key": key, word.name: word.joined(there)} for key, there in chosen.items()]


async def _in_any(line: Line, keys: Sequence[str], group: str) -> bool:
    """True if a stream has the group."""
    return any([group in await groups(line, key) for key in keys])


def _joined(action: Action, texts: Texts, stream: str, found: Sequence[Prepared]) -> Prepared:
    """Join the changes of several partitions to one."""
    plans = [one.plan for one in found]
    settled = [{name: text for name, text in one.texts.items() if name not in {"key", "ids", "id"}} for one in found]
    if all(one == settled[0] for one in settled):  # a looked-up fact may be the same for all
        texts = {name: text for name, text in texts.items() if name in {"key", "ids", "id"}} | settled[0]
    held = tuple(each for plan in plans for each in plan.undo.held)
    undone = any(plan.undo.words for plan in plans)  # then an unchanged partition needs no note
    notes = dict.fromkeys(plan.undo.note for plan in plans if plan.undo.note and (plan.undo.words or not undone))
    if undone:
        notes["Each partition has an undo of its own: `millstream audit ls` shows them."] = None
    undo = Undo((), tuple(word for plan in plans for word in plan.undo.commands), held, plans[0].undo.now,
                " ".join(notes))  # fmt: skip
    plan = replace(
        plans[0],
        stream=stream,
        key="",
        question=f"{re.split('[:,.]', action.says)[0]} in {len(plans)} partitions of {stream!r}?",
        table=tuple(_table(plans)),
        notes=tuple(_notes(plans)),
        steps=tuple(step for plan in plans for step in plan.steps),
        undo=undo,
        facts=_facts([plan.facts for plan in plans]),
        selection=" ".join(plan.selection for plan in plans),
        live=any(plan.live for plan in plans),
        if_moved=next((plan.if_moved for plan in plans if plan.if_moved), ""),
    )
    whole = Prepared(plan, sum(one.entries for one in found), rights=found[0].rights, texts=dict(texts))

    async def pages(line: Line) -> AsyncGenerator[Page, None]:
        for one in found:
            if one.pages is None:
                yield one.plan
                continue
            async for page in one.pages(line):
                yield page

    async def work(line: Line, results: list[StepResult], tell: Counting, stop: asyncio.Event) -> None:
        for one in found:
            if one.work is None or stop.is_set():
                return
            try:
                await one.work(line, results, _after(len(results), tell), stop)
            finally:
                whole.letters.add(one.letters)
                whole.letters.unsettled += one.letters.unsettled

    return replace(whole, **({"work": work} if found[0].work is not None else {"pages": pages}))


def _after(done: int, tell: Counting) -> Callable[[int], None]:
    return lambda count: tell(done + count)


def _table(plans: Sequence[ChangePlan]) -> list[BeforeAfter]:
    """Return one table: figures as sums over the partitions, texts and positions by partition."""
    sums: dict[str, list[BeforeAfter]] = {}
    for plan in plans:
        for row in plan.table:
            sums.setdefault(row.fact, []).append(row)
    rows, texts = list[BeforeAfter](), set[str]()
    for fact, each in sums.items():
        if any(isinstance(value, str) for row in each for value in (row.before, row.after)):
            texts.add(fact)  # a lag may be a number in one partition, and two bounds in another
        else:
            rows.append(BeforeAfter(fact, _sum([row.before for row in each]), _sum([row.after for row in each])))
    for plan in plans[:_NAMED]:
        rows += [replace(row, fact=f"{plan.stream}: {row.fact}") for row in plan.table if row.fact in texts]
    return rows


def _sum(values: Sequence[object]) -> int | None:
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if len(known) == len(values) else None


def _notes(plans: Sequence[ChangePlan]) -> list[str]:
    """Return the notes: one that all partitions share once, another with its partition."""
    common = [note for note in plans[0].notes if all(note in plan.notes for plan in plans)]
    notes = [f"{plan.stream}: {note}" for plan in plans[:_NAMED] for note in plan.notes if note not in common]
    return [*common, "The partitions are changed one after the other, not in one step.", *notes]


def _facts(each: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Join figures as sums and lists as one list; another fact becomes null if the partitions differ."""
    found = dict(each[0])
    for name, first in found.items():
        values = [facts.get(name) for facts in each]
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            found[name] = _sum(values)
        elif isinstance(first, list):
            found[name] = [one for value in values if isinstance(value, list) for one in value]
        elif isinstance(first, dict):
            counts: dict[object, object] = {}
            for value in values:
                for key, number in value.items() if isinstance(value, dict) else ():
                    counts[key] = _sum([counts.get(key, 0), number])
            found[name] = counts
        elif any(value != first for value in values):
            found[name] = None
    return {**found, "partitions": len(each)}
