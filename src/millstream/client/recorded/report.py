"""Open a report's file, check all of it before any use, and look up its replies."""

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError

from millstream.client.jsontext import parse
from millstream.client.line import Command, Reply
from millstream.client.recorded.json_replies import reply_of
from millstream.client.recorded.ranges import KnownRange, high_of, low_of
from millstream.client.recorded.shapes import fits
from millstream.client.url import REPORT
from millstream.errors import ConfigError
from millstream.glob import Effort, Pattern, PatternTooCostlyError
from millstream.printable import without_secrets

FORMAT = 1
"""The value of ``millstream_report`` in files that this version writes and reads."""

MOST = 128 << 20
"""Most bytes of a report when it is unpacked."""

_READING = frozenset(
    b"XINFO XRANGE XREVRANGE XPENDING XLEN XREAD SCAN INFO SLOWLOG CONFIG CLIENT GET STRLEN HGET HGETALL HMGET HEXISTS "
    b"HLEN HKEYS HSTRLEN SMEMBERS SCARD SISMEMBER ZRANGE ZREVRANGE ZSCORE ZMSCORE ZCARD ZCOUNT EXISTS TTL PTTL TYPE "
    b"DBSIZE ACL COMMAND CLUSTER TIME MEMORY LATENCY TIER".split()
)
_RANGES = (b"XRANGE", b"XREVRANGE")
_NUMBER = re.compile(rb"[0-9]{1,18}")
ONLY_READ = "a report is only read"
"""The start of the error for every command that would change something."""

_SHOWN = 80  # characters of a command in a message

Words = tuple[bytes, ...]


@dataclass(slots=True)
class RecordedReport:
    """The contents of a report's file."""

    path: Path  # Path of the report file
    at_ms: int  # Wall milliseconds at the start of the report
    facts: Mapping[str, Any]  # Everything except the replies: versions, omitted parts, redacted parts
    nodes: tuple[int, ...] = (0,)  # Numbers of the cluster's nodes; a single server is node 0
    _exact: dict[tuple[int, Words], Reply] = field(default_factory=dict)
    _ranges: dict[Words, KnownRange] = field(default_factory=dict)
    _keys: dict[int, list[bytes]] = field(default_factory=dict)
    _names: set[bytes] = field(default_factory=set)
    _streams: set[bytes] = field(default_factory=set)

    def reply(self, node: int, command: Command) -> Reply:
        """Return the server's recorded reply; a refusal if the file does not have it."""
        words = words_of(command)
        if words[0] == b"GETRANGE":  # it was recorded as a GET
            whole = self.reply(node, (b"GET", words[1]))
            return whole if isinstance(whole, Exception) else (whole or b"")[int(words[2]) : int(words[3]) + 1]
        if words[0] == b"SCAN":
            return self._scanned(node, words)
        if words[0] in _RANGES or (words[0] == b"XPENDING" and len(words) > 3):
            return self._range(words)
        for place in (node, 0):
            if (place, words) in self._exact:
                return self._exact[place, words]
        if words[0] == b"TYPE" and len(words) == 2:
            return b"stream" if words[1] in self._streams else b"none"
        if words[:2] == (b"XINFO", b"STREAM") and self.facts.get("streams_left_out") == 0:
            return ResponseError("no such key")
        if words[0] == b"XINFO" and words[2:3] and words[2] in self._names:
            return ResponseError("left out of this report (by --limit, its size, or the time it took)")
        return self._missing(words)

    def _scanned(self, node: int, words: Words) -> Reply:
        """Return the streams of a node, also those left out of the report: commands on them get the reason."""
        if self.facts.get("streams_left_out", 0) is None:
            return ResponseError("not in this report: the time was up before it was known which streams there are")
        return [b"0", self._matching(node, words)]

    def _matching(self, node: int, words: Words) -> list[bytes]:
        keys = self._keys.get(node, [])
        if b"MATCH" not in words[:-1]:
            return keys
        effort = Effort()
        try:
            pattern = Pattern(words[words.index(b"MATCH") + 1], effort)
            return [key for key in keys if pattern.fits(key, effort)]
        except PatternTooCostlyError:
            return []

    def _range(self, words: Words) -> Reply:
        try:
            asked = _asked(words)
        except ValueError:
            return ResponseError("ERR Invalid stream ID specified as stream command argument")
        known = self._ranges.get(asked.place)
        found = None
        if known is not None:
            holder = asked.consumer
            of_one = None if holder is None else (lambda row: row[1] == holder)
            found = known.find(asked.low, asked.high, count=asked.count, falling=asked.falling, fits=of_one)
        return self._missing(words) if found is None else found

    def _missing(self, words: Words) -> ResponseError:
        text = b" ".join(words)[:_SHOWN].decode(errors="backslashreplace")
        if words[0] not in _READING:
            return ResponseError(f"NOPERM {ONLY_READ}, and takes no {text}")
        return ResponseError(f"not in this report: {text}")

    def learn(self, node: int, words: Words, reply: Reply) -> None:
        """Add one reply."""
        if words[0] == b"SCAN" and not isinstance(reply, Exception):
            self._keys.setdefault(node, []).extend(reply[1])
            self._names.update(reply[1])
        elif words[0] in _RANGES or (words[0] == b"XPENDING" and len(words) > 3):
            asked = _asked(words)
            if isinstance(reply, Exception):
                self._exact[node, words] = reply
            elif asked.consumer is None:
                known = self._ranges.setdefault(asked.place, KnownRange())
                known.learn(asked.low, asked.high, reply, count=asked.count, falling=asked.falling)
        else:
            self._exact.setdefault((node, words), reply)
            if words[:2] == (b"XINFO", b"STREAM") and len(words) == 3 and not isinstance(reply, Exception):
                self._streams.add(words[2])

    def settle(self) -> None:
        """Join the parts of ranges, after the last reply was added."""
        self.nodes = tuple(sorted({0, *self._keys, *(node for node, _ in self._exact)}))
        for known in self._ranges.values():
            known.settle()


