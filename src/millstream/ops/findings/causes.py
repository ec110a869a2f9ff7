"""Findings grouped by cause: what happened, since when, what it holds up, and what to do. Pure.

One frozen worker shows in many findings: its consumers, their pending entries, the lag of its groups. Each is true, and
only one says what to mend. A finding folds below another one only if known facts connect both: the same worker, the
same consumer, the same group, or a server that refuses writes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from millstream.client.partitions.layout import logical
from millstream.ops.findings.advice import LEVELS, Advice, Case, Level, all_frozen, culprit, frozen_workers, readers_of
from millstream.ops.findings.status import place_of
from millstream.ops.server.status import ServerStatus
from millstream.ops.words import Facts, brief, command_words, count, name, picked
from millstream.ops.workers.status import WorkersSeen, WorkerStatus, process_of
from millstream.printable import without_secrets
from millstream.texts import plural, span_text

Kind = Literal["server", "worker", "consumer", "pause", "limit", "group", "entry", "other"]
"""Kind of a cause, in the order of precedence: a cause of an earlier kind explains findings of the later ones."""

KINDS: tuple[Kind, ...] = ("server", "worker", "consumer", "pause", "limit", "group", "entry", "other")

#: Facts that a cause shows elsewhere: figures of one group, as sums, and the time since its beginning.
_SUMMED = frozenset({"pending", "lag", "lag_at_least"})
_TIMES = frozenset({"blocked_ms", "for_ms", "idle_ms", "least_idle_ms", "link_down_ms"})
_GONE = frozenset({"stuck-consumer", "idle-consumer"})
#: Findings that say that a group does not advance; whatever stops the group explains them.
_STALLED = _GONE | {"nobody-reads", "paused", "limit-reached", "falling-behind", "untried", "unowned"}
_STALLED |= {"sealed-not-finished", "no-owner"}
_STOPS = frozenset({"writes-refused", "lost-link", "read-only"})
_REFUSED = ("OOM", "MISCONF", "READONLY", "NOREPLICAS")
_TEXT = 300  # characters of a text that leaves the server

#: The findings that state what each kind of cause is; other findings only show its effects.
_NAMES: Mapping[Kind, frozenset[str]] = {
    **dict.fromkeys(KINDS, frozenset()),
    "server": _STOPS | {"out-of-memory"},
    "worker": frozenset({"blocked-worker", "silent-worker"}),
    "consumer": _GONE,
    "pause": frozenset({"paused"}),
    "limit": frozenset({"limit-reached"}),
}
#: The finding that names a cause best, of several with the same level.
_HEADS = (
    *(
        "writes-refused",
        "out-of-memory",
        "read-only",
        "lost-link",
        "blocked-worker",
        "silent-worker",
        "paused",
        "limit-reached",
    ),
    *("nobody-reads", "stuck-consumer", "idle-consumer", "fatal", "held-up", "delivered-often"),
)


@dataclass(frozen=True, slots=True)
class Affected:
    """A group that a cause holds up, or a stream."""

    stream: str  # Key of the stream; for a partition, the name of the partitioned stream
    group: str | None  # Name of the group; None for a stream alone
    lag: int = 0  # Number of entries not delivered
    is_bound: bool = False  # True if that number is only a lower bound, since the lag is unknown
    pending: int = 0  # Number of pending entries
    partitions: int = 0  # Number of affected partitions; 0 for a plain stream

    def text(self) -> str:
        """Return the group with its figures as text."""
        where = name(self.stream) if self.group is None else f"{name(self.group)} on {name(self.stream)}"
        least = "at least " if self.is_bound else ""
        rows = [f"{least}{count(self.lag)} not delivered"] if self.lag else []
        rows += [f"{count(self.pending)} pending"] if self.pending else []
        rows += [f"in {plural(self.partitions, 'partition')}"] if self.partitions else []
        return f"{where}: {', '.join(rows)}" if rows else where


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause with the findings that it explains."""

    kind: Kind
    id: str  # Name of the cause, the same in each reading, for programs
    says: str  # Event, as a sentence
    head: Advice  # Finding that names the cause, with the earliest beginning and the remedy of all
    findings: tuple[Advice, ...]  # All its findings, that of the head first
    affects: tuple[Affected, ...] = ()  # Groups that it holds up

    @property
    def level(self) -> Level:
        """Highest severity of its findings, which the head has."""
        return self.head.level

    @property
    def effects(self) -> tuple[Advice, ...]:
        """The findings that it explains, without the head."""
        return self.findings[1:]

    @property
    def plain(self) -> str:
        """The event without anything that an entry or a program's error contains, for notifications."""
        text = self.says
        if self.head.code == "held-up":
            text = f"an ordering key of {name(self.head.stream)} is held up by {self.head.evidence['entry']}"
        elif self.head.code == "lost-query":
            text = f"the Spark query {name(place_of(self.head))} failed or is gone"
        elif self.kind in {"group", "entry", "other"} and self.head.server is None and self.head.query is None:
            text = f"{place_of(self.head)}: {text}"
        return brief(without_secrets(text), _TEXT)


