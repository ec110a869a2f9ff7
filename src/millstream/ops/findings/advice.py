"""Findings about a group, each with its evidence and the command that helps. Pure.

Each finding follows from known facts and shows them, so that a person can weigh it. None guesses at a cause that the
facts do not show.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from millstream.ops.groups.status import GroupRate
from millstream.ops.pending.status import FATAL, PendingEntry
from millstream.ops.streams.status import ConsumerStatus, GroupSeen
from millstream.ops.words import command_words, order
from millstream.ops.workers.status import SubscriberStatus, VanishedWorker, WorkersSeen, WorkerStatus, process_of
from millstream.texts import plural, span_text

Level = Literal["problem", "warning", "hint"]
"""Severity: a person must act (``problem``), should look (``warning``), or is informed (``hint``)."""

LEVELS: tuple[Level, ...] = ("problem", "warning", "hint")


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding, such as a stuck consumer."""

    code: str  # Kind of the finding, for programs: ``stuck-consumer``
    level: Level  # Severity
    stream: str  # Key of the stream
    group: str | None  # Name of the group; None if the finding is about the stream alone
    says: str  # Problem, as a sentence
    # Facts that prove the problem; names of durations end in ``_ms``
    evidence: Mapping[str, object] = field(default_factory=dict)
    remedy: tuple[str, ...] | None = None  # Command line that helps; None if there is none
    raw: tuple[tuple[str, ...], ...] = ()  # Raw commands of the remedy, if known
    consumer: str | None = None  # Consumer with the problem; None for the group
    query: tuple[str, str] | None = None  # Id and title of the Spark query with the problem; None if none
    # Name of the server with the problem, without a stream; None for a group's finding
    server: str | None = None
    worker: str | None = None  # Id of the worker, or name of the consumer, that causes it; None if the facts name none
    since_ms: int | None = None  # Its beginning, wall milliseconds; None if it is unknown


_STUCK_MS = 300_000  # a consumer with pending entries and no request for this time is stuck
_IDLE_MS = 60_000  # the same for a consumer that no worker reports, while others of its group continue to read
_AWAY_MS = 60_000  # a group has no readers if no consumer sent a request for this time
_LEFT_MS = 86_400_000  # a consumer without entries and requests for this time was abandoned
_OFTEN = 5  # an entry with this number of deliveries fails repeatedly


@dataclass(frozen=True, slots=True)
class Case:
    """The known facts about a group at one moment."""

    seen: GroupSeen  # The group, its stream and consumers
    pending: tuple[PendingEntry, ...] = ()  # Some of its pending entries: the oldest, or the most often delivered ones
    workers: WorkersSeen | None = None  # All workers; None if they were not read
    rate: GroupRate | None = None  # Rates since the previous reading; None at the first reading

    def about(
        self,
        code: str,
        level: Level,
        says: str,
        *,
        evidence: Mapping[str, object],
        remedy: Iterable[str] | None = None,
        raw: Iterable[tuple[str, ...]] = (),
        consumer: str | None = None,
        worker: str | None = None,
        for_ms: int | None = None,
    ) -> Advice:
        """Return a finding about this group, which began ``for_ms`` milliseconds ago."""
        words = None if remedy is None else _safe(tuple(remedy))
        group, began = self.seen.group, None if for_ms is None else self.seen.at_ms - for_ms
        bare = Advice(code, level, group.stream, group.name, says, dict(evidence), words, tuple(raw), consumer)
        return replace(bare, worker=worker, since_ms=began)


def advise(case: Case) -> list[Advice]:
    """Return all findings about a group, the most severe first."""
    found = [advice for rule in _RULES for advice in rule(case)]
    return sorted(found, key=lambda advice: LEVELS.index(advice.level))


