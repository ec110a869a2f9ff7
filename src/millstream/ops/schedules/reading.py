"""Reading a server's recurring schedules with their state. Any client may have written the records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from millstream.client.later import schedule
from millstream.client.later.recurring import KEY, SILENT_MS, Recurring
from millstream.client.line import Command, Line
from millstream.ops.asking import calls, refusal
from millstream.ops.later.reading import answer, server_ms
from millstream.ops.plan import TargetMissingError
from millstream.ops.schedules.status import Declared, RecurringStatus, SchedulesSeen
from millstream.ops.words import text_of

_DAMAGED = "its record is damaged: workers ignore it"
_AT_ONCE = 100  # schedules read in one round trip


async def read_recurring(line: Line, most: int | None = None) -> SchedulesSeen:
    """Read the recurring schedules sorted by name, at most ``most``."""
    time, flat = await calls(line.near(KEY), [("TIME",), ("HGETALL", KEY)])
    now, rows = server_ms(time, KEY), answer(flat, KEY)
    records = dict(sorted((text_of(name), text) for name, text in zip(rows[::2], rows[1::2], strict=True)))
    names = list(records)[:most]
    found: list[RecurringStatus] = []
    for start in range(0, len(names), _AT_ONCE):
        page = {name: records[name] for name in names[start : start + _AT_ONCE]}
        found += await _with_state(line, page, now)
    return SchedulesSeen(now, tuple(found), len(records))


async def named_recurring(line: Line, name: str) -> tuple[RecurringStatus, int]:
    """Read one recurring schedule, and the server's time."""
    time, text = await calls(line.near(KEY), [("TIME",), ("HGET", KEY, name)])
    if answer(text, KEY) is None:
        raise TargetMissingError(f"there is no schedule {name!r}; `millstream schedule ls` lists the schedules")
    now = server_ms(time, KEY)
    (found,) = await _with_state(line, {name: text}, now)
    return found, now


async def _with_state(line: Line, records: Mapping[str, bytes], now: int) -> list[RecurringStatus]:
    """Return schedules with their state: the time placed last, the pause, and the waiting firing."""
    every = [_status(name, text, now) for name, text in records.items()]
    known = [one for one in every if one.table is not None]
    asked: list[Command] = [("HMGET", schedule.placed_key(one.stream), one.name, f"paused:{one.name}") for one in known]
    states = await calls(line, asked)
    firings: list[RecurringStatus] = []
    for one, reply in zip(known, states, strict=True):
        if (why := refusal(reply)) is not None:
            firings.append(replace(one, why=f"{schedule.placed_key(one.stream)}: {why}"))
        else:
            placed, paused = (None if each is None else text_of(each) for each in reply)
            firings.append(replace(one, placed=placed, paused=paused is not None))
    asked = []
    for one in firings:
        asked.append(("ZSCORE", schedule.due_key(one.stream), one.firing))
        asked.append(("HGET", schedule.content_key(one.stream), one.firing))
    replies = await calls(line, asked)
    whole = {one.name: _with_firing(one, replies[2 * at : 2 * at + 2]) for at, one in enumerate(firings)}
    return [whole.get(one.name, one) for one in every]


def _with_firing(one: RecurringStatus, replies: Sequence[object]) -> RecurringStatus:
    why = next((said for each in replies if (said := refusal(each)) is not None), None)
    if why is not None:
        return replace(one, why=one.why or f"{schedule.due_key(one.stream)}: {why}")
    score, content = replies
    return replace(
        one,
        score=text_of(score) if isinstance(score, bytes) else None,
        content=content if isinstance(content, bytes) else None,
    )


def _status(name: str, text: bytes, now: int) -> RecurringStatus:
    one = Recurring.of_json(text)
    if one is None or one.name != name:
        return RecurringStatus(name, why=_DAMAGED)
    return RecurringStatus(name, one.stream, one.table, one.words, _declared(one, now), one.seen_ms, one.key)


def _declared(one: Recurring, now: int) -> Declared:
    if not one.in_code:
        return "put"
    return "code" if now - one.seen_ms <= SILENT_MS else "nobody"
