"""``stream add``, ``trim`` and ``rm``. The shell's own ``stream add`` reads files too (``cli/entries/add.py``)."""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.console.actions.parameters import Stream, instant, number
from millstream.console.changes import adding, gather, removals, trims
from millstream.console.changes.actions import Together, Word, action
from millstream.console.changes.making import ActionCall
from millstream.console.changes.plan import ChangePlan
from millstream.console.changes.positions import entry_id
from millstream.console.model.names import command_words
from millstream.console.payloads.editing import fields_from
from millstream.console.reading import streams as reading_streams
from millstream.console.reading.asking import is_missing
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
    """The very bytes of a word that may be none of UTF-8."""
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
    """The oldest id that stays, or None and how many entries do."""
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
    """Remove the oldest entries of STREAM; first it shows how many go, and which groups still need some of them.

    A group needs what it has pending, and what it was not delivered yet. However the bound is given, what goes is what
    was shown: entries that are added meanwhile stay, and a group that was made meanwhile has it refused. Up to a
    million entries are counted.

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
