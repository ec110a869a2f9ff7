"""The actions ``group rewind`` and ``group create``, with their plans."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from millstream.client.partitions.layout import logical
from millstream.errors import UsageError
from millstream.ops.actions import Spread, Together, Word, action
from millstream.ops.asking import NotReadableError, is_missing
from millstream.ops.groups.reading import place_facts, rewind_facts
from millstream.ops.groups.status import UNREAD, Ahead, Between, GroupReaders
from millstream.ops.making import ActionCall
from millstream.ops.parameters import Group, Stream, StreamPlace, place
from millstream.ops.plan import (
    BeforeAfter,
    ChangePlan,
    ChangeRefusedError,
    Step,
    TargetMissingError,
    Undo,
    Words,
    counted,
    group_check,
    no_stream_check,
    position_check,
)
from millstream.ops.streams import reading as reading_streams
from millstream.ops.streams.partitioned import parts_of, read_layouts
from millstream.ops.streams.status import GroupPosition, GroupStatus, StreamStatus, lag_of
from millstream.ops.words import NEVER, command_words, milliseconds, order, shell_line
from millstream.texts import time_text


def position_facts(stream: StreamStatus, group: GroupStatus) -> dict[str, object]:
    """Return the fields of XINFO GROUPS that give the group's position."""
    facts: dict[str, object] = {"last_delivered_id": group.last_delivered_id}
    if stream.entries_added is not None:
        facts["entries_read"] = group.entries_read
    return facts


_LIKE = Word("option", "OTHER", "Use the position of this other group of the stream.", name="like")


def _to(values: Mapping[str, Any]) -> StreamPlace:
    to, like = values["to"], values["like"]
    if (to is None) == (like is None):
        raise UsageError("The position is missing. Give --to PLACE, or --like OTHER.")
    found: StreamPlace = StreamPlace("like", group=like) if to is None else to
    return found


def _at(values: Mapping[str, Any]) -> StreamPlace:
    if values["like"] is not None:
        return StreamPlace("like", group=values["like"])
    found: StreamPlace = values["at"] or StreamPlace("end")
    if found.kind == "shift":
        raise UsageError("+N and -N are only for group rewind: a new group has no position to count from")
    return found


@action(
    "group rewind",
    "Set a group to another position: deliver entries again, or skip them.",
    "XGROUP SETID",
    undo="group rewind",
    parts=Spread(parts_of),
)
async def rewind(
    change: ActionCall,
    stream: Stream,
    group: Group,
    to: Annotated[
        StreamPlace,
        Together(
            _to,
            (
                Word("option", "PLACE", "New position: a time, an id, start, end, -N or +N.", name="to", typed="place",
                     title="to", hint="1h-ago, a time, an id, start, end, -100", read=place, needed=True),
                _LIKE,
            ),
        ),
    ],
    even_if_moved: Annotated[
        bool,
        Word("flag", says="Rewind even if the group reads on before you confirm.", title="even if moved",
             hint="even if the group reads on meanwhile"),
    ] = False,
) -> ChangePlan:  # fmt: skip
    """Set GROUP of STREAM to another position: entries after it are delivered again, earlier ones are not.

    \b
    PLACE is one of
      1h-ago, or a time     deliver entries added since then again; 2026-03-01T12:00:00 is in UTC
      1763721600000-0       id of the last entry that counts as delivered
      start, end            deliver all entries again; skip all entries
      -100, +100            move the group back, or forward, by this number of entries

    A preview shows the position, the next entry and the lag before and after. It also shows the number of entries
    delivered again or skipped, and the number of those still pending. If the server counts the entries that the group
    read, that counter is set too, so that the lag stays known. Pending entries stay pending.

    The group of a partitioned stream moves in each partition, to the same PLACE; -100 counts in each of them.

    If the group reads on before you confirm, nothing is changed: pause its workers first (`millstream worker pause`),
    or use --even-if-moved. Even then nothing is changed if another user set the group back meanwhile, or if it is
    already past the position to skip to.

    \b
    Examples:
      millstream group rewind orders billing --to 1h-ago --dry-run
      millstream group rewind orders billing --to start
      millstream group rewind orders billing --to -100 --yes
      millstream group rewind orders billing --like shipping
      millstream group rewind orders billing --to 1h-ago --even-if-moved
    """
    facts = await rewind_facts(change.line, stream, group, to, tell=change.tell)
    # A group in use advances before a person has read a page's preview
    anyway = even_if_moved or (change.kept and bool(facts.read_by.names))
    change.settle(to=facts.there.id, like=None, even_if_moved="1" if anyway else None)
    places = (facts.here, facts.there, facts.between, facts.read_by)
    return plan_rewind(facts.stream, facts.group, *places, even_if_moved=anyway)