def _unknown_lag(case: Case) -> Iterable[Advice]:
    lag, group = case.seen.group.lag, case.seen.group
    # A server without the counters would produce the same finding for every group, permanently
    if lag.reason in (None, "no-counters"):
        return
    evidence: dict[str, object] = {"server_lag": lag.server, "lag_at_least": lag.at_least, "lag_at_most": lag.at_most}
    evidence |= {"entries_read": group.entries_read, "last_delivered_id": group.last_delivered_id}
    evidence |= {"max_deleted_id": case.seen.stream.max_deleted_id}
    evidence |= {"note": lag.repair_note} if lag.repair_note else {}
    says = f"the lag is unknown: {lag.why}"
    where, raw = (group.stream, group.name), () if lag.repair is None else (lag.repair,)
    few = lag.reason != "deleted" and lag.at_most is not None and lag.at_most <= _COUNTED and not lag.repair_note
    # Equals the raw command, but has a preview, which counts, and is refused if the group has moved
    known = ("group", "rewind", *where, "--to", "+0")
    remedy = known if raw or few else ("group", "show", *where, "--count", "1000000")
    yield case.about("lag-unknown", "hint", says, evidence=evidence, remedy=remedy, raw=raw, for_ms=_waited(case))


def _lost(case: Case) -> Iterable[Advice]:
    stream, group = case.seen.stream, case.seen.group
    added, read, first = stream.entries_added, group.entries_read, stream.first_entry_id
    if added is None or read is None:
        return
    # Only if no present entry was delivered, the missing entries were certainly not delivered either
    if first is not None and order(group.last_delivered_id) >= order(first):
        return
    missing = added - read - stream.length
    if missing > 0:
        says = f"trimmed or deleted before the group received them: {_entries(missing)}"
        evidence = {"entries_added": added, "entries_read": read, "length": stream.length, "first_entry_id": first}
        yield case.about("lost-entries", "problem", says, evidence=evidence, remedy=("stream", "gaps", stream.key))


def _nobody_reads(case: Case) -> Iterable[Advice]:
    group, consumers = case.seen.group, case.seen.consumers
    if group.lag.worst == 0 or case.seen.consumers_why is not None:
        return
    remedy: tuple[str, ...]
    evidence: dict[str, object] = {"lag": group.lag.entries, "lag_at_least": group.lag.at_least}
    pause = None if case.workers is None else case.workers.pause_of(group.stream, group.name)
    if pause is not None:
        evidence |= {"by": pause.by, "reason": pause.reason, "for_ms": max(case.seen.at_ms - pause.at_ms, 0)}
        says = f"the group is paused by {pause.by or 'somebody'}: {pause.reason}"
        remedy = ("worker", "resume", pause.stream, pause.group)
        long = max(case.seen.at_ms - pause.at_ms, 0)
        yield case.about("paused", "warning", says, evidence=evidence, remedy=remedy, for_ms=long)
        return
    quiet = min((one.idle_ms for one in consumers), default=None)
    if quiet is None or quiet >= _AWAY_MS:
        evidence |= {"consumers": len(consumers), "least_idle_ms": quiet}
        says, remedy = "entries wait and no consumer reads them", _who_reads(case)
        if not consumers:
            says = "entries wait and the group has no consumer: start the worker or program that reads it"
            remedy = ("run", "MODULE:APP")
        first = None
        if frozen := all_frozen(case):
            says, remedy = _frozen_words(frozen, case.seen.at_ms), ("worker", "show", frozen[0].id)
            evidence |= {"frozen": [worker.id for worker in frozen]}
            first = culprit(frozen).id
        elif case.workers is not None:
            left = case.workers.left(group.stream, group.name, (one.name for one in consumers))
            says += f"; {left}" if left else ""
        since = _waited(case) if quiet is None else quiet
        yield case.about("nobody-reads", "problem", says, evidence=evidence, remedy=remedy, worker=first, for_ms=since)


