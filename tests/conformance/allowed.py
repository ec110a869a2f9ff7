"""Replies that may differ from redis-server's when several connections send commands, each with its reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.test_live import KNOWN as STREAMS
from conformance.transcripts import as_json, masked

UNSORTED = {b"KEYS", b"SMEMBERS", b"SINTER", b"SUNION", b"SDIFF", b"HKEYS", b"HVALS"}
QUEUED = {"+": "QUEUED"}
FAR = 4_000_000_000_000
GONE = ("UNBLOCKED", "NOGROUP", "WRONGTYPE")
Json = Any


@dataclass(frozen=True)
class Known:
    """One allowed difference.

    Attributes:
        what: The difference and its reason.
        applies: Function that returns True if a command of a release can show it.
        hide: Function that removes the differing part from a reply.
    """

    what: str
    applies: Callable[[list[bytes], tuple[int, ...]], bool]
    hide: Callable[[Json], Json]


def encoding(value: Json) -> Json:
    """Return one word for the encodings of a string."""
    return "string" if value in ("raw", "embstr", "int") else value


def sorted_encoding(value: Json) -> Json:
    """Return one word for the encodings of a sorted set."""
    return "small or large" if value in ("listpack", "skiplist") else value


def old_encoding(value: Json) -> Json:
    """Return one word for small lists and sets, which had other encodings before Redis 7.2."""
    return "small or large" if value in ("quicklist", "listpack", "hashtable") else value


def is_object(words: list[bytes], _: tuple[int, ...]) -> bool:
    return words[:1] == [b"OBJECT"]


KNOWN = (
    Known("OBJECT ENCODING of a string goes by its value (docs/compatibility.md, Limits)", is_object, encoding),
    Known(
        "7.2 keeps small lists and sets as listpacks",
        lambda words, release: is_object(words, release) and release < (7, 2),
        old_encoding,
    ),
    Known(
        "DBSIZE counts keys that are dead until something deletes them, here at other moments",
        lambda words, _: words == [b"DBSIZE"],
        lambda value: isinstance(value, int),
    ),
    Known(
        "since 7.2 a group or a stream that is gone is told by the usual errors also to who waits",
        lambda words, release: words[0] == b"XREADGROUP" and release < (7, 2),
        lambda value: (
            "gone" if isinstance(value, dict) and value.get("-", "")[:5] in {"UNBLO", "NOGRO", "WRONG"} else value
        ),
    ),
    Known(
        "a death within the run depends on the moment",
        lambda words, _: words[0] == b"PEXPIRETIME",
        lambda value: value if value in (-1, -2, FAR) or not isinstance(value, int) else "soon",
    ),
    Known(
        "HELLO shows the version and the id",
        lambda words, _: words[:1] == [b"HELLO"],
        lambda value: isinstance(value, dict) and "-" in value,
    ),
)


def comparable(words: list[bytes], reply: object, release: tuple[int, ...], *, sorts: bool) -> Json:
    """Return a reply without times, the order of sets, and known differences.

    Args:
        words: The command.
        reply: Decoded reply.
        release: Release of the redis-server.
        sorts: True if the run has SORT, which changes encodings of sorted sets in Redis.
    """
    shown = as_json(reply)
    if shown == QUEUED:
        return shown
    name = words[0]
    if has_script(words, b"encoding") and isinstance(shown, list):
        shown = [comparable([b"OBJECT"], item, release, sorts=sorts) for item in shown]
    if sorts and name == b"OBJECT":
        shown = sorted_encoding(shown)
    if isinstance(shown, list) and name in UNSORTED:
        return sorted(shown, key=repr)
    if name == b"HGETALL" or has_script(words, b"hgetall"):
        return in_order(shown)
    shown = masked(words, shown)
    if release < (8,):
        for old in STREAMS:
            if old.applies(words):
                shown = old.hide(shown)
    elif name == b"XINFO":
        shown = STREAMS[0].hide(shown)
    for known in KNOWN:
        if known.applies(words, release):
            shown = known.hide(shown)
    return shown


def has_script(words: list[bytes], part: bytes) -> bool:
    return words[0] in {b"EVAL", b"EVAL_RO"} and part in b"".join(words[1:2])


def in_order(value: Json) -> Json:
    """Return the pairs of a hash ordered by name."""
    if isinstance(value, dict) and "%" in value:
        return {"%": sorted(value["%"], key=repr)}
    if isinstance(value, list):
        return sorted(zip(value[::2], value[1::2], strict=True))
    return value
