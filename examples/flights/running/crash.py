"""Kill one worker at a moment when it certainly holds entries.

SIGSTOP freezes the process first, so that it cannot change its entries on the server any more. SIGKILL follows only if
the server then counts enough pending entries under its name. A worker that is frozen while idle still waits in its
blocking read, and the server gives it the next entry. Real crashes happen at that moment too, and so the kill succeeds
even if the workers are faster than the producer.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from flights import rules
from flights.producer import Producer
from flights.running.child import Child
from flights.running.incidents import Incidents

if TYPE_CHECKING:
    import redis

BUSY_WAIT = 0.3
"""Seconds to wait until a worker holds many entries."""

BUSY_TRIES = 5
"""Number of such attempts before fewer entries are enough."""

HAND_OUT_WAIT = 1.0
"""Seconds to wait until a frozen worker is given an entry."""


def pending_of(client: "redis.Redis", stream: str, consumer: str) -> list[str]:
    """Return the ids that are pending under a consumer's name; an unknown name has none."""
    rows = client.xpending_range(stream, rules.GROUP, "-", "+", 1_000_000, consumer)
    return [cast("bytes", row["message_id"]).decode() for row in rows]


class WorkerCrash:
    """One kill.

    Args:
        client: connected to the server.
        stream: the stream of flights.
        victim: the worker's process.
        consumer: its name in the group.
        incidents: the record of the kill.
    """

    def __init__(self, client: "redis.Redis", stream: str, victim: Child, consumer: str, incidents: Incidents) -> None:
        self._client = client
        self._stream = stream
        self._victim = victim
        self._consumer = consumer
        self._incidents = incidents
        self._tries = 0

    def attempt(self, producer: Producer, nudge: int, many: int) -> bool:
        """Freeze the worker, kill it if it holds entries, and return True if it is dead; else let it continue.

        Args:
            producer: Producer that sends more events if it waits at its gate.
            nudge: Number of those events.
            many: Number of held entries that the first few attempts wait for.
        """
        self._tries += 1
        if self._tries <= BUSY_TRIES:
            self._nudge(producer, nudge)
            wait_until(lambda: len(self._held()) >= many, BUSY_WAIT)
            self._freeze()
        else:
            many = 1
            self._freeze()
            if not self._held():
                self._nudge(producer, nudge)
                wait_until(lambda: bool(self._held()), HAND_OUT_WAIT)
        if len(self._held()) < many:
            os.killpg(self._victim.pid, signal.SIGCONT)
            return False
        self._victim.kill()
        self._incidents.held = self._when_all_is_read()
        self._incidents.victim = self._consumer
        return True

    def _nudge(self, producer: Producer, nudge: int) -> None:
        if producer.at_gate:
            producer.allow(producer.published + nudge)

    def _freeze(self) -> None:
        os.killpg(self._victim.pid, signal.SIGSTOP)

    def _held(self) -> list[str]:
        return pending_of(self._client, self._stream, self._consumer)

    def _when_all_is_read(self) -> list[str]:
        """Return the ids it held after the server had read its last bytes, which may contain an acknowledgement."""
        last = self._held()
        for _ in range(100):
            time.sleep(
                0.01
            )  # the server may still have bytes of a frozen process in its buffers, and does not report their end
            now = self._held()
            if now == last:
                break
            last = now
        return last


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Check ``condition`` every few milliseconds, for ``timeout`` seconds at most, and return its last result."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)  # polls the server, which has no event for this
    return True
