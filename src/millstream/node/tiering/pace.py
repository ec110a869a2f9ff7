"""The speed of a disk: the loop reads small parts by itself while that is too short to notice."""

from collections.abc import Callable

SMALL = 16 << 10
"""Bytes that the loop reads at most."""
QUICK_SECONDS = 0.0005
"""Average duration of small reads in seconds below which the loop reads."""
TURN_SECONDS = 0.002
"""Time in seconds that the loop waits for reads at most in one turn."""
# Number of reads in the average, and the largest weight of one, in multiples of quick; as in group_commit
_LOOKS_BACK, _STALL = 16, 10


class Pace:
    """Average duration of small reads, and the time that the present turn of the loop has waited."""

    def __init__(self) -> None:
        self._average = 2 * QUICK_SECONDS  # a disk must first prove that it is quick
        self._waited = 0.0

    def note(self, size: int, seconds: float) -> None:
        """Take in one read; called in any thread."""
        if size <= SMALL:
            self._average += (min(seconds, _STALL * QUICK_SECONDS) - self._average) / _LOOKS_BACK

    def waited(self, seconds: float, soon: Callable[[Callable[[], None]], None]) -> None:
        """Take in a read of the loop; ``soon`` calls a function in its next turn."""
        self.note(0, seconds)
        if not self._waited:
            soon(self._begin_turn)
        self._waited += seconds

    def _begin_turn(self) -> None:
        self._waited = 0.0

    @property
    def is_quick(self) -> bool:
        """True if the loop may read now."""
        return self._average < QUICK_SECONDS and self._waited < TURN_SECONDS
