"""Since when entries run, as far as somebody looked: no run writes down when it began, so that it costs nothing."""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar

from millstream.worker.model.lifecycle import State
from millstream.worker.settlement.consumer import Held

#: The entry, or the batch, on whose behalf code runs in the event loop: also in tasks and callbacks of its handler.
AT_WORK: "ContextVar[Held | Sequence[Held] | None]" = ContextVar("AT_WORK", default=None)


class RunningSince:
    """What one observer has seen running. A run is as old as the first look that saw it."""

    def __init__(self) -> None:
        self._since: dict[tuple[bytes, int], int] = {}

    def look(self, held: Iterable[Held], now: int) -> list[tuple[int, bytes, int]]:
        """What runs: since when, id, deliveries; longest first.

        Args:
            held: entries in hand; copied first, since they may change meanwhile.
            now: milliseconds of whatever clock the observer goes by.
        """
        running = [one for one in list(held) if one.state is State.RUNNING]
        self._since = {(one.id, one.deliveries): self._since.get((one.id, one.deliveries), now) for one in running}
        return sorted((since, entry, deliveries) for (entry, deliveries), since in self._since.items())
