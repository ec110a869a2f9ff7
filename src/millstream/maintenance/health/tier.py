"""Diagnosis of a server's tier: entries in packs on its disk."""

from collections.abc import Iterator, Mapping
from typing import Any

from millstream.maintenance.health.findings import Finding, note, ok, problem, warning
from millstream.texts import plural, size_text

_WASTE = 1 << 30  # bytes of packs that are not needed
_CACHE_PART = 20  # the page cache should hold this part of the packs
_ROOM = 2  # times the free bytes without which nothing goes to packs
_FAILED = frozenset({"error", "disk-full", "disk-low"})


def is_wasteful(size: int, live: int) -> bool:
    """True if more than half of the packs, and much space, is not needed."""
    return size - live > _WASTE and live < size / 2


def small_cache(packs: int, cache: int) -> Finding | None:
    """Return a finding if the machine can cache only a small part of the packs (bytes)."""
    if not 0 <= cache < packs // _CACHE_PART:
        return None
    return note(
        "page cache",
        f"about {_gb(cache)} for {_gb(packs)} of packs",
        "nearly every read of old entries waits for the disk",
        "nothing, if old entries are seldom read; otherwise use a machine with more memory",
    )


def _gb(size: int) -> str:
    return size_text(size)


def diagnose_tier(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about a server's packs from its INFO; none if it has no tier and no packs."""
    figures = {name: value for name, value in info.items() if name.startswith("tier_") and isinstance(value, int)}
    size, live = figures.get("tier_bytes", 0), figures.get("tier_live_bytes", 0)
    is_on = bool(figures.get("tier_enabled"))
    if not (is_on or figures.get("tier_packs")):
        return
    found = [*_disk(info, figures, is_on), *_reading(info, figures)]
    if is_wasteful(size, live):
        found.append(
            warning(
                "packs",
                f"no stream refers to {_gb(size - live)} of {_gb(size)}",
                "they take space on the disk",
                "`millstream server vacuum` removes packs that nothing needs",
            )
        )
    total, resident = info.get("total_system_memory"), info.get("used_memory_rss")
    if isinstance(total, int) and isinstance(resident, int) and total:
        cache = small_cache(size, max(total - resident, 0))
        found += [] if cache is None else [cache]
    packs = figures.get("tier_packs", 0)
    yield from found or [ok("tier", f"{'on' if is_on else 'off'}, {plural(packs, 'pack')} of {_gb(size)}")]


def _disk(info: Mapping[str, Any], figures: Mapping[str, int], is_on: bool) -> Iterator[Finding]:
    status, free, needed = (
        info.get("tier_last_spill_status"),
        info.get("millstream_disk_free"),
        figures.get("tier_disk_needed", 0),
    )
    if is_on and status in _FAILED:
        room = f", {_gb(free)} of the disk free, {_gb(needed)} needed" if isinstance(free, int) and free >= 0 else ""
        yield warning(
            "tier",
            f"tier_last_spill_status:{status}{room}",
            "entries stay in memory, until writes are refused",
            "read the server's log. For space, shorten stream-retention, and then send BGREWRITEAOF",
        )
    elif is_on and isinstance(free, int) and 0 <= free < _ROOM * needed:
        yield warning(
            "tier",
            f"{_gb(free)} free on the disk; below {_gb(needed)} no entries go to packs",
            "memory grows then, until writes are refused",
            "free some space, shorten stream-retention, or set tier-max-bytes",
        )


def _reading(info: Mapping[str, Any], figures: Mapping[str, int]) -> Iterator[Finding]:
    if damaged := figures.get("tier_damaged_extents", 0):
        yield problem(
            "packs",
            f"{plural(damaged, 'part')} cannot be read",
            "commands that need these entries get MSDAMAGED",
            "run `millstream log check DIR` on the server's machine, and compare with a backup or a replica",
        )
    if info.get("tier_nowait") == "no":
        yield note(
            "tier_nowait",
            "the file system cannot read without waiting (RWF_NOWAIT)",
            "each first read of old entries goes through a thread, even if the page cache has them",
            "use a local disk with ext4, XFS or Btrfs",
        )
