"""A scene for an operator on call: a server with a stuck worker, dead letters and an unknown lag."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from millstream.worker.registry import protocol
from support.servers import ServerProcess
from support.waiting import eventually

APP = """
import os, time
from millstream import App, Retry, StreamSub
app = App(blocked_after=0.3)

@app.subscriber(StreamSub("jobs", group="render", consumer=os.environ["NAME"]))
async def render(n: int) -> None:
    while os.environ["NAME"] == "stuck" and os.path.exists("stuck"):
        time.sleep(0.05)

if os.environ["NAME"] == "well":
    @app.subscriber(StreamSub("orders", group="billing", consumer="well"), retry=Retry(max_deliveries=1))
    async def bill(amount: str) -> None:
        await app.publish("paid", {"amount": 100 // int(amount)})
"""
"""An app with one handler that blocks its worker's event loop while a file exists, and one that fails at times."""

HOUR = 3_600_000


class OnCall:
    """The server with its workers.

    Args:
        server: An empty server.
        folder: Folder for the app.

    Attributes:
        has_slow_log: True if the server keeps slow commands.
    """

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.client: redis.Redis = server.client(decode_responses=True)
        self.has_slow_log = False
        self._workers: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        self._load = threading.Thread(target=self._busy, name="load", daemon=True)

    def fill(self) -> None:
        """Create all the problems."""
        (self.folder / "crew.py").write_text(APP)
        (self.folder / "stuck").touch()
        for stream, group in (("jobs", "render"), ("orders", "billing")):
            self.client.xgroup_create(stream, group, id="0", mkstream=True)
        self._start("stuck")
        for number in range(3):
            self.client.xadd("jobs", {"n": number})
        eventually(lambda: self._state("stuck") == "blocked", what="the worker is blocked")
        self._start("well")
        for amount in ("10", "none", "0"):
            self.client.xadd("orders", {"amount": amount})
        eventually(lambda: self.client.xlen("orders:dead") == 2, what="two entries died")
        eventually(lambda: self._state("well") == "running", what="the other worker reports")
        self._unknown_lag()
        self._hours()
        self._slow()
        self._load.start()

    def _busy(self) -> None:
        """Publish to 20 other streams and handle their entries, until the end."""
        client: redis.Redis = self.server.client(decode_responses=True)
        places = [(f"shop-{number}", group) for number in range(20) for group in ("pack", "ship")]
        for stream, group in places:
            client.xgroup_create(stream, group, id="0", mkstream=True)
        while not self._ended.wait(0.2):
            pipe = client.pipeline(transaction=False)
            for stream, group in places:
                pipe.xadd(stream, {"n": 1}, maxlen=1000)
                pipe.xreadgroup(group, "packer", {stream: ">"}, count=10)
            for (stream, group), read in zip(places, pipe.execute()[1::2], strict=True):
                client.xack(stream, group, *(entry for _, rows in read for entry, _ in rows))
        client.close()

    def _start(self, name: str) -> None:
        self._workers.append(
            subprocess.Popen(
                [sys.executable, "-m", "millstream.worker.child", "crew:app"],
                cwd=self.folder,
                env={**os.environ, "MILLSTREAM_URL": self.server.url, "NAME": name},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the workers."""

        def ask(words: tuple[str, ...]) -> Any:
            return self.client.execute_command(*words)

        ids = ask(("ZRANGE", protocol.INDEX, "0", "-1"))
        found = [ask(("GET", protocol.worker_key(each))) for each in ids]
        return [json.loads(record) for record in found if record]

    def worker(self, consumer: str) -> str:
        """Return the id of the worker with this consumer, or an empty text."""
        for record in self.records():
            if any(sub["consumer"] == consumer for sub in record["subscribers"]):
                return str(record["id"])
        return ""

    def _state(self, consumer: str) -> str:
        wanted = self.worker(consumer)
        return next((record["state"] for record in self.records() if record["id"] == wanted), "")

    def _unknown_lag(self) -> None:
        for number in range(1, 6):
            self.client.xadd("clicks", {"n": number}, id=f"{number}-0")
        self.client.xgroup_create("clicks", "sessions", id="0")
        self.client.execute_command("XGROUP", "SETID", "clicks", "sessions", "3-0")

    def _hours(self) -> None:
        now = time.time_ns() // 1_000_000
        for number, ago in enumerate((3 * HOUR, HOUR // 2, HOUR // 4)):
            self.client.xadd("events", {"n": number}, id=f"{now - ago}-0")
        self.client.xgroup_create("events", "mail", id="$")

    def _slow(self) -> None:
        """Run a command that counts as slow, if the server keeps slow commands."""
        try:
            self.client.config_set("slowlog-log-slower-than", 0)
        except redis.ResponseError:  # a server without SLOWLOG
            return
        self.has_slow_log = True
        self.client.xrange("orders", "-", "+", count=7)
        self.client.config_set("slowlog-log-slower-than", 10_000_000)

    def end(self) -> None:
        """Release the stuck worker and end all."""
        self._ended.set()
        if self._load.ident is not None:
            self._load.join(timeout=30)
        (self.folder / "stuck").unlink(missing_ok=True)
        for worker in self._workers:
            worker.kill()
            worker.wait(timeout=30)
        self.client.close()


@contextmanager
def on_call(server: ServerProcess, folder: Path) -> Iterator[OnCall]:
    """Yield the server with all the problems within a ``with`` block."""
    found = OnCall(server, folder)
    try:
        found.fill()
        yield found
    finally:
        found.end()
