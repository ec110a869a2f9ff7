"""Findings as data and as text, and findings about servers, Spark queries and dead letters. PURE."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest

from millstream.client.dead_letter.letter import SUFFIX
from millstream.client.partitions.layout import logical
from millstream.ops.findings.advice import LEVELS, Advice, Case, Level, advise, frozen_advice
from millstream.ops.findings.memory import memory_advice, on_server
from millstream.ops.server.status import SILENT_SECONDS, Replication, ServerStatus
from millstream.ops.spark.status import QueriesSeen, QueryStatus
from millstream.ops.streams.status import GroupStatus, OldestEntry, StreamsSeen, StreamStatus
from millstream.ops.words import DASH, Facts, brief, command_words, is_time, milliseconds, name, picked, span, text_of
from millstream.ops.workers.status import WorkersSeen
from millstream.texts import plural

LOOKED_AT = 20
"""Limit of groups for which consumers and pending entries are read, and of other groups with findings."""

_FROZEN = 100  # largest number of findings about frozen workers whose groups are not read

_TEXT = 300  # characters of a fact that are shown


def worst_groups(seen: StreamsSeen, workers: WorkersSeen | None = None) -> list[GroupStatus]:
    """Return groups with unfinished entries: those of frozen workers, then the oldest by turns, and unread ones last.

    By turns come the groups with the oldest pending entry and those with the oldest undelivered one, so that many
    old groups of one kind do not hide the other. Groups of unknown age come before others.
    """

    def age(entry: OldestEntry) -> int:
        known = entry.age(seen.at_ms)
        return 0 if entry.id is None else seen.at_ms if known is None else known

    every = [group for stream in seen.streams for group in stream.groups if group.pending or group.lag.worst]
    read = [group for group in every if group.has_readers]
    pending = sorted(read, key=lambda one: age(one.oldest_pending), reverse=True)
    undelivered = sorted(read, key=lambda one: age(one.oldest_undelivered), reverse=True)
    stopped = _stopped(workers)
    first = [group for group in pending if (logical(group.stream) or group.stream, group.name) in stopped]
    turns = chain(first[: LOOKED_AT // 2], chain.from_iterable(zip(pending, undelivered, strict=True)))
    looked = list(islice({id(group): group for group in turns}.values(), LOOKED_AT))
    alone = [group for group in every if not group.has_readers]
    return looked + sorted(alone, key=lambda one: age(one.oldest_undelivered), reverse=True)[:LOOKED_AT]


def _stopped(workers: WorkersSeen | None) -> set[tuple[str, str]]:
    """Return the streams and groups that frozen workers read."""
    found = [] if workers is None else [one for one in workers.workers if one.is_frozen(workers.at_ms)]
    return {(logical(sub.stream) or sub.stream, sub.group) for one in found for sub in one.subscribers}


def frozen_besides(workers: WorkersSeen, found: Iterable[Advice]) -> list[Advice]:
    """Return a finding for each frozen worker that no other finding names, from its own report alone."""
    named = {one.worker for one in found}
    rows = []
    for worker in workers.workers:
        if worker.id not in named and worker.is_frozen(workers.at_ms):
            for one in sorted(worker.subscribers, key=lambda one: one.running + one.buffered)[-1:]:
                place, held = (one.stream, one.group, one.consumer), one.running + one.buffered
                rows.append(frozen_advice(worker, workers.at_ms, *place, pending=held))
    return rows[:_FROZEN]


def letters_waiting(seen: StreamsSeen) -> list[Advice]:
    """Return findings on the dead-letter streams with letters, found by their suffix, the longest first."""
    found = sorted(
        (stream for stream in seen.streams if stream.key.endswith(SUFFIX) and stream.length),
        key=lambda stream: stream.length,
        reverse=True,
    )
    return [_letters(stream, seen.at_ms) for stream in found[:LOOKED_AT]]


def _letters(stream: StreamStatus, now_ms: int) -> Advice:
    """Return the finding about the letters in a dead-letter stream."""
    newest = None if stream.last_entry_id is None else max(now_ms - milliseconds(stream.last_entry_id), 0)
    says = f"{plural(stream.length, 'dead letter')} of entries that no worker could handle"
    evidence = {"letters": stream.length, "newest_ms": newest}
    found = Advice("dead-letters", "warning", stream.key, None, says, evidence, command_words("dead ls", stream.key))
    first = stream.first_entry_id
    return found if first is None or not is_time(first) else replace(found, since_ms=milliseconds(first))


LOST_MS = 86_400_000
"""Age in milliseconds above which a lost query is not a finding any more, only listed."""


def lost_queries(queries: QueriesSeen, seen: StreamsSeen) -> list[Advice]:
    """Return findings on Spark queries that ended, or that finish no batch though entries wait."""
    added = {stream.key: stream.entries_added for stream in seen.streams}
    lost = queries.lost
    found = []
    for query in queries.queries:
        silent_ms = None if query.at_ms is None else max(queries.at_ms - query.at_ms, 0)
        if query in lost and (silent_ms is None or silent_ms < LOST_MS):
            how = "failed" if query.state == "failed" else "is gone: its driver no longer reports"
            said = f": {brief(query.error, _TEXT)}" if query.error and query.state == "failed" else ""
            found.append(_query(query, "lost-query", "problem", f"the Spark query {how}{said}", silent_ms))
        elif (still := query.still_ms(queries.at_ms)) is not None and any(
            (added.get(place.stream) or 0) > place.n for place in query.places
        ):
            says = f"the Spark query has finished no batch for {span(still)}, and entries wait"
            found.append(_query(query, "still-query", "warning", says, still))
    return found[:LOOKED_AT]


def _query(query: QueryStatus, code: str, level: Level, says: str, silent_ms: int | None) -> Advice:
    """Return a finding about a query."""
    evidence = {"state": query.state, "last_report_ms": silent_ms, "batch": query.batch, "host": query.host}
    evidence |= {"streams": ", ".join(place.stream for place in query.places) or None}
    remedy = command_words("spark show", query.id)
    stream = query.places[0].stream if query.places else ""
    who = (query.id, query.title)
    return Advice(code, level, stream, None, says, evidence, remedy, query=who, since_ms=query.at_ms)


def by_kind(found: Sequence[Advice], apart: Container[int] = ()) -> list[list[Advice]]:
    """Group findings of one kind, since they share a remedy; the kinds keep their order.

    Findings whose identity is in ``apart`` stay alone.
    """
    kinds: dict[tuple[str, str, int], list[Advice]] = {}
    for one in found:
        kinds.setdefault((one.level, one.code, id(one) if id(one) in apart else 0), []).append(one)
    return list(kinds.values())


def place_of(advice: Advice) -> str:
    """Return the subject of a finding in words: a query, a server, a stream or a group."""
    if advice.query is not None:
        return f"query {name(advice.query[1])}"
    if advice.server is not None:
        return advice.server
    return name(advice.stream) if advice.group is None else f"{name(advice.group)} on {name(advice.stream)}"


def advice_on(
    cases: Iterable[Case], besides: Iterable[Advice] = (), workers: WorkersSeen | None = None
) -> list[Advice]:
    """Return all findings about some groups and workers, and the given ones, the most severe first."""
    every = [*(advice for case in cases for advice in advise(case)), *besides]
    every += [] if workers is None else frozen_besides(workers, every)
    return sorted(every, key=lambda advice: LEVELS.index(advice.level))


def finding_facts(advice: Advice, remedy: Sequence[str] | str | None) -> Facts:
    """Return a finding as data."""
    return {
        **picked(advice, "code level stream group consumer"),
        "query": None if advice.query is None else advice.query[0],
        **picked(advice, "server worker since_ms says"),
        "evidence": dict(advice.evidence),
        "remedy": remedy or None,
        "raw": [list(command) for command in advice.raw],
    }


_STATED: Mapping[str, frozenset[str]] = {
    "blocked-worker": frozenset({"worker", "where"}),
    "silent-worker": frozenset({"worker", "silent_ms"}),
    "nobody-reads": frozenset({"frozen"}),
    "paused": frozenset({"by", "reason"}),
    "stuck-consumer": frozenset({"idle_ms", "pending", "others"}),
    "idle-consumer": frozenset({"idle_ms", "pending", "others"}),
    "untried": frozenset({"pending"}),
    "long-job": frozenset({"worker", "entry", "for_ms"}),
    "unowned": frozenset({"unowned"}),
    "fatal": frozenset({"entries", "first"}),
    "delivered-often": frozenset({"entries", "worst", "deliveries"}),
    "gone": frozenset({"entries"}),
    "held-up": frozenset({"key", "partition", "entry", "waiting", "for_ms", "error"}),
    "limit-reached": frozenset({"limit", "waiting"}),
    "falling-behind": frozenset({"added_per_second", "delivered_per_second"}),
    "left-behind": frozenset({"consumers"}),
    "dead-letters": frozenset({"letters"}),
    "lost-query": frozenset({"state"}),
    "lost-link": frozenset({"primary", "link_down_ms"}),
    "copy-under-way": frozenset({"primary"}),
    "silent-replica": frozenset({"replica", "silent_ms"}),
    "slow-replica": frozenset({"replica", "silent_ms"}),
    "writes-refused": frozenset({"sync_replicas", "confirming", "min_replicas_to_write", "good_replicas"}),
    "uneven-partitions": frozenset({"skew"}),
    "no-owner": frozenset({"partitions", "for_ms"}),
    "out-of-memory": frozenset({"memory_bytes", "memory_limit"}),
    "memory-near-limit": frozenset({"memory_bytes", "memory_limit"}),
    "removed-unread": frozenset({"entries"}),
    "damaged-entries": frozenset({"parts"}),
    "disk-nearly-full": frozenset({"free_bytes", "needed_bytes"}),
    "slow-disk": frozenset({"for_ms"}),
}
"""Code of a finding -> the facts that its sentence already states."""


def evidence_text(advice: Advice) -> str:
    """Return the evidence that a finding's sentence does not state, in words; durations have units."""
    stated = _STATED.get(advice.code, frozenset())
    if advice.evidence.get("lag") is not None:
        stated |= {"lag_at_least"}
    if advice.evidence.get("consumers") == 0:
        stated |= {"consumers"}
    return "; ".join(
        _fact(each, value) for each, value in advice.evidence.items() if value is not None and each not in stated
    )


