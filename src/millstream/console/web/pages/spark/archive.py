"""The archive: the archived part of each stream, the waiting entries, the cause that keeps the rest, and the files."""

from dataclasses import asdict

from millstream.console.model.names import command_words
from millstream.console.model.spark.archive import ArchiveSeen
from millstream.console.watching.questions import archive_reading
from millstream.console.web.page import Asked, NoPageError, WebPage


async def archive_page(asked: Asked) -> WebPage:
    """The archive that the console was started with."""
    path = asked.settings.archive
    if path is None:
        raise NoPageError("this console was started without an archive: start it with --archive DIR")
    reading = await archive_reading(asked.watch, path)
    seen = reading.value
    facts = {
        "path": seen.path,
        "changed_ms": seen.changed_ms,
        "generation": seen.generation,
        "streams": [asdict(one) for one in seen.streams],
        "runs": [asdict(one) for one in seen.runs],
        "files": [{**asdict(one), "first": str(one.first), "last": str(one.last)} for one in seen.newest],
        "unknown": seen.why,
    }
    view = {"seen": seen, "now": seen.at_ms, "size": sum(one.bytes for one in seen.streams)}
    names = (asked.watch.server.argument, *_named(seen))
    shell = [command_words("archive", *names, options=("--to", seen.path, "--dry-run"))]
    return WebPage("archive", "Archive", facts, view, shell, **WebPage.source(reading))


def _named(seen: ArchiveSeen) -> list[str]:
    return [one.stream for one in seen.streams] or ["STREAM"]
