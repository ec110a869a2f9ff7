"""The words that several actions share, and the readers of their texts."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from millstream import times
from millstream.console.changes.actions import Together, Word
from millstream.console.changes.positions import StreamPlace, entry_id, place_of
from millstream.console.model.pending import Chosen, PendingChoice
from millstream.errors import UsageError

SEVERAL_IDS = r"[\s,]+"

Stream: TypeAlias = Annotated[str, Word("argument", "STREAM", name="key", typed="stream")]
Group: TypeAlias = Annotated[str, Word("argument", "GROUP")]


def now_ms() -> int:
    """Wall milliseconds."""
    return time.time_ns() // 1_000_000


def instant(text: str) -> int:
    """Wall milliseconds of a time."""
    return max(times.instant(text.strip(), now_ms()), 0)


def place(text: str) -> StreamPlace:
    """A place in a stream, from a user's text."""
    return place_of(text, now_ms())


def number(least: float) -> Callable[[str], int]:
    """A reader of whole numbers from one on."""

    def read(text: str) -> int:
        text = text.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < least:
            raise ValueError(f"it must be a whole number, {least:g} or more")
        return int(text)

    return read


IDS = Word("argument", "[ID]...", name="ids", title="ids", hint="1763721600000-0", read=entry_id, between=SEVERAL_IDS)

CHOOSING = (
    Word("option", "NAME", "Held by this consumer.", name="consumer", title="or held by", hint="web-2"),
    Word("option", "SPAN", f"Last delivered so long ago at least: {times.SPAN_HELP}.", name="idle", title="idle for",
         hint="10m", read=times.span),
    Word("option", "N", "Delivered so often at least.", name="deliveries", title="or delivered so often", hint="10",
         read=number(1), least=1),
    Word("flag", says="Entries that nobody holds, since they were given back.", name="unowned"),
)  # fmt: skip
GONE = Word("flag", says="Entries that are no longer in the stream: trimmed or deleted.", name="gone", title="gone",
            hint="only what is trimmed or deleted from the stream")  # fmt: skip
ALL = Word("flag", says="Everything that is pending in the group.", name="all")


def choice_of(texts: Mapping[str, str]) -> PendingChoice:
    """The pending entries that a form or an address chooses; all without any word."""
    return _choice({word.name: word.value(texts, None) for word in (*CHOOSING, GONE)})


def choice_options(texts: Mapping[str, str]) -> list[str]:
    """The same as options of the shell."""
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
    """The chosen entries: by id, or those that fit."""
    ids: tuple[str, ...] = values["ids"]
    choice = _choice(values)
    if ids and (values["all"] or choice != PendingChoice()):
        raise UsageError("name entries by ID or choose them by options, not both")
    if not ids and choice == PendingChoice() and not values["all"]:
        raise UsageError("which entries? Give their IDs, options such as --idle or --consumer, or --all")
    return ids or choice


EntriesChosen: TypeAlias = Annotated[Chosen, Together(_chosen, (IDS, *CHOOSING, ALL))]
EntriesOrGone: TypeAlias = Annotated[Chosen, Together(_chosen, (IDS, *CHOOSING, ALL, GONE))]
