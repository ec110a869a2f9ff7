"""Which columns of a table fit on a terminal, and how wide each one is. Pure.

Ids, times, figures and names are never broken: what was cut in two cannot be copied. Where a terminal is too narrow,
prose is wrapped first, then columns go, those that matter least before the others, unless
what a wider one leaves has room for them; a table that is too wide even so
runs past the edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""Blanks between two columns."""

PROSE = 30
"""Narrowest that a column of prose is made."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one column asks for.

    Attributes:
        width: of its widest cell or its heading, in cells of the terminal.
        heading: width of its heading.
        rank: how soon it goes where there is no room: the highest first, 0 never.
        prose: it may be wrapped.
    """

    width: int
    heading: int
    rank: int = 0
    prose: bool = False

    @property
    def least(self) -> int:
        """The width below which it is not made."""
        return min(self.width, max(PROSE, self.heading)) if self.prose else self.width


def fit(needs: Sequence[Need], width: int) -> dict[int, int]:
    """The columns that are shown, by their place in the table, and how wide each is.

    Args:
        needs: of all columns in their order.
        width: of the terminal.
    """
    kept = list(range(len(needs)))
    while _total([needs[at].least for at in kept]) > width:
        soonest = max(kept, key=lambda at: (needs[at].rank, at))
        if needs[soonest].rank == 0:
            break
        kept.remove(soonest)
    for at in sorted(set(range(len(needs))) - set(kept), key=lambda at: (needs[at].rank, at)):
        if _total([needs[one].least for one in (*kept, at)]) <= width:  # a wide one went, and left room for this
            kept.append(at)
    kept.sort()
    widths = {at: needs[at].least for at in kept}
    room = max(width - _total(list(widths.values())), 0)
    for at in kept:
        more = min(needs[at].width - widths[at], room)
        widths[at] += more
        room -= more
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * max(len(widths) - 1, 0)
