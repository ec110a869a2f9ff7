"""Figures of one moment from readings: rates from counters, sums, and the choice of series. PURE."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.client.dead_letter.letter import SUFFIX, dead_key
from millstream.client.partitions.layout import logical
from millstream.ops.findings.status import worst_groups
from millstream.ops.handlers.status import percentile
from millstream.ops.history.model import COLUMNS, SERIES, TEN_MS, TOTAL, Cell, Row, Subject
from millstream.ops.streams.status import NOT_ASKED, GroupStatus, StreamsSeen
from millstream.ops.workers.status import WorkerStatus

_HANDLERS = 200  # largest number of series of handlers among the chosen ones
# Largest numbers of versions, and of handlers in workers; any client may report more
_VERSIONS, _REPORTED = 20, 50_000


@dataclass(slots=True)
class _Counter:
    at_ms: int
    value: int
    rate: float | None = None


class CounterRates:
    """CounterRates of counters since their previous reading."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, ...], _Counter] = {}

    def rate(self, name: tuple[str, ...], at_ms: int, value: int | None) -> float | None:
        """Return the rate per second; None for a first reading, and for a counter that began anew."""
        before = self._counters.get(name)
        if before is not None and before.at_ms > at_ms + TEN_MS:  # the clock was set back
            before = None
        if value is None or (before is not None and before.at_ms >= at_ms):  # the same report of a worker
            return None if value is None or before is None else before.rate
        rate = None
        if before is not None and value >= before.value:
            rate = (value - before.value) * 1000 / (at_ms - before.at_ms)
        self._counters[name] = _Counter(at_ms, value, rate)
        return rate

    def keep(self, names: Iterable[tuple[str, ...]]) -> None:
        """Drop all other counters."""
        there = set(names)
        self._counters = {name: one for name, one in self._counters.items() if name in there}


