"""``stream add``, ``trim`` and ``rm``. The shell's own ``stream add`` reads files too (``cli/entries/add.py``)."""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.client.cluster_line import ClusterLine
from millstream.client.slots import beside, slot_of, tag_of
from millstream.console.actions.parameters import Stream, instant, number
from millstream.console.changes import adding, gather, removals, trims
from millstream.console.changes.actions import Together, Word, action
from millstream.console.changes.making import ActionCall
from millstream.console.changes.plan import (
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
from millstream.console.changes.positions import entry_id
from millstream.console.model.names import command_words
from millstream.console.model.streams import StreamStatus
from millstream.console.payloads.editing import fields_from
from millstream.console.reading import streams as reading_streams
from millstream.console.reading.asking import calls, is_missing
from millstream.errors import UsageError

_Fields: TypeAlias = tuple[tuple[str, ...], list[tuple[bytes, bytes]]]


def _fields(text: str) -> _Fields:
    """An entry as it was written: the words of the shell, and its fields."""
    text = text.strip()
    if text.startswith("{"):
        return ("--json", text), fields_from(text, ())
    given = tuple(shlex.split(text))  # a quote that is not closed is a ValueError
    pairs = [word.partition("=") for word in given]
    if not pairs or not all(name and sign for name, sign, _ in pairs):
        raise UsageError("which fields? Give NAME=VALUE, with quotes around what has spaces, or a JSON object")
    return given, [(_raw(name), _raw(value)) for name, _sign, value in pairs]


def _raw(text: str) -> bytes:
    """The exact bytes of a word, which may not be UTF-8."""
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
    return adding.add(status, stream, pairs, words)


def _bound(values: Mapping[str, Any]) -> tuple[str | None, int]:
    """The oldest id that stays, or None and the number of entries that stay."""
    maxlen, minid, before = values["maxlen"], values["minid"], values["before"]
    if sum(given is not None for given in (maxlen, minid, before)) != 1:
        raise UsageError("what goes? Give one of --maxlen, --minid and --before")
    return (f"{before}-0" if before is not None else minid), maxlen or 0


@action("stream trim", "Remove the oldest entries of a stream, after a look at who still needs them.", "XTRIM",
        loses=True)  # fmt: skip
async def trim(
    change: ActionCall,
    stream: Stream,
    bound: Annotated[
        tuple[str | None, int],
        Together(
            _bound,
            (
                Word("option", says="So many entries stay, the newest.", name="maxlen", title="so many stay",
                     hint="100000", read=number(0), least=0),
                Word("option", "ID", "What is older than this id goes.", name="minid", title="or from this id on",
                     hint="1763721600000-0", read=entry_id, shown=True),
                Word("option", "TIME", f"What was added before this time goes: {times.TIME_HELP}.", name="before",
                     title="or what is older goes", hint="7d-ago", read=instant),
            ),
        ),
    ],
    approx: Annotated[
        bool, Word("flag", says="Leave what the server keeps together with entries that stay: cheaper.")
    ] = False,
) -> ChangePlan:  # fmt: skip
    """Remove the oldest entries of STREAM; first it shows their number, and the groups that still need some.

    A group needs its pending entries, and those it was not delivered yet. With every kind of bound, exactly the shown
    entries are removed: entries that are added meanwhile stay. The change is refused if a group was created
    meanwhile. Up to a million entries are counted.

    \b
    Examples:
      millstream stream trim orders --before 7d --dry-run
      millstream stream trim orders --maxlen 100000
      millstream stream trim orders --minid 1763721600000-0 --approx --yes
    """
    minid, maxlen = bound
    facts = await gather.trim_facts(change.line, stream, minid=minid, maxlen=maxlen, tell=change.tell)
    change.settle(minid=facts.oldest, maxlen=None, before=None)
    return trims.trim(facts, approximately=approx)


@action("stream rm", "Remove a stream with its entries and its groups.", "DEL", loses=True)
async def remove(change: ActionCall, stream: Stream) -> ChangePlan:
    """Remove STREAM with its entries and its groups, for good; `millstream export` keeps a copy.

    \b
    Examples:
      millstream stream rm orders --dry-run
      millstream stream rm orders
    """
    return removals.remove_stream(await reading_streams.one(change.line, stream))


_OF_GROUPS = ("due", "tries")  # kinds of keys next to a stream that are a group's: due times, failures on record


@action(
    "stream rename", "Rename a stream, with its groups and what is pending in them.", "RENAMENX", undo="stream rename"
)
async def rename(
    change: ActionCall,
    stream: Stream,
    name: Annotated[
        str, Word("argument", "NAME", typed="new_name", title="new name", hint="orders-2025", needed=True)
    ],
    replace: Annotated[
        bool,
        Word("flag", says="Also if NAME is a stream: it is lost.", title="replace", hint="also if that is a stream"),
    ] = False,
) -> ChangePlan:  # fmt: skip
    """Rename STREAM to NAME: its entries, its groups and their pending entries stay as they are.

    An existing key NAME is left alone, unless it is a stream and --replace gives it up. The due times of delayed
    entries and the recorded failures go with their groups; dead letters and pauses keep the old name. Programs know the
    stream by its name: those that add to the old one create it again, and those that read it fail.

    \b
    Examples:
      millstream stream rename orders orders-2025 --dry-run
      millstream stream rename orders-new orders --replace
    """
    if name == stream:
        raise UsageError(f"{name!r} is the stream's name already: give another one")
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
    """The plan of a rename."""
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
        f"Programs that add to {stream!r} make it anew, and those that read its groups fail: give them the new name.",
        f"Dead letters and pauses of its groups stay under {stream!r}.",
    ]
    if new:
        notes.append(f"{counted(new.length).capitalize()} and {len(new.groups)} groups of {name!r} are gone for good.")
    undo = Undo(
        command_words("stream rename", name, stream),
        (*(("RENAME", to, key) for key, to in moved), ("RENAMENX", name, stream)),
        note="The stream that was replaced does not come back; `millstream export` keeps a copy." if new else "",
    )
    question = f"Rename the stream {stream!r} with {counted(old.length)} and {len(old.groups)} groups to {name!r}?"
    steps = (Step(tuple(commands), tuple(checks)),)
    facts = {"entries": old.length, "groups": len(old.groups), "replaced": new.length if new else None}
    return ChangePlan("stream rename", stream, "", question, table, tuple(notes), steps, undo, facts, removes=True)
