"""An app whose server is not reachable yet waits for it, logs that, and gives up after its patience."""

import asyncio
import logging
from pathlib import Path

import pytest

from millstream import App, Disconnected, StreamSub
from millstream.client.line import AccessDenied
from millstream.errors import ConfigError
from millstream.worker.process.run import EXIT_CONFIG, _run
from support.ports import free_port
from support.servers import ServerProcess, millstream_server
from support.waiting import aeventually


def working(url: str) -> tuple[App, list[str]]:
    """An app with one subscriber and a hook, and a log of its events."""
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
    """An app that waits for its server logs its absence and its return once each, then runs its startup hook once."""
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
    """Waiting ends after the given patience, and 0 tries once. A refused login is not retried."""
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    for patience in (0, 0.3):
        app, seen = working(nobody)
        with pytest.raises(Disconnected, match=r"cannot connect to redis://.* Start the server"):
            async with app.running(patience=patience):
                pass
        assert seen == []
    app, _ = working(real_redis.url.replace("redis://", "redis://nobody:wrong@"))
    with pytest.raises(AccessDenied):
        async with app.running():
            pass


@pytest.mark.parametrize("database", ["/99", "/0?db=99"])
async def test_a_database_that_is_not_there_is_the_urls_fault(
    real_redis: ServerProcess, tmp_path: Path, database: str
) -> None:
    """A database number that the server lacks is reported at once as an error in the URL, and not retried."""
    with millstream_server(tmp_path, "--memory") as ours:
        for server in (real_redis, ours):
            app, seen = working(f"redis://127.0.0.1:{server.port}{database}")
            for failing in (
                app.publish("s", {"a": 1}, retry="1m"), app.start(), app.running(patience=None).__aenter__()
            ):  # fmt: skip
                with pytest.raises(ConfigError, match=r"the URL names database 99, and the server at 127.*`databases`"):
                    await failing
            assert seen == []
            assert await _run(app, None, None) == EXIT_CONFIG
            await app.close()


async def test_a_publish_without_a_server_says_what_to_do() -> None:
    """Every way to publish without a server names the server and the remedy, and reports that nothing was sent."""
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    async with App(url) as app:
        for publishing in (
            app.publish("s", {"a": 1}),
            app.publish("s", {"a": 1}, retry=0.1),
            app.publish("s", {"a": 1}, unique="x"),
            app.publish("s", {"a": 1}, delay=5),
            app.publish("s", {"a": 1}, key="k"),
            app.publish_batch("s", [{"a": 1}]),
            app.publisher("s").publish({"a": 1}),
            app.request("s", {"a": 1}),
            asyncio.to_thread(app.publish_sync, "s", {"a": 1}),
        ):
            with pytest.raises(Disconnected, match=r"cannot connect to redis://.*\. Start the server, or give") as told:
                await publishing
            assert "secret" not in str(told.value)
            assert not told.value.sent
        await asyncio.to_thread(app.close_sync)
