"""Dead letters by stream, and the classes of their errors. Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LettersStatus:
    """The status of a dead-letter stream."""

    key: str  # Key of the dead-letter stream
    letters: int  # Number of its entries
    first_ms: int  # Time of the oldest letter, wall milliseconds
    last_ms: int  # Time of the newest letter, wall milliseconds
    streams: tuple[str, ...]  # Source streams of the oldest and the newest letter


@dataclass(frozen=True, slots=True)
class LettersSeen:
    """All dead-letter streams of a server, read at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    streams: tuple[LettersStatus, ...] = ()  # Dead-letter streams by key
    why: str | None = None  # Reason why the streams are unknown; None if they are known

    @property
    def letters(self) -> int:
        """Number of letters in all dead-letter streams."""
        return sum(one.letters for one in self.streams)

    def of(self, *streams: str) -> "LettersSeen":
        """Return only the letters from these streams; all letters if no stream is given."""
        if not streams:
            return self
        return replace(self, streams=tuple(one for one in self.streams if {one.key, *one.streams} & {*streams}))
