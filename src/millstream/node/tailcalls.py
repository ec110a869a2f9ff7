"""Keeps the place of an error: ``return redis.call(...)`` becomes ``return (redis.call(...))`` before it is compiled.

In Redis the libraries are written in C, and a call of C code never replaces its caller's frame. Ours are Lua functions,
so in ``return f(...)`` the caller's frame, and with it the line to report, would be gone when the error comes. A call
in brackets is no tail call. The libraries' functions return one value each, so nothing else changes, line numbers
neither.
"""

import re
from itertools import pairwise

_TOKEN = re.compile(
    rb"""
    --\[(=*)\[.*?\]\1\] | --[^\n]*            # comments
    | \[(?P<level>=*)\[.*?\](?P=level)\]      # long strings
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | [A-Za-z_]\w* | \s+ | .
    """,
    re.DOTALL | re.VERBOSE,
)
_LIBRARIES = frozenset({b"redis", b"server", b"cjson", b"bit"})


def kept(source: bytes) -> bytes:
    """The source with library calls after ``return`` in brackets; as it is where a library's name is redefined."""
    if b"return" not in source:
        return source
    tokens = [found[0] for found in _TOKEN.finditer(source)]
    real = [at for at, token in enumerate(tokens) if not token.isspace() and not token.startswith(b"--")]
    words = [tokens[at] for at in real]
    for word, after in pairwise(words):
        if (word in {b"local", b"function"} and after in _LIBRARIES) or (word in _LIBRARIES and after == b"="):
            return source
    for place in range(len(words) - 4):
        returned, library, dot, _, bracket = words[place : place + 5]
        if returned == b"return" and library in _LIBRARIES and dot == b"." and bracket == b"(":
            end = _closing(words, place + 4)
            if end is not None:
                tokens[real[place + 1]] = b"(" + library
                tokens[real[end]] = b"))"
    return b"".join(tokens)


def _closing(words: list[bytes], opening: int) -> int | None:
    """Where the bracket that opens there is closed."""
    depth = 0
    for at in range(opening, len(words)):
        if words[at] == b"(":
            depth += 1
        elif words[at] == b")":
            depth -= 1
            if not depth:
                return at
    return None
