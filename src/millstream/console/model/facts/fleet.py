"""Workers' reports cut to the size of a page: strangers may have written megabytes under their names. Pure."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from millstream.console.model.workers import SubscriberStatus, WorkersSeen, WorkerStatus

T = TypeVar("T")

LETTERS = 400_000
"""Characters in the texts of each list, with a share for figures and names of fields: some hundreds of usual workers.
"""

_TEXT = 1000  # letters of one text; a name that is longer leads nowhere
_ROW = 150  # characters that a row takes in addition to its texts


def within(seen: WorkersSeen, letters: int = LETTERS) -> WorkersSeen:
    """The first of each list, as many as fit, their texts cut."""
    return replace(
        seen,
        workers=_Room(letters).workers(seen.workers),
        vanished=_Room(letters).rows(seen.vanished),
        pauses=_Room(letters).rows(seen.pauses),
        strange=_Room(letters).rows(seen.strange),
    )


class _Room:
    """The rest of the characters that a list may take."""

    def __init__(self, letters: int) -> None:
        self._left = letters

    def rows(self, rows: tuple[T, ...]) -> tuple[T, ...]:
        """The first of them, as many as fit."""
        found = []
        for row in rows:
            kept = _cut(row)
            self._left -= _cost(kept)
            if self._left < 0:
                break
            found.append(kept)
        return tuple(found)

    def workers(self, workers: tuple[WorkerStatus, ...]) -> tuple[WorkerStatus, ...]:
        """The first workers that fit; the first one that does not fit keeps as many handlers and entries as do."""
        found: list[WorkerStatus] = []
        for worker in workers:
            kept = self.rows((replace(worker, subscribers=()),))
            if not kept:
                break
            found.append(replace(kept[0], subscribers=self._subscribers(worker)))
        return tuple(found)

    def _subscribers(self, worker: WorkerStatus) -> tuple[SubscriberStatus, ...]:
        found: list[SubscriberStatus] = []
        for one in worker.subscribers:
            kept = self.rows((replace(one, jobs=()),))
            if not kept:
                break
            found.append(replace(kept[0], jobs=self.rows(one.jobs)))
        return tuple(found)


def _cut(row: Any) -> Any:
    """A row with the beginnings of its texts."""
    if isinstance(row, str):
        return row[:_TEXT]
    long = {name: text[:_TEXT] for name, text in _texts(row).items() if len(text) > _TEXT}
    return replace(row, **long) if long else row


def _cost(row: object) -> int:
    return _ROW + (len(row) if isinstance(row, str) else sum(map(len, _texts(row).values())))


def _texts(row: object) -> dict[str, str]:
    assert is_dataclass(row)
    return {one.name: text for one in fields(row) if isinstance(text := getattr(row, one.name), str)}
