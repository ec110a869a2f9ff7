"""What the server keeps of a writer of the sink: its last batch, and what of it is left to publish."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import hiredis

from millstream.client.jsontext import parse
from millstream.errors import UsageError
from millstream.spark.connection import routing, socket
from millstream.spark.connection.command_line import Line
from millstream.spark.model import keys
from millstream.spark.write.server_errors import refused
from millstream.spark.write.staging import Part

if TYPE_CHECKING:
    from millstream.spark.options.write import SinkOptions

_MANY = 500
"""Commands sent in one go where there may be thousands."""


@dataclass(frozen=True)
class Record:
    """What is known of a writer's last batch.

    Attributes:
        version: of the batch.
        parts: what is left to publish; None when it is done.
    """

    version: int
    parts: tuple[Part, ...] | None

    def packed(self) -> str:
        """As it is kept."""
        parts = None if self.parts is None else [astuple(part) for part in self.parts]
        return json.dumps({"version": self.version, "parts": parts})

    @classmethod
    def unpacked(cls, text: bytes) -> "Record":
        """The record of a text.

        Raises:
            ValueError: it is none.
        """
        try:
            kept = parse(text)
            parts = None if kept["parts"] is None else tuple(_part(part) for part in kept["parts"])
            return cls(_number(kept["version"]), parts)
        except (KeyError, TypeError) as reason:
            raise ValueError(f"it is no record of a batch ({reason!r})") from None


def _part(kept: list[Any]) -> Part:
    part = Part(*kept)
    for count in (part.pieces, part.rows):
        _number(count)
    for text in (part.key, part.stream):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no key")
    return part


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return value


class Calls:
    """Commands of the driver: sent again when the server was away, refusals as errors that say what to do.

    Args:
        options: of the write.
    """

    def __init__(self, options: "SinkOptions") -> None:
        self._options = options
        self._lines: dict[str, Line] = {}
        self._last = ""

    def close(self) -> None:
        """Close the connections."""
        for line in self._lines.values():
            line.close()
        self._lines = {}

    def lost(self) -> None:
        """A connection broke: others are made, to whoever has the keys then."""
        self.close()
        routing.forget(self._options.url)

    def line_to(self, key: str) -> Line | None:
        """The connection to the server that has a key, if there is one."""
        return self._lines.get(routing.home(self._options.url, key))

    def ask(self, commands: Sequence[tuple[bytes | str | int, ...]]) -> list[Any]:
        """Replies to commands that may be sent again, errors among them; waits for a server that is away."""
        return socket.retrying(lambda: self._once(commands))

    def _once(self, commands: Sequence[tuple[bytes | str | int, ...]]) -> list[Any]:
        replies: list[Any] = [None] * len(commands)
        try:
            for where, part in routing.spread(self._options.url, commands, self._last).items():
                if where not in self._lines:
                    self._lines[where] = Line(self._options.url, where)
                self._last = where
                for at, reply in zip(part, self._lines[where].ask(*(commands[at] for at in part)), strict=True):
                    replies[at] = reply
        except routing.Redirected:
            self.close()
            raise
        except Exception:
            self.lost()
            raise
        return replies

    def all(self, commands: Sequence[tuple[bytes | str | int, ...]]) -> list[Any]:
        """Replies to any number of commands.

        Raises:
            UsageError: one of them was refused.
        """
        found: list[Any] = []
        for start in range(0, len(commands), _MANY):
            found += self.ask(commands[start : start + _MANY])
        self.check(found)
        return found

    def check(self, replies: Iterable[Any]) -> None:
        """Raise for an error among the replies."""
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                self.close()
                raise refused(reply, self._options)


class Ledger:
    """The record of one writer.

    Args:
        calls: to the server.
        writer: whose.
    """

    def __init__(self, calls: Calls, writer: str) -> None:
        self._calls = calls
        self._watching: Line | None = None
        self.key = keys.record(writer)

    def known(self) -> Record | None:
        """What is known now; the next :meth:`swap` writes only if that has not changed."""
        text = self._calls.all([("WATCH", self.key), ("GET", self.key)])[1]
        self._watching = self._calls.line_to(self.key)
        try:
            return None if text is None else Record.unpacked(text)
        except ValueError as reason:
            raise UsageError(
                f"what is kept of this writer's last batch in {self.key} was changed by somebody else: {reason}. Its "
                f"rows may be there or not; DEL {self.key} to have the batch written anew"
            ) from None

    def swap(self, record: Record) -> bool:
        """Write the record unless it has changed since it was looked at; False if it was not, as far as is known."""
        line, self._watching = self._watching, None
        if line is None or line is not self._calls.line_to(self.key):  # a new connection watches nothing
            return False
        try:
            replies = line.ask(("MULTI",), ("SET", self.key, record.packed()), ("EXEC",))
        except routing.Redirected:
            self._calls.close()
            return False
        except OSError:
            self._calls.lost()
            return False
        self._calls.check(replies)
        return replies[-1] is not None
