"""Reading the stream of alerts. Any client may have written it."""

from millstream.client.alerts import store
from millstream.client.alerts.store import AlertStoreError
from millstream.client.line import Line
from millstream.ops.alerts.status import AlertEvent, AlertsSeen, event_of, folded


async def read_events(line: Line) -> list[AlertEvent]:
    """Return the events in the stream, oldest first; entries that no watcher wrote are skipped."""
    return [event for row in await store.rows(line) if (event := event_of(row)) is not None]


async def read_alerts(line: Line) -> AlertsSeen:
    """Return open and past alerts, or the reason why they are unknown."""
    try:
        return AlertsSeen(folded(await read_events(line)))
    except AlertStoreError as error:
        return AlertsSeen(why=str(error))
