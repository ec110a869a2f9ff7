"""The app of a fixture's worker: each entry's field ``do`` names the action of its handler.

The recorder runs it as a separate process, ``python -m compatibility.shop URL MS``, with a clock that starts at MS. A
test runs the same subscribers over the recorded keys.
"""

import asyncio
import socket
import sys

from millstream import App, Message, Nack, Reject, Retry, StreamSub, once
from support.clock import Ahead
from support.wire import Wire

STREAM = "jobs"
HOUR = 3600
MIN_IDLE_MS = 1000

DOES = ("work", "fail", "reject", "later", "reject", "hang")
"""Actions by entry of the recorded stream, in the order of its ids."""

TRIES = f"millstream:{{{STREAM}}}:tries:billing"
DUE = f"millstream:{{{STREAM}}}:due:billing"
DEAD = f"{STREAM}:dead"


def entry_id(number: int) -> str:
    """Return the id of an entry of the recorded stream."""
    return f"{number}-0"


def shop(seen: list[tuple[str, str, int]], *, works: bool = False) -> App:
    """Create the app.

    Args:
        seen: List that gets group, name of the entry and delivery count of each run.
        works: True to let each handler work instead of failing, waiting or hanging.
    """
    app = App(grace=1)
    retry = Retry(max_deliveries=5, backoff="constant", base=HOUR, max_delay=HOUR, jitter=False)

    @app.subscriber(StreamSub(STREAM, group="billing", min_idle_time=MIN_IDLE_MS, start="0"), retry=retry)
    async def bill(name: str, do: str, msg: Message) -> None:
        seen.append(("billing", name, msg.delivery_count))
        if do in ("work", "hang"):
            await once(msg, ("HINCRBY", "billed", name, 1), ttl="3650d")
        if works:
            return
        if do == "fail":
            raise ValueError(name)
        if do == "reject":
            raise Reject(reason="not ours")
        if do == "later":
            raise Nack(delay="40d")
        if do == "hang":
            await asyncio.Event().wait()

    @app.subscriber(StreamSub(STREAM, group="mailing", min_idle_time=MIN_IDLE_MS, start="0"))
    async def mail(name: str, msg: Message) -> None:
        seen.append(("mailing", name, msg.delivery_count))

    return app


def is_recorded(wire: Wire) -> bool:
    """Return True once each entry is in its final state for this worker."""
    facts = [("HLEN", "billed"), ("HLEN", TRIES), ("ZCARD", DUE), ("XLEN", DEAD), ("XPENDING", STREAM, "billing")]
    billed, tried, due, dead, pending = [wire.ask(*words) for words in facts]
    return (billed, tried, due, dead) == (2, 2, 2, 2) and pending[0] == 3


async def main(url: str, ms: str) -> None:
    """Work until this process is killed."""
    async with shop([]).running(url, clock=Ahead(int(ms))):
        await asyncio.Event().wait()


if __name__ == "__main__":
    socket.gethostname = lambda: "recorder"  # the names of consumers and workers begin with it
    asyncio.run(main(*sys.argv[1:]))
