"""The form of a result: a ratio beside its bar."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One ratio.

    Attributes:
        goal: G1 to G10.
        text: Description of the ratio.
        ratio: The ratio; None if it was not measured.
        bar: Bound of the ratio.
        is_least: True if the bar is the least that is good, not the most.
    """

    goal: str
    text: str
    ratio: float | None = None
    bar: float = 0.0
    is_least: bool = False

    @property
    def verdict(self) -> str:
        """Return ``holds`` or ``missed``, or nothing for what has no bar."""
        if self.ratio is None or not self.bar:
            return ""
        holds = self.ratio >= self.bar if self.is_least else self.ratio <= self.bar
        return "holds" if holds else "missed"

    def row(self) -> list[str]:
        """Return the cells of a table."""
        bar = f"{'at least' if self.is_least else 'at most'} {self.bar:.3g}" if self.bar else ""
        return [self.goal, self.text, "" if self.ratio is None else f"{self.ratio:.3f}", bar, self.verdict]
