"""The commit record of a writer on the server: its last batch, and the parts left to publish."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from millstream.client.jsontext import fault, parse
from millstream.errors import UsageError
from millstream.spark.connection.connection import Command, Reply
from millstream.spark.connection.router import Router
from millstream.spark.model import keys
from millstream.spark.options.write import SinkOptions
from millstream.spark.write.server_errors import raise_refused
from millstream.spark.write.staging import Part
from millstream.texts import plural

_MANY = 500
"""Most commands in one write where there may be thousands."""


@dataclass(frozen=True)
class CommitRecord:
    """The last known batch of a writer."""

    version: int  # Version of the batch
    parts: tuple[Part, ...] | None  # Parts that are not published yet; None if the batch is finished
    # Number of rows, and digest of the sources' offsets. Both distinguish the batch from one with other boundaries.
    # None if unknown
    rows: int | None = None
    range: str | None = None

    def differs(self, other: "CommitRecord") -> str:
        """Return the difference from another batch of the same number, as a verb phrase about it.

        Empty if none is known.
        """
        if None not in {self.rows, other.rows} and self.rows != other.rows:
            return f"was written with {plural(self.rows or 0, 'row')} and now has {other.rows}"
        if None not in {self.range, other.range} and self.range != other.range:
            return "was written from another range of its sources than it has now"
        return ""

    def packed(self) -> str:
        """Return the record as JSON."""
        parts = None if self.parts is None else [astuple(part) for part in self.parts]
        return json.dumps({"version": self.version, "parts": parts, "rows": self.rows, "range": self.range})

    @classmethod
    def unpacked(cls, text: bytes) -> "CommitRecord":
        """Parse a record from JSON."""
        try:
            kept = parse(text)
            parts = None if kept["parts"] is None else tuple(_part(part) for part in kept["parts"])
            rows, sources = kept.get("rows"), kept.get("range")  # older versions stored neither
            return cls(_number(kept["version"]), parts, None if rows is None else _number(rows), _digest(sources))
        except (AttributeError, KeyError, TypeError) as reason:
            raise ValueError(f"it is not a record of a batch ({fault(reason)})") from None


def _part(kept: list[Any]) -> Part:
    part = Part(*kept)
    if not 0 <= _number(part.pieces) <= _number(part.rows):
        raise ValueError(f"{part.rows} rows are not in {part.pieces} pieces")
    for text in (part.key, part.stream):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a key")
        text.encode()  # a key cannot contain a lone surrogate, but JSON can
    return part


def _digest(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is not a digest")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return value


class SinkRouter(Router):
    """A router for the driver's commands, which turns error replies into errors with a remedy."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options.url)
        self._options = options

    def ask_all(self, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies to any number of repeatable commands."""
        found: list[Reply] = []
        for start in range(0, len(commands), _MANY):
            found += self.ask(commands[start : start + _MANY])
        self.check(found)
        return found

    def check(self, replies: Iterable[Reply]) -> None:
        """Raise for an error among the replies, and close: its connection may be inside a transaction."""
        try:
            raise_refused(replies, self._options)
        except UsageError:
            self.close()
            raise


class CommitRecordStore:
    """Access to one writer's commit record on the server."""

    def __init__(self, router: SinkRouter, writer: str) -> None:
        self._router = router
        self._writer = writer
        self.key = keys.record(writer)  # Key of the record

    def read(self) -> CommitRecord | None:
        """Return the present record; the next :meth:`replace` writes only if that has not changed."""
        text = self._router.ask_all([("WATCH", self.key), ("GET", self.key)])[1]
        try:
            return None if text is None else self._checked(CommitRecord.unpacked(text))
        except ValueError as reason:
            raise UsageError(
                f"the record of this writer's last batch in {self.key} was changed by another program: {reason}. Its "
                f"rows may be there or not; DEL {self.key} to have the batch written again"
            ) from None

    def _checked(self, record: CommitRecord) -> CommitRecord:
        """Return the record if all its keys are this writer's staged rows, which are published and then removed."""
        for part in record.parts or ():
            if not keys.is_staged(part.key.encode(), self._writer):
                raise ValueError(f"{part.key!r} is not a key of rows that it staged")
        return record

    def replace(self, record: CommitRecord) -> bool:
        """Write the record unless it has changed since it was read.

        Return False if it was not written, or may not be.
        """
        try:
            replies = self._router.once([("MULTI",), ("SET", self.key, record.packed()), ("EXEC",)])
        except OSError as reason:  # the record may have been written, which the next read shows
            self._router.drop(reason)
            return False
        self._router.check(replies)
        return replies[-1] is not None
