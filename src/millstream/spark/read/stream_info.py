"""The driver's commands about streams: one round trip for all, and counting only where nothing else helps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from typing import Any, TypeVar

import redis

from millstream.client.cluster_line import CLUSTER_INFO
from millstream.client.partitions.layout import PartitionLayout, damaged, descriptor_key, parse_layout
from millstream.client.url import login_refused, no_connection, remedy
from millstream.errors import ConfigError, NotFoundError, NotLetInError, NotReachedError, UsageError
from millstream.spark.connection import routing
from millstream.spark.connection.connection import Command, ErrorReply
from millstream.spark.connection.raw_connection import refused_all
from millstream.spark.connection.retry import retrying
from millstream.spark.connection.router import Router, checked, pairs
from millstream.spark.model.offsets import Id, StreamState, parse_id
from millstream.spark.options.read import Options
from millstream.spark.read.pages import Pages

T = TypeVar("T")


class StreamInfo:
    """The connections of the driver, and the commands sent over them, always to the primary."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._router = Router(options.url)
        self._met = False

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; errors of single commands are returned as values."""
        return self._contact(lambda: self._router.once(commands))

    def _contact(self, work: Callable[[], T]) -> T:
        if self._met:
            return retrying(work)
        try:
            self._check_echo()
            found = work()
            self._check_replicas()
        except ConfigError:
            raise
        except UsageError as reason:  # the server replied with an error
            info = str(reason).removeprefix("option 'url': ")
            step = "Give a valid user and password" if login_refused(reason) else "Name a user who has the right"
            raise NotLetInError(
                f"option 'url': cannot connect to {self._options.shown_url}: {info.rstrip('.')}. {step}, or correct "
                "the server."
            ) from None
        except (redis.RedisError, OSError) as reason:
            kind = NotLetInError if login_refused(reason) else NotReachedError
            step = remedy(self._options.url, reason)
            raise kind(
                f"option 'url': {no_connection(self._options.shown_url, reason)} {step}, or correct the URL."
            ) from None
        self._met = True
        return found

    def _check_echo(self) -> None:
        """Raise at the driver if ECHO is refused, which would fail every task: it marks the end of replies."""
        (reply,) = self._router.once([("ECHO", "millstream")])
        if isinstance(reply, ErrorReply):
            raise refused_all(reply)

    def _check_replicas(self) -> None:
        if self._options.from_replica and not routing.replicas(self._options.url):
            raise ConfigError(
                f"option 'readFrom' is 'replica', and {self._options.shown_url} has none that is up. Start one, or "
                "leave the option out."
            )

    def close(self) -> None:
        """Close the connections."""
        self._router.close()

    def size(self) -> int:
        """Return the number of keys of any type; 0 if the user may not read it."""
        replies = self._contact(
            lambda: [self._router.once_at(url, [("DBSIZE",)])[0] for url in routing.primaries(self._options.url)]
        )
        return sum(reply for reply in replies if not isinstance(reply, ErrorReply))

    def keys(self, pattern: str | None = None, *, sure: bool = True) -> list[str]:
        """Return the streams of this read: the named ones, or the present ones of a pattern or partitioned stream."""
        pattern = pattern or self._options.pattern
        if pattern is None and self._options.partitioned is not None:
            return self._partitions(self._options.partitioned)
        if pattern is None:
            return list(self._options.streams)
        found = self._contact(lambda: self._scanned(pattern, 2 if sure and self._options.on_cluster else 1))
        return sorted(_key_text(name) for name in found)

    def _partitions(self, stream: str) -> list[str]:
        """Return the existing partitions of all generations."""
        keys = sorted(key for one in self.layout(stream).generations for key in one.keys)
        return [key for key, state in self.states(keys).items() if state is not None]

    def layout(self, stream: str) -> PartitionLayout:
        """Return the layout of a partitioned stream."""
        key = descriptor_key(stream)
        (found,) = self._ask([("GET", key)])
        if isinstance(found, ErrorReply) and str(found).startswith("WRONGTYPE"):
            raise damaged(stream, "it is not a string")
        if isinstance(found, ErrorReply):
            raise self._refusal(key, "GET", found)
        layout = parse_layout(stream, found)
        if layout is None:
            raise NotFoundError(
                f"{stream!r} is not partitioned on {self._options.shown_url} ({key} does not exist): correct the name, "
                "partition it (await app.partition(...)), or name a plain stream by option 'stream'"
            )
        return layout

    def _scanned(self, pattern: str, times: int) -> set[bytes]:
        """Return the streams of all servers that match a pattern."""
        found: set[bytes] = set()
        if not self._options.on_cluster:
            routing.require_whole(self._router.once([CLUSTER_INFO])[0])
        for url in routing.primaries(self._options.url) * times:
            cursor: Any = None
            while cursor is None or int(cursor):
                words = ("SCAN", cursor or 0, "MATCH", pattern, "COUNT", 1000, "TYPE", "stream")
                cursor, page = checked(self._router.once_at(url, [words])[0])
                found.update(page)
        return found

    def states(self, keys: Iterable[str]) -> dict[str, StreamState | None]:
        """Return the state of each stream; None for one that does not exist."""
        names = list(keys)
        answers = self._ask([("XINFO", "STREAM", name) for name in names]) if names else []
        return {name: self._state(name, answer) for name, answer in zip(names, answers, strict=True)}

    def _state(self, key: str, answer: Any) -> StreamState | None:
        if isinstance(answer, Exception):
            if "no such key" in str(answer).lower():
                return None
            raise self._refusal(key, "XINFO STREAM", answer)
        info = pairs(answer)
        if b"entries-added" not in info:
            raise UsageError(
                f"the server at {self._options.shown_url} does not count the entries of a stream (XINFO STREAM has no "
                "entries-added): it is older than Redis 7.0"
            )
        first = info[b"first-entry"]
        return StreamState(
            last=parse_id(_text(info[b"last-generated-id"])),
            added=int(info[b"entries-added"]),
            length=int(info[b"length"]),
            max_deleted=parse_id(_text(info[b"max-deleted-entry-id"])),
            first=parse_id(_text(first[0])) if first else None,
            mark=blake2b(repr(first[1]).encode(), digest_size=16).digest() if first else b"",
        )

    def _refusal(self, key: str, command: str, answer: Exception) -> UsageError:
        """Return the error to raise if the server refused a command on a stream."""
        if "WRONGTYPE" in str(answer) or "wrong kind of value" in str(answer):
            return ConfigError(
                f"option 'stream': {key!r} holds no stream on {self._options.shown_url}: name another key"
            )
        return routing.refusal(answer, f"stream {key!r}: the server refused {command}: {answer}")

    def firsts(self, places: Mapping[str, tuple[Id, Id]]) -> dict[str, Id | None]:
        """Return, by stream, the id of the first present entry in ``(start, end]``."""
        commands = [("XRANGE", key, f"({start}", str(end), "COUNT", 1) for key, (start, end) in places.items()]
        answers = [checked(answer) for answer in (self._ask(commands) if commands else [])]
        return {key: parse_id(_text(rows[0][0])) if rows else None for key, rows in zip(places, answers, strict=True)}

    def first_in(self, key: str, start: Id, end: Id) -> Id | None:
        """Return the id of the first entry in ``(start, end]`` of one stream."""
        return self.firsts({key: (start, end)})[key]

    def entries(self, key: str, first: str, last: str, most: int) -> list[tuple[bytes, list[bytes]]]:
        """Return the entries between two ids, both inclusive: the id of each, with its names and values in turn."""
        (answer,) = self._ask([("XRANGE", key, first, last, "COUNT", most)])
        if isinstance(answer, Exception):
            raise self._refusal(key, "XRANGE", answer)
        found: list[tuple[bytes, list[bytes]]] = answer
        return found

    def walk(self, key: str, start: Id, end: Id, stride: int, most: int | None = None) -> tuple[list[Id], int]:
        """Count the entries in ``(start, end]`` by reading them in bounded pages and dropping all but some ids.

        The server has no rank command, and a script would cost it six times as much.

        Returns:
            The id of every ``stride``-th entry and of the last, and the number of entries.
        """
        kept: list[Id] = []
        passed = 0
        with closing(Pages(self._options.url, key, start, end)) as pages:
            while (most is None or passed < most) and (found := pages.skip(_step(passed, stride, most))):
                rows, last = found
                passed += rows
                if passed % stride == 0:
                    kept.append(last)
        if passed and (not kept or kept[-1] != pages.cursor):
            kept.append(pages.cursor)
        return kept, passed

    # --- the group that shows progress -------------------------------------------------------------------------------

    def claim_group(self, group: str, keys: Iterable[str]) -> None:
        """Create the group if it is missing, and raise if it is in use: its other readers would skip entries."""
        names = list(keys)
        for key, answer in zip(names, self._ask([("XINFO", "GROUPS", key) for key in names]), strict=True):
            if isinstance(answer, Exception):  # the stream does not exist yet, and joins later
                continue
            info = _named(group, answer)
            if info is None:
                self._ask([("XGROUP", "CREATE", key, group, "0", "ENTRIESREAD", 0)])
            elif int(info[b"consumers"]) or int(info[b"pending"]):
                raise ConfigError(
                    f"option 'group': {group!r} of stream {key!r} is in use ({info[b'consumers']} consumers, "
                    f"{info[b'pending']} pending), and this query would move its cursor. Give it a group of its own."
                )

    def group_places(self, group: str, keys: Iterable[str]) -> dict[str, tuple[Id, int | None] | None]:
        """Return a group's last id and number of entries up to it, in each stream; None without a group."""
        names = list(keys)
        found: dict[str, tuple[Id, int | None] | None] = {}
        for key, answer in zip(names, self._ask([("XINFO", "GROUPS", key) for key in names]), strict=True):
            info = _named(group, checked(answer))
            found[key] = None
            if info is not None:
                read = info[b"entries-read"]
                found[key] = parse_id(_text(info[b"last-delivered-id"])), None if read is None else int(read)
        return found

    def publish(self, group: str, places: Mapping[str, tuple[Id, int]]) -> list[str]:
        """Set the group's cursor of each stream to (id, entries read); return the streams for which that failed."""
        commands = [("XGROUP", "SETID", key, group, str(ident), "ENTRIESREAD", n) for key, (ident, n) in places.items()]
        answers = self._ask(commands) if commands else []
        return [key for key, answer in zip(places, answers, strict=True) if isinstance(answer, Exception)]


def _step(passed: int, stride: int, most: int | None) -> int:
    """Return the number of entries until the next one with an id to keep."""
    step = stride - passed % stride
    return step if most is None else min(step, most - passed)


def _named(group: str, answer: Any) -> dict[bytes, Any] | None:
    return next((info for info in map(pairs, answer) if info[b"name"] == group.encode()), None)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _key_text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"option 'streamPattern' matches {name!r}, which is not UTF-8 text. Narrow the pattern."
        ) from None
