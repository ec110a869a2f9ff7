"""Pending entries made dead letters by a person: poison that nobody is to try again, and no outage of a whole group."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.dead_letter.letter import DeadLetter, dead_key, take_history
from millstream.client.dead_letter.transaction import BATCH, FIELDS_LIMIT
from millstream.client.line import Line
from millstream.console.changes import pending
from millstream.console.changes.gather import Chosen, Counting
from millstream.console.changes.making import Prepared, paged, pending_list, require_rights
from millstream.console.changes.plan import ChangePlan, ChangeRefusedError, HeldEntry
from millstream.console.changes.rights import rights_on
from millstream.console.model.names import milliseconds
from millstream.console.reading.asking import calls, checked
from millstream.errors import UsageError

REASON = "set aside by a person"
"""The error of such a letter, unless the person gives a reason."""

_NOTES = (
    "A worker that has one in hand finishes its run; its outcome changes nothing any more.",
    "Entries that are no longer in the stream stay pending: `millstream pending ack --gone` takes them out.",
)


@dataclass(frozen=True, slots=True)
class Death:
    """The death of entries.

    Attributes:
        at_ms: the moment, milliseconds since 1970.
        reason: in the words of the person who decides it.
        to: key of the dead-letter stream; empty for the usual one.
    """

    at_ms: int
    reason: str = REASON
    to: str = ""


async def set_aside(
    line: Line,
    stream: str,
    group: str,
    chosen: Chosen,
    words: tuple[str, ...],
    death: Death,
    *,
    tell: Counting | None = None,
) -> Prepared:
    """Make dead letters of pending entries.

    Args:
        line: to the server.
        stream: its key.
        group: its name.
        chosen: these entries.
        words: the command line.
        death: of all of them.
        tell: called with the entries counted.

    Raises:
        ChangeRefusedError: the user may not.
        NotReadableError: there is no such stream or group, or the server does not let us look.
        UsageError: the stream is a dead-letter stream itself, and no other one is named.
        Disconnected: no answer came.
    """
    dead = death.to or dead_key(stream)
    if dead == stream:
        raise UsageError(f"{stream!r} is a dead-letter stream: name another one for its letters by --to")
    rights = await require_rights(line, "pending dead", stream)
    if (why := (await rights_on(line, dead)).refusal("XADD")) is not None:
        raise ChangeRefusedError(f"{dead}: {why}")
    where = pending_list(stream, group, rights)
    note = f"`millstream dead retry` puts a letter of {dead} back on its stream, as a new entry for this group alone."

    async def make(line: Line, held: list[HeldEntry]) -> ChangePlan:
        return pending.set_aside(where, dead, await _letters(line, stream, group, held, death), note)

    return await paged(line, rights, where, chosen, words, _NOTES, make, tell, BATCH)


async def _letters(
    line: Line, stream: str, group: str, held: Sequence[HeldEntry], death: Death
) -> list[tuple[HeldEntry, DeadLetter]]:
    """The letter of each entry that is in the stream.

    Raises:
        ChangeRefusedError: an entry has more fields than a script passes on.
    """
    replies = await calls(line.near(stream), [("XRANGE", stream, each.id, each.id) for each in held])
    found = []
    for each, reply in zip(held, replies, strict=True):
        for _, flat in checked(reply, stream):
            if len(flat) > FIELDS_LIMIT:
                raise ChangeRefusedError(
                    f"{each.id} has {len(flat) // 2} fields, more than the script of this change passes on: "
                    "give it back by pending nack, and a worker sets it aside"
                )
            fields, history = take_history(list(flat))
            letter = DeadLetter(
                tuple(fields), stream, each.id, group, each.consumer, each.deliveries, "reject", death.reason, "",
                milliseconds(each.id), death.at_ms, history,
            )  # fmt: skip
            found.append((each, letter))
    return found
