"""Streams, groups and consumers by a part of their names."""

from millstream.console.model.facts.search import search
from millstream.console.watching.questions import everything
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.common import command_line
from millstream.console.words import name

_MOST = 100


async def search_page(asked: Asked) -> WebPage:
    """The names that fit the words of ``q``; of consumers only those that hold entries."""
    wanted = asked.words.get("q", "")
    reading = await everything(asked.watch)
    every = search(reading.value, wanted)
    found = every[:_MOST]
    facts = {
        "query": wanted,
        "found": len(every),
        "hits": [
            {"kind": hit.kind, "stream": hit.stream, "group": hit.group, "consumer": hit.consumer} for hit in found
        ],
    }
    view = {"hits": found, "every": len(every), "wanted": wanted}
    shell = [command_line(asked, "stream find", wanted)]
    title = f"Find {name(wanted)}" if wanted else "Find"
    return WebPage("search", title, facts, view, shell, **WebPage.source(reading), live=False)
