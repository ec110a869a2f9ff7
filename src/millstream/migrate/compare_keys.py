"""Comparison of all keys of two servers, such as a primary and its replica. It writes nothing.

No client should write to either server meanwhile. A key that differs is read once more before it is reported, since a
key that has just changed looks the same. The comparison leaves out facts that every server has for itself: the times
when consumers were seen and active, and the memory of idempotent producers. A released pending entry equals one of a
consumer without a name, since servers without XNACK receive a release in that form.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from millstream.migrate.capabilities import TargetFeatures
from millstream.migrate.commands import RELEASED_HOLDER
from millstream.migrate.compare import Side, compare, shortened
from millstream.migrate.connection import Command, Link
from millstream.migrate.errors import ChangedError, MigrationError, RefusedError
from millstream.migrate.read_stream import overview

PAGE_KEYS = 200
"""Number of keys in one request."""

TIMEOUT = 30.0
"""Seconds of silence after which a server counts as gone. Every command here is faster."""

PAGE_ITEMS = 1000
"""Number of members in one request, for collections that have an order."""

# Header of INFO's keyspace section, present even without keys
_SECTION = "# Keyspace"
# Characters of an invalid reply that are shown
_SAID = 100

_PLAIN = {b"string", b"list", b"set", b"zset", b"hash", b"stream"}

Tell = Callable[[str, int, int], None]
"""Callback with ``"compared"``, the number of keys compared, and the number of all keys."""


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key that differs between the two servers."""

    db: int  # Number of the database
    key: bytes  # Name of the key
    type: str  # Type of the source's value, if there is one
    count: int  # Number of differences
    texts: tuple[str, ...]  # Texts of some differences


@dataclass(slots=True)
class KeyComparison:
    """The result of a comparison."""

    keys: int = 0  # Number of keys compared
    different: list[KeyDifference] = field(default_factory=list)  # Keys that differ
    # Number of omitted keys by type, because no commands of all servers can read them
    unread: dict[str, int] = field(default_factory=dict)


def compare_servers(source: str, copy: str, tell: Tell, *, timeout: float = TIMEOUT) -> KeyComparison:
    """Read and compare all keys of all databases."""
    found = KeyComparison()
    with Link(source, timeout=timeout) as one, Link(copy, timeout=timeout) as other:
        try:
            _compare_all(found, one, other, tell)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise MigrationError(
                f"one of the two servers has sent a reply that no Redis sends ({error!r}). Check the addresses. If "
                "both are Redis, Valkey or Millstream, report this."
            ) from error
    return found


def _compare_all(found: KeyComparison, one: Link, other: Link, tell: Tell) -> None:
    sizes = {db: max(keys) for db, keys in _databases(one, other).items()}
    for db in sorted(sizes):
        one.call("SELECT", db)
        other.call("SELECT", db)
        _Database(found, one, other, db).compare(lambda: tell("compared", found.keys, sum(sizes.values())))


def _databases(*links: Link) -> dict[int, list[int]]:
    """Return the number of keys on each server, by database."""
    found: dict[int, list[int]] = {}
    for link in links:
        text = link.call("INFO", "keyspace").decode()
        if _SECTION not in text:  # a server that replies OK to everything is not an empty one
            raise ValueError(text[:_SAID])
        for line in text.splitlines():
            name, mark, facts = line.partition(":keys=")
            if mark:
                found.setdefault(int(name[2:]), []).append(int(facts.partition(",")[0]))
    return found


