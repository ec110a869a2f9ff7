"""A server with much of everything that lengthens the console's pages: causes, alerts, partitions and long names."""

import json
import time
from typing import Any

import redis

from millstream.client.alerts import store
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.later import schedule
from millstream.client.later.recurring import KEY
from millstream.client.partitions.lease import owner_key
from millstream.ops.alerts.status import Alert, AlertEvent, words_of
from support.enrolled import RECENT, enrol
from support.frozen import freeze
from support.histories import fill
from support.partitioned import partition

LONG = "customer-notifications-by-region-and-priority-of-the-order-service"
"""A stream's name of 66 characters."""

HANDLERS = 6
"""Number of handlers of the group ``billing``, each with two charts."""


def fill_eventful(url: str, client: redis.Redis) -> None:
    """Fill a server, as one under load with a frozen worker looks."""
    now = time.time_ns() // 1_000_000
    fill(client, now, days=1.0)
    freeze(client, partitions=2, handler="charge")
    partition(url, "parcels", 8)
    pipe: Any = client.pipeline(transaction=False)
    for at in range(8):
        for number in range(40):
            pipe.xadd(f"parcels{{{at}}}", {"weight": number}, id=f"{now - 9000 + number}-0")
        pipe.xgroup_create(f"parcels{{{at}}}", "routing", id="0")
        if at % 3:
            pipe.set(owner_key(f"parcels{{{at}}}", "routing"), f"router-{at % 3}:4", px=3_600_000)
    for key in ("orders", LONG):
        for number in range(60):
            pipe.xadd(
                key, {"customer": f"c{number}", "amount": number, "currency": "EUR"}, id=f"{now - 5000 + number}-0"
            )
        for group in ("billing", "shipping", LONG):
            pipe.xgroup_create(key, group, id="0")
    pipe.hset(schedule.content_key("orders"), "reminder", b"-:" + schedule.packed(["*", "customer", "c1"]))
    pipe.zadd(schedule.due_key("orders"), {"reminder": now + 3_600_000})
    pipe.hset(KEY, "nightly", json.dumps({"stream": "reports", "cron": "0 0 * * *"}))
    pipe.execute()
    for number in range(6):
        client.xreadgroup("billing", f"web-{number}-4711", {"orders": ">"}, count=5)
    client.execute_command(  # type: ignore[no-untyped-call] # as in redis-py
        "XNACK", "orders", "billing", "FATAL", "IDS", 1, f"{now - 5000}-0"
    )
    for number in range(HANDLERS):
        enrol(client, f"web-{number}", handler=f"charge_{number}", consumer=f"web-{number}-4711", recent=RECENT)
    for number in range(30):
        letter = DeadLetter((b"n", b"1"), "orders", f"{number + 1}-0", "billing", "web-1", 5, "error",
                            f"E{number % 7}: no", "File x\n" * 40, 1, now - number)  # fmt: skip
        pipe.execute_command("XADD", "orders:dead", f"{number + 1}-0", *pack(letter))
    pipe.execute()
    for number in range(8):
        held = (f"{LONG} on {LONG}", "billing on orders: 48 pending, in 2 partitions")
        says = f"the worker web-{number}-4711-aaaaaa is blocked at billing/charge.py:7 in charge: its loop does not run"
        opened = Alert(f"a{number}", "x", "problem", says, now - 900_000, now - 800_000 + number, None, held)
        _alert(client, AlertEvent("opened", opened))
        if number:
            _alert(client, AlertEvent("closed", Alert(*_fields(opened), now - 60_000, held)))


def _alert(client: redis.Redis, event: AlertEvent) -> None:
    words = words_of(event)
    client.xadd(store.KEY, dict(zip(words[::2], words[1::2], strict=True)))


def _fields(one: Alert) -> tuple[str, str, str, str, int | None, int]:
    return one.id, one.code, one.level, one.says, one.since_ms, one.opened_ms