@action("group create", "Create a group at the start, the end, a time or an entry.", "XGROUP CREATE", undo="group rm")
async def create(
    change: ActionCall,
    stream: Stream,
    group: Annotated[str, Word("argument", "GROUP", title="name", hint="billing", needed=True)],
    at: Annotated[
        StreamPlace,
        Together(
            _at,
            (
                Word("option", "PLACE", "Start position: start, end, a time or an entry's id.", name="at",
                     typed="place", title="at", hint="start, end, 1h-ago, an id", read=place, needed=True, usual="end"),
                _LIKE,
            ),
        ),
    ],
    mkstream: Annotated[bool, Word("flag", says="Create an empty stream if there is none.")] = False,
) -> ChangePlan:  # fmt: skip
    """Create GROUP of STREAM, which begins at PLACE: start, end, a time such as 1h-ago, or an entry's id.

    \b
    Examples:
      millstream group create orders billing                  entries added from now on
      millstream group create orders billing --at start       all entries of the stream
      millstream group create orders audit --at 1d-ago --yes
      millstream group create orders second --like billing
      millstream group create orders billing --mkstream       even if there is no stream yet
    """
    if (layout := (await read_layouts(change.line, [stream])).get(stream)) is not None:
        one = shell_line(command_words("group create", layout.keys[0], group))
        raise ChangeRefusedError(
            f"The stream {stream!r} is partitioned, and a group of the name alone receives nothing. Its workers create "
            f"the group in each partition; `{one}` creates it in the first."
        )
    try:
        status = await reading_streams.one(change.line, stream)
    except NotReadableError:
        if not await is_missing(change.line, stream):
            raise
        if not mkstream:
            raise TargetMissingError(f"there is no stream {stream!r}: --mkstream creates an empty one") from None
        status = None
    there = await place_facts(change.line, status, at)
    change.settle(at=there.id, like=None, mkstream="1" if status is None else None)
    return plan_create(status, stream, group, there)


def read_of(stream: StreamStatus, place: Ahead) -> int | None:
    """Return the count of entries read that belongs to a position, so that the server knows the lag.

    The server computes the lag as entries added minus entries read, if no entry after the position was deleted. Return
    None if the server does not count, or the entries were not counted.
    """
    if stream.entries_added is None or place.after is None:
        return None
    return max(stream.entries_added - place.after, 0)


def _set(stream: str, group: str, position: str, read: int | None) -> Words:
    return ("XGROUP", "SETID", stream, group, position, *(() if read is None else ("ENTRIESREAD", read)))


