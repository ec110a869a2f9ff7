"""The driver's side of group mode: it claims a batch before Spark logs it, and acknowledges it once it is committed.

The order of steps makes a kill harmless at any of them. The name of the consumer that claims entries derives from the
query's name and the batch's number. So the entries are found again if the driver dies before Spark has written the
offset log. The offset names the entries, so that a batch is run again with the same ones. They are acknowledged when
Spark requests the next batch, which it does only after it has written the commit of this one.
"""

import logging
import time
from typing import Any

from millstream import failpoints
from millstream.client.partitions.layout import logical
from millstream.client.partitions.lease import members_key
from millstream.errors import ConfigError, NotFoundError, UsageError
from millstream.spark.connection.connection import Command
from millstream.spark.connection.retry import lost_contact
from millstream.spark.connection.router import Router, absent, checked, pairs
from millstream.spark.group.model import GroupOptions
from millstream.spark.group.pending import RUN_MOST, PendingEntries
from millstream.spark.group.renewal import LeaseRenewal
from millstream.spark.model import claims, offsets
from millstream.spark.model.claims import Claim, Run
from millstream.spark.model.offsets import Id, StreamState, parse_id
from millstream.spark.read.pages import PAGE_BYTES
from millstream.spark.read.planner import SCAN_SECONDS
from millstream.spark.read.stream_info import StreamInfo
from millstream.texts import plural

logger = logging.getLogger("millstream.spark")

_FIRST_PAGE = 200
"""Entries of the first claim: their size is not known yet, and the driver receives them."""
_STALE_MOST = 1000
"""Most stale entries of one batch and stream: they are scattered, so the offset must name each."""


