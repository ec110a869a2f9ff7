"""A doctor's findings, each with the fact, why it matters and what to do next."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    # ``ok``; ``note``: worth knowing; ``warning``: will hurt one day; ``problem``: loses data, or does not work
    level: Level
    check: str  # The subject, one or two words that do not change
    what: str  # The fact
    why: str = ""  # The reason that it matters; empty if it is fine
    advice: str = ""  # The next step; empty if there is none


ok, note, warning, problem = (partial(Finding, level) for level in LEVELS)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level among them."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