def _fact(fact: str, value: object) -> str:
    title = fact.removesuffix("_ms").replace("_", " ")
    if fact.endswith("_ms") and isinstance(value, int | float):
        return f"{title} {span(value)}"
    if isinstance(value, float):
        return f"{title} {value:.1f}"
    text = text_of(value) if isinstance(value, bytes) else DASH if value is None else str(value)
    return f"{title} {brief(text, _TEXT)}"


_REASON = 200  # characters of a reason that are shown


def servers_advice(nodes: Sequence[ServerStatus], before: Sequence[ServerStatus] = ()) -> list[Advice]:
    """Return all findings about some servers."""
    earlier = before if len(before) == len(nodes) else ()
    return [
        advice
        for number, (node, was) in enumerate(zip_longest(nodes, earlier), 1)
        for advice in _server(node, was, "server" if len(nodes) == 1 else f"node {number}")
    ]


def _server(node: ServerStatus, was: ServerStatus | None, name: str) -> Iterable[Advice]:
    """Yield the findings about one server."""
    if node.log_status not in {None, "ok"}:
        says = "the last write to its disk failed, so writes are refused until one succeeds"
        yield on_server(name, "writes-refused", "problem", says, {"log_on_disk": node.log_status})
    yield from memory_advice(node, was, name)
    state = node.replication
    if state is None:
        return
    yield from _link(state, name, node.at_ms)
    for says, evidence in state.refusals():
        yield on_server(name, "writes-refused", "problem", says, evidence)
    yield from _replicas(node, was, name)


