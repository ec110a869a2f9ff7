"""Schedules under kills, failovers and slot moves: each becomes one entry at its time, or was cancelled."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis

from millstream import App, Disconnected
from millstream.client.later.schedule import INDEX, content_key, due_key
from support import campaign
from support.clusters import Three
from support.sentinels import Watched
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually, eventually
from worker.conftest import Tasks

COUNT = 2_500
STREAMS = ("s", "t{s}", "{u}v")
MOVERS = 3
KILLS = 80  # Pieces with kills of a single server
APP = """
from millstream import App, StreamSub
app = App(registry=False)

@app.subscriber(StreamSub("{unrelated}", group="g"))
async def handle() -> None: ...
"""


class Place(Protocol):
    """The server or servers of a piece."""

    @property
    def url(self) -> str:
        """The URL for apps."""

    def holder(self, key: str) -> ServerProcess:
        """Return the server that has a key now."""

    def hurt(self) -> None:
        """Inject the fault of this place."""

    def keeps(self) -> bool:
        """Report whether no later fault can undo a write of before."""


@dataclass
class Single:
    """One server, which is killed and started again."""

    server: ServerProcess

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self.server.url

    def holder(self, key: str) -> ServerProcess:
        """Return the server."""
        return self.server

    def hurt(self) -> None:
        """Kill the server and start it again."""
        self.server.kill()
        self.server.start()

    def keeps(self) -> bool:
        """Report True: the server syncs before it replies."""
        return True


@dataclass
class Failing:
    """A primary and a replica behind Sentinels, with a failover as the fault."""

    watched: Watched

    @property
    def url(self) -> str:
        """The URL of the Sentinels."""
        return self.watched.url

    def holder(self, key: str) -> ServerProcess:
        """Return the primary."""
        found = self.watched.chosen()
        if found is None:
            raise LookupError("no primary")
        return found

    def hurt(self) -> None:
        """Kill the primary, and return when it is a replica of the new one."""
        old = self.holder("")
        old.kill()
        eventually(lambda: self.holder("") is not old, 60, what="the Sentinels choose the replica")
        old.start()
        eventually(lambda: self.follows(old), 90, what="the old primary follows the new one")

    @staticmethod
    def follows(server: ServerProcess) -> bool:
        """Report whether a server is a replica in sync."""
        with contextlib.suppress(redis.RedisError), server.client(decode_responses=True) as client:
            state: Any = client.info("replication")
            return bool(state["role"] == "slave" and state["master_link_status"] == "up")
        return False  # it closes connections when its role changes

    def keeps(self) -> bool:
        """Report whether the replica has all writes of before, by WAIT."""
        with contextlib.suppress(redis.RedisError, LookupError), self.holder("").client() as client:
            client.set("barrier", 1)  # WAIT counts the writes of its own connection
            return bool(client.execute_command("WAIT", 1, 500) == 1)
        return False


@dataclass
class Moving:
    """A cluster of three nodes, with moves of the slots in use as the fault."""

    three: Three

    @property
    def url(self) -> str:
        """The URL of the cluster."""
        return self.three.url

    def holder(self, key: str) -> ServerProcess:
        """Return the node with the key's slot."""
        return self.three.owner(key)

    def hurt(self) -> None:
        """Move both slots of the streams to other nodes."""
        for key in ("s", "u"):
            self.three.move(key)

    def keeps(self) -> bool:
        """Report True: no node dies."""
        return True


