"""The due times of a group's delayed entries: a sorted set next to the stream. Pure.

::

    millstream:{orders}:due:billing        sorted set: entry id -> when it is due, milliseconds since 1970

A server cannot delay a redelivery: an entry becomes claimable once it is idle for long enough, even if its handler
asked for more. So the due time is kept here, by the server's clock, and written in the step that delays the entry. An
entry that waits for its time is pending, held by :data:`~millstream.client.emulate.WAITING`.

Every claimer honours it in two ways. :func:`hold` renews entries that wait, so that a claim after it does not get them.
:func:`question` finds those that a claim brought all the same, and the claimer puts them back uncharged.

A due time that has passed means nothing. It goes with the outcome of its entry, or with the next :func:`hold`, which
also drops those of entries that are not pending any more. The key goes a week after its last entry was due.
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

#: Makes a group, and forgets the due times of the one before it. KEYS: the stream. ARGV: group, id, the due times' key.
_CREATE = """
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM')
if not made.err then redis.pcall('DEL', ARGV[3]) end
return made
"""

Words: TypeAlias = tuple[bytes | str | int, ...]
"""A command."""

#: Due times that one run of the script looks at.
PAGE = 200

#: The longest delay, in milliseconds: a hundred years. A due time further away is not one of ours.
LONGEST_MS = 100 * 365 * 24 * 3_600_000

#: Milliseconds before its time at which an entry counts as due: a script may read the clock twice.
_SLACK_MS = 5


def key(stream: str, group: str) -> str:
    """Key of the due times of one group of one stream, in the stream's slot."""
    return beside(stream, "due", group)


def create(stream: str, group: str, start: str) -> Words:
    """The command that makes a group without due times: a sibling may delay an entry of it right after."""
    return ("EVAL", _CREATE, 1, stream, group, start, key(stream, group))


def hold(stream: str, group: str, min_idle_ms: int, *, first: int = 0, whole: bool = False) -> Words:
    """The command that keeps entries out of reach until they are due, :data:`PAGE` of them."""
    words = (stream, group, key(stream, group), emulate.WAITING, min_idle_ms, first, PAGE, LONGEST_MS)
    return ("EVAL", SCRIPT, 1, *words) if whole else ("EVALSHA", SCRIPT_SHA, 1, *words)


def question(stream: str, group: str, ids: Iterable[bytes | str]) -> tuple[Words, Words]:
    """The commands that ask when these entries are due; for :func:`remaining`."""
    return ("TIME",), ("ZMSCORE", key(stream, group), *ids)


def first(stream: str, group: str, count: int) -> tuple[Words, Words]:
    """The commands that ask which entries are due first, and when."""
    return ("TIME",), ("ZRANGE", key(stream, group), 0, count - 1, "WITHSCORES")


def noted(ids: Sequence[bytes], scores: Reply) -> set[bytes]:
    """Those of the entries that have a due time, whether it has passed or not."""
    return {entry for entry, score in zip(ids, scores, strict=True) if score is not None} if _answers(scores) else set()


def remaining(ids: Sequence[bytes], time: Reply, scores: Reply) -> dict[bytes, int]:
    """Entries that are not due, and the milliseconds until each is; empty if the server does not answer."""
    if not _answers(time) or not _answers(scores):
        return {}
    now = int(time[0]) * 1000 + int(time[1]) // 1000
    left = {entry: float(score) - now for entry, score in zip(ids, scores, strict=True) if score is not None}
    return {entry: math.ceil(ms) for entry, ms in left.items() if _SLACK_MS < ms <= LONGEST_MS}


def _answers(reply: Reply) -> bool:
    return isinstance(reply, list)
