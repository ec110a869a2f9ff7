"""The actions of streams: ``stream add``, ``trim``, ``partition``, ``rm`` and ``rename``, with their plans."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.client.cluster_line import ClusterLine
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import HIGHEST_ID, PartitionLayout, described, descriptor_key, first_layout
from millstream.client.slots import beside, slot_of, tag_of
from millstream.errors import UsageError
from millstream.ops.actions import Spread, Together, Word, action
from millstream.ops.asking import calls, is_missing
from millstream.ops.making import ActionCall, Prepared
from millstream.ops.parameters import Stream, entry_id, instant, number
from millstream.ops.payloads.editing import fields_from
from millstream.ops.plan import (
    BeforeAfter,
    ChangePlan,
    ChangeRefusedError,
    Step,
    Undo,
    Words,
    counted,
    key_check,
    no_stream_check,
    stream_check,
)
from millstream.ops.streams import reading as reading_streams
from millstream.ops.streams.measuring import TrimFacts, TrimmedGroup, trim_facts
from millstream.ops.streams.partitioned import parts_of
from millstream.ops.streams.removal import prepared_removal, refuse_partition
from millstream.ops.streams.repartitioning import key_field, prepared_repartition
from millstream.ops.streams.status import StreamStatus
from millstream.ops.words import command_words, order
from millstream.texts import plural

_Fields: TypeAlias = tuple[tuple[str, ...], list[tuple[bytes, bytes]]]


def _fields(text: str) -> _Fields:
    """Parse an entry as a user typed it; return the shell's arguments and the fields."""
    text = text.strip()
    if text.startswith("{"):
        return ("--json", text), fields_from(text, ())
    given = tuple(shlex.split(text))  # raises ValueError for an unclosed quote
    pairs = [word.partition("=") for word in given]
    if not pairs or not all(name and sign for name, sign, _ in pairs):
        raise UsageError(
            "The fields are missing. Give NAME=VALUE, with quotes around values with spaces, or a JSON object."
        )
    return given, [(_raw(name), _raw(value)) for name, _sign, value in pairs]


def _raw(text: str) -> bytes:
    """Return the exact bytes of an argument, which may not be UTF-8."""
    return text.encode(errors="surrogateescape")


@action("stream add", "Add entries.", "XADD")
async def add(
    change: ActionCall,
    stream: Stream,
    fields: Annotated[
        _Fields,
        Word("argument", "[NAME=VALUE]...", title="fields", hint='item=tea amount=3, or {"item": "tea"}',
             read=_fields, needed=True),
    ],
) -> ChangePlan:  # fmt: skip
    """Add an entry to STREAM."""
    given, pairs = fields
    words = (
        command_words("stream add", stream, options=given)
        if given[0] == "--json"
        else command_words("stream add", stream, *given)
    )
    status = None if await is_missing(change.line, stream) else await reading_streams.one(change.line, stream)
    if status is not None and status.last_id == HIGHEST_ID:
        raise ChangeRefusedError(
            f"{stream!r} takes no entries: it is sealed, as the name of a partitioned stream and its former partitions "
            "are. Add by key: `millstream stream add NAME ... --key KEY`."
        )
    return plan_add(status, stream, pairs, words)


