"""The rules of ``stream-retention``: the largest age of entries, and the largest size of a stream in bytes.

PURE. A rule is a pattern of keys, an age and a size: ``orders:* 7d 50gb``; 0 sets no limit. The first rule that matches
a key counts. A wide pattern such as ``*`` never matches streams for later inspection or work: dead letters, schedules
and this project's own records. A pattern that names them does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from millstream.glob import PatternTooCostlyError, rule
from millstream.times import span

# Largest pattern in bytes: each new stream is compared with all patterns
_MOST = 512
# Characters of an invalid argument that an error shows
_SHOWN = 20
_DEAD, _OWN = b":dead", (b"millstream:", b"schedule:")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    pattern: bytes  # Pattern of the keys
    fits: Callable[[bytes], bool]  # Tests a key against the pattern
    age: int  # Largest age in milliseconds, 0 for no bound
    size: int  # Largest size of all nodes in bytes, 0 for no bound

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
    try:
        longest = 0 if age == "0" else span(age)
    except ValueError as reason:
        raise ValueError(f"the age {age[:_SHOWN]!r} is invalid: {reason}, or 0 for no bound") from None
    try:
        largest = size(most)
    except ValueError:
        raise ValueError(f"the size {most[:_SHOWN]!r} is invalid: use bytes, or a number with kb, mb or gb") from None
    return Rule(raw, rule(raw), longest, largest)
