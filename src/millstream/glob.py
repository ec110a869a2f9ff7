r"""Redis's glob patterns: ``*``, ``?``, ``[a-c^]`` and ``\\`` over bytes, never slower than the lengths multiplied."""

import functools
import re
from collections.abc import Callable

_STAR, _ANY, _OPEN, _CLOSE, _NOT, _DASH, _ESCAPE = b"*?[]^-\\"


def _signed(byte: int) -> int:
    """A byte as C's ``char``: Redis compares the ends of a range so, and 0xff stands before 0x00."""
    return byte - 256 if byte > 127 else byte


def _class(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """The bytes a class beginning after its ``[`` stands for, and the position of its ``]`` (or the last byte)."""
    negated = at < len(pattern) and pattern[at] == _NOT
    at += negated
    chosen: set[int] = set()
    while at < len(pattern) and pattern[at] != _CLOSE:
        if pattern[at] == _ESCAPE and at + 1 < len(pattern):
            chosen.add(pattern[at + 1])
            at += 2
        elif at + 2 < len(pattern) and pattern[at + 1] == _DASH:
            low, high = sorted((_signed(pattern[at]), _signed(pattern[at + 2])))
            chosen.update(value & 0xFF for value in range(low, high + 1))
            at += 3
        else:
            chosen.add(pattern[at])
            at += 1
    return frozenset(range(256)) - chosen if negated else frozenset(chosen), at


def _one(chosen: frozenset[int]) -> str:
    """A regular expression for one byte of a set."""
    return "[" + "".join(f"\\x{byte:02x}" for byte in sorted(chosen)) + "]" if chosen else "(?!)"


@functools.lru_cache(maxsize=64)
def _compile(pattern: bytes, nocase: bool) -> re.Pattern[bytes]:
    """The pattern as a regular expression without backtracking over stars.

    A part between two stars may be taken at its first occurrence for good (an atomic group): any later choice would
    leave less to match. So a hostile ``*a*a*a*b`` costs no more than a search for each part.
    """
    parts: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        if byte == _STAR:
            parts.append([])
        elif byte == _ANY:
            parts[-1].append(".")
        elif byte == _OPEN:
            chosen, at = _class(pattern, at + 1)
            parts[-1].append(_one(chosen))
        else:
            at += byte == _ESCAPE and at + 1 < len(pattern)
            parts[-1].append(_one(frozenset({pattern[at]})))
        at += 1
    texts = ["".join(part) for part in parts]
    source = texts[0]
    if len(texts) > 1:
        source += "".join(f"(?>.*?{text})" for text in texts[1:-1] if text) + ".*" + texts[-1]
    return re.compile(source.encode("latin-1"), re.DOTALL | (re.IGNORECASE if nocase else 0))


def matcher(pattern: bytes, *, nocase: bool = False) -> Callable[[bytes], bool]:
    """A function that says whether a name fits the pattern as a whole."""
    if pattern == b"*":
        return lambda _name: True
    fullmatch = _compile(pattern, nocase).fullmatch
    # Redis begins with a byte of each, so nothing but the empty pattern (and a lone star) fits the empty name.
    return lambda name: fullmatch(name) is not None if name else not pattern
