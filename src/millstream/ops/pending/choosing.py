"""The parameters that select pending entries, for actions, forms and lists."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.errors import UsageError
from millstream.ops.actions import NothingChosenError, Spread, Together, Word
from millstream.ops.parameters import IDS, number
from millstream.ops.pending.status import Chosen, PendingChoice
from millstream.ops.streams.partitioned import known_by, parts_of

CHOOSING = (
    Word("option", "NAME", "Only entries of this consumer.", name="consumer", title="or held by", hint="web-2"),
    Word("option", "SPAN", f"Only entries last delivered at least this long ago: {times.SPAN_HELP}.", name="idle",
         title="idle for", hint="10m", read=times.span),
    Word("option", "N", "Only entries delivered at least N times.", name="deliveries", title="or delivered at least",
         hint="10", read=number(1), least=1),
    Word("flag", says="Only entries without a consumer: they were released.", name="unowned", title="unowned",
         hint="only entries without a consumer"),
)  # fmt: skip
GONE = Word("flag", says="Only entries no longer in the stream: trimmed or deleted.", name="gone", title="gone",
            hint="only entries trimmed or deleted from the stream")  # fmt: skip
ALL = Word("flag", says="All pending entries of the group.", name="all")


def choice_of(texts: Mapping[str, str]) -> PendingChoice:
    """Return the pending entries that a form or a URL selects; all if no parameter is set."""
    return _choice({word.name: word.value(texts, None) for word in (*CHOOSING, GONE)})


def choice_options(texts: Mapping[str, str]) -> list[str]:
    """Return the selection of a form or a URL as options of the shell."""
    found: list[str] = []
    for word in (*CHOOSING, GONE):
        if texts.get(word.name, "").strip() or (word.flag and word.name in texts):
            found += [word.option] if word.flag else [word.option, texts[word.name].strip()]
    return found


def _choice(values: Mapping[str, Any]) -> PendingChoice:
    return PendingChoice(
        values["consumer"] or None,
        values["idle"],
        values["deliveries"],
        values["unowned"] or values["consumer"] == "",
        values.get("gone", False),
    )


def _chosen(values: Mapping[str, Any]) -> Chosen:
    """Return the selected entries as ids or as a filter; raise if both or neither are given."""
    ids: tuple[str, ...] = values["ids"]
    choice = _choice(values)
    if ids and (values["all"] or choice != PendingChoice()):
        raise UsageError("IDs and options exclude each other: name entries by ID, or choose them by options")
    if not ids and choice == PendingChoice() and not values["all"]:
        raise NothingChosenError(
            "No entries are chosen. Give their IDs, options such as --idle or --consumer, or --all."
        )
    return ids or choice


EntriesChosen: TypeAlias = Annotated[Chosen, Together(_chosen, (IDS, *CHOOSING, ALL))]
EntriesOrGone: TypeAlias = Annotated[Chosen, Together(_chosen, (IDS, *CHOOSING, ALL, GONE))]
PARTS = Spread(
    parts_of, known_by(lambda texts: ("XPENDING", texts["key"], texts["group"], texts["ids"], texts["ids"], 1))
)
"""The functions that find the partitions which these actions concern."""