class GroupPlanner:
    """Plans the batches of one query in group mode."""

    def __init__(self, options: GroupOptions) -> None:
        self._options = options
        self._plain = options.parsed
        self._info = StreamInfo(options.parsed)
        self._router = Router(options.parsed.url)
        self._renewal = LeaseRenewal(options.parsed.url, options.group, options.min_idle_ms)
        self._pending_entries: dict[str, PendingEntries] = {}  # by stream
        self._keys_due = 0.0
        self._looked = False  # True after the search for entries that an earlier driver claimed
        self._settled = 0  # number of the last batch that was acknowledged
        self._mine = 0  # number of the last batch planned by this process
        self._page = _FIRST_PAGE
        self._cursors: dict[str, bytes] = {}
        self._stale_due: dict[str, float] = {}
        self._target: dict[str, StreamState | None] | None = None  # for AvailableNow: states at the beginning
        self._taken = 0
        self.report: dict[str, Any] = {}

    def connect(self) -> None:
        """Make the first contact, which fails at once; later ones are retried."""
        self._info.states(self._streams())
        names = sorted(filter(None, {self._plain.partitioned, *map(logical, self._pending_entries)}))
        members = [members_key(name, self._options.group) for name in names]
        for name, there in zip(names, self._router.ask([("EXISTS", key) for key in members]), strict=True):
            if there == 1:
                raise ConfigError(
                    f"option 'group': workers share group {self._options.group!r} of the partitioned stream {name!r}, "
                    "each the owner of some partitions, and mode 'group' has no owners. Give it a group of its own."
                )

    def _streams(self) -> list[str]:
        """Return the keys of the streams; new partitions may join, with groups made before the layout names them."""
        now, partitioned = time.monotonic(), self._plain.partitioned
        if now >= self._keys_due:
            self._keys_due = now + SCAN_SECONDS
            found = self._info.keys()
            if partitioned is not None:
                found = sorted({*found, *self._info.layout(partitioned).keys, *self._pending_entries})
            for key in found:
                self._pending_entries.setdefault(key, PendingEntries(self._router, key, self._options.group))
        return list(self._pending_entries)

    def close(self) -> None:
        """Close the connections. Claimed entries stay claimed: their batch may not be committed."""
        self._renewal.stop()
        self._info.close()
        self._router.close()

    def begin(self) -> Claim:
        """Return the empty claim of a new query; create the missing groups."""
        states = self._info.states(self._streams())
        for key, state in states.items():
            if state is None and self._plain.streams:
                raise NotFoundError(
                    f"option 'stream': {key!r} does not exist on {self._plain.shown_url}; correct the name, or make "
                    f"the stream and its group (XGROUP CREATE {key} {self._options.group} 0 MKSTREAM)"
                )
            if self._group(key) is None:
                self._make(key)
        return Claim(self._options.group, self._options.query)

    def _make(self, key: str) -> None:
        group, where = self._options.group, self._plain.starting
        if where is None:
            raise NotFoundError(
                f"option 'group': stream {key!r} has no group {group!r}; correct the name, or set option "
                "'startingOffsets' (earliest or latest), which creates the group there"
            )
        words: Command = ("XGROUP", "CREATE", key, group, "0" if where == "earliest" else "$")
        checked(self._router.ask([words if self._plain.streams else (*words, "MKSTREAM")])[0])

    def _group(self, key: str) -> dict[bytes, Any] | None:
        (reply,) = self._router.ask([("XINFO", "GROUPS", key)])
        rows = [] if absent(reply) else map(pairs, checked(reply))
        return next((row for row in rows if row[b"name"] == self._options.group.encode()), None)

    # --- the finished batch ------------------------------------------------------------------------------------------

    def settle(self, claim: Claim) -> None:
        """Acknowledge a batch that is known to be committed, and remove its consumer."""
        if claim.seq <= self._settled:
            return
        self._renewal.rest()
        for key, runs in claim.runs.items():
            self._report_taken(
                key, claim, PendingEntries(self._router, key, self._options.group).settle(claim.consumer, runs)
            )
        failpoints.reach("acked")
        for key in claim.runs:
            PendingEntries(self._router, key, self._options.group).remove(claim.consumer)
        self._settled = claim.seq

    def _report_taken(self, key: str, claim: Claim, found: Any) -> None:
        """Report entries that others claimed or acknowledged: only these may be processed twice."""
        missing = found.missing if claim.seq == self._mine else 0  # an earlier driver may have acknowledged some
        count = sum(found.taken.values()) + missing
        if not count:
            return
        self._taken += count
        if not found.taken:
            logger.warning(
                "stream %r, group %r: %s of batch %s acknowledged by others, or deleted, while it ran; an "
                "entry that others acknowledged may have been processed twice",
                key, self._options.group, _entries(missing), f"{claim.consumer} {_were(missing)}",
            )  # fmt: skip
            return
        by = ", ".join(f"{name or '(released)'}: {n}" for name, n in sorted(found.taken.items()))
        details = [f"now held by {by}"]
        details += [f"{missing} pending no more"] if missing else []
        logger.warning(
            "stream %r, group %r: %s of batch %s claimed by others while it ran (%s), and may be "
            "processed twice; let the others claim only what is idle for longer than a batch takes (this query renews "
            "what it holds every %.3g s)",
            key, self._options.group, _entries(count), f"{claim.consumer} {_were(count)}", "; ".join(details),
            self._renewal.plan.period,
        )  # fmt: skip

    # --- the next batch ----------------------------------------------------------------------------------------------

    def target_now(self) -> None:
        """For Trigger.AvailableNow: limit the claims to the entries that wait now."""
        self._target = self._info.states(self._streams())

    def next_end(self, start: Claim, cap: int | None) -> Claim:
        """Claim and return the batch after ``start``; ``start`` itself when there is nothing new."""
        failpoints.reach("planning")
        self.settle(start)
        if not self._looked:
            found = self._found(start)
            self._looked = found is None
            if found is not None:
                return found
        fresh = start.following(start.seq + 1, {})
        try:
            runs = self._claim(fresh.consumer, cap)
        except Exception as reason:
            if not lost_contact(reason):
                raise
            # A page may have been claimed although its reply was lost: only the server knows.
            self._router.close()
            idle = self._options.min_idle_ms
            runs = {key: held.claimed(fresh.consumer, idle) for key, held in self._pending_entries.items()}
        if not any(runs.values()):
            return start
        failpoints.reach("claimed")
        return fresh.following(fresh.seq, runs)

    def _found(self, start: Claim) -> Claim | None:
        """Return the entries that an earlier driver of this query had claimed, and that Spark has not logged."""
        ours: dict[int, list[str]] = {}
        for key, entries in self._pending_entries.items():
            for consumer, held in entries.consumers().items():
                seq = claims.number(self._options.query, consumer)
                if seq is not None and held:
                    ours.setdefault(seq, []).append(key)
        for seq in [seq for seq in ours if seq <= start.seq]:
            # Not for a committed batch: another driver claimed these entries after it lost the checkpoint to this one.
            for key in ours.pop(seq):
                self._pending_entries[key].hand_over(
                    claims.name(self._options.query, seq), start.following(start.seq + 1, {}).consumer
                )
                self._pending_entries[key].remove(claims.name(self._options.query, seq))
                ours.setdefault(start.seq + 1, []).append(key)
        for seq in sorted(ours):
            consumer = claims.name(self._options.query, seq)
            idle = self._options.min_idle_ms
            runs = {key: self._pending_entries[key].claimed(consumer, idle) for key in ours[seq]}
            if any(runs.values()):
                return start.following(seq, runs)
        return None

    def _claim(self, consumer: str, cap: int | None) -> dict[str, list[Run]]:
        waiting = self._waiting()
        self.report = {"taken": self._taken, "waiting": {key: count for key, (count, _) in sorted(waiting.items())}}
        runs: dict[str, list[Run]] = {key: [] for key in self._pending_entries}
        room = cap
        for key in self._pending_entries:
            runs[key] = self._claim_stale(key, consumer, room)
            room = None if room is None else room - sum(run.n for run in runs[key])
        wanted = {key: count for key, (count, _) in waiting.items()}
        if room is not None:
            wanted = offsets.share(wanted, room, {key: last for key, (_, last) in waiting.items()})
        for key, count in wanted.items():
            runs[key] = sorted([*runs[key], *self._claim_new(key, consumer, count)])
        return runs

    def _waiting(self) -> dict[str, tuple[int, Id]]:
        """Return, by stream, an upper bound on the group's undelivered entries, and its last delivered id."""
        found = {}
        for key, state in self._info.states(self._streams()).items():
            group = self._group(key)
            if group is None or state is None:
                raise UsageError(
                    f"stream {key!r}: the group {self._options.group!r} is gone, with its position: create it "
                    "again at the id where reading continues "
                    f"(XGROUP CREATE {key} {self._options.group} <id> MKSTREAM)"
                )
            last = parse_id(group[b"last-delivered-id"].decode())
            found[key] = (self._count(key, state, last, group.get(b"lag") or state.length), last)
        return found

    def _count(self, key: str, state: StreamState, last: Id, lag: int) -> int:
        """Return the number of entries to claim: those that wait or, for AvailableNow, those that waited at first.

        A server may have lost count of a group's lag. For AvailableNow the result is at least one if ids show that
        entries wait.
        """
        if state.last <= last:
            return 0
        if self._target is None:
            return lag
        target = self._target.get(key)
        if target is None or target.last <= last:
            return 0
        return max(1, lag - (state.added - target.added))

    def _claim_new(self, key: str, consumer: str, count: int) -> list[Run]:
        """Have the group deliver ``count`` entries; the driver receives their content and drops it."""
        most = min(RUN_MOST, self._plain.max_per_partition or RUN_MOST)
        if self._plain.min_partitions is not None:
            most = max(1, min(most, count // self._plain.min_partitions))
        found: list[Run] = []
        while count > 0:
            asked = min(count, self._page, most)
            words: Command = ("XREADGROUP", "GROUP", self._options.group, consumer, "COUNT", asked, "STREAMS", key, ">")
            (reply,) = self._router.once([words])
            failpoints.reach("claiming")
            rows = checked(reply)[0][1] if reply else []
            if rows:
                ids = [parse_id(row[0].decode()) for row in (rows[0], rows[-1])]
                found.append(Run(ids[0], ids[1], len(rows)))
                self._page = max(1, min(RUN_MOST, PAGE_BYTES * len(rows) // self._router.received))
            count -= len(rows)
            if len(rows) < asked:
                break
        return found

    def _claim_stale(self, key: str, consumer: str, room: int | None) -> list[Run]:
        """Claim entries that other consumers have left idle, a stretch of the pending list at a time."""
        idle = self._options.min_idle_ms
        most = _STALE_MOST if room is None else min(room, _STALE_MOST)
        if idle is None or most < 1 or time.monotonic() < self._stale_due.get(key, 0.0):
            return []
        entries = self._pending_entries[key]
        entries.hold(idle)
        words: Command = ("XAUTOCLAIM", key, self._options.group, consumer, idle, self._cursors.get(key, b"0-0"))
        (reply,) = self._router.once([(*words, "COUNT", most)])
        cursor, rows, *gone = checked(reply)
        failpoints.reach("claiming")
        self._cursors[key] = cursor
        if cursor == b"0-0":  # the whole list was searched; the next search follows after a while
            self._stale_due[key] = time.monotonic() + max(1.0, idle / 4000)
        if gone and gone[0]:
            logger.warning(
                "stream %r, group %r: %s had been deleted from the stream and cannot be processed",
                key, self._options.group, plural(len(gone[0]), "stale entry", "stale entries"),
            )  # fmt: skip
        ids = [row[0] for row in rows if row is not None]
        early = entries.put_back(consumer, ids, idle, charged=True)
        return entries.as_runs([parse_id(ident.decode()) for ident in ids if ident not in early])

    # --- partitions --------------------------------------------------------------------------------------------------

    def parts(self, start: Claim, end: Claim) -> list[tuple[str, tuple[Run, ...]]]:
        """Return the parts in which tasks read a batch, and start to renew its entries."""
        if end.seq <= start.seq:
            return []
        failpoints.reach("logged")
        self._mine = end.seq
        self._renewal.keep(end.consumer, list(end.runs))
        return claims.parts(end, self._plain.min_partitions, self._plain.max_per_partition)


def _entries(count: int) -> str:
    return plural(count, "entry", "entries")


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
