"""What the driver of the sink does: makes staged rows visible, once, whatever dies meanwhile.

A commit has three steps. It *decides*: one SET of the writer's record names the batch and all of its staged rows, of
every stream; from then on these rows are the batch, and a repetition of it goes on with them and drops its own, which
may be in another order. It *publishes* piece by piece: a transaction adds the rows of a piece and counts the piece as
done, so that a piece is added once however often this is tried, and by however many drivers. It *closes* the record and
removes what was staged. A batch whose record is closed, or that of a later one, adds nothing. A record that is still
open when a later batch comes is finished first.
"""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import hiredis

from millstream.errors import ConfigError, UsageError
from millstream.spark.connection import routing, socket
from millstream.spark.connection.command_line import Line, pack
from millstream.spark.model import keys as ledgerkeys
from millstream.spark.model.offsets import Id, parse_id
from millstream.spark.write.commit_record import Calls, Ledger, Record
from millstream.spark.write.server_errors import refused
from millstream.spark.write.staging import Part, not_increasing

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.spark.options.write import SinkOptions

_NEXT = "next"
"""Field of staged rows that counts the pieces that were published."""

_TRIES = 5
"""How often a connection may break in the same piece."""


class Publisher:
    """The commits of one writer.

    Args:
        options: of the write.
        writer: whose.
        lasting: whether the writer comes back with the same batch after a crash.
        in_order: whether a batch older than the last one is an error; else it was written, and adds nothing.
    """

    def __init__(self, options: "SinkOptions", writer: str, *, lasting: bool, in_order: bool = False) -> None:
        self._options = options
        self._writer = writer
        self._lasting = lasting
        self._in_order = in_order
        self._calls = Calls(options)
        self._ledger = Ledger(self._calls, writer)
        self._watching: Line | None = None

    def commit(self, version: int, parts: Sequence[Part]) -> None:
        """Make the rows visible unless a batch of this version, or of a later one, was already decided upon.

        Raises:
            UsageError: staged rows are gone, ids do not grow, or the server refused.
            OSError: the server was away for too long.
        """
        decided = self._decide(version, parts)
        self._finish(decided)
        # The register may have ended before rows that were decided upon, which have no time to live.
        self.discard([*parts, *(decided.parts or ())])

    def discard(self, parts: Iterable[Part] = ()) -> None:
        """Remove staged rows: these, and all that tasks of this writer left behind.

        Rows that were decided upon stay for whoever goes on with them: Spark aborts after a commit that failed, too.
        """
        register = ledgerkeys.register(self._writer)
        known = self._ledger.known() if self._lasting else None
        kept = {part.key.encode() for part in known.parts or ()} if known is not None else set()
        (registered,) = self._calls.all([("SMEMBERS", register)])
        keys = {part.key.encode() for part in parts} | set(registered)
        self._calls.all([("UNLINK", key) for key in sorted(keys - kept)])
        if not kept:
            self._calls.all([("DEL", register)] if self._lasting else [("DEL", register), ("DEL", self._ledger.key)])

    def close(self) -> None:
        """Close the connection."""
        self._calls.close()

    # --- deciding ----------------------------------------------------------------------------------------------------

    def _decide(self, version: int, parts: Sequence[Part]) -> Record:
        """The batch as it was decided upon, now or by an earlier try."""
        mine = Record(version, tuple(parts))
        while True:
            known = self._ledger.known()
            if known is not None and known.version >= version:
                if known.version > version and self._in_order:
                    raise self._outdated(version, known.version)
                return known if known.version == version else Record(version, None)
            if known is not None and known.parts is not None:
                self._go_on_with(known)
                continue
            self._check(parts)
            if self._ledger.swap(mine):
                return mine

    def _outdated(self, version: int, last: int) -> UsageError:
        # Taken for written, its rows would be lost: a checkpoint that is behind cuts its batches anew.
        return UsageError(
            f"batch {version} of query {self._writer} comes after its batch {last} was written to "
            f"{self._options.shown_url}: the checkpoint is an old copy, or another driver goes on with it; go on with "
            "the newest one, or give the query a new checkpointLocation (and startingOffsets), as which it is a new "
            "query"
        )

    def _go_on_with(self, known: Record) -> None:
        """Finish an earlier batch that was decided upon: its driver ended, or the server forgot that it was done."""
        try:
            self._finish(known)
        except UsageError as reason:
            raise UsageError(
                f"batch {known.version} of writer {self._writer}, which was before this one, cannot be finished "
                f"({reason}): mend that, or DEL {self._ledger.key} to give up what is left of it"
            ) from None
        self._calls.all([("UNLINK", part.key) for part in known.parts or ()])

    def _finish(self, decided: Record) -> None:
        if decided.parts is None:
            return
        if self._lasting:
            # The rows must outlast a driver that is started again next week.
            self._calls.all([("PERSIST", part.key) for part in decided.parts])
        self.publish(decided)
        self._close(decided)

    def _close(self, record: Record) -> None:
        while self._ledger.known() == record:  # or another driver did it at the same moment
            if self._ledger.swap(Record(record.version, None)):
                return

    def _check(self, parts: Sequence[Part]) -> None:
        """Raise if these rows cannot be published: whatever can be known is known before anything is visible."""
        found = self._calls.all([("HLEN", part.key) for part in parts])
        for part, pieces in zip(parts, found, strict=True):
            if pieces != part.pieces:
                raise UsageError(
                    f"rows on their way to stream {part.stream!r} are gone from {self._options.shown_url} (removed, "
                    "lost in a restart of the server, or older than option 'stagingTimeout'): start this again"
                )
        self._calls.all([("PEXPIRE", part.key, self._options.staging_ms) for part in parts])
        streams = sorted({part.stream for part in parts})
        for stream, kind in zip(streams, self._calls.all([("TYPE", stream) for stream in streams]), strict=True):
            if kind not in (b"stream", b"none"):
                raise ConfigError(wrong_type(stream, kind.decode(), self._options))
        self._check_ids(parts)

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
        (reply,) = self._calls.ask([("XINFO", "STREAM", stream)])
        if isinstance(reply, hiredis.ReplyError):
            if "no such key" in str(reply):
                return Id(0, 0)
            raise refused(reply, self._options)
        return last_generated(reply)

    # --- publishing --------------------------------------------------------------------------------------------------

    def publish(self, record: Record) -> None:
        """Publish the pieces that were not published yet, in their order."""
        steps = [(part, number) for part in record.parts or () for number in range(part.pieces)]
        trim = self._trim()
        looked: list[Any] | None = None
        position = failures = 0
        until = time.monotonic() + socket.RETRY_SECONDS
        while position < len(steps):
            part, number = steps[position]
            if looked is None:
                looked = self._calls.ask(_look(part, number))
                self._watching = self._calls.line_to(part.key)
            following = steps[position + 1] if position + 1 < len(steps) else None
            piece = self._judge(record, part, number, looked)
            if piece is None:
                position, looked = position + 1, None
                continue
            try:
                done, looked = self._step(part, number, piece, trim, following)
            except routing.Redirected:  # the slot is on its way to another node: nothing was done
                self._calls.close()
                looked = None
                if time.monotonic() > until:
                    raise
                time.sleep(routing.PAUSE)  # no node tells when a slot has arrived
                continue
            except OSError:  # whether it was done is seen by looking again
                self._calls.lost()
                looked, failures = None, failures + 1
                if failures > _TRIES:
                    raise
                continue
            position, failures = position + done, 0
            until = time.monotonic() + socket.RETRY_SECONDS
            looked = looked if done else None

    def _judge(self, record: Record, part: Part, number: int, looked: list[Any]) -> bytes | None:
        """The piece if it is to be published now; None if it was already."""
        self._calls.check(looked[:2])
        done, piece = looked[1]
        try:
            done, first = int(done or 0), None if piece is None else _first(piece)
            if piece is not None and done <= number:
                _check_rows(piece, part.stream)
        except ValueError:
            raise UsageError(
                f"rows of batch {record.version} of writer {self._writer} that wait in {part.key} on "
                f"{self._options.shown_url} were changed by somebody else: DEL {self._ledger.key} to have the batch "
                "written anew; what was published of it stays, and will be there twice"
            ) from None
        if done > number:
            return None
        if piece is None or done < number:
            if self._ledger.known() != record:
                return None  # another driver of the same query was faster, and has cleared up
            raise UsageError(
                f"batch {record.version} of writer {self._writer} was being published when rows of it were lost "
                f"({part.key} on {self._options.shown_url}, piece {number} of {part.pieces} for stream "
                f"{part.stream!r}): DEL {self._ledger.key} to have the batch written anew; what was published of it "
                "stays, and will be there twice"
            )
        found: bytes = piece
        if first is not None and not isinstance(looked[2], hiredis.ReplyError) and first <= last_generated(looked[2]):
            raise not_increasing(part.stream, last_generated(looked[2]), first)
        return found

    def _step(
        self,
        part: Part,
        number: int,
        piece: bytes,
        trim: "Callable[[Part], list[Any]]",
        following: tuple[Part, int] | None,
    ) -> tuple[bool, list[Any] | None]:
        """Publish a piece; whether it was done, and the look at the following piece."""
        begin = piece.index(b"\n") + 1
        rows = _rows(piece)
        after = [*trim(part), ("HSET", part.key, _NEXT, number + 1)]
        if number:
            # This piece itself stays until the next one, to be put back if the server refuses to add it.
            after.append(("HDEL", part.key, number - 1))
        line, self._watching = self._watching, None
        if line is None or line is not self._calls.line_to(part.key):  # a new connection watches nothing
            return False, None
        look = _look(*following) if following and self._calls.line_to(following[0].key) is line else []
        line.send(b"".join((pack(("MULTI",)), memoryview(piece)[begin:], pack(*after, ("EXEC",)), pack(*look))))
        queued = rows + len(after)
        replies = [] if line.passes(b"+OK\r\n" + b"+QUEUED\r\n" * queued) else line.receive(1 + queued)
        replies += line.receive(1)
        looked = line.receive(len(look)) if look else None
        self._watching = line if look else None
        self._calls.check(replies)
        results = replies[-1]
        if results is None:
            return False, None
        self._check_added(part, number, results[:rows])
        return True, looked

    def _check_added(self, part: Part, number: int, results: list[Any]) -> None:
        """Raise if XADD failed inside the transaction, as it does when the key has become something else meanwhile."""
        errors = [reply for reply in results if isinstance(reply, hiredis.ReplyError)]
        if not errors:
            return
        if len(errors) == len(results):
            self._calls.ask([("HSET", part.key, _NEXT, number)])
        raise refused(errors[0], self._options)

    def _trim(self) -> "Callable[[Part], list[Any]]":
        """What trims a stream after rows were added."""
        options = self._options
        how = "~" if options.approximate else "="
        if options.max_len is not None:
            words: tuple[Any, ...] = ("MAXLEN", how, options.max_len)
        elif options.retention_ms is not None:
            ((seconds, _),) = self._calls.all([("TIME",)])
            words = ("MINID", how, f"{max(0, int(seconds) * 1000 - options.retention_ms)}-0")
        elif options.min_id is not None:
            words = ("MINID", how, options.min_id)
        else:
            return lambda _: []
        return lambda part: [("XTRIM", part.stream, *words)]


