"""The testing kit owns all partitions of a stream at once, and the test controls the time."""

import asyncio
from typing import Any

import pytest

from millstream import App, EntryLostError, Message, Nack, StreamSub, once
from millstream.errors import UsageError
from millstream.worker.testing import run
from support.readme import block


async def test_an_app_owns_all_partitions_and_time_passes_at_once() -> None:
    """In the testing kit, retry delays and schedules of a month pass at once on a partitioned stream, in key order."""
    app = App()
    seen: list[tuple[str, int]] = []

    @app.subscriber(StreamSub("orders", group="g"), hold=True)
    async def handle(key: str, n: int, msg: Message) -> None:
        if n == 1 and msg.delivery_count == 1:
            raise Nack("later", delay="5m")
        seen.append((key, n))

    async with run(app, partitions={"orders": (4, "key")}) as broker:
        for n in range(6):
            await broker.publish("orders", {"key": f"k{n % 2}", "n": n})
        await broker.run_until_idle()
        assert [n for key, n in seen if key == "k0"] == [0, 2, 4]
        assert [n for key, n in seen if key == "k1"] == []
        await broker.advance("10m")
        assert [n for key, n in seen if key == "k1"] == [1, 3, 5]
        await broker.publish("orders", {"key": "k0", "n": 9}, delay="2h", id="a")
        assert await app.later.get("orders", "a") is not None
        assert await app.later.move("orders", "a", delay="3h")
        await broker.publish("orders", {"key": "k1", "n": 8}, delay="1h", id="b")
        assert [one.id async for one in app.later.list("orders")] == ["b", "a"]
        assert await app.later.cancel("orders", "b")
        await broker.advance("4h")
        assert seen[-1] == ("k0", 9)
        assert len(app.loops[0].parts) == 4


async def test_errors_of_handlers_are_raised() -> None:
    """The testing kit raises a handler's error on a partitioned stream, as on a plain one."""
    app = App()

    @app.subscriber(StreamSub("orders", group="g"))
    async def handle(n: int) -> None:
        raise ValueError(n)

    async with run(app, partitions={"orders": (2, None)}) as broker:
        await broker.publish("orders", {"n": 7}, key="a")
        with pytest.raises(ValueError, match="7"):
            await broker.run_until_idle()


async def test_a_crash_of_an_owner_runs_its_entry_again_with_a_higher_fence() -> None:
    """After ``crash_owner`` the next owner runs the entry again, and ``once`` has one effect."""
    app, began, fences = App(), asyncio.Event(), list[int | None]()

    @app.subscriber(StreamSub("orders", group="g"))
    async def handle(n: int, msg: Message) -> None:
        fences.append(msg.fence)
        await once(msg, ("INCRBY", f"sum{{{msg.partition}}}", n))
        began.set()
        if len(fences) == 1:
            await asyncio.Event().wait()

    async with run(app, partitions={"orders": (4, "key")}) as broker:
        with pytest.raises(UsageError, match="no subscriber owns a partition 4"):
            await broker.crash_owner(4)
        await broker.run_until_idle()
        await broker.publish("orders", {"key": "k", "n": 7})
        await began.wait()
        (number,) = (one for one in range(4) if broker.client.xlen(f"orders{{{one}}}"))
        await broker.crash_owner(number)
        await broker.run_until_idle()
        await broker.advance("5m")
        assert fences == [1, 2]
        assert broker.client.get(f"sum{{{number}}}") == "7"
        assert broker.client.xpending(f"orders{{{number}}}", "g")["pending"] == 0
        assert len(app.loops[0].parts) == 4


async def test_the_late_outcome_of_a_frozen_owner_is_refused() -> None:
    """After ``freeze`` the owner's ``once`` and its outcome are refused, and the entry runs again."""
    app, began, thawed = App(), asyncio.Event(), asyncio.Event()
    fences, late = list[int | None](), list[BaseException]()

    @app.subscriber(StreamSub("orders", group="g"))
    async def handle(n: int, msg: Message) -> None:
        fences.append(msg.fence)
        began.set()
        await thawed.wait()
        try:
            await once(msg, ("INCRBY", f"sum{{{msg.partition}}}", n))
        except EntryLostError as error:
            late.append(error)

    async with run(app, partitions={"orders": (1, "key")}) as broker:
        await broker.run_until_idle()
        await broker.publish("orders", {"key": "k", "n": 7})
        await began.wait()
        await broker.freeze(0)
        thawed.set()
        await broker.run_until_idle()
        await broker.advance("5m")
        assert (fences, len(late)) == ([1, 3], 1)
        assert app.loops[0].stats.fenced == 1
        assert (broker.client.get("sum{0}"), broker.client.xpending("orders{0}", "g")["pending"]) == ("7", 0)


async def test_the_example_of_the_page_is_right() -> None:
    """The test in docs/worker/partitions.md passes."""
    example: dict[str, Any] = {"__name__": "test_owners"}
    exec(compile(block("python", "# test_owners.py", page="docs/worker/partitions.md"), "test_owners", "exec"), example)
    await example["test_a_crash_has_one_effect"]()
