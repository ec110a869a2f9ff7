"""The demo's worker, an ordinary Millstream app; in examples/, ``millstream run flights.app:app`` runs it alone.

It raises an alert for each flight that left an hour late, and for each one that was cancelled. It meets three faults
that any real feed has:

- Cancelled flights without an aircraft do not fit ``Flight``, which needs a ``tailnum``. No retry can help, so they
  become dead letters.
- Honolulu's station fails on the first delivery of each of its flights, and the worker retries them.
- One of the processes is killed, and another one claims its entries.

Each attempt writes a receipt to a file before the handler returns, and so before the entry is acknowledged. A receipt
is one ``write`` to an append-only file: it survives the death of the process, and costs microseconds.
"""

import os
from dataclasses import dataclass

from flights import receipts, rules
from flights.settings import Keys
from millstream import App, Message, Retry, StreamSub

keys = Keys.under(os.environ.get("MILLSTREAM_DEMO_PREFIX", ""))
consumer = os.environ.get("MILLSTREAM_DEMO_CONSUMER")
book = receipts.Book(os.environ.get("MILLSTREAM_DEMO_RECEIPTS"), consumer or str(os.getpid()))
# One of the workers is killed, and the demo must leave nothing on a user's server
app = App(registry=bool(os.environ.get("MILLSTREAM_DEMO_REPORTS")))


@dataclass(slots=True)
class Flight:
    """One flight of the stream. A flight without ``dep_time`` was cancelled."""

    carrier: str
    flight: int
    tailnum: str
    origin: str
    dest: str
    time_hour: str
    sched_dep_time: int
    dep_time: int | None = None
    dep_delay: int | None = None


class StationSilentError(Exception):
    """The destination's station did not reply; it may reply the next time."""


@app.subscriber(
    StreamSub(keys.flights, group=rules.GROUP, consumer=consumer, min_idle_time=rules.MIN_IDLE_MS),
    retry=Retry(max_deliveries=rules.MAX_DELIVERIES, base=0.2),
    concurrency=64,
)
async def watch(flight: Flight, msg: Message) -> None:
    """Raise an alert if the flight is very late or cancelled."""
    if flight.dest == rules.FLAKY_DESTINATION and msg.delivery_count == 1:
        book.write(msg.id, msg.delivery_count, receipts.FAILED)
        raise StationSilentError(f"no answer from {flight.dest}")
    if flight.dep_time is None:
        await alert(flight, msg, "cancelled")
        book.write(msg.id, msg.delivery_count, receipts.CANCELLED)
    elif flight.dep_delay is not None and flight.dep_delay >= rules.ALERT_MINUTES:
        await alert(flight, msg, "late")
        book.write(msg.id, msg.delivery_count, receipts.LATE)
    else:
        book.write(msg.id, msg.delivery_count, receipts.FINE)


async def alert(flight: Flight, msg: Message, kind: str) -> None:
    """Add an alert; ``of`` names the event, so that a second alert for it is visible."""
    fields = {
        "of": msg.id,
        "kind": kind,
        "flight": f"{flight.carrier}{flight.flight}",
        "origin": flight.origin,
        "dest": flight.dest,
    }
    if flight.dep_delay is not None:
        fields["minutes"] = str(flight.dep_delay)
    await app.publish(keys.alerts, fields)


if __name__ == "__main__":
    app.run()
