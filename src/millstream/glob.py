r"""Redis's glob patterns (``*``, ``?``, ``[a-c^]`` and ``\\``) over bytes, in time at most pattern times name length.

A pattern is split at its stars. The parts before the first star and after the last have only one possible position.
Each part between stars is matched at its first occurrence, since a later one would leave less to match. So the matcher
never backtracks. A part with wildcards is searched at all positions at once: one bit per position, one AND per byte of
the part. A short pattern is also compiled to an equivalent regular expression, which is faster for short names.

The work that a client can cause with patterns in one command is bounded: see :class:`Effort`. Source: Redis's
``stringmatchlen``; this is the same function on all inputs (tests/commands/test_glob.py).

The rules of retention, which have such patterns, are at the end: the server applies them, and the console shows them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.errors import CommandError
from millstream.times import span

# As in Redis, a pattern with more stars than this, apart from one at the end, matches nothing
MOST_STARS = 1000
# Largest effort of a pattern; one unit takes about a nanosecond
MOST_EFFORT = 500_000_000
# Costs of parsing a pattern: for each byte, each star or class, and each wildcard
_PARSING, _OF_SIGN, _OF_WILD = 100, 1500, 300
_OF_PATTERN = 5000
# Largest product of lengths for which bytes.find searches plain text, since that is its worst case
_SMALL = 65536
# Longest pattern that becomes a regular expression, and largest product of pattern and name length for it
_SHORT, _QUICK = 128, 4096

_STAR, _ANY, _OPEN, _CLOSE, _NOT, _DASH, _ESCAPE = b"*?[]^-\\"
_PLAIN = re.compile(rb"[^*?\[\\]+")
_SPECIAL = re.compile(rb"[*?\[\\]")
_STARS = re.compile(rb"\*+")
_ONES = re.compile(r"1+")
_ALL = (1 << 256) - 1
_BITS = [1 << byte for byte in range(256)]
_SMALL_LETTER = bytes(range(256)).lower()
_LETTERS = ((1 << 26) - 1) << ord("a")
_FOLDED = [
    1 << ord(chr(byte).lower()) | 1 << ord(chr(byte).upper()) if byte < 128 else 1 << byte for byte in range(256)
]


class PatternTooCostlyError(CommandError):
    """The patterns of a command are too long for the texts that they are compared with.

    What to do: use a shorter pattern, or one with fewer stars.
    """

    def __init__(self) -> None:
        super().__init__(
            "ERR pattern too complex: comparing it with names this long would keep all other clients waiting; "
            "use fewer wildcards, or SCAN instead of KEYS"
        )


class Effort:
    """The remaining work that one command may spend on its patterns.

    Short patterns cost nothing, so the patterns that people write are never refused, for any number of names.
    """

    __slots__ = ("_left",)

    def __init__(self, most: int | None = None) -> None:
        self._left = MOST_EFFORT if most is None else most

    def spend(self, units: int) -> None:
        """Subtract work that is about to be done. Raise the error if the command has used up its work."""
        self._left -= units
        if self._left < 0:
            raise PatternTooCostlyError


def _range(low: int, high: int, *, nocase: bool) -> int:
    """Return the bytes of a range as a set of bits. Redis compares them as C's ``char``, so 0xff comes before 0x00."""
    first, last = sorted((low ^ 0x80, high ^ 0x80))  # in the order of C's signed char
    if not nocase:
        span = ((1 << (last + 1)) - 1) >> first << first
        return span >> 128 | (span & ((1 << 128) - 1)) << 128
    # The ends become lower case only after sorting, so [Z-a] is empty
    first, last = _SMALL_LETTER[first ^ 0x80], _SMALL_LETTER[last ^ 0x80]
    if first ^ 0x80 > last ^ 0x80:
        return 0
    span = _range(first, last, nocase=False)
    return span & ~(_LETTERS >> 32) | (span & _LETTERS) >> 32  # a capital letter matches if its small letter does


def _class(pattern: bytes, at: int, *, nocase: bool) -> tuple[int, int]:
    """Return the bytes of a class as a set of bits, and the position after the class.

    ``at`` is the position after the class's ``[``.
    """
    negated = at < len(pattern) and pattern[at] == _NOT
    at += negated
    chosen = 0
    single = _FOLDED if nocase else _BITS
    while at < len(pattern) and pattern[at] != _CLOSE:
        if pattern[at] == _ESCAPE and at + 1 < len(pattern):
            chosen |= _BITS[pattern[at + 1]]  # as in Redis, an escaped byte is always case-sensitive here
            at += 2
        elif at + 2 < len(pattern) and pattern[at + 1] == _DASH:
            chosen |= _range(pattern[at], pattern[at + 2], nocase=nocase)
            at += 3
        else:
            chosen |= single[pattern[at]]
            at += 1
    return _ALL & ~chosen if negated else chosen, at + 1


