"""Commands with the recorded replies of a Redis 8.10, and the comparison with them.

``transcripts.jsonl.gz`` has one run a line: ``{"run", "resp", "setup": [commands], "steps": [[command, reply], ...]}``.
In a reply a JSON string is a bulk string (latin-1), ``{"+": s}`` a simple string, ``{"-": s}`` an error, ``{"%":
[[key, value], ...]}`` a RESP3 map, null any null; lists and numbers are themselves.

Values that depend on time are masked on both sides: idle and delivery times are 0 (a released entry's -1 stays), ids
of the key ``auto`` are left out, radix-tree figures are 0.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.replies import Error, Simple
from support.resp import Pairs

Json = object
Step = tuple[list[bytes], Json]

PATH = Path(__file__).with_name("transcripts.jsonl.gz")
_TIMES = ("radix-tree-keys", "radix-tree-nodes", "idle", "seen-time")
_AUTO_IDS = ("last-generated-id", "recorded-first-entry-id", "first-entry", "last-entry", "max-deleted-entry-id")


@dataclass(frozen=True)
class Run:
    """One recorded session on an emptied server."""

    number: int
    resp: int
    setup: list[list[bytes]]
    steps: list[Step]


def load() -> Iterator[Run]:
    """Yield every run of the file."""
    with gzip.open(PATH, "rt") as lines:
        for line in lines:
            run = json.loads(line)
            steps = [(_words(command), reply) for command, reply in run["steps"]]
            yield Run(run["run"], run["resp"], [_words(command) for command in run["setup"]], steps)


def _words(command: list[str]) -> list[bytes]:
    return [word.encode("latin-1") for word in command]


def as_json(value: object) -> Json:
    """Convert a decoded reply to the form of the file."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Simple):
        return {"+": value.text.decode("latin-1")}
    if isinstance(value, Error):
        return {"-": value.line.encode("utf-8", "surrogateescape").decode("latin-1")}
    if isinstance(value, Pairs):
        return {"%": [[as_json(key), as_json(item)] for key, item in value]}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value


def masked(command: list[bytes], reply: Json) -> Json:
    """Return a reply without the parts that depend on the time of the recording."""
    if reply is None or (isinstance(reply, dict) and ("-" in reply or "+" in reply)):
        return reply
    name = command[0]
    if name == b"XADD" and command[1] == b"auto":
        return "ID"
    if name == b"XREADGROUP" and b"CLAIM" in command:
        return _mask_claimed(reply)
    if name == b"XPENDING" and len(command) > 3:
        return [[row[0], row[1], -1 if row[2] == -1 else 0, row[3]] for row in reply]
    if name == b"XINFO":
        if command[1] == b"STREAM":
            return _mask_info(reply, auto=command[2] == b"auto")
        return [_mask_info(item, auto=False) for item in reply]
    return reply


def _mask_claimed(reply: Json) -> Json:
    streams = reply["%"] if isinstance(reply, dict) else reply
    rows = [[key, [[*row[:2], 0, row[3]] if len(row) == 4 else row for row in entries]] for key, entries in streams]
    return {"%": rows} if isinstance(reply, dict) else rows


def _mask_info(reply: Json, *, auto: bool) -> Json:
    pairs = reply["%"] if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    shown: list[list[Json]] = [[key, _mask_field(key, value, auto=auto)] for key, value in pairs]
    return {"%": shown} if isinstance(reply, dict) else [item for pair in shown for item in pair]


def _mask_field(key: str, value: Json, *, auto: bool) -> Json:
    if key in _TIMES or (auto and key in _AUTO_IDS):
        return 0
    if key in {"inactive", "active-time"}:
        return -1 if value == -1 else 0
    if key in {"groups", "consumers"} and isinstance(value, list):
        return [_mask_info(item, auto=False) for item in value]
    if key in {"pel", "pending"} and isinstance(value, list):
        return [[*row[:-2], 0, row[-1]] for row in value]
    return value
