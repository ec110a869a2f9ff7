"""ShownAdvice streams, groups and consumers by a part of their names."""

from dataclasses import dataclass

from millstream.console.model.streams import StreamsSeen
from millstream.console.web.page import Asked, WebPage
from millstream.console.web.pages.common import command_line, everything
from millstream.console.web.words import name

_MOST = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """Something whose name fits.

    Attributes:
        kind: ``stream``, ``group`` or ``consumer``.
        stream: key of the stream.
        group: the group, or that of the consumer.
        consumer: the consumer.
    """

    kind: str
    stream: str
    group: str | None = None
    consumer: str | None = None

    @property
    def text(self) -> str:
        """Its own name."""
        return next(each for each in (self.consumer, self.group, self.stream) if each is not None)


async def search_page(asked: Asked) -> WebPage:
    """What fits the words of ``q``; of consumers those that hold entries.

    Raises:
        MillstreamError: the server does not answer, or does not let us look.
    """
    wanted = asked.words.get("q", "")
    reading = await everything(asked)
    every = _hits(reading.value, wanted.casefold())
    found = sorted(every, key=lambda hit: (_far(hit.text, wanted), hit.stream, hit.text))[:_MOST]
    facts = {
        "query": wanted,
        "found": len(every),
        "hits": [
            {"kind": hit.kind, "stream": hit.stream, "group": hit.group, "consumer": hit.consumer} for hit in found
        ],
    }
    view = {"hits": found, "every": len(every), "wanted": wanted}
    shell = [command_line(asked, "stream", "ls", f"*{wanted}*")]
    title = f"Find {name(wanted)}" if wanted else "Find"
    return WebPage("search", title, facts, view, shell, **WebPage.source(reading), live=False)


def _hits(seen: StreamsSeen, wanted: str) -> list[Hit]:
    """All that fits."""
    found = []
    for stream in seen.streams:
        if wanted in stream.key.casefold():
            found.append(Hit("stream", stream.key))
        for group in stream.groups:
            if wanted in group.name.casefold():
                found.append(Hit("group", stream.key, group.name))
            found += [
                Hit("consumer", stream.key, group.name, holder)
                for holder in group.held or ()
                if wanted and wanted in holder.casefold()
            ]
    return found


def _far(text: str, wanted: str) -> tuple[bool, bool, int]:
    """How far a name is from what was typed: the same first, then those that begin so, then the short ones."""
    low, typed = text.casefold(), wanted.casefold()
    return low != typed, not low.startswith(typed), len(text)
