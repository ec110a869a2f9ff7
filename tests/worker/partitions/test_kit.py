"""The testing kit owns all partitions of a stream at once, and the test controls the time."""

import pytest

from millstream import App, Message, Nack, StreamSub
from millstream.worker.testing import run


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
