"""The driver's side of a read: queries the server, has ``offsets`` decide, reports lost entries."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from millstream.errors import ConfigError, NotFoundError
from millstream.spark.model import offsets
from millstream.spark.model.bounds import Bounds
from millstream.spark.model.offsets import DataLossError, Id, Index, Offset, Position, Range, StreamState
from millstream.spark.options.read import Options, Where
from millstream.spark.read.stream_info import StreamInfo

logger = logging.getLogger("millstream.spark")

SCAN_SECONDS = 1.0
"""Seconds between two scans for streams that match a pattern; Spark requests offsets every ten milliseconds."""


class Planner:
    """Plans the batches of one query (or one batch read)."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._streams = StreamInfo(options)
        self._indexes: dict[str, Index] = {}
        self._joined: list[str] = []
        self._scan_due = 0.0
        self._hold_until = time.monotonic() + options.max_delay_ms / 1000
        self._target: dict[str, StreamState] | None = None
        self._published: dict[str, tuple[Id, int]] = {}
        self._warned: set[str] = set()
        self._ends: dict[str, int] = {}  # number of entries added to each stream at its last check
        self._gone: set[str] = set()
        self._seen: dict[str, StreamState] = {}  # states at the last check, to detect a replaced stream
        self.latest: Offset = {}

    def close(self) -> None:
        """Close the connections."""
        self._streams.close()

    # --- beginning of a query, and bounded reads
    # -------------------------------------------------------------------------

    def begin(self, where: Where) -> Offset:
        """Return the positions named by ``where`` in the existing streams."""
        states = self._existing(self._streams.keys())
        if where == "group":
            return self._from_group(states)
        found = {}
        for key, ident in self._places(states, where, "startingOffsets").items():
            state = states[key]
            given = where.get(key) if not isinstance(where, str) else None
            if isinstance(given, Position):
                found[key] = given
            elif ident == offsets.ZERO:
                found[key] = state.beginning
            elif ident >= state.last:
                # The position may be beyond the last entry: entries up to it may still be added, but must not be read.
                found[key] = Position.at(ident, state.added)
            else:
                found[key] = self._counted(key, ident, state)
        return found

    def _counted(self, key: str, ident: Id, state: StreamState) -> Position:
        """Return the position after an entry, with its number found by counting the later entries."""
        after = self._streams.walk(key, ident, state.last, stride=1 << 62)[1]
        return Position.at(ident, state.added - after)

    def _from_group(self, states: Mapping[str, StreamState]) -> Offset:
        """Return the position of the query's group: the last that a query whose checkpoint is lost has published."""
        group = self._options.group or ""
        found = {}
        for key, place in self._streams.group_places(group, states).items():
            if place is None and self._options.streams:
                raise ConfigError(
                    f"option 'startingOffsets' is 'group', and stream {key!r} has no group {group!r}. Choose where to "
                    f"begin (earliest, latest, ids), or create it (XGROUP CREATE {key} {group} <id>)."
                )
            if place is None:
                found[key] = states[key].beginning
            else:
                ident, read = place
                found[key] = self._counted(key, ident, states[key]) if read is None else Position.at(ident, read)
        return found

    def bounded(self, starting: Where, ending: Where, bounds: Bounds | None = None) -> list[Range]:
        """Return the parts of a batch read, up to the present end of the streams at most."""
        states = self._existing(self._streams.keys())
        starts = self._places(states, starting, "startingOffsets")
        ends = self._places(states, ending, "endingOffsets")
        found = []
        for key in sorted(states):
            state = states[key]
            start, end = starts[key], min(ends[key], state.last)
            if bounds is not None:
                start, end = bounds.narrow(key, start, end, state)
            if start < end:
                rows = offsets.estimated_rows(state, start, end)
                if self._options.max_per_partition is not None:
                    rows = state.length  # an estimate could be too low to show that the stream must be split
                found.append(Range(key, start, end, state.removed, rows))
        return self.parts(found)

    def _places(self, states: Mapping[str, StreamState], where: Where, option: str) -> dict[str, Id]:
        """Return the id of an option in each stream."""
        if not isinstance(where, str):
            for key in sorted(set(where) - set(states) - {"*"}):
                raise NotFoundError(
                    f"option {option!r} names stream {key!r}, which does not exist on {self._options.shown_url}"
                )
        found = {}
        for key, state in states.items():
            # A stream of the pattern for which no position is given is read from its beginning to its end.
            other = "earliest" if option == "startingOffsets" else "latest"
            place = where if isinstance(where, str) else where.get(key, where.get("*", other))
            if isinstance(place, Position):
                found[key] = place.id
            elif isinstance(place, Id):
                found[key] = place
            else:
                found[key] = offsets.ZERO if place == "earliest" else state.last
        return found

    def _existing(self, keys: list[str]) -> dict[str, StreamState]:
        found = {}
        for key, state in self._streams.states(keys).items():
            if state is not None:
                found[key] = state
            elif self._options.streams:
                raise self._missing(key)
        return found

    def _missing(self, key: str) -> NotFoundError:
        return NotFoundError(
            f"option 'stream': {key!r} does not exist on {self._options.shown_url}; correct the name, or make "
            f"the stream (XGROUP CREATE {key} <group> $ MKSTREAM), or use 'streamPattern' for later ones"
        )

    # --- micro-batches -----------------------------------------------------------------------------------------------

    def target_now(self) -> None:
        """For Trigger.AvailableNow: limit the read to the present entries.

        A missing stream is handled later, where the query's position in it is known.
        """
        states = self._streams.states(self._streams.keys())
        self._target = {key: state for key, state in states.items() if state is not None}
        self._ends.update({key: state.added for key, state in self._target.items()})

    def next_end(self, start: Mapping[str, Position], cap: int | None, least: int | None = None) -> Offset:
        """Return the end of the batch that begins at ``start``: equal to it when there is nothing new."""
        self._publish(start)
        states = self._look(start)
        self.latest = {key: state.end for key, state in states.items()}
        begun = {key: start.get(key) or state.beginning for key, state in states.items()}
        waiting = {key: self._limit(key, state).added - begun[key].n for key, state in states.items()}
        if self._holds(sum(waiting.values()), least):
            return dict(start)
        budgets = None
        if cap is not None:
            budgets = offsets.share(waiting, cap, {key: at.id for key, at in begun.items()})
        # A deleted stream is dropped: a later stream of its name counts as new and is read from its beginning.
        ends = {key: at for key, at in start.items() if key not in self._gone}
        for key, state in states.items():
            limit = self._limit(key, state)
            if limit.last <= begun[key].id:
                if limit.added > begun[key].n:  # entries were added, but before the query's beginning
                    ends[key] = Position.at(begun[key].id, limit.added)
            elif budgets is None or waiting[key] <= budgets.get(key, 0):
                ends[key] = begun[key].advanced(limit.last, limit.added)
            elif budget := budgets.get(key, 0):
                ends[key] = self._cut(key, begun[key], state, budget)
        return ends

    def _holds(self, waiting: int, least: int | None) -> bool:
        """Return True if the batch should wait for more entries."""
        now = time.monotonic()
        if least is not None and self._target is None and waiting < least and now < self._hold_until:
            return True
        if waiting:
            self._hold_until = now + self._options.max_delay_ms / 1000
        return False

    def _look(self, start: Mapping[str, Position]) -> dict[str, StreamState]:
        """Return the state of every stream that takes part now; raise for streams that went back or lost entries."""
        keys = self._participants(start)
        found = {}
        self._gone = set()
        for key, state in self._streams.states(keys).items():
            at = start.get(key)
            if state is None:
                if at is not None:
                    self._check_gone(key, at)
                    self._gone.add(key)
                    self._seen.pop(key, None)
                elif self._options.streams and not self._options.skip_missing:
                    raise self._missing(key)  # a stream added at a restart, which skips ``begin``
                continue
            if at is not None and (reason := offsets.went_back(key, at, state)):
                raise DataLossError(reason)
            self._check_same(key, at, state)
            found[key] = state
            self._ends[key] = state.added
            index = self._indexes.setdefault(key, Index())
            index.add(state.last, state.added)
            if at is not None:
                index.forget_before(at.id)
                self._report_loss(key, at, state)
        return found

    def _check_same(self, key: str, at: Position | None, state: StreamState) -> None:
        """Raise if a stream was replaced since the last check, although its counters are ahead of the read entries."""
        before = self._seen.get(key)
        if at is not None and before is not None:

            def up_to() -> int:
                return self._streams.walk(key, offsets.ZERO, at.id, stride=1 << 62)[1]

            if reason := offsets.replaced(before, state, up_to, at.n):
                raise DataLossError(offsets.replaced_text(key, at, reason))
        self._seen[key] = state

    def _check_gone(self, key: str, at: Position) -> None:
        """Raise if a deleted stream may have had unread entries.

        A sealed stream that was read to its end cannot have had more. Streams that are found by a pattern come and go.
        Nothing is lost if such a stream was read to its end.
        """
        reason = offsets.went_back(key, at, None)
        if reason is None or at.id == Id(offsets.MAX_PART, offsets.MAX_PART):
            return
        end = self._ends.pop(key, None)
        if not self._options.streams and end is not None and end <= at.n:
            self._warn(f"stream {key!r} is gone, after all that was seen of it was read (up to {at.id})")
        elif self._options.skip_missing or (not self._options.streams and not self._options.fail_on_loss):
            self._warn(reason)
        else:
            raise DataLossError(reason)

    def _participants(self, start: Mapping[str, Position]) -> list[str]:
        if self._options.streams:
            for key in sorted(set(start) - set(self._options.streams)):
                self._warn(f"stream {key!r} is in the checkpoint and not in option 'stream': its place is kept")
            return sorted(self._options.streams)
        if self._target is not None:
            return sorted({*start, *self._target})
        now = time.monotonic()
        if now >= self._scan_due:
            self._joined = self._streams.keys(sure=False)
            self._scan_due = now + SCAN_SECONDS
        return sorted({*start, *self._joined})

    def _limit(self, key: str, state: StreamState) -> StreamState:
        """Return the state up to which a stream may be read now."""
        if self._target is None:
            return state
        target = self._target.get(key)
        # A stream of the checkpoint that was empty and did not match when the target was taken has nothing to read.
        return target if target is not None else StreamState(offsets.ZERO, 0, 0, offsets.ZERO, None)

    def _cut(self, key: str, at: Position, state: StreamState, budget: int) -> Position:
        limit = self._limit(key, state)
        known = self._indexes[key].cut(at, budget)
        if known is not None and known[0] <= limit.last:
            return at.advanced(*known)
        kept, rows = self._streams.walk(key, at.id, limit.last, stride=budget, most=budget)
        if rows < budget:  # because of deletions, fewer entries exist than were added
            return at.advanced(limit.last, limit.added)
        cut = offsets.counted_cut(at, state, kept[-1], rows)
        self._indexes[key].add(cut.id, cut.n)
        return cut

    def _report_loss(self, key: str, at: Position, state: StreamState) -> None:
        loss = offsets.find_loss(key, at, state)
        if loss is None:
            return
        if loss.certain and self._options.fail_on_loss:
            raise DataLossError(
                f"{loss}. Set option 'failOnDataLoss' to 'false' to go on without them; trim later, or by what this "
                "query's 'group' has read, to keep it from happening again"
            )
        self._warn(str(loss))

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s; reading goes on", message)

    def _publish(self, start: Mapping[str, Position]) -> None:
        """Set the query's group to the finished entries: every tool for Redis then shows its lag."""
        group = self._options.group
        if group is None:
            return
        news = {key: (at.id, at.n) for key, at in start.items() if self._published.get(key) != (at.id, at.n)}
        if not news:
            return
        there = [key for key, state in self._streams.states(news).items() if state is not None]
        self._streams.claim_group(group, there)
        failed = self._streams.publish(group, {key: news[key] for key in there})
        self._published.update({key: news[key] for key in there if key not in failed})

    # --- partitions --------------------------------------------------------------------------------------------------

    def ranges(self, start: Mapping[str, Position], end: Mapping[str, Position]) -> list[Range]:
        """Return the parts in which executors read a batch."""
        wholes = offsets.batch_ranges(start, end)
        if not wholes:
            return []
        states = self._streams.states([whole.key for whole in wholes])
        for whole in wholes:
            since = start.get(whole.key)
            at = since if since and since.id == whole.start else Position.at(whole.start, whole.start_n)
            if reason := offsets.went_back(whole.key, end[whole.key], states[whole.key]):
                if states[whole.key] is None and self._options.skip_missing:
                    self._warn(reason)
                    continue
                raise DataLossError(reason)
            if (state := states[whole.key]) is not None:
                self._report_loss(whole.key, at, state)
        return self.parts(wholes)

    def parts(self, wholes: Sequence[Range]) -> list[Range]:
        """Return the ranges cut into one part for each task; empty ones are left out."""
        firsts = self._streams.firsts({whole.key: (whole.start, whole.end) for whole in wholes})
        total = sum(whole.rows for whole in wholes)
        found: list[Range] = []
        for whole in wholes:
            found += self._split(replace(whole, first=firsts[whole.key]), total)
        return found

    def _split(self, whole: Range, total: int) -> list[Range]:
        if whole.first is None:
            return []
        parts = offsets.parts_for(whole.rows, total, self._options.min_partitions)
        most = self._options.max_per_partition
        if most is not None and whole.rows > most:
            if self._options.min_partitions is not None:
                most = min(most, -(-whole.rows // parts))
            cuts = self._streams.walk(whole.key, whole.start, whole.end, stride=most)[0]
            return [replace(part, rows=most) for part in offsets.cut_at(whole, cuts)]
        index = self._indexes.get(whole.key)
        return offsets.split(whole, parts, index.between(whole.start, whole.end) if index else ())
