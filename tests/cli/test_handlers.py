"""``millstream handler``: figures of a real worker's handlers, and the timeline of one entry's runs."""

import asyncio
import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream import App, Retry, StreamSub
from millstream.cli.main import main
from millstream.worker.registry import protocol
from support.servers import ServerProcess
from support.waiting import aeventually

pytestmark = pytest.mark.realserver


async def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream handler`` in a thread beside a running app."""
    done: Result = await asyncio.to_thread(
        CliRunner().invoke, main, ["handler", words[0], "--url", server.url, *words[1:]]
    )
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


async def test_a_workers_handlers_are_listed(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list has rates and percentiles of real runs, and the timeline of a dead entry its death with the error."""
    monkeypatch.setattr(protocol, "BEAT", 0.2)
    app = App(server.url)

    @app.subscriber(StreamSub("jobs", group="g"), retry=Retry(max_deliveries=1))
    async def work(x: int) -> None:
        if x == 13:
            raise ValueError("unlucky")

    async with app.running():
        for number in range(20):
            await app.publish("jobs", {"x": number})

        async def counted() -> dict[str, Any] | None:
            rows = json.loads((await run(server, "ls", "-o", "json")).stdout)
            return next((row for row in rows if row["handled"] == 19 and row["per_second"] and row["dead"]), None)

        row = await aeventually(counted)
        assert (row["handler"], row["stream"], row["group"], row["failed"], row["dead"]) == ("work", "jobs", "g", 1, 1)
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert "work" in (await run(server, "ls")).stdout
        shown = json.loads((await run(server, "show", "jobs", "g", "work", "-o", "json")).stdout)
        assert [len(shown[name]) for name in ("versions", "workers")] == [1, 1]
        await run(server, "show", "jobs", "g", "nothing", code=4)
        ids = [entry for entry, _ in client.xrange("jobs")]
        dead = json.loads((await run(server, "timeline", "jobs", ids[13], "-o", "json")).stdout)
        assert [one["state"] for one in dead["groups"]] == ["dead"]
        assert "ValueError: unlucky" in dead["groups"][0]["events"][-1]["text"]
        done = await run(server, "timeline", "jobs", ids[0])
        assert "published" in done.stdout
        assert "neither the time nor the consumer" in done.stderr
    await run(server, "timeline", "nothing", "1-0", code=4)
