"""The notation for the arguments in a row of the command table, and its parser.

It is the notation of the documentation (``key [NOMKSTREAM] <* | id> field value [field value ...]``) with marks for
facts of COMMAND DOCS. :func:`shown` removes all marks but the last:

* ``count:integer``: the type, if it is not ``string`` (a ``key`` is a key and a ``pattern`` a pattern anyway);
* ``[LIMIT count]@6.2.0``: the first version, if it is not that of the command, or of the surrounding argument;
  ``@!6.2.0`` if Redis reports it only in the command's history, not with the argument;
* ``trim=[...]``, ``change=CH``: the name for clients, if it is not the text itself;
* ``(group consumer)``: values that are one argument together, as after ``GROUP``;
* ``[GET pattern]...``: it may be repeated, with its token.

Text without a lower-case letter is a token; the next item in the same place, if not itself optional, is its value.
Source: https://redis.io/docs/latest/commands/command-docs/
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

TYPES = frozenset({"string", "integer", "double", "key", "pattern", "unix-time"})
SYMBOLS = {"*": "auto-id", "$": "new-id", "=": "equal", "~": "approximately"}
_PIECE = re.compile(r"\s*(?:(@!?\d+\.\d+\.\d+)|([a-z][a-z0-9_-]*=(?=\S))|([\[\]<>()|])|([^\s\[\]<>()|@]+))")
_CLOSING = {"[": "]", "<": ">", "(": ")"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument in the form of COMMAND DOCS."""

    name: str  # The name that clients use
    type: str  # One of :data:`TYPES`, ``pure-token`` (a fixed word), ``oneof`` or ``block``
    display: str = ""  # Name in documentation; empty for ``oneof`` and ``block``
    token: str = ""  # Keyword in front of the value, or the whole ``pure-token``; empty for none
    since: str = ""  # Version that introduced it; empty for that of its parent
    optional: bool = False  # It may be omitted
    multiple: bool = False  # It may be repeated
    parts: tuple["Argument", ...] = field(default=())  # Alternatives of a ``oneof``, or members of a ``block``
    tells_since: bool = True  # COMMAND DOCS also shows this version at the argument
    repeats_token: bool = False  # The keyword is repeated with the argument


def shown(syntax: str) -> str:
    """The arguments as documentation shows them, without the marks."""
    text = ""
    for since, name, bracket, word in _PIECE.findall(syntax):
        if since or name or bracket in {"(", ")"}:
            continue
        piece = bracket or _typed(word)[0]
        text += piece if not text or text[-1] in "[<" or piece in {"]", ">"} else " " + piece
    return text


@cache
def parse(syntax: str) -> tuple[Argument, ...]:
    """The arguments of a row."""
    pieces = list(_PIECE.findall(syntax))
    if "".join("".join(piece) for piece in pieces) != "".join(syntax.split()):
        raise ValueError(f"cannot be read: {syntax}")
    reader = _Reader(pieces)
    found = reader.alternatives("")
    return found[0] if len(found) == 1 else (_one_of(found),)


def options(row_since: str, arguments: tuple[Argument, ...]) -> Iterator[tuple[str, str]]:
    """Every option with its first version, in the order of the syntax."""
    for argument in arguments:
        since = argument.since or row_since
        if argument.token:
            yield argument.token, since
        yield from options(since, argument.parts)


class _Reader:
    """Parses the pieces of one syntax, with a method for each kind of bracket."""

    def __init__(self, pieces: list[tuple[str, str, str, str]]) -> None:
        self._pieces = pieces
        self._at = 0

    def alternatives(self, closing: str) -> list[tuple[Argument, ...]]:
        """The alternatives between ``|`` up to ``closing``; the end of the text is the empty string."""
        found: list[tuple[Argument, ...]] = []
        while True:
            items, ended = self._sequence()
            found.append(items)
            if ended != "|":
                if ended != closing:
                    raise ValueError(f"{ended or 'the end'} where {closing or 'the end'} is due")
                return found

    def _sequence(self) -> tuple[tuple[Argument, ...], str]:
        """Arguments up to a closing bracket or a bar, and that mark; the empty string at the end."""
        items: list[Argument] = []
        name = ""
        while self._at < len(self._pieces):
            since, named, bracket, word = self._pieces[self._at]
            self._at += 1
            if bracket in {"|", "]", ">", ")"}:
                return _with_values(items), bracket
            if since:
                items[-1] = replace(items[-1], since=since.lstrip("@!"), tells_since="!" not in since)
            elif named:
                name = named[:-1]
            elif word == "...":
                items[-1] = replace(items[-1], multiple=True, repeats_token=bool(items[-1].token))
            elif bracket == "[" and (again := self._repeats()):
                items[-again:] = [_repeated(items[-again:])]
            else:
                items.append(self._group(bracket, name) if bracket else _word(word, name))
                name = ""
        return _with_values(items), ""

    def _group(self, bracket: str, name: str) -> Argument:
        """The content of an open bracket: optional, a choice, or values that belong together."""
        found = self.alternatives(_CLOSING[bracket])
        if bracket == "[":
            single = found[0][0] if len(found) == 1 and len(found[0]) == 1 else None
            inner = single or _one_of(found, name)
            return replace(inner, optional=True)
        return _one_of(found, name)

    def _repeats(self) -> int:
        """The number of items that an open ``[x y ...]`` repeats; 0 for another kind of bracket."""
        for length in range(1, len(self._pieces) - self._at):
            _, _, bracket, word = self._pieces[self._at + length]
            if word == "...":
                self._at += length + 2
                return length
            if bracket:
                return 0
        return 0


def _typed(word: str) -> tuple[str, str]:
    """Split text into name and type; ``ip:port`` is only a name."""
    plain, colon, kind = word.rpartition(":")
    if colon and kind in TYPES:
        return plain, kind
    return word, word if word in {"key", "pattern"} else "string"


def _word(word: str, name: str) -> Argument:
    """A token if it has no lower-case letter, else a value of its type."""
    plain, kind = _typed(word)
    if plain == plain.upper():
        called = name or SYMBOLS.get(plain, plain.lower())
        return Argument(called, "pure-token", called, plain)
    return Argument(name or plain, kind, plain)


def _one_of(found: list[tuple[Argument, ...]], name: str = "") -> Argument:
    """Alternatives as one argument; a single one is a block."""
    if len(found) == 1:
        return Argument(name or "block", "block", parts=found[0])
    parts = tuple(items[0] if len(items) == 1 else _block(items) for items in found)
    return Argument(name or "choice", "oneof", parts=parts)


def _block(items: tuple[Argument, ...]) -> Argument:
    """Several values as one argument, named after them."""
    return Argument("-".join(item.name for item in items), "block", parts=items)


def _repeated(items: list[Argument]) -> Argument:
    """The repetition by ``[x y ...]`` of the values before it."""
    single = items[0] if len(items) == 1 else Argument("data", "block", parts=tuple(items))
    return replace(single, multiple=True)


def _with_values(items: list[Argument]) -> tuple[Argument, ...]:
    """Each token joined with the value after it."""
    joined: list[Argument] = []
    for item in items:
        before = joined[-1] if joined else None
        takes = before and before.type == "pure-token" and not before.optional and before.token not in SYMBOLS
        if before and takes and item.type != "pure-token" and not item.optional and not item.token:
            origin = item if item.since else before
            joined[-1] = replace(item, token=before.token, since=origin.since, tells_since=origin.tells_since)
        else:
            joined.append(item)
    return tuple(joined)
