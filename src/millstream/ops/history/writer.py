"""The writer of the history: one process at a time, by a lease, adds an entry every ten seconds.

It reads the chosen streams every ten seconds. It reads all streams less often, so that this takes at most a
two-hundredth of the time: every half a minute to five minutes, unless there are very many. Between two such readings,
the totals have the last known figures of the other streams.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Mapping

from millstream.client.later.scripts import ServerScript, Word
from millstream.client.line import Disconnected, Line, passes
from millstream.ops.asking import calls
from millstream.ops.history import model
from millstream.ops.history.model import COLUMNS, FIVE, FIVE_MS, LEASE, REST, TEN, TEN_MS, TOTAL, Row, Subject
from millstream.ops.history.sampling import Sampler
from millstream.ops.server.status import parse_info
from millstream.ops.streams import reading
from millstream.ops.streams.partitioned import candidates, read_layouts, with_sums
from millstream.ops.streams.status import StreamsSeen
from millstream.ops.words import text_of
from millstream.ops.workers.status import worker_status
from millstream.worker.registry import protocol

log = logging.getLogger("millstream.history")

SCRIPT = ServerScript.beside("millstream.ops.history", "history.lua")

LEASE_MS = 25_000
"""Milliseconds after which another process writes if the writer is gone."""

_OFTEN = 30.0  # shortest seconds between two readings of all streams
# A reading of all streams, and the work with it here, takes at most the first of these parts of the time. It takes the
# second one if it is made more often than every five minutes.
_SHARE, _RARELY = 200, 400
_LONGEST = 3600.0  # longest seconds between two: a process that was suspended seems to have read for hours
_OLD_MS = 300_000  # milliseconds after which the rows for an entry of five minutes are too old for it
_REFUSED = 300.0  # seconds until the next try after a refusal, such as a missing right
_END = 1.0  # seconds for giving the lease back


def pause_after(took: float) -> float:
    """Return the seconds from the begin of a reading of all streams to the next one, if it took this many seconds."""
    return min(max(_OFTEN, min(took * _RARELY, FIVE_MS / 1000), took * _SHARE), _LONGEST)


class HistoryWriter:
    """Writes the figures of one server while it holds the lease."""

    def __init__(self, line: Line, name: str, limits: Mapping[str, int] = model.BYTES) -> None:
        self._line = line
        self._name = name  # of this process, unique
        self._limits = limits
        self.holds = False
        self._refused = False  # the log has the reason already
        self._sampler = Sampler()
        self._chosen: list[Subject] = []
        self._all_at = 0.0  # monotonic seconds of the next reading of all streams
        self._five: defaultdict[Subject, list[Row]] = defaultdict(list)  # rows since the last entry of five minutes
        self._five_at = 0  # number of the five minutes of that entry
        self._noted_ms = 0  # time of the last rows
        self._whole = False  # all streams were read since that entry
        # Stream -> the line of its oldest time, after a cut at the limit
        self._cuts: dict[str, dict[Subject, Row]] = {}

    async def run(self) -> None:
        """Write until the task is cancelled."""
        try:
            while True:
                pause = (TEN_MS - self._line.wall_time() % TEN_MS) / 1000
                try:
                    await self.turn()
                except Exception as error:  # noqa: BLE001 - the program goes on, and the next turn may succeed
                    self.holds = False
                    if not isinstance(error, Disconnected) and not passes(error):
                        log.log(logging.DEBUG if self._refused else logging.INFO, "no history is written: %s", error)
                        self._refused, pause = True, _REFUSED
                await asyncio.sleep(pause)
        finally:
            if self.holds:
                with contextlib.suppress(Exception):  # the lease ends by itself
                    await asyncio.wait_for(self._add({}, lasts_ms=0), _END)

    async def turn(self) -> bool:
        """Take or keep the lease, and write one entry; return False if another process has the lease."""
        if not self.holds:
            self.holds = await self._add({})
        if self.holds:
            self.holds = await self._add(await self._sample())
        return self.holds

    async def _add(self, tables: Mapping[str, bytes], *, lasts_ms: int = LEASE_MS) -> bool:
        """Add entries to streams if the lease is free or ours."""
        words = list[Word]()
        for key, lines in tables.items():
            words += [model.KEPT_MS[key], *model.packed(lines)]
        line = self._line.near(LEASE)
        return bool(await SCRIPT.call(line, (LEASE, *tables), (self._name, lasts_ms, *words)))

    async def _sample(self) -> dict[str, bytes]:
        """Read the server, and return the table of each stream that gets an entry now."""
        sampler, now = self._sampler, time.monotonic()
        if whole := now >= self._all_at:
            seen = await reading.overview(self._line)
            named = candidates(stream.key for stream in seen.streams)
            seen = with_sums(seen, await read_layouts(self._line, named))
            self._all_at = now + pause_after(time.monotonic() - now)
            self._whole = True
        else:
            groups: defaultdict[str, set[str]] = defaultdict(set)
            for kind, *names in self._chosen:
                if kind in {"group", "stream"} and names[0] not in sampler.sums:  # a sum keeps its last figures
                    groups[names[0]].update(names[1:])
            seen = await reading.read_some(self._line, groups)
        sampler.note(seen, whole=whole)
        with contextlib.suppress(protocol.RegistryError):  # without its rights, the handlers are missing
            sampler.note_workers([worker_status(one) for one in (await protocol.read_workers(self._line))[0]])
        sampler.rows[TOTAL] = sampler.total(*sampler.note_servers(await self._infos(), seen.at_ms))
        if whole:
            self._chosen = sampler.chosen(seen)
            await self._bound()
        return self._tables(seen)

    async def _infos(self) -> list[dict[str, str]]:
        """Return the fields of INFO of each node that are used here; empty for a node that refuses."""
        found = []
        for node in await self._line.nodes():
            parts = await calls(node, [("INFO", "memory"), ("INFO", "stats")])
            found.append(parse_info("\n".join(text_of(part) for part in parts if isinstance(part, bytes))))
        return found

    def _tables(self, seen: StreamsSeen) -> dict[str, bytes]:
        five = seen.at_ms // FIVE_MS
        if seen.at_ms - self._noted_ms > _OLD_MS:  # this process was suspended, or another one wrote meanwhile
            self._five, self._five_at = defaultdict(list), five
        self._noted_ms = seen.at_ms
        rows = {name: self._sampler.rows[name] for name in self._chosen if name in self._sampler.rows}
        rows |= {name: row for name, row in self._sampler.rows.items() if name[0] == "version"}
        for name, row in rows.items():
            self._five[name].append(row)
        found = {TEN: rows}
        if five != self._five_at:
            found[FIVE] = {name: model.merged(every, COLUMNS[name[0]]) for name, every in self._five.items()}
            rest = {name: row for name, row in self._sampler.rows.items() if name not in self._five}
            found |= {REST: rest} if rest and self._whole else {}
            self._five, self._five_at, self._whole = defaultdict(list), five, False
        return {key: model.table(self._cuts.get(key, {}) | every) for key, every in found.items()}

    async def _bound(self) -> None:
        """Remove the oldest entries of a stream that takes more memory than its limit."""
        line = self._line.near(LEASE)
        for key, limit in self._limits.items():
            used, length = await calls(line, [("MEMORY", "USAGE", key, "SAMPLES", 100), ("XLEN", key)])
            if isinstance(used, int) and isinstance(length, int) and used > limit:
                left = length * limit * 9 // (used * 10)  # a tenth less, so that this happens seldom
                _, first = await calls(line, [("XTRIM", key, "MAXLEN", left), ("XRANGE", key, "-", "+", "COUNT", 1)])
                if isinstance(first, list) and first:
                    self._cuts[key] = {("cut",): (int(first[0][0].partition(b"-")[0]),)}
