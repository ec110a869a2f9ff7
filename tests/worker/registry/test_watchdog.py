"""A handler that blocks its event loop appears in the log with its stack, and in the registry while it blocks."""

import json
import logging
import os
import re
import signal
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream import App, StreamSub
from millstream.cli.main import main
from millstream.errors import ConfigError
from millstream.worker.registry import facts as worker_facts
from millstream.worker.registry import protocol
from support.servers import ServerProcess
from support.waiting import aeventually, eventually, pace

BLOCKS = """
import time
from pathlib import Path
from millstream import App, StreamSub
app = App(blocked_after=0.3)

@app.subscriber(StreamSub("jobs", group="g"))
async def bill(n: int) -> None:
    wait_for_the_card()

def wait_for_the_card() -> None:
    while not Path("go").exists():
        time.sleep(0.05)
"""


def listed(server: ServerProcess) -> list[dict[str, Any]]:
    """Return the rows of ``millstream worker ls``."""
    shown = CliRunner().invoke(main, ["worker", "ls", "-o", "json", "--url", server.url])
    found: list[dict[str, Any]] = json.loads(shown.stdout)["workers"]
    return found


@pytest.mark.either_server
def test_a_worker_whose_handler_blocks_is_shown_as_blocked(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """``worker ls`` shows a blocked worker with duration, source line and job.

    Afterwards it shows the worker as running.
    """
    worker = tasks.worker(tasks.app(BLOCKS), server.url)
    client.xgroup_create("jobs", "g", mkstream=True)
    running = client.xadd("jobs", {"n": 1})
    row = eventually(lambda: next((row for row in listed(server) if row["state"] == "blocked"), None))
    assert re.fullmatch(r"\d+ s at jobs\.py:9 in bill", row["blocked"]), row
    (facts,) = [json.loads(client.get(key)) for key in client.scan_iter("millstream:worker:*")]
    assert [job["id"] for sub in facts["subscribers"] for job in sub["jobs"]] == [running]
    assert facts["beat_ms"] - facts["blocked"]["since_ms"] >= 300
    shown = CliRunner().invoke(main, ["worker", "show", row["id"], "--url", server.url])
    assert "jobs.py:9 in bill" in shown.stdout
    (tasks.folder / "go").touch()
    eventually(lambda: [row["state"] for row in listed(server)] == ["running"])
    assert listed(server)[0]["blocked"] is None
    os.kill(worker.pid, signal.SIGTERM)
    text = worker.communicate(timeout=30)[0]
    assert "the event loop has been blocked for" in text
    assert "at jobs.py:9 in bill" in text
    assert re.search(r"line 13, in wait_for_the_card\n\s+time\.sleep", text), text
    assert "worker/handlers/invoke.py" not in text
    assert re.search(r"the event loop runs again after \d", text)


async def test_the_registry_keeps_a_blocked_worker_beyond_its_time_to_live(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocked worker's record stays in the registry longer than its time to live."""
    monkeypatch.setattr(protocol, "BEAT", 0.1)
    monkeypatch.setattr(protocol, "TTL_MS", 1_500)  # Many beats: one that is late on a busy machine ends nothing
    app, beats = App(server.url, blocked_after=0.1), []

    @app.subscriber(StreamSub("jobs", group="g"))
    async def bill(n: int) -> None:
        with server.client() as own:
            own.ping()
            while not beats or beats[-1] - beats[0] <= protocol.TTL_MS:  # Blocks the loop meanwhile
                key = next(own.scan_iter("millstream:worker:*"))
                facts = worker_facts.parse(key.decode().removeprefix("millstream:worker:"), own.get(key) or b"")
                if facts is not None and facts["state"] == "blocked" and facts["beat_ms"] not in beats:
                    beats.append(facts["beat_ms"])

    client.xadd("jobs", {"n": 1})
    async with app.running():
        await aeventually(lambda: app.stats()["bill"]["acked"] == 1)
    assert beats[-1] - beats[0] > protocol.TTL_MS


async def test_a_loop_that_goes_on_is_left_alone(server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    """The watchdog logs nothing about handlers that await. Its thread ends with the app and can be switched off."""
    import threading

    caplog.set_level(logging.WARNING)
    for after in (1.0, None):  # A loop of a busy machine may get no turn for a part of a second
        app = App(server.url, registry=False, blocked_after=after)

        @app.subscriber(StreamSub("jobs", group="g", start="$"))
        async def bill(n: int) -> None:
            await pace(1.5)  # as long as handlers take

        async with app.running():
            await app.publish("jobs", {"n": 1})
            names = [thread.name for thread in threading.enumerate()]
            assert ("millstream-watchdog" in names) is (after is not None)
            await aeventually(lambda app=app: app.stats()["bill"]["acked"] == 1)
        assert "millstream-watchdog" not in [thread.name for thread in threading.enumerate()]
    assert "blocked" not in caplog.text
    with pytest.raises(ConfigError, match="blocked_after"):
        App(blocked_after=0)
