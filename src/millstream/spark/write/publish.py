"""Publishing of a decided batch: its staged rows become entries, piece by piece, each once.

A transaction adds a piece and counts it as published, over a connection that watches the count. If another
driver was faster or the connection broke, the transaction does nothing. The next check then shows the progress. The
commands that check the next piece follow each transaction, so that a piece costs one round trip.
"""

import time
from collections.abc import Sequence
from typing import Any

from millstream import failpoints
from millstream.errors import UsageError
from millstream.spark.connection.connection import BlockingConnection, Command, ErrorReply, Reply, pack
from millstream.spark.connection.retry import RETRY_SECONDS
from millstream.spark.connection.router import pairs
from millstream.spark.connection.routing import MOVE_PAUSE, Redirected
from millstream.spark.model.offsets import Id, parse_id
from millstream.spark.options.write import SinkOptions
from millstream.spark.write.commit_record import CommitRecord, CommitRecordStore, SinkRouter
from millstream.spark.write.pieces import Piece, read_piece
from millstream.spark.write.server_errors import refused
from millstream.spark.write.staging import Part, not_increasing

_NEXT = "next"
"""Field of staged rows that counts the published pieces."""

_TRIES = 5
"""Most times that a connection may break in the same piece."""

_Step = tuple[Part, int]
"""A piece, by its part and its number there."""


class PiecePublisher:
    """Publishes the pieces of one writer's batches."""

    def __init__(self, options: SinkOptions, writer: str, router: SinkRouter, records: CommitRecordStore) -> None:
        self._options = options
        self._writer = writer
        self._router = router
        self._records = records
        self._watching: BlockingConnection | None = None
        self._trim: tuple[Any, ...] = ()

    def publish(self, record: CommitRecord) -> None:
        """Publish the pieces that were not published yet, in their order."""
        # A generator, since the record's number of pieces may be wrong if another client wrote it
        steps = ((part, number) for part in record.parts or () for number in range(part.pieces))
        step, following = next(steps, None), next(steps, None)
        self._trim = self._trim_words()
        looked: list[Reply] | None = None
        failures = 0
        until = time.monotonic() + RETRY_SECONDS
        while step is not None:
            looked = self._look(step) if looked is None else looked
            piece = self._checked(record, step, looked)
            if piece is None:
                step, following, looked = following, next(steps, None), None
                continue
            failpoints.reach("publishing")
            try:
                done, looked = self._step(*step, piece, following)
            except Redirected as reason:  # the slot moved to another node, so nothing was done
                self._router.drop(reason)
                looked = None
                if time.monotonic() > until:
                    raise
                time.sleep(MOVE_PAUSE)  # no node reports that a slot has arrived
                continue
            except OSError as reason:  # the next check shows whether it was done
                self._router.drop(reason)
                looked, failures = None, failures + 1
                if failures > _TRIES:
                    raise
                continue
            failures, until = 0, time.monotonic() + RETRY_SECONDS
            if done:
                step, following = following, next(steps, None)

    def _look(self, step: _Step) -> list[Reply]:
        """Return the state of a piece, over the connection that watches it from now on."""
        looked = self._router.ask(_look_at(*step))
        self._watching = self._router.connection_of(step[0].key)
        return looked

    def _checked(self, record: CommitRecord, step: _Step, looked: list[Reply]) -> Piece | None:
        """Return the piece if it must be published now; None if it was already."""
        part, number = step
        self._router.check(looked[:2])
        kept_count, kept = looked[1]
        try:
            done = int(kept_count or 0)
            piece = read_piece(kept, part.stream) if kept is not None and done <= number else None
        except ValueError:
            raise self._broken(
                f"rows of batch {record.version} of writer {self._writer} that wait in {part.key} on "
                f"{self._options.shown_url} were changed by another client"
            ) from None
        if done > number:
            return None
        if piece is None or done < number:
            if self._records.read() != record:
                return None  # another driver of the same query was faster, and has removed the rows
            raise self._broken(
                f"batch {record.version} of writer {self._writer} was being published when rows of it were lost "
                f"({part.key} on {self._options.shown_url}, piece {number} of {part.pieces} for stream {part.stream!r})"
            )
        if piece.first is not None and not isinstance(looked[2], ErrorReply):
            last = last_generated(looked[2])
            if piece.first <= last:
                raise not_increasing(part.stream, last, piece.first)
        return piece

    def _broken(self, what: str) -> UsageError:
        return UsageError(
            f"{what}: DEL {self._records.key} to have the batch written again; its rows that were published stay, and "
            "will be there twice"
        )

    def _step(self, part: Part, number: int, piece: Piece, following: _Step | None) -> tuple[bool, list[Reply] | None]:
        """Publish a piece; return True if it was added, and the state of the following piece if known."""
        trim: list[Command] = [("XTRIM", part.stream, *self._trim)] if self._trim else []
        after: list[Command] = [*trim, ("HSET", part.key, _NEXT, number + 1)]
        if number:
            # This piece itself stays until the next one, in case the server refuses to add it.
            after.append(("HDEL", part.key, number - 1))
        connection, self._watching = self._watching, None
        if connection is None or connection is not self._router.connection_of(part.key):  # a new one has no WATCH
            return False, None
        look: list[Command] = []
        if following is not None and self._router.connection_of(following[0].key) is connection:
            look = _look_at(*following)
        connection.send(b"".join((pack(("MULTI",)), piece.commands, pack(*after, ("EXEC",), *look))))
        queued = piece.rows + len(after)
        if not connection.passes(b"+OK\r\n" + b"+QUEUED\r\n" * queued):
            self._router.check(self._router.receive(connection, 1 + queued))
        (results,) = self._router.receive(connection, 1)
        looked = self._router.receive(connection, len(look)) if look else None
        self._watching = connection if look else None
        self._router.check([results])
        if results is None:
            return False, None
        self._check_added(part, number, results[: piece.rows])
        return True, looked

    def _check_added(self, part: Part, number: int, results: Sequence[Reply]) -> None:
        """Raise if XADD failed inside the transaction, for example because the key has another type meanwhile."""
        errors = [reply for reply in results if isinstance(reply, ErrorReply)]
        if not errors:
            return
        if len(errors) == len(results):
            self._router.ask([("HSET", part.key, _NEXT, number)])
        raise refused(errors[0], self._options)

    def _trim_words(self) -> tuple[Any, ...]:
        """Return the arguments of XTRIM after rows were added, without its key; empty for no trimming."""
        options = self._options
        how = "~" if options.approximate else "="
        if options.max_len is not None:
            return ("MAXLEN", how, options.max_len)
        if options.retention_ms is not None:
            ((seconds, _),) = self._router.ask_all([("TIME",)])
            return ("MINID", how, f"{max(0, int(seconds) * 1000 - options.retention_ms)}-0")
        return () if options.min_id is None else ("MINID", how, options.min_id)


def _look_at(part: Part, number: int) -> list[Command]:
    """Return commands that read a piece and the progress of its part, and watch both for the next transaction."""
    commands: list[Command] = [("WATCH", part.key), ("HMGET", part.key, _NEXT, number)]
    if part.first is not None:
        commands[0] = ("WATCH", part.key, part.stream)
        commands.append(("XINFO", "STREAM", part.stream))
    return commands


def last_generated(reply: Reply) -> Id:
    """Return the last id of a stream, from XINFO STREAM."""
    return parse_id(pairs(reply)[b"last-generated-id"].decode())
