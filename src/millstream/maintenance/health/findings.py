"""Findings of ``millstream doctor``, each with the fact, its importance and the next step."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    # ``ok``; ``note``: useful to know; ``warning``: will cause trouble; ``problem``: data loss or failure
    level: Level
    check: str  # Subject of the check, one or two fixed words
    what: str  # Fact that was found
    why: str = ""  # Reason why it matters; empty for ``ok``
    advice: str = ""  # Next step; empty if there is none
    place: tuple[str, str] | None = None  # Stream and group of the finding; None for another subject


ok, note, warning, problem = (partial(Finding, level) for level in LEVELS)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level of the findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
