"""The driver's part of the sink: makes staged rows visible, once, whatever process or server dies meanwhile.

A commit has three steps. It *decides*: One SET of the writer's record names the batch and all of its staged rows, of
every stream. From then on these rows are the batch. A repetition of the batch continues with them and drops its own
rows, which may be in another order. It *publishes* piece by piece: A transaction adds the rows of a piece and counts
the piece as published. So a piece is added once, however often and by however many drivers this is tried. It *closes*
the record and removes the staged rows. A batch adds nothing if its record, or that of a later batch, is closed. A
record that is still open when a later batch comes is finished first.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from millstream.client.partitions.layout import HIGHEST_ID, logical
from millstream.errors import UsageError
from millstream.spark.connection.connection import ErrorReply
from millstream.spark.model import keys
from millstream.spark.model.offsets import ZERO, Id, parse_id
from millstream.spark.options.write import SinkOptions
from millstream.spark.write.commit_record import CommitRecord, CommitRecordStore, SinkRouter
from millstream.spark.write.publish import PiecePublisher, last_generated
from millstream.spark.write.server_errors import refused, sealed, wrong_type
from millstream.spark.write.staging import Part, not_increasing

logger = logging.getLogger("millstream.spark")


class SinkCommit:
    """Commits the batches of one writer."""

    def __init__(self, options: SinkOptions, writer: str, *, lasting: bool, in_order: bool = False) -> None:
        self._options = options
        self._writer = writer
        self._lasting = lasting
        self._in_order = in_order
        self._router = SinkRouter(options)
        self._records = CommitRecordStore(self._router, writer)
        self._pieces = PiecePublisher(options, writer, self._router, self._records)

    def commit(self, version: int, parts: Sequence[Part], sources: str | None = None) -> None:
        """Make the rows visible unless a batch of this version, or of a later one, was already decided."""
        decided = self._decide(CommitRecord(version, tuple(parts), sum(part.rows for part in parts), sources))
        self._finish(decided)
        # The register may expire before the committed rows, which have no time to live.
        self.discard([*parts, *(decided.parts or ())])

    def discard(self, parts: Iterable[Part] = ()) -> None:
        """Remove staged rows: those of ``parts``, and all that tasks of this writer left behind.

        Decided rows stay for the next attempt at the commit, because Spark also aborts after a failed commit.
        """
        register = keys.register(self._writer)
        known = self._records.read() if self._lasting else None
        kept = {part.key.encode() for part in known.parts or ()} if known is not None else set()
        (registered,) = self._router.ask_all([("SMEMBERS", register)])
        own = {key for key in registered if keys.is_staged(key, self._writer)}
        if len(own) < len(registered):  # keys added by other clients would be deleted with the sink's rights
            logger.warning("%s names keys that this writer never made: they stay", register)
        staged = {part.key.encode() for part in parts} | own
        self._router.ask_all([("UNLINK", key) for key in sorted(staged - kept)])
        if not kept:
            self._router.ask_all(
                [("DEL", register)] if self._lasting else [("DEL", register), ("DEL", self._records.key)]
            )

    def close(self) -> None:
        """Close the connection."""
        self._router.close()

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _decide(self, mine: CommitRecord) -> CommitRecord:
        """Return the batch as it was decided, now or by an earlier attempt."""
        version = mine.version
        while True:
            known = self._records.read()
            if known is not None and known.version >= version:
                if known.version > version and self._in_order:
                    raise self._outdated(version, known.version)
                if known.version == version:
                    self._check_repeated(known, mine)
                    return known
                logger.warning(
                    "write %d of job %s adds nothing: write %d was done before. A job that starts from nothing "
                    "needs a txnAppId of its own",
                    version, self._writer, known.version,
                )  # fmt: skip
                return CommitRecord(version, None)
            if known is not None and known.parts is not None:
                self._go_on_with(known)
                continue
            self._check(mine.parts or ())
            if self._records.replace(mine):
                return mine

    def _check_repeated(self, known: CommitRecord, mine: CommitRecord) -> None:
        """Raise if another batch has a number that was written: its rows would be taken for written."""
        difference = known.differs(mine)
        if not difference:
            return
        said = f"batch {mine.version} of writer {self._writer} {difference}"
        if not self._in_order:
            logger.warning("%s: it adds nothing", said)
            return
        raise UsageError(
            f"{said}: the checkpoint's newest files are lost and the batch was divided again, or the query's result is "
            "not the same each time. Restore the checkpoint, or give the query a new checkpointLocation and "
            f"startingOffsets after the rows that were written; DEL {self._records.key} writes the rows as they are now"
        )

    def _outdated(self, version: int, last: int) -> UsageError:
        # If it counted as written, its rows would be lost: an older checkpoint divides the rows into other batches.
        return UsageError(
            f"batch {version} of query {self._writer} comes after its batch {last} was written to "
            f"{self._options.shown_url}: the checkpoint is an old copy, or another driver goes on with it; go on with "
            "the newest one, or give the query a new checkpointLocation (and startingOffsets), as which it is a new "
            "query"
        )

    def _go_on_with(self, known: CommitRecord) -> None:
        """Finish an earlier batch that was decided: its driver ended, or the server lost the closed record."""
        try:
            self._finish(known)
        except UsageError as reason:
            raise UsageError(
                f"batch {known.version} of writer {self._writer}, which was before this one, cannot be finished "
                f"({reason}): correct that, or DEL {self._records.key} to give up the rest of the batch"
            ) from None
        self._router.ask_all([("UNLINK", part.key) for part in known.parts or ()])

    def _finish(self, decided: CommitRecord) -> None:
        if decided.parts is None:
            return
        if self._lasting:
            # The rows must survive until a driver restarts, even next week.
            self._router.ask_all([("PERSIST", part.key) for part in decided.parts])
        self._pieces.publish(decided)
        self._close(decided)

    def _close(self, record: CommitRecord) -> None:
        while self._records.read() == record:  # otherwise another driver closed it at the same moment
            if self._records.replace(replace(record, parts=None)):
                return

    def _check(self, parts: Sequence[Part]) -> None:
        """Raise an error if these rows cannot be published, before any row is visible."""
        found = self._router.ask_all([("HLEN", part.key) for part in parts])
        for part, pieces in zip(parts, found, strict=True):
            if pieces != part.pieces:
                raise UsageError(
                    f"rows on their way to stream {part.stream!r} are gone from {self._options.shown_url} (removed, "
                    "lost in a restart of the server, or older than option 'stagingTimeout'): start this again"
                )
        self._router.ask_all([("PEXPIRE", part.key, self._options.staging_ms) for part in parts])
        streams = sorted({part.stream for part in parts})
        for stream, kind in zip(streams, self._router.ask_all([("TYPE", stream) for stream in streams]), strict=True):
            if kind not in (b"stream", b"none"):
                raise wrong_type(stream, kind, self._options)
        self._check_open([stream for stream in streams if logical(stream) is not None])
        self._check_ids(parts)

    def _check_open(self, partitions: Sequence[str]) -> None:
        """Raise if a partition is sealed; decided rows could not go to another one."""
        looked = self._router.ask([("XINFO", "STREAM", stream) for stream in partitions])
        for stream, reply in zip(partitions, looked, strict=True):
            if not isinstance(reply, ErrorReply) and str(last_generated(reply)) == HIGHEST_ID:
                raise sealed(stream, self._options)

    def _check_ids(self, parts: Sequence[Part]) -> None:
        last: dict[str, Id] = {}
        for part in parts:
            if part.first is None or part.last is None:
                continue
            if part.stream not in last:
                last[part.stream] = self._last_id(part.stream)
            if parse_id(part.first) <= last[part.stream]:
                raise not_increasing(part.stream, last[part.stream], part.first)
            last[part.stream] = parse_id(part.last)

    def _last_id(self, stream: str) -> Id:
        (reply,) = self._router.ask([("XINFO", "STREAM", stream)])
        if isinstance(reply, ErrorReply):
            if "no such key" in str(reply):
                return ZERO
            raise refused(reply, self._options)
        return last_generated(reply)