def _waited(case: Case) -> int | None:
    """Return the age of the oldest entry that was not delivered, in milliseconds; None if there is none known."""
    oldest = case.seen.group.oldest_undelivered
    return None if oldest.id is None else oldest.age(case.seen.at_ms)


def frozen_workers(case: Case) -> list[WorkerStatus]:
    """Return the group's workers that are frozen: blocked, or without a heartbeat."""
    return [one for one in readers_of(case) if one.is_frozen(case.seen.at_ms)]


def all_frozen(case: Case) -> list[WorkerStatus]:
    """Return the group's workers if all of them are frozen, otherwise none."""
    frozen = frozen_workers(case)
    return frozen if len(frozen) == len(readers_of(case)) else []


def culprit(frozen: Sequence[WorkerStatus]) -> WorkerStatus:
    """Return the frozen worker that a finding names: a blocked one, whose line of code is known, if there is one."""
    return min(frozen, key=lambda one: one.blocked_at is None)


def _frozen_words(frozen: Sequence[WorkerStatus], now_ms: int) -> str:
    first = culprit(frozen)
    reason = f"is blocked at {first.blocked_at}"
    if first.blocked_at is None:
        reason = f"has sent no heartbeat for {span_text(_silent_ms(first, now_ms))}"
    every = "the worker that reads the group is" if len(frozen) == 1 else f"all {len(frozen)} workers of the group are"
    return f"entries wait and {every} frozen: {first.id} {reason}"


def _silent_ms(one: WorkerStatus, now_ms: int) -> int:
    return max(now_ms - one.beat_ms, 0)


def _who_reads(case: Case) -> tuple[str, ...]:
    """Return the command line that shows the group's readers: workers if one reports the group, or consumers."""
    where = (case.seen.group.stream, case.seen.group.name)
    return ("worker", "ls") if readers_of(case) else ("consumer", "ls", *where)


def readers_of(case: Case) -> list[WorkerStatus]:
    """Return the live workers that report that they read the group."""
    if case.workers is None:
        return []
    return [worker for worker in case.workers.workers if _parts(case, worker)]


def _stuck(case: Case) -> Iterable[Advice]:
    group = case.seen.group
    lively = [one.name for one in case.seen.consumers if one.reads and one.idle_ms < _AWAY_MS]
    for one in case.seen.consumers:
        if one.name == "" or not one.pending:
            continue
        if one.waits:
            yield from _untried(case, one, lively)
            continue
        worker = None if case.workers is None else case.workers.holder(group.stream, group.name, one.name)
        if worker is not None and worker.is_frozen(case.seen.at_ms):
            place = (group.stream, group.name, one.name)
            yield frozen_advice(worker, case.seen.at_ms, *place, pending=one.pending)
        elif worker is None and one.idle_ms < _STUCK_MS and _vanished(case, one) is not None:
            yield _idle(case, one, len(lively))
        elif one.idle_ms >= _STUCK_MS and worker is None:
            yield _abandoned(case, one, [name for name in lively if name != one.name])
        elif one.idle_ms >= _IDLE_MS and worker is None and lively and _workers_known(case):
            yield _idle(case, one, len(lively))
        elif worker is not None:
            yield from _long_jobs(case, one, worker)


def _untried(case: Case, one: ConsumerStatus, lively: list[str]) -> Iterable[Advice]:
    """Yield a finding if entries wait for a retry and no process reads the group; a placeholder consumer holds them."""
    group = case.seen.group
    workers = case.workers
    paused = workers is not None and workers.pause_of(group.stream, group.name) is not None
    somebody = bool(readers_of(case)) or (bool(lively) and not _workers_known(case))
    due = one.pending - (group.delayed or 0)
    if somebody or paused or one.idle_ms < _STUCK_MS or due <= 0:
        return
    wait = "entry waits for its" if due == 1 else "entries wait for their"
    says = f"{due} {wait} next try, and no worker reads the group: start its workers"
    evidence = {"idle_ms": one.idle_ms, "pending": due}
    remedy = ("run", "MODULE:APP")
    yield case.about(
        "untried", "problem", says, evidence=evidence, remedy=remedy, consumer=one.name, for_ms=one.idle_ms
    )