def find_causes(
    found: Sequence[Advice],
    cases: Iterable[Case],
    servers: Sequence[ServerStatus] = (),
    workers: WorkersSeen | None = None,
) -> list[Cause]:
    """Return the causes of all findings, the most severe first; each finding belongs to exactly one."""
    given = tuple(cases)
    every = [*found, *_read_only(found, servers)]
    roots = _Roots(every, given, workers)
    gathered: dict[tuple[Kind, str], list[Advice]] = {}
    for one in every:
        gathered.setdefault(roots.of(one), []).append(one)
    causes = [_cause(kind, subject, rows, roots) for (kind, subject), rows in gathered.items()]
    return sorted(causes, key=_urgency)


def cause_facts(cause: Cause, remedy: Sequence[str] | str | None = None) -> Facts:
    """Return a cause as data."""
    return {
        **picked(cause, "id kind level says"),
        **picked(cause.head, "code since_ms"),
        "affects": [
            {**picked(one, "stream group lag pending partitions"), "lag_is_bound": one.is_bound}
            for one in cause.affects
        ],
        "remedy": remedy or (list(cause.head.remedy) if cause.head.remedy else None),
        "findings": len(cause.findings),
    }


class _Roots:
    """The facts that connect findings with their causes."""

    def __init__(self, found: Sequence[Advice], cases: Sequence[Case], workers: WorkersSeen | None) -> None:
        known = next((case.workers for case in cases if case.workers is not None), workers)
        self._fleets = {} if known is None else {one.id: _fleet(one) for one in known.workers}
        self._cases = {(case.seen.group.stream, case.seen.group.name): case for case in cases}
        self._stops = [one.server for one in found if one.code in _STOPS and one.server is not None]
        self._full = [one.server for one in found if one.code == "out-of-memory" and one.server is not None]
        self._gone: dict[tuple[str, str | None], set[str]] = {}
        self._paused: set[tuple[str, str | None]] = set()
        self._limits: dict[tuple[str, str | None], str] = {}
        self.unread: set[tuple[str, str | None]] = set()  # Groups that no consumer reads
        for one in found:
            self._note(one)
        self._groups: dict[tuple[str, str | None], tuple[Kind, str]] = {}

    def _note(self, one: Advice) -> None:
        place = _place(one)
        if one.code in _GONE and one.consumer is not None:
            self._gone.setdefault(place, set()).add(process_of(one.consumer))
        elif one.code == "paused":
            self._paused.add(place)
        elif one.code == "limit-reached":
            self._limits[place] = str(one.evidence["limit"])
        elif one.code == "nobody-reads":
            self.unread.add(place)

    def case(self, one: Advice) -> Case | None:
        """Return the facts about the group of a finding."""
        return None if one.group is None else self._cases.get((one.stream, one.group))

    def of(self, one: Advice) -> tuple[Kind, str]:
        """Return the kind of a finding's cause, and its subject."""
        if one.server is not None:
            return ("server", one.server) if one.server in self._stops + self._full else _own(one)
        if one.query is not None:
            failed = any(word in one.says for word in _REFUSED)
            refused = self._refusing(failed) if failed or one.code == "still-query" else None
            return ("server", refused) if refused else _own(one)
        stalled = one.code in _STALLED
        if stalled and (refused := self._refusing(self._is_refused(one))):
            return "server", refused
        if one.worker is not None and one.code not in _GONE:
            place = _subject(one.code, *_place(one))  # a long job is a fact about one handler alone
            return "worker", place if one.code == "long-job" else self._fleets.get(one.worker, place)
        if stalled and one.group is not None:
            root = self.of_group(one)
            gone = one.code in _GONE and root[0] in {"limit", "pause", "worker"}
            own = one.code in _GONE and _place(one) not in self.unread
            return ("consumer", process_of(one.consumer or "")) if gone or own else root
        if one.code in {"held-up", "delivered-often", "fatal"}:
            entry = one.evidence.get("entry", one.evidence.get("worst", one.evidence.get("first")))
            return "entry", _subject(*_place(one), str(entry))
        return _own(one)

    def of_group(self, one: Advice) -> tuple[Kind, str]:
        """Return what stops the group of a finding: frozen workers, a pause, one process that is gone, or a limit."""
        place = _place(one)
        if place not in self._groups:
            self._groups[place] = self._stop(place)
        return self._groups[place]

    def _stop(self, place: tuple[str, str | None]) -> tuple[Kind, str]:
        cases = [case for (stream, group), case in self._cases.items() if (logical(stream) or stream, group) == place]
        if place in self._paused:
            return "pause", _subject(*place)
        for case in cases:
            if frozen := all_frozen(case):
                return "worker", _fleet(culprit(frozen))
        gone = self._gone.get(place, set())
        if place in self.unread and len(gone) == 1:
            return "consumer", next(iter(gone))
        if place in self._limits:
            return "limit", self._limits[place]
        for case in cases if place not in self.unread else ():  # the others work on, but no other fact is known
            if frozen := frozen_workers(case):
                return "worker", _fleet(culprit(frozen))
        return "group", _subject(*place)

    def _refusing(self, is_refused: bool) -> str | None:
        """Return the server that refuses the writes of a group; None if none is known to."""
        if len(self._stops) == 1 and (is_refused or self._stops[0] == "server"):
            return self._stops[0]
        return self._full[0] if self._full and is_refused else None

    def _is_refused(self, one: Advice) -> bool:
        """Return True if a worker of the finding's group was refused a write."""
        case = self.case(one)
        readers = [] if case is None else readers_of(case)
        return any(word in (worker.error or "") for worker in readers for word in _REFUSED)


