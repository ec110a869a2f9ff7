"""Every view by its name, and what somebody types to get to one."""

import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from millstream.console.top.views.asked import TopAsked
from millstream.console.top.views.entry import entry_view
from millstream.console.top.views.group import group_view
from millstream.console.top.views.letters import dead_view, letter_view, letters_view
from millstream.console.top.views.overview import find_view, findings_view, overview_view
from millstream.console.top.views.queries import queries_view
from millstream.console.top.views.server import server_view
from millstream.console.top.views.stream import stream_view
from millstream.console.top.views.view import TopPlace, TopView, place
from millstream.console.top.views.workers import worker_view, workers_view
from millstream.errors import UsageError

Maker: TypeAlias = Callable[[TopAsked], Awaitable[TopView]]

VIEWS: Mapping[str, Maker] = {
    "overview": overview_view,
    "dead": dead_view,
    "workers": workers_view,
    "server": server_view,
    "queries": queries_view,
    "stream": stream_view,
    "group": group_view,
    "entry": entry_view,
    "letters": letters_view,
    "letter": letter_view,
    "worker": worker_view,
    "find": find_view,
    "findings": findings_view,
}

FIRST = ("overview", "dead", "workers", "server", "queries")
"""The views that are reached by their number, from 1."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "stream": ("key",),
    "group": ("key", "group"),
    "entry": ("key", "id"),
    "letters": ("key",),
    "letter": ("key", "id"),
    "worker": ("id",),
    "findings": (),
}
"""What is typed behind the name of a view."""


def usage(name: str) -> str:
    """A view as it is typed: ``group STREAM GROUP``."""
    return " ".join((name, *("STREAM" if need == "key" else need.upper() for need in NEEDS.get(name, ()))))


async def view_of(asked: TopAsked) -> TopView:
    """What is shown of a place.

    Raises:
        MillstreamError: it is not there, the server does not answer.
    """
    return await VIEWS[asked.place.view](asked)


def place_of_words(typed: str) -> TopPlace:
    """Where what was typed leads: ``dead``, ``group orders billing``; any other word is a part of a name to be found.

    Raises:
        UsageError: the name of a view lacks what it is of, or has more.
    """
    try:
        head, *rest = shlex.split(typed)
    except ValueError:
        head, rest = typed, []
    if head not in VIEWS or head == "find":
        return place("find", name=typed.strip())
    needs = NEEDS.get(head, ())
    if len(rest) != len(needs):
        raise UsageError(f"{typed!r}: it is `{usage(head)}`")
    return place(head, **dict(zip(needs, rest, strict=True)))