@dataclass(frozen=True, slots=True)
class _AskedRange:
    """The arguments of a command that reads a range."""

    place: Words
    low: tuple[int, int]
    high: tuple[int, int]
    count: int | None
    falling: bool
    consumer: bytes | None = None


def _asked(words: Words) -> _AskedRange:
    """Return the range that a command reads."""
    if words[0] == b"XPENDING":
        if len(words) not in (6, 7) or not _NUMBER.fullmatch(words[5]):
            raise ValueError("it is not an XPENDING of a range")
        low, high = low_of(words[3]), high_of(words[4])
        return _AskedRange(words[:3], low, high, int(words[5]), falling=False, consumer=(*words, None)[6])
    falling = words[0] == b"XREVRANGE"
    if len(words) not in (4, 6) or (len(words) == 6 and not _NUMBER.fullmatch(words[5])):
        raise ValueError("it is not a range of a stream")
    least, most = (words[3], words[2]) if falling else (words[2], words[3])
    count = int(words[5]) if len(words) == 6 else None
    return _AskedRange((b"XRANGE", words[1]), low_of(least), high_of(most), count, falling)


def words_of(command: Command) -> Words:
    """Return a command and its arguments as bytes, with command and subcommand in capitals."""
    words = [word if isinstance(word, bytes) else str(word).encode(errors="surrogateescape") for word in command]
    capitals = 2 if words[0].upper() in (b"XINFO", b"SLOWLOG", b"CONFIG", b"CLIENT", b"ACL") else 1
    return (*(word.upper() for word in words[:capitals]), *words[capitals:])


def open_report(url: str) -> RecordedReport:
    """Read the report that a ``report:`` URL names."""
    path = Path(url.removeprefix(REPORT))
    if url == REPORT:
        raise ConfigError("the URL report: names no file. Write report:FILE, a file that `millstream report` wrote.")
    shown = without_secrets(str(path))
    try:
        path = path.expanduser()
        found = parse(_content(path))
    except OSError as error:
        raise ConfigError(
            f"{shown} cannot be read: {error.strerror or error}. Give a file that `millstream report` wrote."
        ) from None
    except RuntimeError as error:  # the user of ~NAME does not exist
        raise ConfigError(f"{shown} cannot be read: {error}") from None
    except (ValueError, EOFError, zlib.error):
        raise ConfigError(
            f"{shown} is not a report, or only a part of one. Write one with `millstream report`."
        ) from None
    if not isinstance(found, dict) or type(found.get("millstream_report")) is not int:
        raise ConfigError(f"{shown} is not a report. Write one with `millstream report`.")
    if found["millstream_report"] != FORMAT:
        raise ConfigError(f"{shown} was written by another version of Millstream. Open it with a newer one.")
    try:
        return _learned(path, found)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{shown} is a damaged report: {error}. Write it again with `millstream report`.") from None


def _content(path: Path) -> bytes:
    """Return the contents of the file, unpacked."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as unpacked:
        content = unpacked.read(MOST + 1)
    if len(content) > MOST:
        raise ConfigError(f"{without_secrets(str(path))} is not a report: it is larger than {MOST >> 20} MiB")
    return content


def _learned(path: Path, found: Mapping[str, Any]) -> RecordedReport:
    at_ms, asked = found["at_ms"], found["asked"]
    if type(at_ms) is not int or not 0 <= at_ms < 2**53 or not isinstance(asked, list):
        raise ValueError("the time at which it was made is missing, or the list of commands is")
    facts = {name: value for name, value in found.items() if name != "asked"}
    report = RecordedReport(path, at_ms, facts)
    for one in asked:
        if not isinstance(one, dict) or not isinstance(one.get("command"), list) or not one["command"]:
            raise ValueError("a command is missing")
        words, node = words_of(_bytes(one["command"])), one.get("node", 0)
        reply = reply_of(one["reply"])
        if type(node) is not int or not 0 <= node < 1024 or not fits(words, reply):
            said = b" ".join(words)[:_SHOWN].decode(errors="backslashreplace")
            raise ValueError(f"the reply to {said} is not as a server sends it")
        report.learn(node, words, reply)
    report.settle()
    return report


def _bytes(command: Sequence[Any]) -> list[bytes]:
    words = [reply_of(word) for word in command]
    if not all(isinstance(word, bytes) for word in words):
        raise ValueError("a command has a word that is not bytes")
    return words