def _read_only(found: Sequence[Advice], servers: Sequence[ServerStatus]) -> list[Advice]:
    """Return a finding about a replica that workers seem to use: groups do not advance, and it refuses their writes."""
    if len(servers) != 1 or not any(one.code in {"nobody-reads", "untried"} for one in found):
        return []
    state = servers[0].replication
    link = None if state is None else state.primary
    if link is None or not link.read_only or link.state != "up":
        return []
    says = f"it is a replica and refuses writes: workers and publishers need its primary {link.address}"
    return [Advice("read-only", "warning", "", None, says, {}, ("millstream", "doctor"), server="server")]


def _own(one: Advice) -> tuple[Kind, str]:
    """Return a cause for a finding that no other one explains."""
    subject = (one.query[0] if one.query else "", one.server or "", one.consumer or "", one.worker or "")
    says = one.says if one.server is not None and one.code.endswith("replica") else ""
    return "other", _subject(one.code, one.stream, one.group, *subject, says.partition(" was ")[0])


def _fleet(worker: WorkerStatus) -> str:
    """Return the handlers of a worker as the name of a cause: the process started after it has the same ones."""
    return _subject("workers", *sorted({_subject(one.handler, one.stream, one.group) for one in worker.subscribers}))


def _place(one: Advice) -> tuple[str, str | None]:
    return logical(one.stream) or one.stream, one.group


def _subject(*parts: str | None) -> str:
    return json.dumps(parts)


def _cause(kind: Kind, subject: str, rows: list[Advice], roots: _Roots) -> Cause:
    worst = min((one.level for one in rows), key=LEVELS.index)
    rows = sorted(rows, key=lambda one: (one.code not in _NAMES[kind], LEVELS.index(one.level), _head_rank(one)))
    head = replace(rows[0], level=worst)
    began = [one.since_ms for one in rows if one.code == head.code and one.since_ms is not None]
    head = replace(head, since_ms=min(began, default=None))
    digest = hashlib.sha256(_subject(kind, subject).encode(errors="surrogatepass")).hexdigest()[:16]
    affects = _affected(kind, subject, rows, roots)
    says, remedy = _says(kind, head, rows), head.remedy
    if kind == "consumer" and len(affects) > 1:
        remedy = command_words("worker ls")
    shown = _SUMMED if affects and kind != "other" else frozenset[str]()
    shown |= frozenset() if head.since_ms is None else _TIMES
    evidence = {fact: value for fact, value in head.evidence.items() if fact not in shown}
    return Cause(kind, digest, says, replace(head, remedy=remedy, evidence=evidence), tuple(rows), affects)


