"""What needs a person: which groups are looked into, and advice as facts and in words. Pure."""

from collections.abc import Iterable, Sequence

from millstream.client.dead_letter.letter import SUFFIX
from millstream.console.model.advice import LEVELS, Advice, Case, advise
from millstream.console.model.facts.streams import Facts
from millstream.console.model.names import milliseconds, text_of
from millstream.console.model.streams import GroupStatus, StreamsSeen, StreamStatus
from millstream.console.words import DASH, brief, plural, span

LOOKED_AT = 20
"""Groups that are looked into, the worst by the age of what they have not finished."""

_TEXT = 300  # letters of a fact


def worst_groups(seen: StreamsSeen) -> list[GroupStatus]:
    """Groups with something that is not finished, the oldest first."""

    def age(group: GroupStatus) -> int:
        return max(group.oldest_pending.age(seen.at_ms) or 0, group.oldest_undelivered.age(seen.at_ms) or 0)

    every = [group for stream in seen.streams for group in stream.groups if group.pending or group.lag.worst]
    return sorted(every, key=age, reverse=True)[:LOOKED_AT]


def letters_waiting(seen: StreamsSeen) -> list[Advice]:
    """Dead-letter streams, by their usual name, that have letters: the most first; somebody has to look at them."""
    found = sorted(
        (stream for stream in seen.streams if stream.key.endswith(SUFFIX) and stream.length),
        key=lambda stream: stream.length,
        reverse=True,
    )
    return [_letters(stream, seen.at_ms) for stream in found[:LOOKED_AT]]


def _letters(stream: StreamStatus, now_ms: int) -> Advice:
    """That entries of a stream are dead; names that begin with a dash are no options behind ``--``."""
    newest = None if stream.last_entry_id is None else max(now_ms - milliseconds(stream.last_entry_id), 0)
    says = f"{plural(stream.length, 'entry was', 'entries were')} given up and put aside as dead letters"
    names = ("--", stream.key) if stream.key.startswith("-") else (stream.key,)
    evidence = {"letters": stream.length, "newest_ms": newest}
    return Advice("dead-letters", "warning", stream.key, None, says, evidence, ("millstream", "dead", "ls", *names))


def advice_on(cases: Iterable[Case], besides: Iterable[Advice] = ()) -> list[Advice]:
    """Everything there is to say of some groups, and what was found besides, what matters most first."""
    every = [*(advice for case in cases for advice in advise(case)), *besides]
    return sorted(every, key=lambda advice: LEVELS.index(advice.level))


def finding_facts(advice: Advice, remedy: Sequence[str] | str | None) -> Facts:
    """A finding.

    Args:
        advice: as it was found.
        remedy: the command line that helps; None where there is none.
    """
    return {
        "code": advice.code,
        "level": advice.level,
        "stream": advice.stream,
        "group": advice.group,
        "consumer": advice.consumer,
        "says": advice.says,
        "evidence": dict(advice.evidence),
        "remedy": remedy or None,
        "raw": [list(command) for command in advice.raw],
    }


def evidence_text(advice: Advice) -> str:
    """The facts that say so, in words: lengths of time have their units."""
    return "; ".join(_fact(each, value) for each, value in advice.evidence.items() if value is not None)


def _fact(fact: str, value: object) -> str:
    title = fact.removesuffix("_ms").replace("_", " ")
    if fact.endswith("_ms") and isinstance(value, int | float):
        return f"{title} {span(value)}"
    if isinstance(value, float):
        return f"{title} {value:.1f}"
    text = text_of(value) if isinstance(value, bytes) else DASH if value is None else str(value)
    return f"{title} {brief(text, _TEXT)}"
