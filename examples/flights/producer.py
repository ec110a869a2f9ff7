"""The producer: it replays the flights into the stream in order, even if the server restarts meanwhile.

After a lost connection, the outcome of the sent commands is unknown. The ids are explicit and increase, so one command
settles that: the server has everything up to the stream's last id, and nothing after it. So the producer reads that id
and continues from there; it adds no event twice and omits none. An event that the server acknowledged, but does not
have after a restart, is recorded as lost.
"""

import itertools
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import redis

from flights.data import FlightEvent
from millstream.client.connect import sync_client
from millstream.errors import MillstreamError

CHUNK = 500
"""Events in one pipeline, which share a round trip."""

PATIENCE = 60.0
"""Seconds that the server may be unreachable before the producer gives up."""


class Resumption(NamedTuple):
    """The state that the producer found after it had lost the server.

    Attributes:
        acknowledged: last id the server had acknowledged.
        found: last id of the stream after the restart.
        known: number of unacknowledged events that the stream already had.
    """

    acknowledged: str
    found: str
    known: int


class Producer(threading.Thread):
    """Publishes events in a separate thread.

    Args:
        url: the server.
        stream: key of the stream.
        events: events to publish; their ids grow.
        gate: number of the event before which the thread waits, until :meth:`allow` moves it.
    """

    def __init__(self, url: str, stream: str, events: Iterable[FlightEvent], gate: int) -> None:
        super().__init__(name="producer", daemon=True)
        self._url = url
        self._stream = stream
        self._events = iter(events)
        self._gate = gate
        self._moved = threading.Condition()
        self._stopped = False
        self.published = 0
        """Events acknowledged by the server."""
        self.acknowledged = "0-0"
        self.resumptions: list[Resumption] = []
        self.error: BaseException | None = None
        self.finished = False

    @property
    def at_gate(self) -> bool:
        """Return True if the producer waits for :meth:`allow`."""
        return self.published >= self._gate and not self.finished

    def allow(self, count: int) -> None:
        """Let the producer publish up to ``count`` events in all."""
        with self._moved:
            self._gate = max(self._gate, count)
            self._moved.notify_all()

    def open(self) -> None:
        """Let the producer publish all events."""
        self.allow(sys.maxsize)

    def stop(self) -> None:
        """End the thread after its present chunk."""
        with self._moved:
            self._stopped = True
            self._moved.notify_all()

    def run(self) -> None:
        """Publish all events; an exception is stored in ``error``."""
        try:
            client = sync_client(self._url)
            for chunk in self._chunks():
                self._publish(client, chunk)
            self.finished = not self._stopped
        except Exception as error:  # noqa: BLE001 - the watching thread raises it again
            self.error = error

    def _chunks(self) -> Iterator[list[FlightEvent]]:
        while True:
            with self._moved:
                self._moved.wait_for(lambda: self._stopped or self.published < self._gate)
                room = min(CHUNK, self._gate - self.published)
            if self._stopped:
                return
            chunk = list(itertools.islice(self._events, room))
            if not chunk:
                return
            yield chunk

    def _publish(self, client: "redis.Redis", chunk: list[FlightEvent]) -> None:
        deadline = time.monotonic() + PATIENCE
        while chunk and not self._stopped:
            try:
                pipe = client.pipeline(transaction=False)
                for event in chunk:
                    pipe.xadd(self._stream, cast("dict[Any, Any]", event.fields), id=event.id)
                pipe.execute()
            except (redis.ConnectionError, redis.TimeoutError):
                chunk = self._resume(client, chunk, deadline)
            else:
                self._note(chunk)
                chunk = []

    def _note(self, chunk: list[FlightEvent]) -> None:
        self.acknowledged = chunk[-1].id
        self.published += len(chunk)

    def _resume(self, client: "redis.Redis", chunk: list[FlightEvent], deadline: float) -> list[FlightEvent]:
        """Wait for the server, and find the events that are still to be sent."""
        found = self._last_id(client, deadline)
        limit = as_pair(found)
        known = [event for event in chunk if as_pair(event.id) <= limit]
        self.resumptions.append(Resumption(self.acknowledged, found, len(known)))
        if known:
            self._note(known)
        return chunk[len(known) :]

    def _last_id(self, client: "redis.Redis", deadline: float) -> str:
        while True:
            try:
                return last_id(client, self._stream)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise MillstreamError(f"the server has been away for {PATIENCE:.0f} s: {error}") from error
                with self._moved:
                    self._moved.wait_for(lambda: self._stopped, timeout=0.1)


def as_pair(entry_id: str) -> tuple[int, int]:
    """Return an entry id as two numbers, which compare as the server compares ids."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def last_id(client: "redis.Redis", stream: str) -> str:
    """Return the stream's last generated id; ``0-0`` if the stream does not exist."""
    try:
        last: bytes = client.xinfo_stream(stream)["last-generated-id"]
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return "0-0"
        raise
    return last.decode()