def _head_rank(one: Advice) -> int:
    return _HEADS.index(one.code) if one.code in _HEADS else len(_HEADS)


def _says(kind: Kind, head: Advice, rows: Sequence[Advice]) -> str:
    """Return the sentence of a cause; one that holds up several groups does not quote the figures of the first."""
    others = [one for one in rows[1:] if one.code == head.code]
    if kind == "consumer" and head.code in _GONE and (others or any(one.code == "nobody-reads" for one in rows)):
        idle = head.evidence["idle_ms"]
        long = span_text(idle) if isinstance(idle, int) else "a while"
        many = len({one.consumer for one in rows if one.code in _GONE}) > 1
        who = f"the process {process_of(head.consumer or '')!r}" if many else f"the consumer {head.consumer!r}"
        return f"{who} has sent no request for {long}, and no live worker has this name"
    frozen = {one.worker for one in rows if one.code in _NAMES["worker"]}
    if kind == "worker" and head.worker in frozen and len(frozen) > 1:
        return f"{head.says}; {plural(len(frozen) - 1, 'other worker')} of its handlers froze too"
    if kind == "server" and head.server == "server":
        return f"the server: {head.says}"
    return head.says


def _affected(kind: Kind, subject: str, rows: Sequence[Advice], roots: _Roots) -> tuple[Affected, ...]:
    """Return the groups of a cause's findings, those with most entries first."""
    found: dict[tuple[str, str | None], Affected] = {}
    counted: set[tuple[object, ...]] = set()
    for one in rows:
        if one.server is not None or not one.stream:
            continue
        place, case = _place(one), roots.case(one)
        held = one.evidence.get("pending") if one.consumer is not None else 0
        lag, pending, is_bound = 0, held if isinstance(held, int) else 0, False
        marks: tuple[object, ...] = (one.stream, one.group, one.consumer)
        if case is not None and kind != "entry" and roots.of(one) == (kind, subject) and _stops_all(one, kind, roots):
            group, marks = case.seen.group, (one.stream, one.group)
            lag, pending = group.lag.at_least if group.lag.entries is None else group.lag.entries, group.pending
            is_bound = group.lag.entries is None
        before = found.setdefault(place, Affected(*place))
        if marks in counted or (one.stream, one.group) in counted:
            continue
        is_new = not any(mark[:2] == marks[:2] for mark in counted)
        counted.add(marks)
        found[place] = replace(
            before,
            lag=before.lag + lag,
            is_bound=before.is_bound or is_bound,
            pending=before.pending + pending,
            partitions=before.partitions + (is_new and logical(one.stream) is not None),
        )
    return tuple(sorted(found.values(), key=lambda one: -(one.lag + one.pending)))


def _stops_all(one: Advice, kind: Kind, roots: _Roots) -> bool:
    """Return True if the cause holds up the whole group of a finding, and not one of its consumers alone."""
    return kind in {"server", "pause", "limit", "group"} or _place(one) in roots.unread


def _urgency(cause: Cause) -> tuple[int, int, int, int]:
    """Return the sort key of a cause: severity, kind, entries that it holds up, and number of findings."""
    held = sum(one.lag + one.pending for one in cause.affects)
    return LEVELS.index(cause.level), KINDS.index(cause.kind), -held, -len(cause.effects)


def explained(causes: Iterable[Cause]) -> Mapping[tuple[str, str | None], Cause]:
    """Return the cause of each group that something outside of it holds up, by the key of the stream and the group.

    A cause that holds up a whole group comes before one that holds entries of a single consumer.
    """
    known = [cause for cause in causes if cause.kind in {"server", "worker", "consumer", "pause", "limit"}]
    every = [(one, cause) for cause in reversed(known) for one in cause.findings if one.group is not None]
    every.sort(key=lambda row: row[0].consumer is None)
    return {(one.stream, one.group): cause for one, cause in every}


def causes_of(causes: Iterable[Cause]) -> Mapping[int, str]:
    """Return the id of the cause for each finding, by the finding's identity."""
    return {id(one): cause.id for cause in causes for one in cause.findings}