def _link(state: Replication, name: str, now_ms: int) -> Iterable[Advice]:
    link = state.primary
    if link is None or link.state == "up":
        return
    evidence: dict[str, object] = {"primary": link.address, "offset": state.offset}
    if link.is_syncing:
        says = f"it is copying all data of its primary {link.address}; until then it serves its former data"
        yield on_server(name, "copy-under-way", "hint", says, evidence)
        return
    down_ms = None if link.down_seconds is None else link.down_seconds * 1000
    why = f": {brief(link.error, _REASON)}" if link.error else ""
    says = f"its link to its primary {link.address} has been down for {DASH if down_ms is None else span(down_ms)}{why}"
    says += "; its data is that old, so do not promote it"
    since = None if down_ms is None else now_ms - down_ms
    yield on_server(name, "lost-link", "problem", says, evidence | {"link_down_ms": down_ms}, since)


def _replicas(node: ServerStatus, was: ServerStatus | None, name: str) -> Iterable[Advice]:
    """Yield findings about online replicas that are silent or slow; a replica that waits for its copy is skipped."""
    for each in node.replicas:
        if each.state != "online":
            continue
        silent = each.lag_seconds or 0
        evidence: dict[str, object] = {"replica": each.address, "silent_ms": silent * 1000}
        evidence |= {"behind_bytes": each.behind_bytes}
        if each.is_silent:
            says = f"its replica {each.address} was last heard from {span(silent * 1000)} ago"
            says, since = f"{says}, and does not have the writes since", node.at_ms - silent * 1000
            yield on_server(name, "silent-replica", "warning", says, evidence, since)
        elif (late_ms := _late(node, was, each.behind_bytes)) is not None:
            says = f"its replica {each.address} has not received the writes of {span(late_ms)} ago"
            yield on_server(name, "slow-replica", "warning", says, evidence, node.at_ms - late_ms)


def _late(node: ServerStatus, was: ServerStatus | None, behind: int | None) -> int | None:
    """Return the minimum delay of a replica in milliseconds; None if it is not known to be too long."""
    now, then = node.replication, None if was is None else was.replication
    if now is None or then is None or was is None or behind is None or now.id != then.id:
        return None
    if now.offset is None or then.offset is None or now.offset - behind >= then.offset:
        return None
    apart = node.at_ms - was.at_ms
    return apart if apart >= SILENT_SECONDS * 1000 else None
