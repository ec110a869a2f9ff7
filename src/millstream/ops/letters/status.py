"""Dead letters, stream by stream, and what an error is called. Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LettersStatus:
    """A dead-letter stream."""

    key: str  # Its key
    letters: int  # Number of its entries
    first_ms: int  # Time of the oldest letter, wall milliseconds
    last_ms: int  # Time of the newest letter
    streams: tuple[str, ...]  # Sources of its oldest and its newest letter


@dataclass(frozen=True, slots=True)
class LettersSeen:
    """All dead-letter streams of a server, read at one moment."""

    at_ms: int  # Wall milliseconds when they were asked for
    streams: tuple[LettersStatus, ...] = ()  # Dead-letter streams by key
    why: str | None = None  # The reason why nothing is known of them; None when it is

    @property
    def letters(self) -> int:
        """The number of letters in all of them."""
        return sum(one.letters for one in self.streams)

    def of(self, *streams: str) -> "LettersSeen":
        """Only the letters of these streams; all letters if none is named."""
        if not streams:
            return self
        return replace(self, streams=tuple(one for one in self.streams if {one.key, *one.streams} & {*streams}))


_CLASS = 80  # letters of what an error is called


def error_class(error: str) -> str:
    """The class of an error: its type, where its text begins with one."""
    kind, colon, _ = error.partition(":")
    return (kind if colon and kind.replace(".", "").isidentifier() else error.partition("\n")[0])[:_CLASS]
