"""Streams, groups and consumers by a part of their names. Pure."""

from dataclasses import dataclass

from millstream.console.model.streams import StreamsSeen


@dataclass(frozen=True, slots=True)
class Hit:
    """Something whose name fits."""

    kind: str  # ``stream``, ``group`` or ``consumer``
    stream: str  # Key of the stream
    group: str | None = None  # The group, or that of the consumer
    consumer: str | None = None  # The consumer

    @property
    def text(self) -> str:
        """Its own name."""
        return next(each for each in (self.consumer, self.group, self.stream) if each is not None)


def search(seen: StreamsSeen, wanted: str) -> list[Hit]:
    """All that fits, the nearest first; of consumers those that hold entries."""
    return sorted(_hits(seen, wanted.casefold()), key=lambda hit: (_distance(hit.text, wanted), hit.stream, hit.text))


def _hits(seen: StreamsSeen, wanted: str) -> list[Hit]:
    found = []
    for stream in seen.streams:
        if wanted in stream.key.casefold():
            found.append(Hit("stream", stream.key))
        for group in stream.groups:
            if wanted in group.name.casefold():
                found.append(Hit("group", stream.key, group.name))
            found += [
                Hit("consumer", stream.key, group.name, holder)
                for holder in group.held or ()
                if wanted and wanted in holder.casefold()
            ]
    return found


def _distance(text: str, wanted: str) -> tuple[bool, bool, int]:
    """The distance of a name from the typed text: the same name first, then names that begin so, then short ones."""
    low, typed = text.casefold(), wanted.casefold()
    return low != typed, not low.startswith(typed), len(text)
