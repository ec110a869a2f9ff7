"""Recent work of the server per second, for INFO's ``instantaneous_*``.

A sample is taken at most every 100 ms, when bytes arrive, of the counters before them. The work since a moment is the
present counters less those of the first sample after it, since no work was done in between. An idle server takes no
samples and needs no timer; Redis samples ten times a second.
"""

from collections import deque

# Milliseconds between samples, and number of samples kept; as in Redis, with averages over 1.6 seconds
_EVERY, _KEPT = 100, 16
WINDOW = _EVERY * _KEPT

Counters = tuple[int, int, int]
"""Commands run, bytes received, bytes sent."""


class Rates:
    """The work of the last :data:`WINDOW` milliseconds."""

    __slots__ = ("_samples", "due")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Counters]] = deque(maxlen=_KEPT + 1)
        self.due = 0  # Monotonic milliseconds at which the next sample is due

    def sample(self, now: int, counters: Counters) -> None:
        """Store the counters before the next work, at ``now`` monotonic milliseconds."""
        self._samples.append((now, counters))
        self.due = now + _EVERY

    def per_second(self, now: int, counters: Counters) -> tuple[float, float, float]:
        """Commands, bytes in and bytes out per second; zeros without recent work, or after CONFIG RESETSTAT."""
        for taken, before in self._samples:
            if taken > now - WINDOW:
                commands, received, sent = (
                    max(new - old, 0) * 1000 / WINDOW for new, old in zip(counters, before, strict=True)
                )
                return commands, received, sent
        return 0.0, 0.0, 0.0
