"""What ``format("millstream")`` can be besides the plain read of entries: which of it the options ask for.

Imported with the source itself, so it imports next to nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.spark import options as opts

if TYPE_CHECKING:
    from millstream.spark.views import View

CHOOSING = ("view",)
"""Options that choose a face, in lower case; the plain read's own options do not have them."""

VIEWS = ("groups", "consumers", "pending", "dead")

_VIEW_OPTIONS = ("url", "stream", "streamPattern", "minPartitions")


def other(raw: Mapping[str, str]) -> "View | None":
    """The view that is asked for; None for the plain read.

    Raises:
        ConfigError: an option has a value that cannot be meant, or does nothing here.
    """
    given = {name.lower(): value for name, value in raw.items()}
    view = _word(given, "view", ("entries", *VIEWS))
    if view == "entries":
        return None
    from millstream.spark.views import View  # noqa: PLC0415 - only its users pay for it

    parsed = opts.parse(given)
    parsed.refuse([name for name in opts.OPTIONS if name not in _VIEW_OPTIONS], f"the view {view!r}")
    return View(view, parsed)


def _word(given: dict[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of some words; the first where the option is not given."""
    text = given.pop(name, words[0])
    if text.strip().lower() not in words:
        raise ConfigError(f"option {name!r} is {text!r}: it must be one of {', '.join(words)}")
    return text.strip().lower()
