"""Problems that need a person: the choice of groups to look into, and advice as facts and in words. Pure."""

from collections.abc import Iterable, Sequence

from millstream.client.dead_letter.letter import SUFFIX
from millstream.console.model.advice import LEVELS, Advice, Case, Level, advise
from millstream.console.model.facts.streams import Facts
from millstream.console.model.names import command_words, milliseconds, text_of
from millstream.console.model.spark.queries import QueriesSeen, QueryStatus
from millstream.console.model.streams import GroupStatus, StreamsSeen, StreamStatus
from millstream.console.words import DASH, brief, name, plural, span

LOOKED_AT = 20
"""Groups that are looked into, the worst by the age of what they have not finished."""

_TEXT = 300  # letters of a fact


def worst_groups(seen: StreamsSeen) -> list[GroupStatus]:
    """Groups with something that is not finished, the oldest first, before them those of which no age is known."""

    def age(group: GroupStatus) -> int:
        there = [entry for entry in (group.oldest_pending, group.oldest_undelivered) if entry.id is not None]
        ages = [entry.age(seen.at_ms) for entry in there]
        return max((seen.at_ms if each is None else each for each in ages), default=0)

    every = [group for stream in seen.streams for group in stream.groups if group.pending or group.lag.worst]
    return sorted(every, key=age, reverse=True)[:LOOKED_AT]


def letters_waiting(seen: StreamsSeen) -> list[Advice]:
    """Dead-letter streams, by their usual name, that have letters: the most first; a person has to look at them."""
    found = sorted(
        (stream for stream in seen.streams if stream.key.endswith(SUFFIX) and stream.length),
        key=lambda stream: stream.length,
        reverse=True,
    )
    return [_letters(stream, seen.at_ms) for stream in found[:LOOKED_AT]]


def _letters(stream: StreamStatus, now_ms: int) -> Advice:
    """The finding that entries of a stream are dead."""
    newest = None if stream.last_entry_id is None else max(now_ms - milliseconds(stream.last_entry_id), 0)
    says = f"{plural(stream.length, 'entry was', 'entries were')} given up and put aside as dead letters"
    evidence = {"letters": stream.length, "newest_ms": newest}
    return Advice("dead-letters", "warning", stream.key, None, says, evidence, command_words("dead ls", stream.key))


LOST_MS = 86_400_000
"""A query that was lost longer ago is listed among the queries, and no finding any more."""


def lost_queries(queries: QueriesSeen, seen: StreamsSeen) -> list[Advice]:
    """Spark queries that should run and do not, or that run and do not go on though entries wait; the latest first."""
    added = {stream.key: stream.entries_added for stream in seen.streams}
    lost = queries.lost
    found = []
    for query in queries.queries:
        silent_ms = None if query.at_ms is None else max(queries.at_ms - query.at_ms, 0)
        if query in lost and (silent_ms is None or silent_ms < LOST_MS):
            how = "failed" if query.state == "failed" else "is gone: its driver says nothing more"
            said = f": {brief(query.error, _TEXT)}" if query.error and query.state == "failed" else ""
            found.append(_query(query, "lost-query", "problem", f"the Spark query {how}{said}", silent_ms))
        elif (still := query.still_ms(queries.at_ms)) is not None and any(
            (added.get(place.stream) or 0) > place.n for place in query.places
        ):
            says = f"the Spark query has ended no batch for {span(still)}, and entries wait"
            found.append(_query(query, "still-query", "warning", says, still))
    return found[:LOOKED_AT]


def _query(query: QueryStatus, code: str, level: Level, says: str, silent_ms: int | None) -> Advice:
    """A finding about a query."""
    evidence = {"state": query.state, "last_report_ms": silent_ms, "batch": query.batch, "host": query.host}
    evidence |= {"streams": ", ".join(place.stream for place in query.places) or None}
    remedy = command_words("spark show", query.id)
    stream = query.places[0].stream if query.places else ""
    return Advice(code, level, stream, None, says, evidence, remedy, query=(query.id, query.title))


def by_kind(found: Sequence[Advice]) -> list[list[Advice]]:
    """Findings of one kind together, in the order of the first of each: they have one remedy."""
    kinds: dict[tuple[str, str], list[Advice]] = {}
    for one in found:
        kinds.setdefault((one.level, one.code), []).append(one)
    return list(kinds.values())


def place_of(advice: Advice) -> str:
    """The subject of a finding, in words."""
    if advice.query is not None:
        return f"query {name(advice.query[1])}"
    if advice.server is not None:
        return advice.server
    return name(advice.stream) if advice.group is None else f"{name(advice.group)} on {name(advice.stream)}"


def advice_on(cases: Iterable[Case], besides: Iterable[Advice] = ()) -> list[Advice]:
    """All findings about some groups, and the given ones, the most important first."""
    every = [*(advice for case in cases for advice in advise(case)), *besides]
    return sorted(every, key=lambda advice: LEVELS.index(advice.level))


def finding_facts(advice: Advice, remedy: Sequence[str] | str | None) -> Facts:
    """A finding."""
    return {
        "code": advice.code,
        "level": advice.level,
        "stream": advice.stream,
        "group": advice.group,
        "consumer": advice.consumer,
        "query": None if advice.query is None else advice.query[0],
        "server": advice.server,
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
