"""One limit of a handler: its calls of the script on the server, its slots, and its counters."""

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.client.later.scripts import ServerScript
from millstream.client.limits.rate import LEASE_MS, Rate, keys
from millstream.client.line import Disconnected, Line, passes
from millstream.worker.model.limit import Limit

log = logging.getLogger("millstream.worker")

SCRIPT = ServerScript.beside("millstream.client.limits", "limit.lua")

#: Milliseconds to wait for a slot: before any run was measured, smallest, and largest.
_SLOT_MS = 100.0
_LEAST_MS, _MOST_MS = 10.0, 1_000.0
_AWAY_MS = 1_000
_WARN_EVERY = 60.0


@dataclass(frozen=True, slots=True)
class Permits:
    """The reply to a request for permits."""

    granted: int = 0
    wait_ms: float = _AWAY_MS  # Milliseconds before the requested permits are available, if none was granted
    counts_us: int = 0  # Server's time up to which the granted permits count, in microseconds
    slots: tuple[str, ...] = ()
    asked: bool = True  # False if the server was not reachable
    exact: bool = False  # True if ``wait_ms`` comes from the server, False if it is an estimate


class FleetLimit:
    """One limit of the whole fleet, for one handler of this process."""

    def __init__(self, limit: Limit, name: str, line: Line) -> None:
        self.limit = limit
        self.name = name
        self.override: Rate | None = None  # Rate set at run time; None if there is none
        self.granted = 0  # Number of permits that were used
        self.refused = 0  # Number of requests that were refused
        self.refused_at = -math.inf  # Time of the last refusal, by the event loop's clock
        self.waiting = 0  # Number of entries in this process that wait for a permit
        self._aside: Counter[int] = Counter()  # Number of delayed entries by the second in which they are due
        self._line = line
        self._own = secrets.token_hex(6)
        self._made = 0
        self._held: dict[bytes, dict[str, float]] = {}  # Key -> slot -> time of taking it, by the event loop's clock
        self._dropped: dict[bytes, list[str]] = {}
        self._run_ms = 0.0  # average duration of the latest runs, in milliseconds
        self._warned_at = -_WARN_EVERY

    @property
    def rate(self) -> Rate | None:
        """The current rate."""
        return self.limit.paced(self.override)[0]

    @property
    def spacing_ms(self) -> float:
        """Milliseconds between two runs of a key."""
        return self._slot_ms if self.rate is None else self.rate.each_us / 1000

    @property
    def in_use(self) -> int:
        """Number of slots that runs in this process hold."""
        return sum(map(len, self._held.values()))

    @property
    def chunk(self) -> int:
        """Maximum number of permits to take before a read."""
        rate, burst = self.limit.paced(self.override)
        return min(rate.chunk, burst) if rate is not None else (self.limit.running or 1)

    async def take(
        self, wanted: int, key: bytes = b"", *, back: tuple[int, int] = (0, 0), paced: bool = True, slots: bool = True
    ) -> Permits:
        """Take permits and slots, and give back permits first.

        ``back`` is the number of permits to give back, and the time until which they count.
        """
        names = self._names(wanted) if slots and self.limit.running else []
        reply = await self._ask(key, wanted, back, "take" if names else "look", names, paced=paced)
        if reply is None:
            if names:  # the server may have granted them, and would keep them until their lease ends
                self._dropped.setdefault(key, []).extend(names)
            return Permits(asked=False)
        granted, wait = int(reply[0]), float(reply[1])
        taken = tuple(names[:granted])
        for name in taken:
            self._held.setdefault(key, {})[name] = time.monotonic()
        if wanted and not granted:
            self.refused += 1
            self.refused_at = time.monotonic()
        return Permits(granted, self._slot_ms if wait < 0 else wait, int(reply[2]), taken, exact=wait > 0)

    async def give_back(self, permits: int, counts_us: int, key: bytes = b"") -> None:
        """Give back unused permits."""
        if permits and self.limit.rate is not None:
            await self._ask(key, 0, (permits, counts_us), "look", [], paced=True)

    def free(self, slots: Sequence[str], key: bytes = b"") -> None:
        """Note that runs have ended; :meth:`send` returns their slots to the server."""
        held = self._held.get(key, {})
        for name in slots:
            began = held.pop(name, None)
            if began is not None:
                self._run_ms += ((time.monotonic() - began) * 1000 - self._run_ms) * (0.2 if self._run_ms else 1)
        if not held:
            self._held.pop(key, None)
        self._dropped.setdefault(key, []).extend(slots)

    @property
    def refused_ms(self) -> int | None:
        """Milliseconds since the last refusal; None if there was none."""
        passed = time.monotonic() - self.refused_at
        return None if passed == math.inf else round(passed * 1000)

    def put_aside(self, now_ms: int, due_ms: int) -> None:
        """Count an entry that went back to the server until ``due_ms``."""
        if due_ms // 1000 not in self._aside:
            self.waits(now_ms)  # forgets past times
        self._aside[due_ms // 1000] += 1

    def waits(self, now_ms: int) -> int:
        """Return the number of entries that wait for a permit, in this process and on the server."""
        for second in [one for one in self._aside if one < now_ms // 1000]:
            del self._aside[second]
        return self.waiting + self._aside.total()

    async def send(self, *, renew: bool) -> None:
        """Return free slots to the server; with ``renew``, renew the slots in use."""
        dropped, self._dropped = self._dropped, {}
        for key, names in dropped.items():
            for at in range(0, len(names), 1000):
                await self._ask(key, 0, (0, 0), "drop", names[at : at + 1000])
        if renew:
            for key in list(self._held):
                names = list(self._held.get(key, ()))
                for at in range(0, len(names), 1000):
                    await self._ask(key, 0, (0, 0), "renew", names[at : at + 1000])

    @property
    def _slot_ms(self) -> float:
        """Expected time until a slot is free, in milliseconds."""
        running = self.limit.running or 1
        return min(max(self._run_ms / running, _LEAST_MS), _MOST_MS) if self._run_ms else _SLOT_MS

    def _names(self, wanted: int) -> list[str]:
        self._made += wanted
        return [f"{self._own}:{number}" for number in range(self._made - wanted, self._made)]

    async def _ask(
        self, key: bytes, wanted: int, back: tuple[int, int], act: str, names: Sequence[str], *, paced: bool = False
    ) -> list[bytes | int] | None:
        """Call the script and return its reply; None if the server does not reply, and then nothing runs."""
        rate, burst = self.limit.paced(self.override)
        each = f"{rate.each_us:.6f}" if rate is not None and paced else 0
        where = keys(self.name, key)
        words = (each, burst, wanted, *back, self.limit.running or 0, LEASE_MS, act, *names)
        try:
            reply: list[bytes | int] = await SCRIPT.call(self._line, where, words)
        except Disconnected:
            return None
        except ResponseError as error:
            self._warn(error)
            return None
        return reply

    def _warn(self, error: ResponseError) -> None:
        if passes(error) or time.monotonic() - self._warned_at < _WARN_EVERY:
            return
        self._warned_at = time.monotonic()
        log.error(
            "limit %r cannot be asked for, so nothing that it limits runs: %s. Give the user the rights to EVAL, "
            "EVALSHA and the keys millstream:*.",
            self.name,
            error,
        )
