"""The entries that a consumer of a group holds: found, acknowledged and passed on.

A consumer that holds nothing is removed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from millstream import failpoints
from millstream.client import emulate
from millstream.client.delays import due
from millstream.client.leases import ASSUMED_MIN_IDLE_MS
from millstream.client.ranges import behind
from millstream.errors import NotFoundError
from millstream.spark.connection.connection import Command
from millstream.spark.connection.router import Router, absent, checked, pairs
from millstream.spark.group.model import GroupOptions
from millstream.spark.model.claims import Run, joined
from millstream.spark.model.offsets import Id, parse_id
from millstream.spark.read.stream_info import StreamInfo

PAGE = 1000
"""Most pending entries of one reply, and most ids of one command."""

RUN_MOST = 5000
"""Most entries of one run: a task reads a run at once, and its count proves it complete."""

HELD_PART = 25_000
"""Entries of one part of a consumer's pending entries."""

_GAPS = 1000
"""Most commands, each to look for an entry between two others, in one round trip."""


@dataclass
class Settled:
    """The results of acknowledging the entries of a batch."""

    acked: int = 0  # Number of entries that the batch's consumer still held at the end
    taken: Counter[str] = field(default_factory=Counter)  # Number of entries that others claimed meanwhile, by consumer
    missing: int = 0  # Number of entries that were no longer pending


class PendingEntries:
    """The pending entries of one group of one stream."""

    def __init__(self, router: Router, key: str, group: str) -> None:
        self._router = router
        self.key = key
        self.group = group

    def consumers(self) -> dict[str, int]:
        """Return each consumer with its number of pending entries."""
        (reply,) = self._router.ask([("XINFO", "CONSUMERS", self.key, self.group)])
        if absent(reply):
            return {}
        rows = map(pairs, checked(reply))
        return {row[b"name"].decode("utf-8", "surrogateescape"): row[b"pending"] for row in rows}

    def pending(self, consumer: str | None, first: Id | str = "-", last: Id | str = "+") -> Iterator[list[list[Any]]]:
        """Yield rows of XPENDING (id, consumer, idle milliseconds, deliveries), a page at a time."""
        start: str | None = str(first)
        owner = () if consumer is None else (consumer,)
        while start is not None:
            (reply,) = self._router.ask([("XPENDING", self.key, self.group, start, str(last), PAGE, *owner)])
            rows = [] if absent(reply) else checked(reply)
            if rows:
                yield rows
            if len(rows) < PAGE:
                return
            start = behind(rows[-1][0])

    def runs(self, consumer: str) -> list[Run]:
        """Return the entries that a consumer holds, as runs."""
        ids = [parse_id(row[0].decode()) for page in self.pending(consumer) for row in page]
        return self.as_runs(ids)

    def as_runs(self, ids: Sequence[Id]) -> list[Run]:
        """Return entries as runs, after a look at the entries between them on the server.

        Entries between two of the ids may be pending for others or acknowledged already. A run across them would read
        them too.
        """
        between: list[Command] = [
            ("XRANGE", self.key, f"({low}", f"({high}", "COUNT", 1) for low, high in pairwise(ids)
        ]
        gaps = []
        for at in range(0, len(between), _GAPS):
            gaps += [bool(checked(reply)) for reply in self._router.ask(between[at : at + _GAPS])]
        return joined(ids, gaps, RUN_MOST)

    def settle(self, consumer: str, runs: Sequence[Run]) -> Settled:
        """Acknowledge a finished batch, including entries that others have claimed meanwhile: they are processed."""
        if consumer not in self.consumers():
            # The batch was settled completely before: pending entries exist only because the group was moved back.
            return Settled(missing=0)
        found = Settled(missing=sum(run.n for run in runs))
        for run in runs:
            for page in self.pending(None, run.first, run.last):
                for _, owner, _, _ in page:
                    if owner == consumer.encode():
                        found.acked += 1
                    else:
                        found.taken[owner.decode("utf-8", "surrogateescape")] += 1
                found.missing -= len(page)
                checked(self._router.ask([("XACK", self.key, self.group, *(row[0] for row in page))])[0])
                failpoints.reach("acking")
        return found

    # --- delayed entries ---------------------------------------------------------------------------------------------

    def hold(self, min_idle_ms: int) -> None:
        """Keep delayed entries out of the next claim until they are due."""
        first, begun, looked = 0, -1, due.PAGE
        while looked == due.PAGE:
            page = due.hold(self.key, self.group, min_idle_ms, first=first, begun=begun, whole=True)
            (reply,) = self._router.ask([page])
            # A user without scripts puts back the claimed entries
            looked, _, _, begun, _ = reply if isinstance(reply, list) else (0, [], 0, 0, 0)
            first += due.PAGE

    def put_back(self, consumer: str, ids: Sequence[bytes], min_idle_ms: int, *, charged: bool) -> set[bytes]:
        """Give claimed entries that are not due back to wait, as if they had not been claimed; return their ids."""
        early: dict[bytes, int] = {}
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            early |= due.remaining(page, *self._router.ask(due.question(self.key, self.group, page)))
        looks: list[Command] = [("XPENDING", self.key, self.group, each, each, 1, consumer) for each in early]
        moves: list[Command] = []
        for ident, rows in zip(early, self._router.ask(looks), strict=True):
            for row in checked(rows):
                move = emulate.delay(
                    self.group, deliveries=row[3] - charged, delay_ms=early[ident], min_idle_ms=min_idle_ms
                )
                moves.append(move.command(self.key, [ident]))  # type: ignore[arg-type] # words alone
        for reply in self._router.ask(moves):
            checked(reply)
        return set(early)

    def claimed(self, consumer: str, min_idle_ms: int | None) -> list[Run]:
        """Return the due entries that a consumer holds, of a batch that Spark has not logged."""
        ids = [row[0] for page in self.pending(consumer) for row in page]
        self.put_back(consumer, ids, min_idle_ms or ASSUMED_MIN_IDLE_MS, charged=True)
        return self.runs(consumer)

    def hand_over(self, old: str, new: str) -> None:
        """Move one consumer's entries to another; delivery counts stay.

        JUSTID leaves the counts alone, since no task has read these entries: counting them could make dead letters.
        """
        for page in self.pending(old):
            ids = [row[0] for row in page]
            checked(self._router.ask([("XCLAIM", self.key, self.group, new, 0, *ids, "JUSTID")])[0])

    def remove(self, consumer: str) -> None:
        """Delete a consumer without pending entries: deleting any other would lose its entries."""
        if self.consumers().get(consumer) != 0:
            return
        look: Command = ("XPENDING", self.key, self.group, "-", "+", PAGE, consumer)
        delete: Command = ("XGROUP", "DELCONSUMER", self.key, self.group, consumer)
        held, removed = self._router.once([("MULTI",), look, delete, ("EXEC",)])[-1]
        if checked(removed) and checked(held):
            # Another driver of the same query has read meanwhile; give its entries back.
            ids = [row[0] for row in held]
            checked(self._router.ask([("XCLAIM", self.key, self.group, consumer, 0, *ids, "FORCE", "JUSTID")])[0])


