"""Reading the stream of alerts. Any client may have written it."""

from millstream.client.alerts import store
from millstream.client.alerts.store import AlertStoreError
from millstream.client.line import Line
from millstream.ops.alerts.status import AlertEvent, AlertsSeen, event_of, folded


async def read_events(line: Line) -> tuple[list[AlertEvent], bool]:
    """Return the events in the stream, oldest first, and True if older ones were not read.

    Entries that no watcher wrote are skipped.
    """
    rows, more = await store.rows(line)
    return [event for row in rows if (event := event_of(row)) is not None], more


async def read_every_event(line: Line) -> list[AlertEvent]:
    """Return all events in the stream, oldest first, whatever the size of other entries."""
    found: list[AlertEvent] = []
    async for page in store.pages(line):
        found += [event for row in page if (event := event_of(row)) is not None]
    return found[::-1]


async def read_alerts(line: Line) -> AlertsSeen:
    """Return open and past alerts, or the reason why they are unknown."""
    try:
        events, more = await read_events(line)
        return AlertsSeen(folded(events), more=more)
    except AlertStoreError as error:
        return AlertsSeen(why=str(error))
