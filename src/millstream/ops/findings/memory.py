"""Findings about a server's memory, and about entries in packs on its disk. PURE."""

from collections.abc import Iterable

from millstream.ops.findings.advice import Advice, Level
from millstream.ops.server.status import ServerStatus
from millstream.ops.words import size, span
from millstream.texts import plural

_NEAR = 95  # percent of the memory limit
_PARKED_MS = 60_000  # milliseconds for which a client waits for the disk
_ROOM = 2  # times the free bytes without which nothing goes to packs
_LACKING = {
    "disk-low": "its disk must keep room for rewriting the log",
    "disk-full": "its disk is full",
    "error": "its disk reports errors",
}
"""Result of the last batch that was to go to a pack -> the reason, for results that are faults."""


def on_server(
    name: str, code: str, level: Level, says: str, evidence: dict[str, object], since_ms: int | None = None
) -> Advice:
    """Return a finding about a server."""
    return Advice(code, level, "", None, says, evidence, ("millstream", "doctor"), server=name, since_ms=since_ms)


def memory_advice(node: ServerStatus, was: ServerStatus | None, name: str) -> Iterable[Advice]:
    """Yield the findings about one server's memory and packs; ``was`` is its state in an earlier reading."""
    yield from _memory(node, name)
    yield from _unread(node, was, name)
    if node.tier:
        yield from _packs(node, name)


def _memory(node: ServerStatus, name: str) -> Iterable[Advice]:
    used, limit = (node.memory_bytes or 0) - node.memory_beside, node.memory_limit
    if not limit or used * 100 <= limit * _NEAR:
        return
    figures: dict[str, object] = {"memory_bytes": node.memory_bytes, "memory_limit": limit}
    share = f"{size(used)} of {size(limit)}"
    if used >= limit:
        says = f"its memory is full ({share}), so it refuses new entries with OOM"
        yield on_server(name, "out-of-memory", "problem", says, figures)
    else:
        says = f"its memory is nearly full ({share}); above the limit it refuses new entries with OOM"
        yield on_server(name, "memory-near-limit", "warning", says, figures)


def _unread(node: ServerStatus, was: ServerStatus | None, name: str) -> Iterable[Advice]:
    """Yield a finding if retention has removed unread entries since the earlier reading."""
    now, then = node.retention, None if was is None else was.retention
    if now is None or then is None or now.removed_unread is None or then.removed_unread is None:
        return
    removed = now.removed_unread - then.removed_unread
    if removed > 0:
        says = f"retention removed {plural(removed, 'entry', 'entries')} that a group had not read"
        yield on_server(name, "removed-unread", "warning", says, {"entries": removed})


def _packs(node: ServerStatus, name: str) -> Iterable[Advice]:
    figures = {key: value for key, value in node.tier.items() if isinstance(value, int)}
    if damaged := figures.get("damaged_extents", 0):
        says = f"{plural(damaged, 'part')} of its packs cannot be read: commands that need these entries get MSDAMAGED"
        yield on_server(name, "damaged-entries", "problem", says, {"parts": damaged})
    lacking = _LACKING.get(str(node.tier.get("last_spill_status")))
    if lacking is not None:
        says = f"no more entries go to packs, and memory grows instead: {lacking}"
        evidence: dict[str, object] = {"status": node.tier["last_spill_status"]}
        yield on_server(name, "spilling-fails", "warning", says, evidence)
    needed, free = figures.get("disk_needed", 0), node.disk_free
    if free is not None and figures.get("enabled") and needed and free < _ROOM * needed and lacking is None:
        says = f"its disk has {size(free)} free; below {size(needed)} no more entries go to packs"
        yield on_server(name, "disk-nearly-full", "warning", says, {"free_bytes": free, "needed_bytes": needed})
    if (waits := figures.get("parked_longest_msec", 0)) >= _PARKED_MS:
        says = f"a client has waited for entries on its disk for {span(waits)}"
        evidence = {"clients": figures.get("parked_clients"), "for_ms": waits}
        yield on_server(name, "slow-disk", "warning", says, evidence, node.at_ms - waits)