def frozen_advice(
    worker: WorkerStatus, now_ms: int, stream: str, group: str | None, consumer: str | None, *, pending: int | None
) -> Advice:
    """Return the finding about a frozen worker that holds entries of a group."""
    evidence: dict[str, object] = {"worker": worker.id, "pending": pending, "host": worker.host, "pid": worker.pid}
    if worker.blocked_at is not None:
        code, began = "blocked-worker", worker.beat_ms - (worker.blocked_ms or 0)
        says = f"the worker {worker.id} is blocked at {worker.blocked_at}: its event loop does not run"
        evidence |= {"blocked_ms": worker.blocked_ms, "where": worker.blocked_at}
    else:
        code, began, silent = "silent-worker", worker.beat_ms, _silent_ms(worker, now_ms)
        says = f"the worker {worker.id} has sent no heartbeat for {span_text(silent)}: its process is frozen or gone"
        evidence |= {"silent_ms": silent}
    remedy = _safe(("worker", "show", worker.id))
    bare = Advice(code, "problem", stream, group, says, evidence, remedy, consumer=consumer)
    return replace(bare, worker=worker.id, since_ms=began)


def _abandoned(case: Case, one: ConsumerStatus, others: list[str]) -> Advice:
    says = ", and no live worker has this name" if case.workers is not None else ""
    says += f"; of the others {len(others)} at work, none claims them" if others else "; no other consumer works"
    # If no other consumer could take the entries, list them first
    does = ("claim", "--to", others[0]) if others else ("ls", "--payload")
    return _holds(case, one, ("stuck-consumer", "problem"), says, len(others), does)


def _workers_known(case: Case) -> bool:
    return case.workers is not None and case.workers.why is None


def _vanished(case: Case, one: ConsumerStatus) -> VanishedWorker | None:
    """Return the vanished worker whose process has a consumer; None if no fact connects one with it."""
    vanished = () if case.workers is None else case.workers.vanished
    return next((gone for gone in vanished if process_of(gone.id) == process_of(one.name)), None)


def _idle(case: Case, one: ConsumerStatus, others: int) -> Advice:
    """Return a finding about a consumer that may still process its entries, so its remedy only lists them."""
    reads = "another consumer goes on" if others == 1 else f"{others} others go on"
    says = f", while {reads}; no live worker has this name"
    found = _holds(case, one, ("idle-consumer", "warning"), says, others, ("ls", "--payload"))
    if (gone := _vanished(case, one)) is not None:
        silent = span_text(max(case.seen.at_ms - gone.beat_ms, 0))
        says = f"the worker {gone.id} has sent no heartbeat for {silent}: its process is frozen or gone, and holds "
        found = replace(found, level="problem", says=says + _entries(one.pending))
    return found


def _holds(
    case: Case, one: ConsumerStatus, kind: tuple[str, Level], says: str, others: int, does: tuple[str, ...]
) -> Advice:
    """Return a finding about a consumer that holds entries and has sent no request for long; it ends in ``says``."""
    group, (verb, *options) = case.seen.group, does
    begins = f"the consumer {one.name!r} holds {_entries(one.pending)} and has sent no request for "
    evidence = {"idle_ms": one.idle_ms, "pending": one.pending, "others": others}
    remedy = ("pending", verb, group.stream, group.name, "--consumer", one.name, *options)
    found = case.about(*kind, f"{begins}{span_text(one.idle_ms)}{says}", evidence=evidence, remedy=remedy)
    return replace(found, consumer=one.name, worker=one.name, since_ms=case.seen.at_ms - one.idle_ms)


