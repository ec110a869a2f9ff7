"""The choice between the plain read of ``format("millstream")`` and its variants, by the options.

Imported with the source itself, so it imports almost nothing.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.spark.group.model import GroupOptions
from millstream.spark.hashes.options import parse
from millstream.spark.options import common, names
from millstream.spark.options import read as opts
from millstream.spark.views.columns import VIEWS

if TYPE_CHECKING:
    from millstream.spark.group.source import GroupMode
    from millstream.spark.hashes.source import Hashes
    from millstream.spark.views.source import View

CHOOSING = ("view", "mode")
"""Options that choose another read than the plain one, in lower case."""


def special_read(raw: Mapping[str, str]) -> "View | GroupMode | Hashes | None":
    """Return the view, the group mode, or the read of hashes that the options choose; None for the plain read."""
    given = {name.lower(): value for name, value in raw.items()}
    if "hashes" in given:
        from millstream.spark.hashes.source import Hashes  # noqa: PLC0415 - only its users pay for it

        return Hashes(parse(given))
    if "keycolumn" in given:
        raise ConfigError("option 'keyColumn' is for reading hashes. Name them by option 'hashes'.")
    view = _word(given, "view", ("entries", *VIEWS))
    mode = _word(given, "mode", ("offset", "group"))
    if view != "entries" and mode == "group":
        raise ConfigError(f"option 'mode' does nothing in the view {view!r}. Leave it out.")
    if mode == "group":
        return _group_mode(given)
    of_groups = sorted(set(names.options(names.GROUP)) - set(names.options(names.BATCH, names.STREAM)))
    common.refuse(given.keys(), of_groups, "without .option('mode', 'group'): leave it out, or set that mode")
    if view == "entries":
        return None
    from millstream.spark.views.source import View  # noqa: PLC0415 - only its users pay for it

    parsed = opts.parse(given)
    parsed.refuse(names.VIEW, f"the view {view!r}")
    return View(view, parsed)


def _word(given: dict[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return one of these words; the first if the option is not given."""
    text = given.pop(name, words[0])
    if text.strip().lower() not in words:
        raise ConfigError(f"option {name!r} is {text!r}: it must be one of {', '.join(words)}")
    return text.strip().lower()


def _group_mode(given: dict[str, str]) -> "GroupMode":
    from millstream.spark.group.source import GroupMode  # noqa: PLC0415 - only its users pay for it

    query, consumer = given.pop("queryname", "").strip(), given.pop("consumer", "").strip()
    idle = given.pop("minidletime", None)
    parsed = opts.parse(given)
    parsed.refuse(names.GROUP, "mode 'group', where the group says what comes next")
    if parsed.starting not in (None, "earliest", "latest"):
        raise ConfigError(
            "option 'startingOffsets' must be earliest or latest in mode 'group': where its group is made"
        )
    if parsed.group is None:
        raise ConfigError(
            "option 'group' is missing: mode 'group' reads as a consumer of one, .option('group', 'billing')"
        )
    if consumer:
        return GroupMode(GroupOptions(parsed, parsed.group, query, consumer=consumer))
    if not re.fullmatch(r"[^\s,]+", query):
        raise ConfigError(
            f"option 'queryName' is {query!r}: mode 'group' needs a name without spaces or commas, by which the "
            "query finds its claimed entries after a crash; no other query of the group may have it"
        )
    try:
        min_idle = None if idle is None else common.duration(idle, "ms")
    except ValueError as reason:
        raise ConfigError(f"option 'minIdleTime' is {idle!r}: {reason}") from None
    return GroupMode(GroupOptions(parsed, parsed.group, query, min_idle))
