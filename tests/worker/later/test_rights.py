"""The access rights that docs/worker/reference.md lists for schedules are enough, on every server."""

import re

import pytest
import redis

from millstream import App
from millstream.client.later import recurring
from millstream.client.later.recurring import Recurring
from millstream.client.later.timetable import timetable
from millstream.clock import SystemClock
from millstream.worker.later.mover import Mover
from millstream.worker.later.scheduler import Scheduler
from support import needs
from support.accounts import user
from support.servers import ServerProcess
from support.source import ROOT

SERVERS = ["redis", "millstream", *needs.OTHERS]
#: Rights that every client of this project needs: to connect and to probe the server
BASE = "+@connection +info +command"


def rights(who: str) -> list[str]:
    """Return the access rules in a row of the page."""
    page = (ROOT / "docs/worker/reference.md").read_text()
    row = re.search(rf"^\| {who}[^|]*\| (.*) \|$", page, re.MULTILINE)
    assert row is not None
    if row[1].startswith("the same"):
        return rights("publishes later") + re.findall(r"[~+][^ `]+", row[1])
    return re.findall(r"[~+][^ `]+", row[1])


async def act(who: str, app: App) -> None:
    """Use the rights."""
    line = app._shared()  # noqa: SLF001 - the app's own line
    if who == "publishes unique":
        first = await app.publish("orders", {"n": 1}, unique="a")
        assert await app.publish("orders", {"n": 1}, unique="a") == first
        return
    if who != "worker":
        await app.publish("orders", {"n": 1}, delay="1h", id="a", retry=5)
        await app.publish_batch("orders", [{"n": 1}, {"n": 2}], delay="1h")
    if who == "lists":
        assert len([one async for one in app.later.list("orders")]) == 3
        assert await app.later.get("orders", "a") is not None
        assert await app.later.move("orders", "a", delay="2h")
        assert await app.later.cancel("orders", "a")
    if who == "worker":
        declared = Recurring("tick", timetable("tick", every=1, catch_up="all"), "orders", (b"*", b"n", b"1"), True)
        skipping = Recurring(
            "skip", timetable("skip", every=1, overlap="skip"), "orders", (b"*", b"n", b"1"), True, "g"
        )
        scheduler = Scheduler(lambda: line, [declared, skipping], lambda _: None, lambda: True, SystemClock())
        await scheduler.declare()
        for one in (declared, skipping):
            assert (await recurring.place(line, one, recurring.Placing(1_000, 10**15))).mine
        assert {one.name for one in await recurring.listed(line)} == {"tick", "skip"}
        mover = Mover(lambda: line)
        await mover.turn()
        assert mover.counts["orders"].moved == 1
        assert mover.counts["orders"].skipped == 1
        assert mover.counts["orders"].refused == 0


@pytest.mark.parametrize("who", ["publishes later", "lists", "worker", "publishes unique"])
async def test_the_rights_of_the_page_are_enough(
    server: ServerProcess, client: redis.Redis, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A user with a row's rights can do what the row names, and the server refuses no command."""
    client.xgroup_create("orders", "g", "0", mkstream=True)
    client.xadd("orders", {"n": "0"})
    with user(client, *BASE.split(), *rights(who)) as name:
        app = App(server.url.replace("redis://", f"redis://{name}"), registry=False)
        await act(who, app)
        await app.close()
    assert [one for one in caplog.records if "NOPERM" in one.getMessage() or "permission" in one.getMessage()] == []