def _look(part: Part, number: int) -> list[tuple[bytes | str | int, ...]]:
    """Asks for a piece and how far its part is, such that the next transaction fails if that changes."""
    commands: list[tuple[bytes | str | int, ...]] = [("WATCH", part.key), ("HMGET", part.key, _NEXT, number)]
    if part.first is not None:
        commands[0] = ("WATCH", part.key, part.stream)
        commands.append(("XINFO", "STREAM", part.stream))
    return commands


def _first(piece: bytes) -> Id | None:
    """The id of a piece's first row, if it was given.

    Raises:
        ValueError: it is no piece.
    """
    _rows(piece)
    _, _, ident = piece[: piece.index(b"\n")].partition(b" ")
    return parse_id(ident.decode()) if ident else None


def _rows(piece: bytes) -> int:
    """How many rows a piece has."""
    rows = int(piece[: piece.index(b"\n")].partition(b" ")[0])
    if rows < 1:
        raise ValueError(f"{rows} rows are none")
    return rows


def _check_rows(piece: bytes, stream: str) -> None:
    """Raise unless a piece is so many XADDs to its stream, and nothing else.

    Staged are commands as they travel, and they are sent as they are: with the rights of the sink's user whatever
    others wrote there would run, and one reply too many or too few would be taken for another command's.

    Raises:
        ValueError: it is something else.
    """
    reader, key = hiredis.Reader(), stream.encode()
    reader.feed(piece, piece.index(b"\n") + 1)
    for _ in range(_rows(piece)):
        try:
            words = reader.gets()
        except hiredis.ProtocolError as problem:
            raise ValueError(str(problem)) from None
        if not isinstance(words, list) or words[:2] != [b"XADD", key] or set(map(type, words)) != {bytes}:
            raise ValueError("a command that is no XADD to its stream")
    if reader.has_data():
        raise ValueError("more than its rows")


def last_generated(reply: list[Any]) -> Id:
    """The last id of a stream, from XINFO STREAM."""
    told = dict(zip(reply[::2], reply[1::2], strict=True))
    return parse_id(told[b"last-generated-id"].decode())


def wrong_type(stream: str, kind: str, options: "SinkOptions") -> str:
    """What to say of a target that is no stream."""
    what = f"{stream!r} on {options.shown_url} is a {kind} and no stream"
    return f"option 'stream': {what}: name another key, or delete that one"