class _Name:
    """A name during its comparison with a pattern."""

    __slots__ = ("_places", "effort", "folded", "raw")

    def __init__(self, raw: bytes, effort: Effort, *, nocase: bool) -> None:
        self.raw = raw  # Name to match
        # Name in lower case if case is ignored; otherwise the same object
        self.folded = raw.lower() if nocase else raw
        self.effort = effort
        self._places: dict[int, int] = {}

    def places(self, chosen: int) -> int:
        """Return the positions in the name of the bytes of this set: bit 0 for the first byte."""
        found = self._places.get(chosen)
        if found is None:
            self.effort.spend(4 * len(self.raw))
            digits = f"{chosen:0256b}".encode()[::-1]
            found = self._places[chosen] = int(self.raw[::-1].translate(digits), 2)
        return found


class _Part:
    """A part of a pattern between two stars. It matches a fixed number of bytes."""

    __slots__ = ("sets", "size", "text")

    def __init__(self, pieces: list[bytes | int], *, nocase: bool) -> None:
        self.text: bytes | None = None  # Bytes of a part without wildcards; otherwise None
        self.sets: list[int] = []  # Set of matching bytes for each position; empty for plain text
        if any(type(piece) is int for piece in pieces):
            single = _FOLDED if nocase else _BITS
            for piece in pieces:
                self.sets += [piece] if isinstance(piece, int) else [single[byte] for byte in piece]
            self.size = len(self.sets)  # Number of bytes that the part matches
        else:
            text = b"".join(piece for piece in pieces if isinstance(piece, bytes))
            self.text = text.lower() if nocase else text
            self.size = len(text)

    def stands_at(self, name: _Name, position: int) -> bool:
        """Return True if the name contains the part at this position."""
        if self.text is not None:
            return name.folded.startswith(self.text, position)
        if self.size > 64:
            name.effort.spend(100 * self.size)
        at = position
        for chosen in self.sets:
            if not chosen >> name.raw[at] & 1:
                return False
            at += 1
        return True

    def find(self, name: _Name, start: int, end: int) -> int:
        """Return the first position of the part in this slice of the name, -1 if there is none."""
        room = end - start
        if self.text is not None and room * self.size <= _SMALL:
            if room > 4096:
                name.effort.spend(room)
            return name.folded.find(self.text, start, end)
        name.effort.spend(1000)
        if room < self.size:
            return -1
        found = ((1 << (room - self.size + 1)) - 1) << start
        sets = self.sets if self.text is None else self._sets_of_text(name)
        for offset, chosen in enumerate(sets):
            if chosen != _ALL:
                name.effort.spend(300 + (len(name.raw) >> 3))
                found &= name.places(chosen) >> offset
            if not found:
                return -1
        return (found & -found).bit_length() - 1

    def _sets_of_text(self, name: _Name) -> list[int]:
        assert self.text is not None
        single = _BITS if name.folded is name.raw else _FOLDED
        return [single[byte] for byte in self.text]

    def expression(self, *, nocase: bool) -> bytes:
        """Return the part as a regular expression."""
        if self.text is None:
            return b"".join([b"." if chosen == _ALL else _alternatives(chosen) for chosen in self.sets])
        if nocase:
            return b"".join([_alternatives(_FOLDED[byte]) for byte in self.text])
        return re.escape(self.text)


def _alternatives(chosen: int) -> bytes:
    """Return a regular expression that matches one byte of a set."""
    digits = f"{chosen:0256b}"[::-1]
    runs = [b"\\x%02x-\\x%02x" % (run.start(), run.end() - 1) for run in _ONES.finditer(digits)]
    return b"[" + b"".join(runs) + b"]" if runs else b"(?!)"


def price(source: bytes) -> int:
    """Return the largest cost of parsing a pattern, in units of :class:`Effort`."""
    signs = min(source.count(b"*"), MOST_STARS) + source.count(b"[")
    return _least_price(source) + _OF_SIGN * signs


