"""An entry as a stream has it: its id, and names and values that anybody wrote. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EntryView:
    """One entry, its values as they are stored.

    Attributes:
        stream: key of the stream.
        id: of the entry.
        fields: names and values in their order; a name may stand there twice.
    """

    stream: str
    id: str
    fields: tuple[tuple[bytes, bytes], ...]
