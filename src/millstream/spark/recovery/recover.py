"""Recovery: the pending entries of crashed workers, claimed in slices, decided about by a function, settled.

The entries that the recovery's consumer holds *are* the present slice. So a recovery that was killed continues at the
same point. It first settles the entries that it still holds, and then claims on from the cursor, which the server
stores.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession

from millstream import failpoints
from millstream.client.capabilities import capabilities_of, probes
from millstream.client.dead_letter.letter import dead_key
from millstream.client.slots import beside, slot_of, tag_of
from millstream.client.url import CLUSTERS
from millstream.errors import ConfigError, NotFoundError, UsageError
from millstream.spark.connection.retry import lost_contact
from millstream.spark.connection.router import Router, absent, checked
from millstream.spark.group.pending import PAGE, PendingEntries
from millstream.spark.group.renewal import LeaseRenewal
from millstream.spark.model.offsets import parse_id
from millstream.spark.options import common, read
from millstream.spark.read.stream_info import StreamInfo
from millstream.spark.recovery.lock import LOCK_MS, RecoveryLock
from millstream.spark.recovery.settle import WORDS, EntryDecision, RecoveryCounts, Settler
from millstream.spark.recovery.user_function import SparkDecisions

logger = logging.getLogger("millstream.spark")

SLICE = 50_000
"""Entries claimed at a time: the driver holds the ids and decisions of one slice."""

Decide = Callable[[Sequence[bytes]], dict[bytes, EntryDecision]]
Progress = Callable[[int, int], None]

_KEEP_SECONDS = 7 * 24 * 3600
_END = b"end"


def recover(
    spark: SparkSession | None,
    url: str,
    stream: str,
    group: str,
    min_idle_time: str | int | timedelta,
    function: Callable[[DataFrame], DataFrame] | None = None,
    *,
    verdict: str | None = None,
    reason: str = "",
    schema: str | None = None,
    dead: str | None = None,
    slice_size: int = SLICE,
    name: str = "recover",
    progress: Progress | None = None,
) -> RecoveryCounts:
    """Settle every entry that has been pending for too long, as a function decides.

    The entries are claimed in slices (XAUTOCLAIM; claiming counts no delivery), read by Spark's executors and given to
    ``function``. Its result has a ``verdict`` by ``id``: ``ack``, ``release`` (to the next consumer that claims the
    entry) or ``dead`` (into the dead-letter stream, with the text of the column ``reason`` if there is one). An entry
    without a verdict is released and counted. An entry that a worker has delayed is left alone until it is due.
    After a kill, a call with the same ``name`` continues: a slice that was not settled is decided about again, and
    nothing is settled twice.

    For example::

        def triage(entries):
            bad = entries.fields["amount"].isNull()
            return entries.select("id", F.when(bad, "dead").otherwise("release").alias("verdict"))

        recover(spark, "redis://127.0.0.1:6379/0", "orders", "billing", "10m", triage)

    Args:
        spark: The session; None with a fixed ``verdict``, which needs neither Spark nor Java.
        url: The server's URL.
        stream: The stream's key.
        group: The group's name.
        min_idle_time: The time that an entry must have been idle to be taken from its holder: ``"10m"``, milliseconds
            or a timedelta. It must be longer than any living worker works without a sign.
        function: A function of the entries (``stream``, ``id``, ``timestamp``, ``fields``, ``deliveries``) that returns
            ``id`` and ``verdict`` of each; called once a slice.
        verdict: The same verdict for every entry, in place of a function.
        reason: The reason of dead letters, with ``verdict="dead"``.
        schema: Columns of the entries, as ``.schema(...)`` of a read takes them; ``deliveries`` comes with them.
        dead: The dead-letter stream; ``<stream>:dead`` unless given.
        slice_size: Number of entries claimed at a time.
        name: The name of the recovery and of its consumer; two of one name do not work at the same time.
        progress: A function called with the entries settled and the entries to settle, which is an upper bound.

    Returns:
        The results for the entries, of this call alone.

    Raises:
        ConfigError: an argument is invalid.
        UsageError: there is no such group, the function's result is invalid (then nothing of the slice is
            settled), another recovery of this name is at work, or the server refuses.
    """
    min_idle = _milliseconds(min_idle_time)
    if (function is None) == (verdict is None):
        raise ConfigError("recover() takes a function or a verdict, and has none or both. Give one.")
    if verdict is not None and verdict not in WORDS:
        raise ConfigError(f"verdict={verdict!r} is invalid. Write one of {', '.join(WORDS)}.")
    if slice_size < 1:
        raise ConfigError(f"slice_size={slice_size!r} is invalid. Write at least 1.")
    decide: Decide
    if function is not None:
        if spark is None:
            raise ConfigError(
                "recover() has no Spark session to call a function in. Make one with millstream.spark.session()."
            )
        decide = SparkDecisions(spark, function, url, stream, group, name, schema)
    else:
        fixed = EntryDecision(verdict or "", reason)

        def decide(ids: Sequence[bytes]) -> dict[bytes, EntryDecision]:
            return dict.fromkeys(ids, fixed)

    with closing(Recovery(url, stream, group, min_idle, name=name, slice_size=slice_size, dead=dead)) as recovery:
        return recovery.run(decide, progress)


def _milliseconds(given: str | int | timedelta) -> int:
    if isinstance(given, timedelta):
        given = given // timedelta(milliseconds=1)
    try:
        return common.duration(str(given), "ms")
    except ValueError as reason:
        raise ConfigError(f"min_idle_time={given!r}: {reason}") from None


class Recovery:
    """One run of a recovery."""

    def __init__(
        self, url: str, stream: str, group: str, min_idle: int, *, name: str, slice_size: int, dead: str | None
    ) -> None:
        self._router = Router(url)
        self._entries = PendingEntries(self._router, stream, group)
        self._min_idle = min_idle
        self._name = name
        self._size = slice_size
        self._cursor_key = beside(stream, "recover", f"{group}:{name}")
        self._lock = RecoveryLock(self._router, f"{self._cursor_key}:lock", name)
        self._renewal = LeaseRenewal(url, group, min(min_idle, LOCK_MS), self._lock.renew)
        if dead == stream:
            raise ConfigError(
                f"dead={dead!r} is invalid: it is the stream itself, whose consumers would get its dead letters. "
                "Name another stream."
            )
        info = StreamInfo(read.parse({"url": url, "stream": stream}))
        info.states([stream])  # the first request, which reveals errors in the URL or the key
        info.close()
        if url.startswith(CLUSTERS) and slot_of(dead or dead_key(stream)) != slot_of(stream):
            raise ConfigError(
                f"dead={dead or dead_key(stream)!r}: on a cluster it must be in the slot of {stream!r}, since a dead "
                f"letter and its acknowledgement are one transaction: dead='{{{tag_of(stream)}}}:dead' is"
            )
        capabilities = capabilities_of(self._router.ask(probes(stream)))  # type: ignore[arg-type] # made of text alone
        self._settler = Settler(self._router, self._entries, name, capabilities, dead or dead_key(stream))
        self._cursor = b"0-0"
        self._counts = RecoveryCounts()

    def close(self) -> None:
        """Close the connections."""
        self._renewal.stop()
        self._router.close()

    def run(self, decide: Decide, progress: Progress | None = None) -> RecoveryCounts:
        """Settle all stale entries, slice by slice; see :func:`recover`."""
        counts = self._counts
        with self._alone():
            total = self._pending()
            self._resume()
            while True:
                deliveries = self._held()
                if not deliveries:
                    if self._cursor == _END:
                        break
                    self._claim()
                    continue
                failpoints.reach("sliced")
                decisions = decide(list(deliveries))
                failpoints.reach("decided")
                self._lock.check()

                def report() -> None:
                    if progress is not None:
                        progress(counts.total, max(total, counts.total))

                self._settler.carry_out(deliveries, decisions, counts, report)
            self._router.ask([("DEL", self._cursor_key)])
            self._entries.remove(self._name)
        if progress is not None:
            progress(counts.total, counts.total)
        return counts

    def _pending(self) -> int:
        """Return the number of pending entries of the group, including those that are not stale."""
        (reply,) = self._router.ask([("XPENDING", self._entries.key, self._entries.group)])
        if absent(reply):
            raise NotFoundError(f"stream {self._entries.key!r} has no group {self._entries.group!r}: correct the names")
        return int(checked(reply)[0])

    # --- slices ------------------------------------------------------------------------------------------------------

    def _held(self) -> dict[bytes, int]:
        """Return the present slice: the entries that the consumer holds, with delivery counts."""
        found: dict[bytes, int] = {}
        for page in self._entries.pending(self._name):
            found.update((row[0], row[3]) for row in page)
            if len(found) >= self._size:
                break
        return found

    def _resume(self) -> None:
        """Continue from the stored cursor, or from the last entry held: earlier entries were checked."""
        (noted,) = self._router.ask([("GET", self._cursor_key)])
        if checked(noted) is None:
            self._check_name()
            self._note(b"0-0")
        else:
            self._cursor = self._checked_cursor(noted)
            self._put_back(list(self._held()))
        if self._cursor != _END and (held := self._held()):
            last = parse_id(list(held)[-1].decode())
            self._cursor = str(max(parse_id(self._cursor.decode()), last.after)).encode()

    def _checked_cursor(self, noted: bytes) -> bytes:
        try:
            return noted if noted == _END else str(parse_id(noted.decode())).encode()
        except ValueError:
            raise UsageError(
                f"{self._cursor_key}, which keeps the progress of this recovery, holds {noted[:80]!r}: another client "
                f"has changed it; DEL it, and give this recovery another name"
            ) from None

    def _check_name(self) -> None:
        """Raise if a worker has the recovery's name: its entries would be taken for a slice and settled."""
        held = self._held()
        if held:
            raise UsageError(
                f"consumer {self._name!r} of this group holds {next(iter(held)).decode()}, which no recovery of the "
                "last week has claimed: give this one another name"
            )

    def _note(self, cursor: bytes) -> None:
        self._cursor = cursor
        self._router.ask([("SET", self._cursor_key, cursor, "EX", _KEEP_SECONDS)])

    def _claim(self) -> None:
        """Claim a slice, or fewer entries at the end of the pending list."""
        claimed = 0
        self._entries.hold(self._min_idle)
        head = ("XAUTOCLAIM", self._entries.key, self._entries.group, self._name, self._min_idle)
        while claimed < self._size and self._cursor != _END:
            count = min(PAGE, self._size - claimed)
            try:
                (reply,) = self._router.once([(*head, self._cursor, "COUNT", count, "JUSTID")])
            except Exception as reason:
                if not lost_contact(reason):
                    raise
                return  # claimed entries are found in the pending list
            cursor, ids, *gone = checked(reply)
            claimed += len(ids) - len(self._put_back(ids))
            self._counts.deleted += len(gone[0]) if gone else 0
            self._note(_END if cursor == b"0-0" else cursor)

    def _put_back(self, ids: Sequence[bytes]) -> set[bytes]:
        """Give claimed entries that are not due back to wait; return their ids."""
        return self._entries.put_back(self._name, ids, self._min_idle, charged=False)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of this name in the block, and renew the claimed entries."""
        self._lock.acquire()
        self._renewal.keep(self._name, [self._entries.key])
        try:
            yield
        finally:
            self._renewal.stop()
            self._lock.release()