def held_parts(options: GroupOptions) -> list[tuple[str, tuple[Run, ...], tuple[int, ...]]]:
    """Return a consumer's entries of each stream in parts: each entry as a run of one, with its delivery count."""
    keys = _checked_streams(options)
    found = []
    with closing(Router(options.parsed.url)) as router:
        for key in keys:
            entries = PendingEntries(router, key, options.group)
            rows = [row for page in entries.pending(options.consumer) for row in page]
            wanted = options.parsed.min_partitions or min(8, -(-len(rows) // HELD_PART) or 1)
            size = min(-(-len(rows) // wanted) or 1, options.parsed.max_per_partition or len(rows) or 1)
            for at in range(0, len(rows), size):
                part = rows[at : at + size]
                ids = [parse_id(row[0].decode()) for row in part]
                found.append((key, tuple(Run(each, each, 1) for each in ids), tuple(row[3] for row in part)))
    return found


def _checked_streams(options: GroupOptions) -> list[str]:
    """Return the streams, after a check that each has the group: a misspelled one must not look empty."""
    with closing(StreamInfo(options.parsed)) as info:
        states = info.states(info.keys())
        for key, state in states.items():
            if state is None:
                raise NotFoundError(
                    f"option 'stream': {key!r} does not exist on {options.parsed.shown_url}; correct the name"
                )
        for key, place in info.group_places(options.group, states).items():
            if place is None:
                raise NotFoundError(f"option 'group': stream {key!r} has no group {options.group!r}; correct the name")
        return list(states)
