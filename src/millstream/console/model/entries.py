"""An entry as a stream has it: its id, and names and values of its writer. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EntryView:
    """One entry, its values as they are stored."""

    stream: str  # Key of the stream
    id: str  # Id of the entry
    fields: tuple[tuple[bytes, bytes], ...]  # Names and values in their order; a name may come twice
