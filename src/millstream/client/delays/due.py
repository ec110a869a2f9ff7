"""The due times of a group's delayed entries: a sorted set next to the stream. Pure.

::

    millstream:{orders}:due:billing        sorted set: entry id -> due time, milliseconds since 1970
    millstream:{orders}:held:billing       string: the last search of :func:`hold`, for a quarter of ``min_idle``

A server cannot delay a redelivery: an entry becomes claimable once it is idle for long enough, even if its handler
requested a longer delay. So this key holds the due time, by the server's clock. The step that delays the entry writes
it. A delayed entry stays pending, held by the consumer :data:`~millstream.client.emulate.WAITING`.

Every claimer honours the due times in two ways. It sends :func:`hold` first, which renews delayed entries, so that
the claim does not get them. One search serves all processes with the same ``min_idle`` for a quarter of that time:
the first process that sends the command searches. The claimer sends :func:`question` afterwards, and puts back
delayed entries that it got, uncharged.

A due time that has passed has no effect. It is removed with the outcome of its entry or by the next :func:`hold`.
The latter also drops due times of entries that are no longer pending. The key expires a week after its last due time.
"""

import math
from collections.abc import Iterable, Sequence
from hashlib import sha1
from typing import TypeAlias

from millstream.client import emulate
from millstream.client.line import Reply
from millstream.client.slots import beside
from millstream.paths import packaged

SCRIPT = packaged("millstream.client.delays", "hold.lua")
SCRIPT_SHA = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

#: Creates a group and deletes the due times of a former group of its name. KEYS: stream. ARGV: group, id, key of due
#: times.
_CREATE = """
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if not made.err then redis.pcall('DEL', ARGV[3]) end
return made
"""

Words: TypeAlias = tuple[bytes | str | int, ...]
"""A command and its arguments."""

#: Number of due times that one run of the script reads.
PAGE = 200

#: Longest delay, in milliseconds: a hundred years. A later due time was not written by Millstream.
LONGEST_MS = 100 * 365 * 24 * 3_600_000

#: Milliseconds before its due time at which an entry counts as due, because a script may read the clock twice.
_SLACK_MS = 5


def key(stream: str, group: str) -> str:
    """Return the key of the due times of one group of one stream, in the stream's slot."""
    return beside(stream, "due", group)


def search_key(stream: str, group: str) -> str:
    """Return the key with the last search for delayed entries, in the stream's slot."""
    return beside(stream, "held", group)


def create(stream: str, group: str, start: str) -> Words:
    """Return the command that creates a group and deletes due times of a former group of that name, in one step.

    It is one step because another worker may delay an entry of the new group right afterwards.
    """
    return ("EVAL", _CREATE, 1, stream, group, start, key(stream, group))


def hold(stream: str, group: str, min_idle_ms: int, *, first: int = 0, begun: int = 0, whole: bool = False) -> Words:
    """Return the command that keeps up to :data:`PAGE` delayed entries from being claimed until they are due.

    ``first`` is the rank of the first entry of the page. ``begun`` is the time at which this search began, from the
    reply to its first page. For a first page it is 0, which leaves the search to another process that searches or did
    so lately, or -1, which searches in any case. ``whole`` sends the script itself instead of its hash.
    """
    words: Words = (stream, group, key(stream, group), emulate.WAITING, min_idle_ms, first, PAGE, LONGEST_MS)
    words = (*words, search_key(stream, group), begun)
    return ("EVAL", SCRIPT, 1, *words) if whole else ("EVALSHA", SCRIPT_SHA, 1, *words)


def question(stream: str, group: str, ids: Iterable[bytes | str]) -> tuple[Words, Words]:
    """Return the commands that read the due times of these entries; :func:`remaining` takes their replies."""
    return ("TIME",), ("ZMSCORE", key(stream, group), *ids)


def first(stream: str, group: str, count: int) -> tuple[Words, Words]:
    """Return the commands that read the entries that are due first, with their due times."""
    return ("TIME",), ("ZRANGE", key(stream, group), 0, count - 1, "WITHSCORES")


def noted(ids: Sequence[bytes], scores: Reply) -> set[bytes]:
    """Return the entries that have a due time, passed or not."""
    return {entry for entry, score in zip(ids, scores, strict=True) if score is not None} if _answers(scores) else set()


def remaining(ids: Sequence[bytes], time: Reply, scores: Reply) -> dict[bytes, int]:
    """Return the entries that are not due yet, with the milliseconds until each is; empty after an error reply."""
    if not _answers(time) or not _answers(scores):
        return {}
    return later(ids, int(time[0]) * 1000 + int(time[1]) // 1000, scores)


def later(ids: Sequence[bytes], now_ms: int, scores: Sequence[bytes | None]) -> dict[bytes, int]:
    """Return the entries that are not due at a time, with the milliseconds until each is."""
    left = {entry: float(score) - now_ms for entry, score in zip(ids, scores, strict=True) if score is not None}
    return {entry: math.ceil(ms) for entry, ms in left.items() if _SLACK_MS < ms <= LONGEST_MS}


def _answers(reply: Reply) -> bool:
    return isinstance(reply, list)