@dataclass
class Storm:
    """One piece of the campaign."""

    place: Place
    tasks: Tasks
    seed: int
    due: dict[tuple[str, str], set[int]] = field(default_factory=dict)  # The times that a schedule may have had
    cancelled: set[tuple[str, str]] = field(default_factory=set)
    doubtful: set[tuple[str, str]] = field(default_factory=set)  # The reply to a cancel, or its copy, was lost
    lost: set[tuple[str, str]] = field(default_factory=set)  # The replica may not have it
    movers: list[Any] = field(default_factory=list)

    async def run(self) -> int:
        """Publish, change and kill; then check every schedule."""
        self.chance = random.Random(self.seed)
        target = self.tasks.app(APP)
        self.movers = [self.tasks.worker(target, self.place.url) for _ in range(MOVERS)]
        self.target = target
        self.app = App(self.place.url, registry=False)
        killing = asyncio.create_task(self.kill())
        await asyncio.gather(*(self.publish(part) for part in range(10)))
        await killing
        await aeventually(self.empty, 120, what="every schedule was moved")
        await self.app.close()
        self.check()
        return len(self.due)

    async def publish(self, part: int) -> None:
        """Publish a tenth of the schedules, with cancellations and moves between them."""
        for n in range(part, COUNT, 10):
            stream, ident = self.chance.choice(STREAMS), f"id-{n}"
            now = self.now()
            at = now + self.chance.randint(-500, 12_000)
            await self.app.publish(stream, {"n": n}, at=at, id=ident, retry="60s")
            self.due[stream, ident] = {at}
            if not await asyncio.to_thread(self.place.keeps):
                self.lost.add((stream, ident))
            if self.chance.random() < 0.2:
                await self.change(*self.chance.choice(list(self.due)))

    async def change(self, stream: str, ident: str) -> None:
        """Cancel or move one of the schedules published before."""
        key = stream, ident
        with contextlib.suppress(Disconnected):
            if self.chance.random() < 0.5:
                self.doubtful.add(key)
                is_cancelled = await self.app.later.cancel(stream, ident)
                if await asyncio.to_thread(self.place.keeps):
                    self.doubtful.discard(key)
                    if is_cancelled:
                        self.cancelled.add(key)
            else:
                at = self.now() + self.chance.randint(0, 8_000)
                self.due[key].add(at)
                await self.app.later.move(stream, ident, at=at)

    @staticmethod
    def now() -> int:
        """Return milliseconds since 1970. Publisher and server share one machine."""
        return int(time.time() * 1000)

    async def kill(self) -> None:
        """Kill movers and the server at set points of the work."""
        for number in range(1, 9):
            await aeventually(lambda mark=number * 250: self.added() >= mark, 60)
            if number % 4 == 0:
                await asyncio.to_thread(self.place.hurt)
            else:
                victim = self.movers.pop(self.chance.randrange(len(self.movers)))
                os.kill(victim.pid, signal.SIGKILL)
                self.movers.append(self.tasks.worker(self.target, self.place.url))

    def added(self) -> int:
        """Count the entries in all streams."""
        try:
            return sum(len(self.entries(stream)) for stream in STREAMS)
        except Exception as error:  # noqa: BLE001 - the server may be down
            raise LookupError(error) from None

    def empty(self) -> bool:
        """Report whether no schedule is waiting."""
        for stream in STREAMS:
            with self.place.holder(stream).client() as client:
                if client.exists(due_key(stream), content_key(stream)):
                    return False
        return True

    def entries(self, stream: str) -> Any:
        """Return the entries of a stream."""
        with self.place.holder(stream).client(decode_responses=True) as client:
            return client.xrange(stream)

    def check(self) -> None:
        """Check that each schedule was added once or cancelled, and none before its earliest time."""
        with self.place.holder(INDEX).client(decode_responses=True) as client:
            assert client.smembers(INDEX) <= set(STREAMS)
        seen: dict[tuple[str, str], int] = {}
        for stream in STREAMS:
            for entry, fields in self.entries(stream):
                key = stream, f"id-{fields['n']}"
                assert key not in seen, f"{key} was added twice"
                seen[key] = int(entry.split("-")[0])
        assert len(self.lost) < COUNT / 10, f"{len(self.lost)} publishes had no copy"
        for key, at in self.due.items():
            if key in self.cancelled:
                assert key not in seen, f"{key} was cancelled and added"
            elif key not in seen:
                assert key in self.doubtful | self.lost, f"{key} is lost"
            else:
                assert seen[key] >= min(at), f"{key} was added {min(at) - seen[key]} ms before its time"


FSYNC = ("--appendonly", "yes", "--appendfsync", "always")


@contextlib.contextmanager
def place_of(folder: Path, seed: int) -> Iterator[Place]:
    """Start the servers of a piece."""
    if seed <= KILLS:
        kind = redis_server(folder, *FSYNC) if seed % 2 else millstream_server(folder, "--fsync", "always")
        with kind as server:
            yield Single(server)
    elif seed % 2:
        with Watched(folder, lambda below: redis_server(below, *FSYNC)) as watched:
            yield Failing(watched)
    else:
        with Three(folder) as three:
            yield Moving(three)


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 2,500 schedules in three streams, with three movers, six mover kills and two faults of the server.

    After the pieces with kills of the server, half have two failovers each, and half have four slot moves each.
    """
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    with place_of(folder, seed) as place:
        try:
            return asyncio.run(Storm(place, tasks, seed).run())
        finally:
            tasks.end()


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_schedules_in_a_storm(tmp_path: Path) -> None:
    """Each of 225,000 schedules under kills, failovers and slot moves becomes one entry or was cancelled."""
    campaign.run("later", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, KILLS + 11), unit="schedules")
