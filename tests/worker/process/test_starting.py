"""An app whose server is not there yet waits for it, says so, and gives up when it is told to."""

import asyncio
import logging

import pytest

from millstream import App, Disconnected, StreamSub
from millstream.client.line import AccessDenied
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import aeventually


def working(url: str) -> tuple[App, list[str]]:
    """An app with one subscriber and a hook; what happened to it."""
    app, seen = App(url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> None:
        seen.append("handled")

    @app.on_startup
    def begin() -> None:
        seen.append("started")

    return app, seen


async def test_running_waits_for_a_server_that_comes(
    own_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """One line that it is away, one that it is there; the startup hook runs once, and the work begins."""
    caplog.set_level(logging.INFO, "millstream.worker")
    await asyncio.to_thread(own_server.stop)
    app, seen = working(own_server.url)

    async def come() -> None:
        await aeventually(lambda: any("cannot reach" in record.getMessage() for record in caplog.records))
        await asyncio.to_thread(own_server.start)

    coming = asyncio.create_task(come())
    async with app.running():
        await coming
        await app.publish("s", {"x": 1})
        await aeventually(lambda: seen == ["started", "handled"])
    said = [record.getMessage() for record in caplog.records]
    assert sum("cannot reach" in text and "trying again for 30 s" in text for text in said) == 1
    assert sum("reached" in text and "after" in text for text in said) == 1


async def test_running_gives_up_when_its_patience_is_over(real_redis: ServerProcess) -> None:
    """The bound is the caller's; 0 tries once; a server that does not let us in is not tried again."""
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    for patience in (0, 0.3):
        app, seen = working(nobody)
        with pytest.raises(Disconnected, match=r"cannot connect to redis://.* start the server"):
            async with app.running(patience=patience):
                pass
        assert seen == []
    app, _ = working(real_redis.url.replace("redis://", "redis://nobody:wrong@"))
    with pytest.raises(AccessDenied):
        async with app.running():
            pass
