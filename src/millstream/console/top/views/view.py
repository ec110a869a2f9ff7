"""What a view of the terminal shows, before it is drawn: figures, and sections of rows that lead on. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopPlace:
    """Where somebody is.

    Attributes:
        view: its name, such as ``group``.
        words: of what it is: names as text with ``surrogateescape``.
    """

    view: str
    words: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> dict[str, str]:
        """The words by name."""
        return dict(self.words)


def place(view: str, **words: str | None) -> TopPlace:
    """A place by its words; those that are None are left out."""
    return TopPlace(view, tuple((name, word) for name, word in words.items() if word is not None))


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """One column of a section.

    Attributes:
        heading: above it.
        right: its cells end at its right edge, as figures do.
        rank: how soon it goes where there is no room: the highest first, 0 stays.
        prose: its cells are cut where there is no room, before a column goes.
    """

    heading: str
    right: bool = False
    rank: int = 0
    prose: bool = False


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One row.

    Attributes:
        id: by which it is known again in the next reading.
        cells: one for each column.
        to: where Enter leads; None for nowhere.
        mark: ``!`` where a person is needed, else empty.
        about: what a change of it would be about, as words of a form.
        under: further lines.
    """

    id: str
    cells: tuple[str, ...]
    to: TopPlace | None = None
    mark: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    under: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewSection:
    """Rows of one kind.

    Attributes:
        title: above them.
        columns: of each row.
        rows: in their order.
        empty: what is said where there are none; a section without rows and without this is not shown.
        whole: where all rows are; with it the section takes at most a quarter of a screen, which has other things to
            show.
    """

    title: str
    columns: tuple[ViewColumn, ...]
    rows: tuple[ViewRow, ...]
    empty: str = ""
    whole: TopPlace | None = None


@dataclass(frozen=True, slots=True)
class TopView:
    """All that is shown of one place.

    Attributes:
        title: its name, the last of the way that led here.
        figures: what counts most: name and value.
        notes: what else has to be said, such as why a lag is not known.
        sections: in their order.
        command_lines: that show the same.
        about: what a change of the whole would be about, as words of a form.
        actions: the changes that are offered, by name.
        sorts: what its rows may be sorted by; the first unless chosen.
        at_ms: wall milliseconds when the server had answered; 0 where it has not.
        trouble: why there is nothing newer.
    """

    title: str
    figures: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    sections: tuple[ViewSection, ...] = ()
    command_lines: tuple[tuple[str, ...], ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    sorts: tuple[str, ...] = ()
    at_ms: int = 0
    trouble: str = ""
