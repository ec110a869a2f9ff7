"""Reading the stream of alerts. Any client may have written it."""

from millstream.client.alerts import store
from millstream.client.alerts.store import AlertStoreError
from millstream.client.line import Line
from millstream.ops.alerts.status import AlertEvent, AlertsSeen, event_of, folded


async def read_every_event(line: Line) -> list[AlertEvent]:
    """Return all events in the stream, oldest first, whatever the size of other entries.

    Entries that no watcher wrote are skipped.
    """
    found: list[AlertEvent] = []
    async for page in store.pages(line):
        found += [event for row in page if (event := event_of(row)) is not None]
    return found[::-1]


async def read_alerts(line: Line) -> AlertsSeen:
    """Return open and past alerts, or the reason why they are unknown."""
    try:
        rows, more = await store.rows(line)
    except AlertStoreError as error:
        return AlertsSeen(why=str(error))
    return AlertsSeen(folded(event for row in rows if (event := event_of(row)) is not None), more=more)
