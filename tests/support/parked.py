"""A node whose cold reads park their clients, beside one without packs that runs each command at the same instant.

A parked command has changed nothing, and begins again later. So its reply must be that of the other node at the instant
of its last run. A test says when bytes of packs are read, and which of them the page cache has.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from millstream.clock import Now
from millstream.commands.context.session import Session
from millstream.node.tiering import packreader, tickets
from millstream.node.tiering.fetching import Fetch
from millstream.persistence.disk import Disk, DiskFile
from millstream.replication.units import packed
from support.inprocess import Client, World
from support.resp import decode
from support.spilled import Later, SpillWorld


class StepReads:
    """Reads parts of packs when a test calls :meth:`step`, in place of threads."""

    def __init__(
        self, source: Any, most: object, rate: object, done: Callable[[Fetch], None], measured: object
    ) -> None:
        self._source, self._done = source, done
        self._line: list[Fetch] = []

    def add(self, fetch: Fetch, client: int = 0, *, is_ahead: bool = False) -> None:
        """Read a part later."""
        self._line.append(fetch)

    def drop(self, fetch: Fetch) -> None:
        """Read no further piece of a part."""
        fetch.give_up()

    def close(self) -> None:
        """Read nothing more."""
        self._line.clear()

    def step(self, random: Random) -> bool:
        """Read one piece; return False if nothing is left."""
        while self._line:
            fetch = random.choice(self._line)
            number = fetch.take()
            if number is None:
                self._line.remove(fetch)
                continue
            try:
                data: bytes | OSError = self._source.fetch(*fetch.place(number))
            except OSError as error:  # the pack was dropped
                data = error
            fetch.put(number, b"" if fetch.is_ahead else data)
            if fetch.is_done:
                self._done(fetch)
            return True
        return False


class Forgetful(packreader.PyPackReader):
    """A reader of packs on a simulated disk whose page cache has a part of what is read."""

    random: ClassVar[Random] = Random()
    share: ClassVar[float] = 1.0  # Share of the reads that find their bytes

    def _cached(self, file: DiskFile, offset: int, length: int) -> bytes | None:
        return super()._cached(file, offset, length) if self.random.random() < self.share else None


class ParkingWorld(SpillWorld):
    """A node with packs, and an event loop that turns when a test says so."""

    def __init__(self, random: Random, config: dict[str, str], *, disk: Disk | None = None, directory: Path) -> None:
        super().__init__(config, disk=disk, directory=directory, thread=Later)
        self.random = random
        self.posted: deque[Callable[[Now], None]] = deque()
        self.node.cold.attach(self)

    def post(self, work: Callable[[Now], None]) -> None:
        """Run something in a later turn of the loop."""
        self.posted.append(work)

    def soon(self, work: Callable[[], None]) -> None:
        """Run something in the next turn of the loop."""
        self.posted.append(lambda _: work())

    def read(self) -> bool:
        """Read a piece that clients wait for; return False if nothing is left to do."""
        found = self.node.cold.tickets
        reads: Any = None if found is None else found.threads
        has_read = reads is not None and reads.step(self.random)
        has_posted = bool(self.posted)
        while self.posted:
            self.posted.popleft()(self.clock.now())
        return has_read or has_posted

    def forget(self) -> None:
        """Drop all packs from the page cache."""
        for path in self.directory.glob("*.pack"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Pair:
    """Clients that send the same commands to both nodes."""

    def __init__(self, hot: World, cold: ParkingWorld) -> None:
        self.hot, self.cold = hot, cold
        self.twins: dict[int, tuple[Client, Client]] = {}  # by session of the node with packs
        self.waiting: dict[int, list[str]] = {}  # commands that may wait for an entry
        self.parked = 0  # Number of commands that were parked

    def connect(self, count: int) -> list[Client]:
        """Open clients of both nodes; return those of the node with packs."""
        found = [(self.cold.client(), self.hot.client()) for _ in range(count)]
        self.twins |= {mine.session.id: (mine, other) for mine, other in found}
        return [mine for mine, _ in found]

    def send(self, client: Client, words: Sequence[str]) -> None:
        """Run a command on both nodes, or let it be parked."""
        if "BLOCK" in words:
            self.waiting[client.session.id] = [word for word in words if word not in {"BLOCK", "0"}]
        self._run(client.session, [word.encode() for word in words])
        self.deliver()

    def deliver(self) -> None:
        """Run commands again whose bytes are there, and compare replies of those that have waited."""
        outbox = self.cold.node.outbox
        while outbox:
            for session, outcome in outbox:
                if outcome.buffers:
                    self._compare(session, b"".join(outcome.buffers))
            found = [session for session, outcome in outbox if not outcome.buffers and session.held is not None]
            outbox.clear()
            for session in found:
                argv, session.held = session.held, None
                assert argv is not None
                self._run(session, argv)
                for other, outcome in outbox:
                    if outcome.buffers:
                        self._compare(other, b"".join(outcome.buffers))
                outbox[:] = [each for each in outbox if not each[1].buffers]

    def _run(self, session: Session, argv: list[bytes]) -> None:
        mine = self._run_cold(session, argv)
        if mine is None:
            self.parked += session.held is not None
        elif session.id in self.waiting:
            self._compare(session, mine)
        else:
            theirs = self.twins[session.id][1].raw(*argv)
            assert mine == theirs, (argv, decode(mine), decode(theirs))

    def _run_cold(self, session: Session, argv: list[bytes]) -> bytes | None:
        """Run a command as a plain one if it is, as a server does; return the reply, or None if it waits."""
        node, now = self.cold.node, self.cold.clock.now()
        if node.batches.takes(session):
            run = node.batches.run(session, packed(argv), 0, now.wall)
            if run.woken is not None:
                node.serve(session.db, run.woken, now)
            if run.commands:
                return run.replies
        outcome = node.execute(session, argv, now)
        return None if outcome is None else b"".join(outcome.buffers)

    def _compare(self, session: Session, mine: bytes) -> None:
        """Compare the reply of a command that waited with what it would read now."""
        words = self.waiting.pop(session.id)
        theirs = self.twins[session.id][1].raw(*words)
        assert mine == theirs, (words, decode(mine), decode(theirs))

    def expect_no_news(self) -> None:
        """Expect that a command that waits would find nothing."""
        for session_id, words in self.waiting.items():
            mine, other = self.twins[session_id]
            assert mine.session.parked or other.raw(*words) == b"*-1\r\n", words

    def settle(self) -> None:
        """Read until no client is parked."""
        while self.cold.read():
            self.deliver()
        assert not any(mine.session.parked for mine, _ in self.twins.values())


def stepwise(monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
    """Let a test read packs step by step, and say what the page cache of a simulated disk has."""
    monkeypatch.setattr(tickets, "FetchThreads", StepReads)
    monkeypatch.setattr(packreader, "PyPackReader", Forgetful)
    monkeypatch.setattr(Forgetful, "random", random)
    monkeypatch.setattr(Forgetful, "share", 1.0)
