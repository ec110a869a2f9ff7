"""The page of recurring schedules, and the schedules of one stream for its page."""

from millstream.client.later.recurring import KEY
from millstream.client.line import Line
from millstream.ops.asking import NotReadableError, calls
from millstream.ops.later.reading import read_schedules
from millstream.ops.later.status import StreamSchedules
from millstream.ops.schedules.reading import read_recurring
from millstream.ops.schedules.status import recurring_facts
from millstream.web.page import Asked, WebPage
from millstream.web.pages.common import closed_actions, command_line

FIRST = 10
"""Number of schedules on a stream's page."""

_MOST = 100  # largest number of recurring schedules on the page


async def scheduled(line: Line, key: str) -> StreamSchedules:
    """Return the first schedules of a stream. If the server refuses, return its reason instead."""
    try:
        return await read_schedules(line, key, FIRST)
    except NotReadableError as error:
        return StreamSchedules(key, line.wall_time(), why=str(error))


async def note_recurring(asked: Asked) -> None:
    """Record if there are recurring schedules, for the links of all pages. If the server refuses, there are none."""

    async def count(line: Line) -> int:
        (found,) = await calls(line.near(KEY), [("HLEN", KEY)])
        return found if isinstance(found, int) else 0

    asked.watch.recurring = (await asked.watch.read("recurring", count)).value


async def schedules_page(asked: Asked) -> WebPage:
    """Return the page of all recurring schedules."""
    reading = await asked.watch.read("schedules", lambda line: read_recurring(line, _MOST))
    seen = reading.value
    asked.watch.recurring = seen.found
    rows = [recurring_facts(one, seen.at_ms) for one in seen.schedules]
    facts = {"schedules": rows, "found": seen.found}
    view = {"rows": rows, "found": seen.found, "closed": await closed_actions(asked, KEY)}
    shell = [command_line(asked, "schedule ls")]
    return WebPage("schedules", "Schedules", facts, view, shell, **WebPage.source(reading))
