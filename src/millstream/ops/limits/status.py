"""Limits that all workers share as facts. PURE."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.client.limits.rate import Rate, parse_rate
from millstream.ops.words import Facts

COUNTS = ("in_use", "granted", "refused", "waiting")
"""Names of the counters that live workers report for a limit."""


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit as the code of live workers declares it, with the rate set at run time."""

    name: str  # Name of the limit
    declared: tuple[str, ...] = ()  # Rates in the code of workers; there may be several during a deployment
    running: tuple[int, ...] = ()  # Limits of simultaneous runs in the code; see ``declared``
    by_key: bool = False  # True if each key has its own limit
    handlers: tuple[str, ...] = ()  # Names of the handlers with this limit
    workers: int = 0  # Number of live workers with this limit
    counts: Mapping[str, int] | None = None  # Sums of :data:`COUNTS` over these workers
    written: bytes | None = None  # Rate set at run time, as stored in the hash; None if there is none

    @property
    def set_rate(self) -> Rate | None:
        """The rate set at run time; None if there is none or it cannot be parsed."""
        return None if self.written is None else parse_rate(self.written.decode(errors="replace"))

    @property
    def rate(self) -> str:
        """The rate in effect; empty if there is none."""
        return " or ".join(self.declared) if self.set_rate is None else str(self.set_rate)


def limits_of(workers: Iterable[Mapping[str, Any]], written: Mapping[str, bytes]) -> tuple[LimitStatus, ...]:
    """Return the limits in the records of live workers and in the hash of rates, by name."""
    seen: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {name: [] for name in written}
    for worker in workers:
        for subscriber in worker["subscribers"]:
            for one in subscriber.get("limits", ()):
                seen.setdefault(one["name"], []).append((worker["id"], subscriber["handler"], one))
    return tuple(
        LimitStatus(
            name,
            declared=tuple(sorted({one["rate"] for _, _, one in rows if one["rate"] is not None})),
            running=tuple(sorted({one["running"] for _, _, one in rows if one["running"] is not None})),
            by_key=any(one["by_key"] for _, _, one in rows),
            handlers=tuple(sorted({handler for _, handler, _ in rows})),
            workers=len({worker for worker, _, _ in rows}),
            counts={count: sum(one[count] for _, _, one in rows) for count in COUNTS},
            written=written.get(name),
        )
        for name, rows in sorted(seen.items())
    )


def limit_facts(one: LimitStatus) -> Facts:
    """Return a limit as data."""
    unread = one.written is not None and one.set_rate is None
    return {
        "limit": one.name,
        "rate": one.rate or None,
        "declared": " or ".join(one.declared) or None,
        "set": one.set_rate is not None,
        "running": " or ".join(map(str, one.running)) or None,
        "by_key": one.by_key,
        **(one.counts or {}),
        "workers": one.workers,
        "handlers": ", ".join(one.handlers) or None,
        "problem": "the rate that was set is damaged: workers go by their code" if unread else None,
    }
