"""Dead letters, stream by stream, and what an error is called. Pure."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LettersStatus:
    """A dead-letter stream.

    Attributes:
        key: its key.
        letters: how many entries it has.
        first_ms: when the oldest was written, wall milliseconds.
        last_ms: when the newest was.
        streams: where its oldest and its newest letter came from.
    """

    key: str
    letters: int
    first_ms: int
    last_ms: int
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LettersSeen:
    """All dead-letter streams of a server, read at one moment.

    Attributes:
        at_ms: wall milliseconds when they were asked for.
        streams: by key.
        why: why nothing is known of them; None when it is.
    """

    at_ms: int
    streams: tuple[LettersStatus, ...] = ()
    why: str | None = None

    @property
    def letters(self) -> int:
        """In all of them."""
        return sum(one.letters for one in self.streams)

    def of(self, stream: str | None) -> "LettersSeen":
        """Only what died in one stream; everything where that is None."""
        if stream is None:
            return self
        return replace(self, streams=tuple(one for one in self.streams if stream in (one.key, *one.streams)))


_CLASS = 80  # letters of what an error is called


def error_class(error: str) -> str:
    """What an error is called: its type, where its text begins with one."""
    kind, colon, _ = error.partition(":")
    return (kind if colon and kind.replace(".", "").isidentifier() else error.partition("\n")[0])[:_CLASS]
