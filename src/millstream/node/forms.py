"""Words of plain commands in the forms in which they are usually written; any other form is not plain."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from millstream.engine import ids

# Words of a count or an id that are read here: no sign, no leading zero, surely within 64 bits
_DIGITS_MAX = 18
_HALF = rb"(?:0|[1-9][0-9]{0,17})"
_WHOLE_IDS = re.compile(rb"%b-%b(?: %b-%b)*" % (_HALF, _HALF, _HALF, _HALF))
SIGNS = frozenset({b"-", b"+"})
"""Ends of a range that are no ids."""


def number(word: bytes) -> int | None:
    """A number in its one usual form; None for any other, here and below."""
    if not word.isdigit() or len(word) > _DIGITS_MAX or (word[:1] == b"0" and len(word) > 1):
        return None
    return int(word)


def entry_ids(words: list[bytes]) -> list[int] | None:
    """Ids in their usual forms, all of which are mostly ``ms-seq``: those are read together."""
    joined = b" ".join(words)
    if _WHOLE_IDS.fullmatch(joined):
        halves = list(map(int, joined.replace(b"-", b" ").split(b" ")))
        if len(halves) == 2 * len(words):  # no blank was in a word
            return [ms << 64 | seq for ms, seq in zip(halves[::2], halves[1::2], strict=True)]
    found: list[int] = []
    for word in words:
        entry = entry_id(word)
        if entry is None:
            return None
        found.append(entry)
    return found


def bound(word: bytes, missing_seq: int) -> int | None:
    """An end of a range in one of its usual forms: ``-``, ``+``, ``ms`` or ``ms-seq``."""
    if word == b"-":
        return ids.MIN_ID
    if word == b"+":
        return ids.MAX_ID
    ms_word, dash, seq_word = word.partition(b"-")
    ms, seq = number(ms_word), number(seq_word) if dash else missing_seq
    return None if ms is None or seq is None else ids.make(ms, seq)


def entry_id(word: bytes) -> int | None:
    """An id in one of its usual forms."""
    return None if word in SIGNS else bound(word, 0)


def start(word: bytes) -> int | None:
    """The first id of a range; ``(id``: the one behind it."""
    if word[:1] != b"(":
        return bound(word, 0)
    found = entry_id(word[1:])
    return None if found is None or found == ids.MAX_ID else found + 1


def end(word: bytes) -> int | None:
    """The last id of a range; ``(id``: the one before it."""
    if word[:1] != b"(":
        return bound(word, ids.MAX64)
    found = None if word[1:] in SIGNS else bound(word[1:], ids.MAX64)
    return found - 1 if found else None


class ClaimOptions(NamedTuple):
    """XCLAIM's options: the delivery time to set, the count to set, and whether only ids are asked for."""

    time: int
    retry_count: int | None
    just_id: bool


def claim_options(words: list[bytes], wall: int) -> ClaimOptions | None:
    """XCLAIM's options in their usual forms, at a time in wall milliseconds."""
    time, retry_count, just_id = wall, None, False
    at = 0
    while at < len(words):
        word = words[at].upper()
        at += 1
        if word == b"JUSTID":
            just_id = True
            continue
        value = number(words[at]) if at < len(words) else None
        at += 1
        if value is None:
            return None
        if word == b"RETRYCOUNT":
            retry_count = value
        elif word in {b"IDLE", b"TIME"}:
            time = value if word == b"TIME" else wall - value
        else:
            return None
    return ClaimOptions(time if 0 <= time <= wall else wall, retry_count, just_id)


def packed(words: Iterable[bytes]) -> bytes:
    """A command as a client sends it."""
    parts = list(map(bulk, words))
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def bulk(word: bytes) -> bytes:
    """One word, of a command or as a reply."""
    return b"$%d\r\n%b\r\n" % (len(word), word)