def _long_jobs(case: Case, one: ConsumerStatus, worker: WorkerStatus) -> Iterable[Advice]:
    group = case.seen.group
    jobs = [job for job in worker.jobs if (job.stream, job.group) == (group.stream, group.name)]
    if jobs and jobs[0].for_ms >= _STUCK_MS:
        job = jobs[0]
        says = f"{job.handler} of {worker.id} has been at entry {job.id} for {span_text(job.for_ms)}"
        evidence = {"worker": worker.id, "entry": job.id, "for_ms": job.for_ms, "deliveries": job.deliveries}
        remedy = ("worker", "show", worker.id)
        found = case.about(
            "long-job", "warning", says, evidence=evidence, remedy=remedy, consumer=one.name, worker=worker.id
        )
        yield replace(found, since_ms=job.since_ms)


def _unowned(case: Case) -> Iterable[Advice]:
    group = case.seen.group
    if not group.unowned:
        return
    says = f"without a consumer since they were released: {_entries(group.unowned)}; a claim takes them"
    evidence = {"unowned": group.unowned, "pending": group.pending}
    remedy = ("pending", "ls", group.stream, group.name, "--unowned")
    yield case.about("unowned", "warning", says, evidence=evidence, remedy=remedy)


def _failing(case: Case) -> Iterable[Advice]:
    group = case.seen.group
    where = (group.stream, group.name)
    fatal = [entry for entry in case.pending if entry.fatal]
    often = [entry for entry in case.pending if _OFTEN <= entry.deliveries < FATAL]
    first = case.seen.stream.first_entry_id
    gone = [one for one in case.pending if one.gone or first is None or order(one.id) < order(first)]
    if fatal:
        says = f"released as impossible to process: {_entries(len(fatal))}, the first is {fatal[0].id}"
        evidence: dict[str, object] = {"entries": len(fatal), "first": fatal[0].id}
        yield case.about("fatal", "problem", says, evidence=evidence, remedy=("pending", "ls", *where, "--unowned"))
    if often:
        worst = max(often, key=lambda entry: entry.deliveries)
        says = f"delivered {plural(_OFTEN, 'time')} or more: {_entries(len(often))}, {worst.id} most often"
        says += f" ({plural(worst.deliveries, 'time')})"
        evidence = {"entries": len(often), "worst": worst.id, "deliveries": worst.deliveries}
        look = ("pending", "ls", *where, "--sort", "deliveries", "--payload")
        yield case.about("delivered-often", "warning", says, evidence=evidence, remedy=look)
    if gone:
        ids = [entry.id for entry in gone]
        least = "at least " if len(case.pending) < group.pending else ""
        says = f"pending, but trimmed or deleted from the stream, with nothing to process: {least}{_entries(len(gone))}"
        remedy = ("pending", "ack", *where, "--gone")
        evidence = {"entries": len(gone), "first": ids[0]}
        yield case.about("gone", "warning", says, evidence=evidence, remedy=remedy, raw=[("XACK", *where, *ids[:_IDS])])


def _held_up(case: Case) -> Iterable[Advice]:
    group = case.seen.group
    for one in () if case.workers is None else case.workers.held_up(group.stream, group.name)[:_HELD]:
        since = None if one.since_ms is None else max(case.seen.at_ms - one.since_ms, 0)
        evidence = {"key": one.key, "partition": one.stream, "entry": one.id, "waiting": one.waiting}
        evidence |= {"for_ms": since, "error": one.error}
        remedy = ("pending", "ls", one.stream, group.name, "--payload")
        text = one.text(case.seen.at_ms)
        yield case.about("held-up", "warning", text, evidence=evidence, remedy=remedy, for_ms=since)


