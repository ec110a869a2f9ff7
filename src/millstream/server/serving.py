"""The node in an event loop: the work after commands, timed work, and the handling of a failed disk.

The server's parts share it: connections, sockets, the service for replicas, the link to a primary.
"""

import asyncio
import ssl
from collections.abc import Callable

from millstream.clock import Clock
from millstream.commands.admin.info import ShellFacts
from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.durability.held_replies import UNLIMITED, ReplyGate
from millstream.node.log.rewriting import Rewriter
from millstream.node.node import Node
from millstream.server.committer import Committer
from millstream.server.figures.machine import resident
from millstream.server.figures.rates import Counters, Rates
from millstream.server.settings import Settings

log = logger("millstream.server")

VOID = -1
"""The barrier of replies that are not to be sent."""
# Seconds between a sample and the search for clients that use too much memory
_SAMPLED = 0.1
# Seconds between two measurements of the resident memory, if there is a limit
_RESIDENT = 10.0


class Serving:
    """A node with its event loop, clock and commit; the base of the server."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self.facts = ShellFacts()  # Counters for INFO
        self.failure: StorageError | None = None  # Error of the disk that stopped the server; None for none
        self.committer: Committer | None = None
        self.rewriter: Rewriter | None = None
        self.spill_soon: Callable[[], None] = lambda: None  # Has entries moved to files, if a tier is on
        self.gate = ReplyGate(UNLIMITED)  # Position up to which replies may be sent; the committer's if there is a log
        self.tls_port = 0  # Port for TLS, 0 for none
        self.link_tls: ssl.SSLContext | None = None  # TLS context for following a primary; None without TLS
        self.stopping = asyncio.Event()  # Set when the server must stop
        self.node: Node  # Present from the start on
        self.loop: asyncio.AbstractEventLoop
        self.empty_outbox: Callable[[], None]  # Sends the node's replies and messages to their connections
        self.abort_all: Callable[[], None]  # Closes all connections at once
        self.in_turn = False  # True if output to clients is sent at the end of the turn
        self.is_void = False  # True if this server became a replica after plain commands of the present turn had run
        self.sample_at = 0.0  # Loop time, in seconds, from which :meth:`sample` is due before input is counted
        self._rates = Rates()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._resident_at = 0.0  # loop time of the next measurement

    def sample(self) -> None:
        """Store the present counters for INFO's rates; due at ``sample_at``, before new bytes are counted."""
        now, config = self.loop.time(), self.node.config
        if config.max_memory and now >= self._resident_at:
            self._resident_at = now + _RESIDENT
            self.node.memory.look(resident())
        if config.clients_memory:  # after input has arrived for a while
            self.loop.call_later(_SAMPLED, self._evict_clients)
        self._rates.sample(int(now * 1000), self._done())
        self.sample_at = self._rates.due / 1000

    def _evict_clients(self) -> None:
        self.node.memory.evict_clients()
        self.empty_outbox()

    def per_second(self) -> tuple[float, float, float]:
        """INFO's present rates."""
        return self._rates.per_second(int(self.loop.time() * 1000), self._done())

    def _done(self) -> Counters:
        return self.node.stats.processed, self.facts.input_bytes, self.facts.output_bytes

    def after_commands(self) -> None:
        """Do all work after commands, except their own replies."""
        if self.node.outbox:
            self.empty_outbox()
        self.after_writes()
        if self.node.ending.is_due:
            self.stopping.set()
        self._schedule_tick()

    def after_writes(self) -> None:
        """Have records committed, if commands logged any."""
        if self.committer is not None:
            self.committer.poke()
        if self.rewriter is not None:
            self.rewriter.consider()
        self.spill_soon()

    def end_turn(self, size: int) -> tuple[int, bool]:
        """Commit all commands of a turn together.

        Returns:
            The log position that their replies wait for, and True if all of them may be sent now.
        """
        if self.loop.time() >= self.sample_at:
            self.sample()
        self.facts.input_bytes += size
        barrier, gate = self.node.journal.latest, self.gate
        if self.is_void:
            self.is_void, barrier = False, VOID
        if self.committer is not None:
            self.committer.end_turn()
        if self.rewriter is not None:
            self.rewriter.consider()
        self.spill_soon()
        return barrier, VOID < barrier <= gate.released and not gate.holders and self.failure is None

    def fail(self, error: StorageError) -> None:
        """Stop after a failure of the disk, without another reply. Writes acknowledged before are on the disk."""
        if self.failure is None:
            self.failure = error
            log.critical("stopping: %s", error)
        # Connections close at once: a reply that waits for the disk would confirm a write that failed
        self.abort_all()
        self.stopping.set()

    @property
    def own_port(self) -> int:
        """The port that is reported to a primary; 0 for none."""
        ports = self.facts.tcp_port, self.tls_port
        return (ports[1] or ports[0]) if self.link_tls is not None else (ports[0] or ports[1])

    # ------------------------------------------------------------------ time

    def _schedule_tick(self) -> None:
        """Set the one timer for all waits and expirations to the time of the node's next due work."""
        now = self.clock.now()
        due = self.node.next_deadline(now)
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.loop.call_later(max(due - now.mono, 0) / 1000, self._tick)

    def _tick(self) -> None:
        """Do the due work. A defect there is logged and tried again later, so that it does not end the server."""
        self._timer = None
        try:
            self.node.tick(self.clock.now())
        except StorageError as error:
            self.fail(error)
            return
        except Exception:
            log.exception("internal error in a periodic task")
            self.facts.internal_errors += 1
            self._timer_at = 0  # no earlier time is scheduled before this one
            self._timer = self.loop.call_later(self.settings.delays.after_error, self._tick)
            return
        self.after_commands()