def _bound(values: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return the lowest id to keep and 0, or None and the number of entries to keep."""
    maxlen, minid, before = values["maxlen"], values["minid"], values["before"]
    given = sum(one is not None for one in (maxlen, minid, before))
    if given != 1:
        fault = "There are several bounds" if given else "The bound is missing"
        raise UsageError(f"{fault}. Give one of --maxlen, --minid and --before.")
    return (f"{before}-0" if before is not None else minid), maxlen or 0


@action("stream trim", "Remove the oldest entries of a stream, after a preview.", "XTRIM",
        loses=True, parts=Spread(parts_of))  # fmt: skip
async def trim(
    change: ActionCall,
    stream: Stream,
    bound: Annotated[
        tuple[str | None, int],
        Together(
            _bound,
            (
                Word("option", says="Keep the newest N entries.", name="maxlen", title="entries to keep",
                     hint="100000", read=number(0), least=0),
                Word("option", "ID", "Remove entries older than this id.", name="minid", title="or from this id on",
                     hint="1763721600000-0", read=entry_id, shown=True),
                Word("option", "TIME", f"Remove entries added before this time: {times.TIME_HELP}.", name="before",
                     title="or entries older than", hint="7d-ago", read=instant),
            ),
        ),
    ],
    approx: Annotated[
        bool, Word("flag", says="Trim approximately: whole blocks only, which is cheaper.")
    ] = False,
) -> ChangePlan:  # fmt: skip
    """Remove the oldest entries of STREAM, after a preview with the groups that still need some.

    A group needs its pending entries and the undelivered ones. Exactly the shown entries are removed: entries added
    meanwhile stay. If a group is created meanwhile, nothing is removed. The preview counts up to a million entries.

    A partitioned stream is trimmed partition by partition; --maxlen keeps N entries of each.

    \b
    Examples:
      millstream stream trim orders --before 7d --dry-run
      millstream stream trim orders --maxlen 100000
      millstream stream trim orders --minid 1763721600000-0 --approx --yes
    """
    minid, maxlen = bound
    facts = await trim_facts(change.line, stream, minid=minid, maxlen=maxlen, tell=change.tell)
    change.settle(minid=facts.oldest, maxlen=None, before=None)
    return plan_trim(facts, approximately=approx)


@action("stream partition", "Divide a stream into partitions, for many workers to share in order.", "SET")
async def partition(
    change: ActionCall,
    stream: Stream,
    number: Annotated[
        int, Word("argument", "NUMBER", title="partitions", hint="16", read=number(1), least=1, needed=True)
    ],
    by: Annotated[
        str | None,
        Word("option", "FIELD", "Field that has an entry's key; a publish may give another.", hint="customer"),
    ] = None,
) -> ChangePlan | Prepared:  # fmt: skip
    """Divide STREAM into NUMBER streams, its partitions.

    An entry's key chooses its partition, and the workers of a group share the partitions: entries of one key are
    handled in order, by one worker. The key STREAM is sealed: a program that adds to it without the layout fails.
    Choose 4 times your largest number of workers, and at least 4 times the nodes of a cluster.

    A stream that has entries or groups keeps them: workers handle these before those of the partitions. Start the
    workers again afterwards, so that they read the partitions.

    \b
    Examples:
      millstream stream partition orders 16 --by customer
      millstream stream partition orders 64 --dry-run
    """
    layout = first_layout(stream, number, by)
    found = await find_layout(change.line, stream)
    if found is not None and all(one.sealed for one in found.generations[:-1]):
        raise ChangeRefusedError(
            f"The stream {stream!r} is partitioned already. `millstream stream repartition` changes the number."
        )
    if found is not None or not await is_missing(change.line, stream):
        if found is None:
            await reading_streams.one(change.line, stream)  # raises an error for a key that is not a stream
        return await prepared_repartition(change, "stream partition", stream, number, by)
    return plan_partition(layout)


@action("stream rm", "Remove a stream with its entries and its groups.", "DEL", loses=True)
async def remove(change: ActionCall, stream: Stream) -> ChangePlan | Prepared:
    """Remove STREAM permanently, with its entries and groups; `millstream export` makes a copy first.

    All partitions of a partitioned stream lose their entries, groups and schedules. Their keys stay sealed, so that a
    program that still publishes fails. A second `stream rm` removes the keys, and the name is free.

    \b
    Examples:
      millstream stream rm orders --dry-run
      millstream stream rm orders
    """
    await refuse_partition(change.line, stream, "rm")
    whole = await prepared_removal(change.line, stream)
    return plan_remove(await reading_streams.one(change.line, stream)) if whole is None else whole


_OF_GROUPS = ("due", "tries")  # kinds of keys that belong to a group: due times, recorded failures


@action(
    "stream rename", "Rename a stream, with its groups and their pending entries.", "RENAMENX", undo="stream rename"
)
async def rename(
    change: ActionCall,
    stream: Stream,
    name: Annotated[
        str, Word("argument", "NAME", typed="new_name", title="new name", hint="orders-2025", needed=True)
    ],
    replace: Annotated[
        bool,
        Word("flag", says="Replace NAME if it is a stream; its entries are lost.", title="replace",
             hint="also if that is a stream"),
    ] = False,
) -> ChangePlan:  # fmt: skip
    """Rename STREAM to NAME: its entries, its groups and their pending entries stay as they are.

    If the key NAME exists, the command refuses, unless it is a stream and --replace is given. Due times of delayed
    entries and recorded failures move with their groups; dead letters and pauses keep the old name. Change the name in
    your programs too: those that add to the old name create it again, and those that read it fail.

    \b
    Examples:
      millstream stream rename orders orders-2025 --dry-run
      millstream stream rename orders-new orders --replace
    """
    if name == stream:
        raise UsageError(f"{name!r} is already the name of the stream. Give another one.")
    for one in (stream, name):
        await refuse_partition(change.line, one, "rename", whole=True)
    if isinstance(change.line, ClusterLine) and slot_of(stream) != slot_of(name):
        raise ChangeRefusedError(
            f"{stream!r} and {name!r} are in different slots of the cluster, and a key is renamed within its slot: "
            f"choose a name with the same hash tag, such as {{{tag_of(stream)}}}-2"
        )
    old = await reading_streams.one(change.line, stream)
    new = None if await is_missing(change.line, name) else await reading_streams.one(change.line, name)
    if new is not None and not replace:
        raise ChangeRefusedError(f"there is a stream {name!r} already: choose another name, or --replace gives it up")
    pairs = [
        (beside(stream, kind, one.name), beside(name, kind, one.name)) for one in old.groups for kind in _OF_GROUPS
    ]
    there = await calls(change.line.near(stream), [("EXISTS", key) for key, _ in pairs])
    return _renamed(old, new, name, {pair: int(found) for pair, found in zip(pairs, there, strict=True)})


def _renamed(old: StreamStatus, new: StreamStatus | None, name: str, keys: Mapping[tuple[str, str], int]) -> ChangePlan:
    """Return the plan of a rename."""
    stream, moved = old.key, [pair for pair, there in keys.items() if there]
    lost = [beside(name, kind, one.name) for one in (new.groups if new else ()) for kind in _OF_GROUPS]
    commands: list[Words] = [("DEL", *lost)] if lost else []
    commands += [("RENAME", *pair) for pair in moved]
    commands.append(("RENAME" if new else "RENAMENX", stream, name))
    checks = [stream_check(stream, groups=len(old.groups))]
    checks += [key_check(key, there=bool(there)) for (key, _), there in keys.items()]
    checks.append(
        stream_check(name, length=new.length, last_generated_id=new.last_id, groups=len(new.groups))
        if new
        else no_stream_check(name)
    )
    table = (
        BeforeAfter(f"entries of {name}", new.length if new else 0, old.length),
        BeforeAfter(f"groups of {name}", len(new.groups) if new else 0, len(old.groups)),
        BeforeAfter("pending in them", new.pending if new else 0, old.pending),
    )
    notes = [
        f"Programs that add to {stream!r} create it again, and those that read it fail: give them the new name.",
        f"Dead letters and pauses of its groups stay under {stream!r}.",
    ]
    if new:
        notes.append(f"{counted(new.length).capitalize()} and {plural(len(new.groups), 'group')} of {name!r} are lost.")
    undo = Undo(
        command_words("stream rename", name, stream),
        (*(("RENAME", to, key) for key, to in moved), ("RENAMENX", name, stream)),
        note="The replaced stream cannot be restored; `millstream export` makes a copy first." if new else "",
    )
    question = (
        f"Rename the stream {stream!r} with {counted(old.length)} and {plural(len(old.groups), 'group')} to {name!r}?"
    )
    steps = (Step(tuple(commands), tuple(checks)),)
    facts = {"entries": old.length, "groups": len(old.groups), "replaced": new.length if new else None}
    return ChangePlan("stream rename", stream, "", question, table, tuple(notes), steps, undo, facts, removes=True)


def plan_trim(facts: TrimFacts, *, approximately: bool = False) -> ChangePlan:
    """Plan to remove the oldest entries of a stream."""
    stream = facts.stream
    key, goes = stream.key, counted(facts.entries, more=facts.more)
    sign = "~" if approximately else "="
    at_most = "at most " if approximately and facts.entries else ""
    left = None if facts.more else stream.length - facts.entries
    table = [BeforeAfter("entries", stream.length, left)]
    if left and not approximately:
        table.append(BeforeAfter("first entry not below", stream.first_entry_id, facts.oldest))
    losing = [group for group in facts.groups if group.pending or group.undelivered]
    for group in losing:
        if group.pending:
            table.append(BeforeAfter(f"{group.group}: pending entries that go", group.pending, 0))
        if group.undelivered:
            table.append(BeforeAfter(f"{group.group}: undelivered entries that go", group.undelivered, 0))
    # A group created meanwhile might need all entries. The length is not checked, since each new entry changes it
    check = stream_check(key, groups=len(stream.groups))
    steps = (Step((("XTRIM", key, "MINID", sign, facts.oldest),), (check,)),) if facts.entries else ()
    whom = f", some of which {_names(losing)} still need{'s' if len(losing) == 1 else ''}" if losing else ""
    figures: dict[str, object] = {
        "entries": facts.entries,
        "entries_more": facts.more,
        "oldest": facts.oldest,
        "pending": sum(group.pending for group in facts.groups),
        "undelivered": sum(group.undelivered for group in facts.groups),
    }
    undo = Undo(note="It cannot be undone. Copy the entries first: `millstream export` or `millstream archive`.")
    question = f"Trim {at_most}{goes} of {key!r}{whom}?"
    return ChangePlan("stream trim", key, "", question, tuple(table), _notes(facts, losing), steps, undo, figures)


def _names(losing: list[TrimmedGroup]) -> str:
    names = [repr(group.group) for group in losing[:3]]
    return ", ".join(names) + (f" and {len(losing) - 3} more" if len(losing) > 3 else "")


def _notes(facts: TrimFacts, losing: list[TrimmedGroup]) -> tuple[str, ...]:
    """Return notes on what groups lose."""
    notes = []
    for group in losing:
        if group.pending:
            some = counted(group.pending, more=group.pending_more)
            notes.append(
                f"{group.group!r} has {some} of them pending: delivered and not acknowledged. They stay pending "
                "without their fields until a claim drops them; no consumer can process them."
            )
        if group.undelivered:
            some = counted(group.undelivered, more=group.undelivered_more)
            notes.append(f"{group.group!r} was not delivered {some} of them, and never will be.")
    if "groups" in facts.stream.missing:
        notes.append(f"The groups that still need them are unknown: {facts.stream.missing['groups']}")
    elif facts.stream.groups and facts.entries and not losing:
        notes.append("Every group has received and acknowledged all of them.")
    if facts.entries and order(facts.oldest) > order(facts.stream.last_id):
        notes.append("The stream is empty afterwards, unless entries are added meanwhile.")
    return tuple(notes)


def plan_partition(layout: PartitionLayout) -> ChangePlan:
    """Plan the creation of a partitioned stream."""
    stream, keys, key = layout.stream, layout.keys, descriptor_key(layout.stream)
    commands: tuple[Words, ...] = (
        ("XGROUP", "CREATE", stream, "millstream", "0", "MKSTREAM"),
        ("XGROUP", "DESTROY", stream, "millstream"),
        ("XSETID", stream, HIGHEST_ID),
        ("SET", key, described(layout)),
    )
    notes = (
        f"Partitions are {keys[0]!r} to {keys[-1]!r}; the key {key!r} describes them.",
        f"The key {stream!r} takes no entry: a program that adds to it fails.",
        key_field(layout),
    )
    undo = Undo(
        commands=(("DEL", key), ("DEL", stream)), note="Remove the partitions too, once nothing needs their entries."
    )
    question = f"Divide {stream!r} into {plural(len(keys), 'partition')}?"
    steps = (Step(commands, (no_stream_check(stream), key_check(key, there=False))),)
    facts: dict[str, object] = {"partitions": len(keys), "by": layout.by}
    table = (BeforeAfter("partitions", 0, len(keys)),)
    return ChangePlan("stream partition", stream, "", question, table, notes, steps, undo, facts)


def plan_add(
    stream: StreamStatus | None, key: str, fields: Sequence[tuple[bytes, bytes]], words: tuple[str, ...]
) -> ChangePlan:
    """Plan to add one entry."""
    length = 0 if stream is None else stream.length
    groups = () if stream is None else stream.groups
    table = (BeforeAfter("entries", length, length + 1),)
    notes = [f"The stream {key!r} does not exist: it is created."] if stream is None else []
    names = ", ".join(repr(group.name) for group in groups[:5]) + (f" and {len(groups) - 5} more" if groups[5:] else "")
    notes.append(f"It is delivered to {names}." if groups else "No group reads the stream, so no consumer receives it.")
    check = no_stream_check(key) if stream is None else stream_check(key)
    command: Words = ("XADD", key, "*", *(part for pair in fields for part in pair))
    undo = Undo(note="XDEL with its id removes it; it stays pending in groups that received it meanwhile.")
    number = f"{len(fields)} {'field' if len(fields) == 1 else 'fields'}"
    question = f"Add an entry of {number} to {key!r}?"
    steps = (Step((command,), (check,)),)
    return ChangePlan("stream add", key, "", question, table, tuple(notes), steps, undo, {"fields": len(fields)}, words)


def plan_remove(stream: StreamStatus) -> ChangePlan:
    """Plan to remove a stream with its groups."""
    key, groups = stream.key, stream.groups
    notes = [f"{counted(stream.length).capitalize()} {'is' if stream.length == 1 else 'are'} lost."]
    notes += [
        f"The group {group.name!r} goes, with {counted(group.pending)} pending and a lag of "
        f"{'unknown' if group.lag.entries is None else group.lag.entries}."
        for group in groups
    ]
    if "groups" in stream.missing:
        notes.append(f"Its groups are not known: {stream.missing['groups']}")
    table = (
        BeforeAfter("entries", stream.length, 0),
        BeforeAfter("groups", len(groups), 0),
        BeforeAfter("pending", stream.pending, 0),
    )
    checks = (stream_check(key, length=stream.length, last_generated_id=stream.last_id, groups=len(groups)),)
    undo = Undo(note="It cannot be undone; `millstream export` makes a copy first, which `millstream import` restores.")
    question = f"Remove the stream {key!r} with {counted(stream.length)} and {plural(len(groups), 'group')}?"
    facts: dict[str, object] = {"entries": stream.length, "groups": len(groups), "pending": stream.pending}
    steps = (Step((("DEL", key),), checks),)
    return ChangePlan("stream rm", key, "", question, table, tuple(notes), steps, undo, facts, removes=True)
