"""What a doctor says: each finding with what was found, why it matters and what to do next."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    # ``ok``; ``note``: worth knowing; ``warning``: will hurt one day; ``problem``: loses data, or does not work
    level: Level
    check: str  # What was looked at, one or two words that do not change
    what: str  # What was found
    why: str = ""  # Why it matters; empty if it is fine
    advice: str = ""  # What to do next; empty if there is nothing to do


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level among them."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