@dataclass(slots=True)
class Sampler:
    """The latest figures of all subjects."""

    rows: dict[Subject, Row] = field(default_factory=dict)
    sums: set[str] = field(default_factory=set)  # partitioned streams, whose figures are sums of their partitions
    _rates: CounterRates = field(default_factory=CounterRates)
    _lengths: dict[str, int] = field(default_factory=dict)  # dead-letter stream -> its length
    _named: set[tuple[str, ...]] = field(default_factory=set)  # counters of workers and servers in the last reading

    def note(self, seen: StreamsSeen, *, whole: bool) -> None:
        """Take the figures of some streams; a ``whole`` reading has all, so the others are gone."""
        fresh: dict[Subject, Row] = {}
        self._lengths.update({one.key: one.length for one in seen.streams if one.key.endswith(SUFFIX)})
        letters = Counter[str]()
        for key, length in self._lengths.items():
            letters[logical(key.removesuffix(SUFFIX)) or ""] += length
        for stream in seen.streams:
            name: Subject = ("stream", stream.key)
            dead = self._lengths.get(dead_key(stream.key), 0)
            dead += 0 if stream.partitions is None else letters[stream.key]
            fresh[name] = (stream.length, self._rates.rate(name, seen.at_ms, stream.entries_added), dead)
            for group in stream.groups:
                name = ("group", stream.key, group.name)
                out = self._rates.rate(name, seen.at_ms, group.entries_read)
                age: Cell = group.oldest_undelivered.age(seen.at_ms)
                if group.oldest_undelivered is NOT_ASKED:
                    age = self.rows.get(name, (None, None))[1]
                fresh[name] = (_lag(group, stream.length), age, group.pending, out)
        if whole:
            self.sums = {one.key for one in seen.streams if one.partitions is not None}
            self._rates.keep({*fresh, *self._named})
            self._lengths = {one.key: one.length for one in seen.streams if one.key.endswith(SUFFIX)}
            others = {name: row for name, row in self.rows.items() if name[0] not in {"stream", "group"}}
            self.rows = others | fresh
        else:
            self.rows.update(fresh)

    def note_workers(self, workers: Sequence[WorkerStatus]) -> None:
        """Take the reports of the living workers."""
        sums: dict[Subject, list[float]] = {}
        durations: defaultdict[Subject, Counter[float]] = defaultdict(Counter)
        alive: dict[Subject, Row] = {}
        self._named = set()
        for worker in workers:
            version = ("version", worker.version)
            if version in alive or len(alive) < _VERSIONS:
                alive[version] = (1 + _figure(alive.get(version, (0,))[0]),)
            for one in worker.subscribers[: _REPORTED - len(self._named) // 2]:
                subject = ("handler", one.handler, one.stream, one.group)
                mine = sums.setdefault(subject, [0.0, 0.0])
                for at, (counter, value) in enumerate((("handled", one.handled), ("failed", one.failed))):
                    name = (counter, worker.id, *subject)
                    self._named.add(name)
                    mine[at] += self._rates.rate(name, worker.beat_ms, value) or 0.0
                for bound, count in () if one.recent is None else one.recent.runs:
                    durations[subject][bound] += count
        found = {name: (*pair, percentile(durations[name], 0.95)) for name, pair in sums.items()}
        others = {name: row for name, row in self.rows.items() if name[0] not in {"handler", "version"}}
        self.rows = {**alive, **found, **others}

    def note_servers(self, infos: Sequence[Mapping[str, str]], at_ms: int) -> tuple[Cell, Cell]:
        """Return the memory and the commands per second of all nodes, from the fields of INFO."""
        memory = [int(one["used_memory"]) for one in infos if one.get("used_memory", "").isdecimal()]
        rates = []
        for number, one in enumerate(infos):
            text, name = one.get("total_commands_processed", ""), ("commands", str(number))
            self._named.add(name)
            rates.append(self._rates.rate(name, at_ms, int(text) if text.isdecimal() else None))
        known = [rate for rate in rates if rate is not None]
        return (sum(memory) if memory else None), (sum(known) if known else None)

    def total(self, memory: Cell = None, commands: Cell = None) -> Row:
        """Return the sums of the latest figures, and the longest time behind."""
        lag, behind, pending, out = self._columns("group")
        _, added, _ = self._columns("stream")
        handled, failed, _ = self._columns("handler")
        return (
            *(sum(lag), max(behind, default=0), sum(pending), _sum(added), _sum(out), sum(self._lengths.values())),
            *(_sum(handled), _sum(failed), memory, commands),
        )

    def _columns(self, kind: str) -> list[list[float]]:
        """Return the known figures of a kind's columns, of bounds the upper one; a sum has those of its parts."""
        rows = [row for name, row in self.rows.items() if name[0] == kind and logical(name[1]) not in self.sums]
        return [[_figure(row[at]) for row in rows if row[at] is not None] for at in range(len(COLUMNS[kind]))]

    def chosen(self, seen: StreamsSeen, most: int = SERIES) -> list[Subject]:
        """Return the subjects of the chosen series: handlers, groups with old entries, then those with the most lag."""
        found = dict.fromkeys((TOTAL, *(name for name in self.rows if name[0] == "version")))
        room = most - len(COLUMNS["total"])
        first: list[Subject] = [("group", group.stream, group.name) for group in worst_groups(seen)]
        handlers = self._by("handler", 0)[: _HANDLERS // len(COLUMNS["handler"])]
        every = (*handlers, *first, *self._by("group", 0, 2), *self._by("stream", 1))
        for subject in dict.fromkeys(every):
            both = (subject, ("stream", subject[1])) if subject[0] == "group" else (subject,)
            wanted = [one for one in both if one not in found and one in self.rows]
            room -= sum(len(COLUMNS[one[0]]) for one in wanted)
            if room < 0:
                break
            found.update(dict.fromkeys(wanted))
        return list(found)

    def _by(self, kind: str, *columns: int) -> list[Subject]:
        """Return the subjects of a kind with the highest figures in some columns first."""
        there = [name for name in self.rows if name[0] == kind]
        return sorted(there, key=lambda name: [-_figure(self.rows[name][at]) for at in columns])


def _lag(group: GroupStatus, length: int) -> Cell:
    """Return a lag, or its bounds."""
    lag = group.lag
    most = length if lag.at_most is None else lag.at_most
    return lag.entries if lag.known else (lag.at_least, max(most, lag.at_least))


def _figure(cell: Cell) -> float:
    return 0.0 if cell is None else cell[1] if isinstance(cell, tuple) else cell


def _sum(known: Sequence[float]) -> float | None:
    return sum(known) if known else None