def _least_price(source: bytes) -> int:
    """Return the cost of parsing a pattern without its stars and classes.

    Past a thousand stars, parsing stops, so this cost is then the whole one.
    """
    if not _SPECIAL.search(source):
        return 0
    wild = source.count(b"?") + source.count(b"\\") + 2 * source.count(b"-")  # a dash may form a range in a class
    return _OF_PATTERN + _PARSING * len(source) + _OF_WILD * wild


class Pattern:
    """A parsed pattern, which can be compared with any number of names."""

    __slots__ = ("_exact", "_head", "_least", "_middle", "_never", "_nocase", "_source", "_tail")

    def __init__(self, source: bytes, effort: Effort, *, nocase: bool = False) -> None:
        self._source = source
        self._nocase = nocase
        effort.spend(_least_price(source))
        pieces = _pieces(source, effort, nocase=nocase)
        self._never = pieces is None
        parts = [_Part(each, nocase=nocase) for each in pieces or [[]]]
        self._exact = len(parts) == 1
        self._head = parts[0]
        self._tail = None if self._exact or not parts[-1].size else parts[-1]
        self._middle = parts[1:-1]
        self._least = sum(part.size for part in parts)

    def fits(self, raw: bytes, effort: Effort) -> bool:
        """Return True if the whole name matches the pattern."""
        size = len(raw)
        if not size:  # in Redis, not even a star matches the empty name
            return not self._source
        if self._never or size < self._least or (self._exact and size != self._least):
            return False
        name = _Name(raw, effort, nocase=self._nocase)
        if not self._head.stands_at(name, 0):
            return False
        end = size
        if self._tail is not None:
            end -= self._tail.size
            if not self._tail.stands_at(name, end):
                return False
        start = self._head.size
        for part in self._middle:
            position = part.find(name, start, end)
            if position < 0:
                return False
            start = position + part.size
        return True

    def expression(self) -> re.Pattern[bytes] | None:
        """Return a regular expression that matches the same names, except the empty one; None for a long pattern."""
        if len(self._source) > _SHORT:
            return None
        head = self._head.expression(nocase=self._nocase)
        if self._exact:
            return re.compile(head, re.DOTALL)
        # A part between stars is matched only at its first occurrence (an atomic group)
        middle = [b"(?>.*?%b)" % part.expression(nocase=self._nocase) for part in self._middle]
        tail = self._tail.expression(nocase=self._nocase) if self._tail is not None else b""
        return re.compile(head + b"".join(middle) + b".*" + tail, re.DOTALL)


def _pieces(pattern: bytes, effort: Effort, *, nocase: bool) -> list[list[bytes | int]] | None:
    """Split a pattern at its stars.

    Return each part as plain bytes and sets of bytes; None if it has too many stars.
    """
    parts: list[list[bytes | int]] = [[]]
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        if byte == _STAR:
            at = _end(_STARS, pattern, at)
            if len(parts) > MOST_STARS and at < len(pattern):
                return None
            effort.spend(_OF_SIGN)
            parts.append([])
        elif byte == _ANY:
            parts[-1].append(_ALL)
            at += 1
        elif byte == _OPEN:
            effort.spend(_OF_SIGN)
            chosen, at = _class(pattern, at + 1, nocase=nocase)
            parts[-1].append(chosen)
        elif byte == _ESCAPE:
            at += at + 1 < len(pattern)
            parts[-1].append(pattern[at : at + 1])
            at += 1
        else:
            end = _end(_PLAIN, pattern, at)
            parts[-1].append(pattern[at:end])
            at = end
    return parts


def _end(run: re.Pattern[bytes], pattern: bytes, at: int) -> int:
    """Return the end of the run that begins at this position."""
    found = run.match(pattern, at)
    assert found is not None
    return found.end()


def matcher(pattern: bytes, *, nocase: bool = False) -> Callable[[bytes], bool]:
    """Return a function that reports whether a whole name matches the pattern.

    All names together may cost as much as one command may; for a pattern that serves many commands, use :func:`rule`. A
    lone star matches the empty name too, since KEYS, SCAN and ACL rules do not compare names with it.
    """
    effort = Effort()
    return _matcher(Pattern(pattern, effort, nocase=nocase), pattern, lambda: effort)