def _limited(case: Case) -> Iterable[Advice]:
    """Yield a finding for each limit by which a group with old entries waits, or one that falls behind.

    Entries of a limit with keys wait for permits. Workers with another limit wait before they read entries.
    """
    group, rate = case.seen.group, case.rate
    oldest = max(group.oldest_undelivered.age(case.seen.at_ms) or 0, group.oldest_pending.age(case.seen.at_ms) or 0)
    is_old = oldest >= _STUCK_MS
    is_late = (group.oldest_undelivered.age(case.seen.at_ms) or 0) >= _STUCK_MS
    grows = group.lag.worst != 0 and rate is not None and (rate.lag_change or 0) > 0
    if case.workers is None or not (is_old or grows):
        return
    waiting: dict[str, int] = {}
    refusing: dict[str, str] = {}
    for limit in (limit for worker in readers_of(case) for one in _parts(case, worker) for limit in one.limits):
        if limit.waiting:
            waiting[limit.name] = waiting.get(limit.name, 0) + limit.waiting
        if limit.refused_ms is not None and limit.refused_ms < _REFUSED_MS and group.lag.worst != 0:
            refusing[limit.name] = limit.rate or ""
    for name in dict.fromkeys((*waiting, *refusing)):
        waits, of = waiting.get(name, 0), f" ({refusing[name]})" if refusing.get(name) else ""
        if not (is_old if waits else is_late or grows):
            continue
        why = f"{_entries(waits)} in hand or put aside for a permit" if waits else "its workers wait for permits"
        says = f"the limit {name!r}{of} holds the group up: {why}"
        evidence = {"waiting": waits, "oldest_ms": oldest}
        yield case.about("limit-reached", "warning", says, evidence=evidence | {"limit": name}, remedy=("limit", "ls"))


def _parts(case: Case, worker: WorkerStatus) -> list[SubscriberStatus]:
    """Return the handlers of a worker that read the group."""
    group = case.seen.group
    stream = group.stream if case.workers is None else case.workers.named(group.stream, group.name)
    return [one for one in worker.subscribers if (one.stream, one.group) == (stream, group.name)]


def _falling_behind(case: Case) -> Iterable[Advice]:
    rate = case.rate
    if rate is None or not rate.lag_change or rate.lag_change < 0 or not rate.added or rate.delivered is None:
        return
    says = f"the lag grows: {rate.added:.1f} entries are added a second, {rate.delivered:.1f} delivered"
    evidence = {"added_per_second": rate.added, "delivered_per_second": rate.delivered, "lag_change": rate.lag_change}
    yield case.about("falling-behind", "warning", says, evidence=evidence, remedy=_who_reads(case))


def _left_behind(case: Case) -> Iterable[Advice]:
    group = case.seen.group
    left = [one for one in case.seen.consumers if not one.pending and one.idle_ms >= _LEFT_MS and one.name]
    if left:
        says = f"consumers that hold nothing and have sent no request for {span_text(_LEFT_MS)}: {len(left)}"
        evidence = {"consumers": len(left), "first": left[0].name, "idle_ms": left[0].idle_ms}
        remedy = ("worker", "reap", group.stream, group.name)
        yield case.about("left-behind", "hint", says, evidence=evidence, remedy=remedy)


_COUNTED = 1000  # entries that the preview of a rewind counts at once
_IDS = 20  # limit of ids in a raw command
_REFUSED_MS = 15_000  # a limit that refused a permit within this time before a heartbeat holds its workers up
_HELD = 3  # limit of findings about blocked keys

_RULES: tuple[Callable[[Case], Iterable[Advice]], ...] = (
    _stuck,
    _lost,
    _nobody_reads,
    _failing,
    _held_up,
    _limited,
    _unowned,
    _falling_behind,
    _unknown_lag,
    _left_behind,
)


def _entries(count: int) -> str:
    return plural(count, "entry", "entries")


def _safe(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return a remedy as a safe command line: one worker's name, or a stream and a group, and then options."""
    noun, verb, *rest = words
    names = 1 if (noun, verb) == ("worker", "show") else 2
    return command_words(f"{noun} {verb}", *rest[:names], options=rest[names:])
