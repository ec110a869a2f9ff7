"""The run itself: events flow, a worker and perhaps the server are killed, until everything is settled and counted."""

import time
from dataclasses import replace

import redis

from flights.producer import Producer
from flights.running.child import DemoError
from flights.running.crash import WorkerCrash, pending_of
from flights.running.incidents import Incidents
from flights.running.processes import Processes
from flights.running.progress import ProgressBoard
from flights.running.sample import Happening, Sample, look
from flights.settings import DemoSettings

TICK = 0.2
"""Seconds between two checks of the state."""

STALL = 120.0
"""Seconds without a change of any figure after which the run is given up."""

VICTIM = "worker-2"


class Flow:
    """One run, from the first event to the last figure.

    Args:
        settings: the run.
        rows: number of events.
        processes: all processes, started.
        client: connected to the server.
        producer: not started yet; its gate is at half of the events.
        screen: display of the progress.
    """

    def __init__(
        self,
        settings: DemoSettings,
        rows: int,
        processes: Processes,
        client: "redis.Redis",
        producer: Producer,
        screen: ProgressBoard,
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._processes = processes
        self._client = client
        self._producer = producer
        self._screen = screen
        self._started = time.monotonic()
        self._moved = self._started
        self._noted: set[str] = set()
        self._finish_said = False
        self._restarts = 0
        self.incidents = Incidents()
        self.samples: list[Sample] = []
        self.happenings: list[Happening] = []
        self._crash = WorkerCrash(client, settings.keys.flights, processes.workers[VICTIM], VICTIM, self.incidents)

    def run(self) -> None:
        """Run until the workers have settled everything and the pipeline is done.

        Raises:
            DemoError: a process ended by itself, or no figure changes any more.
        """
        self._producer.start()
        while not self._over():
            self._processes.check()
            if self._producer.error:
                raise DemoError(f"the producer gave up: {self._producer.error}") from self._producer.error
            try:
                self._tick()
            except redis.ConnectionError as error:
                raise DemoError(f"the server is gone: {error}") from error
            time.sleep(TICK)  # the interval of the figures and bars
        self.incidents.resumptions += self._producer.resumptions

    def _over(self) -> bool:
        return self._drained() and self._processes.pipeline_done

    def _drained(self) -> bool:
        last = self.samples[-1] if self.samples else None
        return bool(last and self._producer.finished and not last.pending and last.handled >= self._rows)

    def _tick(self) -> None:
        sample = look(self._client, self._settings.keys, self._now(), self._processes.spark_total)
        self._watch_for_stall(sample)
        self.samples.append(sample)
        self._screen.show(sample)
        self._stage(sample)
        self._tell()

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _stage(self, sample: Sample) -> None:
        """Take the next step: kill the worker, then the server, then release the other events."""
        if not self.incidents.victim:
            if sample.handled >= 0.3 * self._rows or self._producer.at_gate:
                self._kill_worker()
        elif self._settings.kill_server and not self.incidents.acknowledged:
            if sample.published >= 0.6 * self._rows:
                self._kill_server()
        elif self._producer.finished and not self._finish_said:
            self._finish_said = True
            self._processes.finish_pipeline()
            self._note("end", f"all {self._rows:,} events are published")

    def _kill_worker(self) -> None:
        if self._producer.finished:
            raise DemoError(f"{VICTIM} could not be caught with an entry in hand: run the demo again")
        if not self._crash.attempt(self._producer, nudge=max(self._rows // 50, 20), many=min(self._rows // 200, 50)):
            return
        held = len(self.incidents.held)
        self._note("kill", f"{VICTIM} killed (SIGKILL) with {held:,} {'entry' if held == 1 else 'entries'} in hand")
        if self._settings.kill_server:
            self._producer.allow(self._rows * 3 // 4)
        else:
            self._producer.open()

    def _kill_server(self) -> None:
        """Kill the server by SIGKILL during publishing, and start it again on the same directory."""
        server = self._processes.server
        assert server is not None
        acknowledged = self._producer.acknowledged
        self._producer.open()
        server.kill()
        self.incidents.acknowledged.append(acknowledged)
        self._note("down", "server killed (SIGKILL)")
        server.start()
        length = self._client.xlen(self._settings.keys.flights)
        self._note("up", f"server started again on the same directory: {length:,} flights are there")

    def _tell(self) -> None:
        """Add marks for events that happen by themselves."""
        if self.incidents.victim and "claim" not in self._noted and not self._left_behind():
            self._noted.add("claim")
            self._note("claim", f"the others have claimed all that {VICTIM} held")
        if self._processes.spark_state != "starting" and "spark" not in self._noted:
            self._noted.add("spark")
            self._note("spark", "Spark is up")
        if self._processes.spark_restarts > self._restarts:
            self._restarts = self._processes.spark_restarts
            self._note("restart", "Spark lost the server; its query goes on from the checkpoint")
        if self._drained() and "drained" not in self._noted:
            self._noted.add("drained")
            self._note("end", "the workers have settled every event")

    def _left_behind(self) -> list[str]:
        return pending_of(self._client, self._settings.keys.flights, VICTIM)

    def _note(self, kind: str, text: str) -> None:
        self.happenings.append(Happening(round(self._now(), 3), kind, text))
        self._screen.note(text)

    def _watch_for_stall(self, sample: Sample) -> None:
        now = time.monotonic()
        last = self.samples[-1] if self.samples else None
        if last is None or replace(sample, at=0) != replace(last, at=0):
            self._moved = now
        if now - self._moved > STALL:
            raise DemoError(
                f"nothing has moved for {STALL:.0f} s: published {sample.published:,}, handled {sample.handled:,}, "
                f"pending {sample.pending:,}, Spark {sample.spark:,} of {self._rows:,} "
                f"({self._processes.spark_state}). The logs are in {self._settings.logs}"
            )
