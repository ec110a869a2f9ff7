"""The words of ``--where``: from a user's text to the tokens that :mod:`conditions` reads. PURE.

A small language of its own, so that nothing typed or stored is ever run as code::

    any   = all { "or" all }
    all   = one { "and" one }
    one   = "not" one | "(" any ")" | NAME [ OPERATOR VALUE ]

A name or a value is a word, or anything in quotes.
"""

import re
from typing import NamedTuple

#: Characters of a condition, and parentheses or ``not`` in one another.
LONGEST = 10_000
DEEPEST = 50

OPERATORS = ("=", "!=", ">", ">=", "<", "<=", "~", "!~")

_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>==|!=|>=|<=|!~|[=<>~()])|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<word>[^\s()=<>~!"']+))""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class Token(NamedTuple):
    """One word."""

    kind: str  # ``sign``, ``word`` or ``quoted``
    text: str  # Without its quotes
    at: int  # Its offset


def tokens(text: str) -> list[Token]:
    """The words of a condition."""
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST:,} characters")
    found: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(_wrong(text[at:].lstrip()))
        kind = str(match.lastgroup)
        word = match[kind]
        if kind in {"double", "single"}:
            kind, word = "quoted", _ESCAPED.sub(r"\1", word)
        found.append(Token(kind, "=" if (kind, word) == ("sign", "==") else word, match.start()))
        at = match.end()
    return found


def _wrong(rest: str) -> str:
    if rest[:1] in {'"', "'"}:
        return f"a quote is not closed: {rest[:30]}"
    return f"{rest[:30]!r} is neither a name nor an operator ({' '.join(OPERATORS)}); quote what has such characters"
