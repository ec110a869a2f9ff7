"""The processes of a run: the server, three workers, and the Spark pipeline."""

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flights import rules
from flights.running.child import MILLSTREAM, Child, DemoServer
from flights.settings import DemoSettings

EXAMPLES = Path(__file__).parents[2]
"""Folder in which child processes find this package."""

FEW = 50_000
"""Number of events up to which Spark's start takes longer than its work."""


class Processes:
    """Starts, watches and ends the processes.

    Args:
        settings: the run.
    """

    def __init__(self, settings: DemoSettings) -> None:
        self._settings = settings
        self.server = None if settings.url else DemoServer(settings.data, settings.logs)
        self.url = settings.url or ""
        self.workers: dict[str, Child] = {}
        self._pipeline: Child | None = None
        self._console: Child | None = None
        self.spark_total = 0
        self.spark_state = "starting"
        """``starting``, ``session``, ``streaming`` or ``done``."""
        self.spark_restarts = 0

    def start_server(self) -> str:
        """Start the embedded server unless a URL was given, and return the URL."""
        if self.server:
            self.url = self.server.start()
        return self.url

    def start_console(self, tell: Callable[[str], None]) -> None:
        """Start the web pages of the server; call ``tell`` in a thread with their address."""

        def heard(line: str) -> None:
            word, _, address = line.partition(" ")
            if word == "ready":
                tell(address)

        argv = [*MILLSTREAM, "console", "--ends-with-stdin"]
        self._console = Child("console", argv, self._settings.logs, {"MILLSTREAM_URL": self.url}, heard)

    def start_pipeline(self) -> None:
        """Start the Spark process; it takes seconds until it reads."""
        keys = self._settings.keys
        argv = [sys.executable, "-m", "flights.pipeline", "--stream", keys.flights]
        argv += ["--routes", keys.routes, "--work", str(self._settings.spark), "--parquet", str(self._settings.parquet)]
        if self._settings.rows is not None and self._settings.rows <= FEW:
            argv.append("--quick")
        self._pipeline = Child("spark", argv, self._settings.logs, self._env(), self._heard, "Spark pipeline")

    def start_workers(self) -> None:
        """Start the workers, each with its own name.

        They run without the supervisor of ``millstream run``: it would start a killed worker again at once, and the
        demo shows that the *others* take over.
        """
        for number in range(1, rules.WORKERS + 1):
            name = f"worker-{number}"
            argv = [sys.executable, "-m", "flights.app"]
            env = {"MILLSTREAM_DEMO_CONSUMER": name}
            self.workers[name] = Child(name, argv, self._settings.logs, self._env() | env)

    def _env(self) -> dict[str, str]:
        # By environment, not by argument: a URL may have a password, and every user can see arguments.
        return {
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "MILLSTREAM_URL": self.url,
            "MILLSTREAM_DEMO_PREFIX": self._settings.keys.prefix,
            "MILLSTREAM_DEMO_RECEIPTS": str(self._settings.receipts),
            "MILLSTREAM_DEMO_REPORTS": "1" if self._settings.reports else "",
        }

    def _heard(self, line: str) -> None:
        """Handle one line from the pipeline; a line that is not JSON comes from Spark and is ignored."""
        try:
            word = json.loads(line)
        except ValueError:
            return
        match word:
            case {"event": "batch", "total": int(total)}:
                self.spark_total = total
            case {"event": "restart"}:
                self.spark_restarts += 1
            case {"event": str(state)}:
                self.spark_state = state

    def finish_pipeline(self) -> None:
        """Notify the pipeline that no more events will come."""
        assert self._pipeline is not None
        self._pipeline.say("finish")

    @property
    def pipeline_done(self) -> bool:
        """Return True if its tables are written."""
        return self.spark_state == "done"

    def check(self) -> None:
        """Raise an error if a process ended by itself.

        Raises:
            DemoError: A process ended; the message has its name, its exit code and its last lines.
        """
        if self.server:
            self.server.check()
        for child in self.workers.values():
            child.check()
        if self._pipeline and not self.pipeline_done:
            self._pipeline.check()

    def stop_workers(self) -> dict[str, int]:
        """End the workers in order, and return their exit codes by name."""
        with ThreadPoolExecutor(rules.WORKERS) as pool:
            return dict(zip(self.workers, pool.map(Child.stop, self.workers.values()), strict=True))

    def stop_users(self) -> None:
        """End all processes that use the server."""
        self.stop_workers()
        if self._pipeline:
            self._pipeline.stop(grace=10 if self.pipeline_done else 0.5)

    def stop(self) -> None:
        """End everything: first the processes that use the server, then the server."""
        self.stop_users()
        if self._console:
            self._console.stop()
        if self.server:
            self.server.stop()