def plan_rewind(
    stream: StreamStatus,
    group: GroupStatus,
    here: Ahead,
    there: Ahead,
    between: Between,
    read_by: GroupReaders = UNREAD,
    *,
    even_if_moved: bool = False,
) -> ChangePlan:
    """Plan to set a group to another position of its stream."""
    if order(there.id) > order(stream.last_id):
        raise ChangeRefusedError(
            f"{there.id} is after the last id of {stream.key!r}, {stream.last_id}: future entries would be skipped. "
            + _reachable(stream.key, group.name, there.id)
        )
    name, back = group.name, order(there.id) < order(here.id)
    named = read_by.stream or stream.key
    read = read_of(stream, there)
    flag = ("--even-if-moved",) if even_if_moved else ()
    moves = "delivered again" if back else "skipped"
    narrowed = _narrowed(stream, there, read)
    table = (
        BeforeAfter("last delivered id", here.id, there.id),
        BeforeAfter("delivered next", here.next or "the next entry added", there.next or "the next entry added"),
        BeforeAfter("lag", group.lag.entries, there.after if narrowed is None else narrowed),
        BeforeAfter("entries read", group.entries_read, read),
        BeforeAfter("pending", group.pending, group.pending),
    )
    check = (
        position_check(stream.key, name, here.id, "" if back else there.id)
        if even_if_moved
        else group_check(stream.key, name, **position_facts(stream, group))
    )
    steps = () if here.id == there.id and group.entries_read == read else (
        Step((_set(stream.key, name, there.id, read),), (check,)),
    )  # fmt: skip
    notes = [f"{between.text()} {'is' if between.entries == 1 and not between.more else 'are'} {moves}."]
    if here.id == there.id:
        notes = [_COUNTED if narrowed is None else _NARROWED] if steps else []
    notes += _notes(stream, there, between, back=back, read=read)
    if steps:
        notes += [_MOVES_ON[back]] if even_if_moved else _is_read(named, name, read_by)
    undo = _rewound_back(stream.key, group, here, there, flag)
    facts = {
        "again": between.entries if back else 0,
        "skipped": 0 if back else between.entries,
        "pending_in_between": between.pending,
    }
    question = _question(stream.key, name, here, there, f"{between.text()}", read)
    plan = ChangePlan("group rewind", stream.key, name, question, table, tuple(notes), steps, undo, facts)
    plan = replace(plan, live=bool(read_by.names))
    if even_if_moved:
        return replace(plan, moving=True, selection="back" if back else "on")
    helps = f"Pause the group's workers first ({_hold(named, name)}), stop other programs that read it, or add "
    return replace(plan, if_moved=f"{helps}--even-if-moved.")


def _question(key: str, group: str, here: Ahead, there: Ahead, entries: str, read: int | None) -> str:
    """Return the prompt of a rewind, with times in place of ids."""
    if here.id == there.id:
        return f"Repair the lag of group {group!r} of {key!r}: set its count of entries read to {read}?"
    if order(there.id) < order(here.id):
        return f"Deliver {entries} again to group {group!r} of {key!r}, from {_moment(there.next or there.id)}?"
    return f"Skip {entries} for group {group!r} of {key!r}, up to {_moment(there.id)}?"


def _moment(entry: str) -> str:
    """Return the time in an id."""
    return f"{time_text(milliseconds(entry))[:19].replace('T', ' ')} UTC"


def _reachable(key: str, group: str, entry: str) -> str:
    """Return the remedy for an id that the stream has not reached yet; partitions reach it at different times."""
    if logical(key) is None:
        return "Use --to end."
    alone = shell_line(command_words("group rewind", key, group, options=("--to", "end")))
    return f"Use a time for all partitions, as in --to {entry.partition('-')[0]}, or `{alone}` for this one alone."


def _rewound_back(stream: str, group: GroupStatus, here: Ahead, there: Ahead, flag: tuple[str, ...]) -> Undo:
    """Return the undo that sets a group back to its earlier position."""
    commands = (_set(stream, group.name, here.id, group.entries_read),)
    if here.id == there.id:  # the same command would move the position a second time, and restore nothing
        return Undo(commands=commands, note="The group's position did not change: there is nothing to undo.")
    back = order(there.id) < order(here.id)
    words = command_words("group rewind", stream, group.name, options=("--to", here.id, *flag))
    return Undo(words, commands, note="Entries delivered meanwhile stay delivered." if back else "")


_NARROWED = "The group keeps its position: only its count of entries read is set, which narrows the range of its lag."
_COUNTED = "The group keeps its position: only its count of entries read is set, so that the server knows the lag."

_MOVES_ON = {
    True: "If the group reads on before the change, the entries delivered meanwhile are delivered again too.",
    False: "If the group reads on before the change, fewer are skipped. If it passes that place, nothing is changed.",
}