class _Database:
    def __init__(self, found: KeyComparison, source: Link, copy: Link, db: int) -> None:
        self._found, self._links, self._db = found, (source, copy), db

    def compare(self, tell: Callable[[], None]) -> None:
        keys = iter(sorted({key for link in self._links for page in link.scan() for key in page}))
        while page := list(islice(keys, PAGE_KEYS)):
            for key, heads in zip(page, self._heads(page), strict=True):
                if self._differences(key, heads):
                    self._look_again(key)
                self._found.keys += 1
                tell()

    def _look_again(self, key: bytes) -> None:
        """Read a key that differed once more, and record it if it still differs."""
        heads = self._heads([key])[0]
        differences = self._differences(key, heads)
        if differences:
            kind = next(name.decode(errors="backslashreplace") for name, _ in heads if name != b"none")
            self._found.different.append(KeyDifference(self._db, key, kind, *differences))

    def _heads(self, keys: list[bytes]) -> list[tuple[tuple[bytes, int], tuple[bytes, int]]]:
        """Return type and expiry of each key on both servers: wall milliseconds, -1 for none, -2 for a missing key."""
        commands: list[Command] = [command for key in keys for command in (("TYPE", key), ("PEXPIRETIME", key))]
        for link in self._links:
            link.send(commands)
        both = []
        for link in self._links:
            replies = [link.receive() for _ in commands]
            for command, reply in zip(commands, replies, strict=True):
                if command[0] == "TYPE":
                    link.accepted(reply, command)
            # Redis before 7.0 does not report the expiry time, which counts as equal
            ends = [None if isinstance(reply, ResponseError) else reply for reply in replies[1::2]]
            both.append(list(zip(replies[::2], ends, strict=True)))
        return list(zip(*both, strict=True))

    def _differences(
        self, key: bytes, kinds: tuple[tuple[bytes, int], tuple[bytes, int]]
    ) -> tuple[int, tuple[str, ...]] | None:
        """Return the number of differences and the texts of some; None if there are none."""
        (kind, ends), (other, other_ends) = kinds
        if kind == other == b"none":
            return None
        if b"none" in (kind, other):
            return 1, ("is missing in the copy" if other == b"none" else "is only in the copy",)
        if kind != other:
            return 1, (f"is a {kind.decode()} at the source, a {other.decode()} in the copy",)
        texts: list[str] = []
        if ends != other_ends and None not in (ends, other_ends):
            texts.append(f"ends {_moment(ends)} at the source, {_moment(other_ends)} in the copy")
        count = len(texts)
        if kind not in _PLAIN:
            name = kind.decode(errors="backslashreplace")
            self._found.unread[name] = self._found.unread.get(name, 0) + 1
        elif kind == b"stream":
            more, said = self._stream(key)
            count, texts = count + more, texts + said
        elif (text := self._value(key, kind)) is not None:
            count, texts = count + 1, [*texts, text]
        return (count, tuple(texts)) if texts else None

    def _stream(self, key: bytes) -> tuple[int, list[str]]:
        try:
            stream, made = (overview(link, key) for link in self._links)
            names = {consumer.name for each in (stream, made) for group in each.groups for consumer in group.consumers}
            supports = TargetFeatures(release=RELEASED_HOLDER not in names)
            one, other = (Side(link, key) for link in self._links)
            found = compare(one, other, stream, supports, times=False, tell=lambda _: None)
        except ChangedError as error:
            return 1, [str(error)]
        except RefusedError as error:
            if error.code in {"ERR", "WRONGTYPE"}:  # the key was deleted or replaced after its type was read
                return 1, [f"changed while it was read: {error}"]
            raise
        return found.count, found.texts

    def _value(self, key: bytes, kind: bytes) -> str | None:
        """Return a text about the first difference; None if the values are equal."""
        pages = [_READS[kind](link, key) for link in self._links]
        at = 0
        while True:
            one, other = (next(page, []) for page in pages)
            if one != other:
                return _first(one, other, at)
            if not one:
                return None
            at += len(one)


def _list(link: Link, key: bytes) -> Iterator[list[Any]]:
    start = 0
    while page := link.call("LRANGE", key, start, start + PAGE_ITEMS - 1):
        yield page
        start += len(page)


def _zset(link: Link, key: bytes) -> Iterator[list[Any]]:
    start = 0
    while page := link.call("ZRANGE", key, start, start + PAGE_ITEMS - 1, "WITHSCORES"):
        yield [(member, float(score)) for member, score in zip(page[::2], page[1::2], strict=True)]
        start += len(page) // 2


def _hash(link: Link, key: bytes) -> Iterator[list[Any]]:
    flat = link.call("HGETALL", key)
    yield sorted(zip(flat[::2], flat[1::2], strict=True))


_READS: dict[bytes, Callable[[Link, bytes], Iterator[list[Any]]]] = {
    b"string": lambda link, key: iter([[link.call("GET", key)]]),
    b"list": _list,
    b"set": lambda link, key: iter([sorted(link.call("SMEMBERS", key))]),
    b"zset": _zset,
    b"hash": _hash,
}


def _first(one: list[Any], other: list[Any], before: int) -> str:
    at = next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), None)
    if at is None:
        return f"{before + len(one)} items at the source so far, {before + len(other)} in the copy"
    return f"item {before + at + 1} is {shortened(one[at])} at the source, {shortened(other[at])} in the copy"


def _moment(ends: int) -> str:
    return "never" if ends < 0 else f"at {ends}"