def rule(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a matcher for a lasting pattern, such as an ACL rule's. Each name may cost as much as one command may."""
    return _matcher(Pattern(pattern, Effort()), pattern, Effort)


def _matcher(whole: Pattern, source: bytes, effort: Callable[[], Effort]) -> Callable[[bytes], bool]:
    if source == b"*":
        return lambda _name: True
    short = whole.expression()
    if short is None:
        return lambda name: whole.fits(name, effort())
    fullmatch, longest = short.fullmatch, _QUICK // (len(source) + 1)

    def fits(name: bytes) -> bool:
        return fullmatch(name) is not None if 0 < len(name) <= longest else whole.fits(name, effort())

    return fits


# Rules of ``stream-retention``: the largest age of entries, and the largest size of a stream in bytes. A rule is a
# pattern of keys, an age and a size: ``orders:* 7d 50gb``; 0 sets no limit. The first rule that matches a key counts.
# A wide pattern such as ``*`` never matches streams for later inspection or work: dead letters, schedules and this
# project's own records. A pattern that names them does.

# Largest pattern in bytes: each new stream is compared with all patterns
_MOST = 512
# Characters of an invalid argument that an error shows
_SHOWN = 20
_SIZES = "Write a whole number with b, kb, mb or gb, such as 50gb, or 0 for no bound"
_DEAD, _OWN = b":dead", (b"millstream:", b"schedule:")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    pattern: bytes  # Pattern of the keys
    fits: Callable[[bytes], bool] = field(compare=False)  # Tests a key against the pattern
    age: int  # Largest age in milliseconds, 0 for no bound
    size: int  # Largest size of all nodes in bytes, 0 for no bound
    text: str = field(default="", compare=False)  # The rule as written

    def takes(self, key: bytes) -> bool:
        """True if the rule matches this key."""
        if key.endswith(_DEAD) and not self.pattern.endswith(_DEAD):
            return False
        if any(key.startswith(own) and not self.pattern.startswith(own) for own in _OWN):
            return False
        try:
            return self.fits(key)
        except PatternTooCostlyError:
            return False


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules, in order."""

    rules: tuple[Rule, ...] = ()
    text: str = ""  # Rules as written in the configuration

    def __str__(self) -> str:
        return self.text

    def find(self, key: bytes) -> Rule | None:
        """The first rule that matches this key, if it has a limit; None if the stream keeps everything."""
        found = next((each for each in self.rules if each.takes(key)), None)
        return found if found is not None and (found.age or found.size) else None


def retention(size: Callable[[str], int]) -> Callable[[str], Rules]:
    """Return a parser for rules; ``size`` parses bytes."""

    def parse(text: str) -> Rules:
        words = text.split()
        if len(words) % 3:
            raise ValueError(
                "argument must be a pattern, an age and a size, once or more often, such as 'orders:* 7d 50gb'; 0 sets "
                "no bound"
            )
        made = [_rule(words[at], words[at + 1], words[at + 2], size) for at in range(0, len(words), 3)]
        return Rules(tuple(made), " ".join(words))

    return parse


def _rule(pattern: str, age: str, most: str, size: Callable[[str], int]) -> Rule:
    raw = pattern.encode("utf-8", "surrogateescape")
    if len(raw) > _MOST:
        raise ValueError(f"the pattern {pattern[:_SHOWN]!r}... is invalid: it is longer than {_MOST} bytes")
    if _is_open(raw):  # Redis's glob takes it, and such a pattern matches hardly any key
        raise ValueError(f"the pattern {_shown(pattern)} is invalid: a '[' has no ']'. Close it, or write \\[")
    try:
        longest = 0 if age == "0" else span(age)
    except ValueError as reason:
        raise ValueError(f"the age {_shown(age)} is invalid: {reason}, or 0 for no bound{_order(age, size)}") from None
    try:
        largest = size(most)
    except ValueError:
        raise ValueError(f"the size {_shown(most)} is invalid: it is not a size. {_SIZES}") from None
    if largest and most.isdigit():  # a forgotten unit would remove almost all of a stream
        raise ValueError(f"the size {_shown(most)} is invalid: it has no unit. {_SIZES}")
    return Rule(raw, rule(raw), longest, largest, f"{pattern} {age} {most}")


def _is_open(pattern: bytes) -> bool:
    """True if a class of the pattern is not closed."""
    at = 0
    while at < len(pattern):
        is_class = pattern[at] == _OPEN
        at = _class(pattern, at + 1, nocase=False)[1] if is_class else at + 1 + (pattern[at] == _ESCAPE)
        if is_class and at > len(pattern):
            return True
    return False


def _shown(word: str) -> str:
    return repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}..."


def _order(age: str, size: Callable[[str], int]) -> str:
    """Return advice if a size stands where an age must be."""
    try:
        size(age)
    except ValueError:
        return ""
    return "" if age.isdigit() else ". Write the age before the size"