def _hold(stream: str, group: str) -> str:
    """Return the commands that pause and resume the workers of a group, in words."""
    pause = shell_line(command_words("worker pause", stream, group, options=("--reason", "rewind")))
    return f"`{pause}`, and afterwards `{shell_line(command_words('worker resume', stream, group))}`"


def _is_read(stream: str, group: str, read_by: GroupReaders) -> list[str]:
    """Return a warning, with the remedy, that the group is in use and may advance before the confirmation."""
    if not read_by.names:
        return []
    first = [f"pause its workers first ({_hold(stream, group)})"] if read_by.workers else []
    first += [f"stop {_listed(read_by.others)} first (no worker reports these names)"] if read_by.others else []
    return [
        f"The group is being read by {_listed(read_by.names)}. If it moves on before you confirm, nothing is changed: "
        + "; ".join(first)
        + "; or add --even-if-moved."
    ]


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


_NAMED = 3  # consumers that a note names


def _notes(stream: StreamStatus, there: Ahead, between: Between, *, back: bool, read: int | None) -> list[str]:
    notes = []
    if between.pending:
        number = f"{'More than ' if between.more_pending else ''}{between.pending} of them"
        notes.append(
            f"{number} are still pending: each goes to the consumer that reads it again, with a delivery count from 1."
            if back
            else f"{number} are pending, and stay with their consumers."
        )
    if stream.entries_added is None:
        notes.append("This server does not count entries read: the lag is known only if the ids determine it.")
    elif read is None:
        notes.append("There are too many entries after that position to count: the lag may be unknown afterwards.")
    elif (lag := _narrowed(stream, there, read)) is not None:
        notes.append(
            f"Entries up to {stream.max_deleted_id} were deleted: the server reports no lag until the group is past "
            f"them. Until then it is known to be {lag}."
        )
    return notes


def _narrowed(stream: StreamStatus, there: Ahead, read: int | None) -> str | None:
    """Return the bounds of the lag if the server will not report it; None if it will, or never counts."""
    if read is None or not _deleted_ahead(stream, there):
        return None
    lag = lag_of(GroupPosition(stream, there.id, read, None))
    if lag.entries is not None:
        return None
    return f"{lag.at_least} to {lag.at_most}"


def _deleted_ahead(stream: StreamStatus, there: Ahead) -> bool:
    deleted = stream.max_deleted_id
    return deleted not in {None, NEVER} and order(there.id) <= order(str(deleted)) and bool(there.after)


def plan_create(stream: StreamStatus | None, key: str, group: str, there: Ahead) -> ChangePlan:
    """Plan the creation of a group."""
    if stream is not None and any(found.name == group for found in stream.groups):
        raise ChangeRefusedError(f"{key!r} has a group {group!r} already; `millstream group rewind` moves it")
    if stream is not None and order(there.id) > order(stream.last_id):
        raise ChangeRefusedError(f"{there.id} is after the last id of {key!r}, {stream.last_id}. Use --at end.")
    read = None if stream is None else read_of(stream, there)
    command: Words = ("XGROUP", "CREATE", key, group, there.id, *(("MKSTREAM",) if stream is None else ()))
    if read is not None:
        command += ("ENTRIESREAD", read)
    notes = [f"It will be delivered {counted(there.after)} that are there, and all added later." if there.after else
             "It will receive the entries added from now on."]  # fmt: skip
    if stream is None:
        notes.append(f"The stream {key!r} does not exist: an empty one is created.")
    table = (BeforeAfter("last delivered id", None, there.id), BeforeAfter("lag", None, there.after))
    check = no_stream_check(key) if stream is None else group_check(key, group)
    undo = Undo(command_words("group rm", key, group), (("XGROUP", "DESTROY", key, group),))
    question = f"Make the group {group!r} of {key!r}, at {there.id}?"
    steps = (Step((command,), (check,)),)
    return ChangePlan("group create", key, group, question, table, tuple(notes), steps, undo, {"at": there.id})
