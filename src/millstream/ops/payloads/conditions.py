"""Conditions over the decoded values of entries. PURE.

``parse("amount > 100 and status = failed")`` returns a condition, and :meth:`Condition.holds` applies it to each entry.
Values are compared as numbers if both sides are numbers, and otherwise as text. If a name leads to several values
(through a list), one match suffices. ``!=`` and ``!~`` are the opposites of ``=`` and ``~``, so they hold if the name
is missing. This small language has its own parser, so that text from users or entries is never run as code::

    any   = all { "or" all }
    all   = one { "and" one }
    one   = "not" one | "(" any ")" | NAME [ OPERATOR VALUE ]

A name or a value is a word, or any text in quotes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from millstream.ops.payloads.entry import EntryPayload, plain_text, texts_in

#: Limits: characters of a condition, and nested parentheses or ``not``.
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
    """One token of a condition."""

    kind: str  # ``sign``, ``word`` or ``quoted``
    text: str  # Text, without quotes
    at: int  # Offset in the condition


def tokens(text: str) -> list[Token]:
    """Split a condition into tokens."""
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
    return f"{rest[:30]!r} is neither a name nor an operator ({' '.join(OPERATORS)}); quote a name with such characters"


_NUMBER = re.compile(r"[+-]?\d{1,40}(?:(\.\d{1,40})?([eE][+-]?\d{1,3})?)", re.ASCII)

Number = int | float


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that an entry's payload may fulfil."""

    text: str  # Condition, as the user typed it
    test: Callable[[EntryPayload], bool]  # Tests one entry

    def holds(self, payload: EntryPayload) -> bool:
        """Return True if an entry fulfils the condition; never raises, whatever the entry."""
        return self.test(payload)


def parse(text: str) -> Condition:
    """Parse a condition as a user typed it."""
    parser = _Parser(tokens(text))
    test = parser.any_of(0)
    parser.end()
    return Condition(text, test)


def has_text(wanted: str) -> Condition:
    """Return a condition for entries with this text in a name or a value, ignoring case."""
    low = wanted.casefold()
    return Condition(wanted, lambda payload: any(low in text.casefold() for text in payload.texts()))


Test = Callable[[EntryPayload], bool]


class _Parser:
    """Recursive-descent parser from tokens to a test."""

    def __init__(self, words: list[Token]) -> None:
        self._words = words
        self._at = 0

    def any_of(self, depth: int) -> Test:
        """Parse conditions joined by ``or``."""
        return _joined(self._list("or", self._all_of, depth), any)

    def _all_of(self, depth: int) -> Test:
        return _joined(self._list("and", self._one, depth), all)

    def _list(self, joint: str, part: Callable[[int], Test], depth: int) -> list[Test]:
        found = [part(depth)]
        while self._takes("word", joint):
            found.append(part(depth))
        return found

    def _one(self, depth: int) -> Test:
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} parentheses are nested")
        if self._takes("word", "not"):
            inner = self._one(depth + 1)
            return lambda payload: not inner(payload)
        if self._takes("sign", "("):
            found = self.any_of(depth + 1)
            if not self._takes("sign", ")"):
                raise ValueError("a parenthesis is not closed")
            return found
        return self._comparison()

    def _comparison(self) -> Test:
        name = self._text("the name of a field")
        if name.text.count(".") > DEEPEST:
            raise ValueError(f"a name leads more than {DEEPEST} levels deep")
        operator = self._words[self._at] if self._at < len(self._words) else None
        if operator is None or operator.kind != "sign" or operator.text not in OPERATORS:
            return lambda payload: bool(payload.at(name.text))
        self._at += 1
        return _compared(name.text, operator.text, self._text(f"the value after {operator.text}"))

    def _text(self, what: str) -> Token:
        if self._at == len(self._words):
            raise ValueError(f"{what} is missing at its end")
        found = self._words[self._at]
        if found.kind == "sign":
            raise ValueError(f"{what} is missing before {found.text!r}, character {found.at + 1}")
        self._at += 1
        return found

    def _takes(self, kind: str, text: str) -> bool:
        if self._at < len(self._words) and self._words[self._at][:2] == (kind, text):
            self._at += 1
            return True
        return False

    def end(self) -> None:
        """Raise an error if tokens are left."""
        if self._at < len(self._words):
            left = self._words[self._at]
            raise ValueError(
                f"{left.text!r}, character {left.at + 1}, does not belong there: join conditions by and, or"
            )


def _joined(tests: list[Test], how: Callable[..., bool]) -> Test:
    return tests[0] if len(tests) == 1 else lambda payload: how(test(payload) for test in tests)


def _compared(name: str, operator: str, wanted: Token) -> Test:
    number = None if wanted.kind == "quoted" else _number(wanted.text)
    if operator in {"!=", "!~"}:
        opposite = _compared(name, operator[1:], wanted)
        return lambda payload: not opposite(payload)
    if operator == "~":
        low = wanted.text.casefold()
        return lambda payload: any(low in text.casefold() for one in payload.at(name) for text in texts_in(one))
    return lambda payload: any(
        _fits(each, operator, wanted.text, number) for one in payload.at(name) for each in _each(one)
    )


def _each(value: object) -> list[object]:
    """Return the items of a list; otherwise a list with the value."""
    return value if isinstance(value, list) else [value]


def _fits(value: object, operator: str, text: str, number: Number | None) -> bool:
    if isinstance(value, dict | list):
        return False
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if number is not None and (other := _number_of(value)) is not None:
        return _ordered((other > number) - (other < number), operator)
    if number is not None and operator != "=":
        return False  # a value that is not a number satisfies no comparison
    shown = plain_text(value)
    return _ordered((shown > text) - (shown < text), operator)


def _ordered(sign: int, operator: str) -> bool:
    """Return True if the comparison of two values (-1, 0 or 1) satisfies an operator."""
    if sign == 0:
        return operator in {"=", ">=", "<="}
    return operator.startswith(">" if sign > 0 else "<")


def _number_of(value: object) -> Number | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if value == value else None  # noqa: PLR0124 - NaN cannot be compared
    return _number(value) if isinstance(value, str) else None


def _number(text: str) -> Number | None:
    """Return the number in a text, whole numbers exactly; None if it is not a number."""
    if len(text) > 90 or (found := _NUMBER.fullmatch(text.strip())) is None:
        return None
    return float(text) if found[1] or found[2] else int(text)
