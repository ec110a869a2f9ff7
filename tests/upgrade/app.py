"""The app that both versions run: its entries' fields choose how each ends. Public names of 0.1 only.

``VERSION`` says who works, and stands beside each effect; ``MIN_IDLE`` is in milliseconds, ``SLOW`` how
many seconds an entry of that kind takes.
"""

import os
import signal

from millstream import App, Message, Nack, Reject, Retry, StreamSub, once
from support.waiting import pace

app = App()


@app.subscriber(
    StreamSub("orders", group="billing", min_idle_time=int(os.environ.get("MIN_IDLE", "1000")), max_records=20),
    retry=Retry(max_deliveries=3, base=0.02, jitter=False),
    concurrency=4,
)
async def bill(n: int, kind: str, msg: Message) -> None:
    """Note the run, then end as the entry says."""
    effect = {
        "n": n,
        "kind": kind,
        "delivery": msg.delivery_count,
        "version": os.environ["VERSION"],
        "pid": os.getpid(),
    }
    await app.publish("effects", effect, retry="20s")
    if kind == "once":
        await once(msg, ("XADD", "orders:bills", "*", "n", str(n)))
    elif kind == "error" or (kind == "flaky" and msg.delivery_count < 2):
        raise ValueError(f"no such customer: {n}")
    elif kind == "reject":
        raise Reject("not ours")
    elif kind == "nack":
        raise Nack("not now", delay=0.02)
    elif kind == "later":
        raise Nack("in an hour", delay=3600)
    elif kind == "slow":
        await pace(float(os.environ.get("SLOW", "3600")))
    elif kind == "brief":
        await pace(0.01)
    elif kind == "poison":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    app.run()
