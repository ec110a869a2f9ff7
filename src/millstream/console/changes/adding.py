"""An entry that a person adds, decided. Pure."""

from collections.abc import Sequence

from millstream.console.changes.plan import BeforeAfter, ChangePlan, Step, Undo, Words, no_stream_check, stream_check
from millstream.console.model.streams import StreamStatus


def add(
    stream: StreamStatus | None, key: str, fields: Sequence[tuple[bytes, bytes]], words: tuple[str, ...]
) -> ChangePlan:
    """Add one entry."""
    length = 0 if stream is None else stream.length
    groups = () if stream is None else stream.groups
    table = (BeforeAfter("entries", length, length + 1),)
    notes = [f"There is no stream {key!r}: it is made."] if stream is None else []
    names = ", ".join(repr(group.name) for group in groups[:5]) + (f" and {len(groups) - 5} more" if groups[5:] else "")
    notes.append(f"It is delivered to {names}." if groups else "No group reads the stream: nobody is given it.")
    check = no_stream_check(key) if stream is None else stream_check(key)
    command: Words = ("XADD", key, "*", *(part for pair in fields for part in pair))
    undo = Undo(note="XDEL with its id takes it out; what a group was delivered meanwhile stays pending there.")
    number = f"{len(fields)} {'field' if len(fields) == 1 else 'fields'}"
    question = f"Add an entry of {number} to {key!r}?"
    steps = (Step((command,), (check,)),)
    return ChangePlan("stream add", key, "", question, table, tuple(notes), steps, undo, {"fields": len(fields)}, words)
