"""Hundreds of hostile sockets among normal clients, whose replies are as their models predict.

Under ``.ci/sanitize`` the server runs the native core with sanitizers: a forbidden read or write ends it, and so the
test.
"""

import asyncio
import contextlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from server.load.hostiles import ACTS, PAUSES, Act, Hostile
from server.load.pipeline import SHARED, Pipeline
from server.load.test_crowds import descriptors, field, resident
from support import campaign
from support.inprocess import World
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

POLITE = 3
KEPT = 64 * 1024 * 1024
"""Bytes that a server may use more after the last storm than after the first.

Each storm makes the server use far more. Not all freed memory is returned to the system: a storm needs it at its peak.
"""
OUTPUT = 4 * 1024 * 1024
"""Bytes of replies that a client may leave unread."""


class Storm:
    """One server and its storms of hostile clients.

    Args:
        server: the running server.
        control: a connection for checks.
    """

    def __init__(self, server: ServerProcess, control: Wire) -> None:
        self.server = server
        self.control = control

    def blow(self, count: int, seed: int) -> int:
        """Run ``count`` hostile clients at once; check that the server is whole and empty; return the bytes compared.

        With every other seed some of them pause all. A paused client that shuts down its sending side is closed, as in
        Redis, and gets no more than its first replies.
        """
        chance = random.Random(seed)
        polite = [Pipeline(number, sizes=(1, 16, 100)) for number in range(POLITE)]
        with self.server.client() as client:
            client.execute_command("XADD", SHARED, "0-1", "by", -1, "n", 0)
            for one in polite:
                one.prepare(client)
            hostile = asyncio.run(self._together(count, chance, polite, pauses=seed % 2 == 0))
            eventually(lambda: self._figure("connected_clients") == 2, what="only the test's own clients are left")
            assert self._figure("blocked_clients") == 0
            newest: Any = client.xrange(SHARED)
            shared = [(int(fields[b"by"]), int(fields[b"n"])) for _, fields in newest]
            for one in polite:
                one.settle(client, shared)
                one.check_all(client)
        assert b"millstream_internal_errors:0\r\n" in self.control.ask("INFO", "stats"), self.server.log.read_text()
        self.control.ask("FLUSHALL")
        world = World(logged=False)
        return sum(one.judge(world, may_end=seed % 2 == 0) for one in hostile)

    async def _together(
        self, count: int, chance: random.Random, polite: list[Pipeline], *, pauses: bool
    ) -> list[Hostile]:
        working = [asyncio.create_task(one.work(self.server.port, random.Random(chance.random()))) for one in polite]
        acts, weights = zip(*ACTS, *(PAUSES if pauses else ()), strict=True)
        hostile = [Hostile(self.server.port, random.Random(chance.random())) for _ in range(count)]
        try:
            await asyncio.gather(*(one.open() for one in hostile))
            chosen: list[Act] = [*acts, *chance.choices(acts, weights, k=count - len(acts))]
            await asyncio.gather(*(act(one) for act, one in zip(chosen, hostile, strict=True)))
            assert not any(task.done() for task in working), "a polite client was cut off"
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            for one in hostile:
                one.close()
        for task in working:
            if not task.cancelled():
                task.result()  # what it found wrong
        assert all(one.answered for one in polite)
        return hostile

    def _figure(self, name: str) -> int:
        return int(field(self.control, "clients", name))


def storms(folder: Path, seed: int, *counts: int) -> int:
    """Run storms on one server; check the memory after the last one; return the number of clients."""
    options = ("--fsync", ("always", "everysec", "no")[seed % 3]) if seed % 4 else ("--memory",)
    limit = f"client-output-buffer-limit=normal {OUTPUT} 0 0"
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(max(counts)))
        server = stack.enter_context(millstream_server(folder, *options, "--set", limit))
        control = stack.enter_context(Wire(server.url))
        storm, held = Storm(server, control), []
        for number, count in enumerate(counts):
            # Only the first replies count of a client that a pause holds back: the rate of the machine decides how many
            paused = (seed * 100 + number) % 2 == 0
            assert storm.blow(count, seed * 100 + number) > count * (10 if paused else 100)
            held.append(resident(server))
        if "libasan" in os.environ.get("LD_PRELOAD", ""):  # it keeps freed memory, to find later uses of it
            assert "/.sanitized/" in mapped(server)
        else:
            assert held[-1] - held[0] < KEPT, held
        assert server.stop() == 0, server.log.read_text()
    return sum(counts)


def mapped(server: ServerProcess) -> str:
    """Return the files that a server's process has mapped."""
    assert server.process is not None
    return Path(f"/proc/{server.process.pid}/maps").read_text()


def test_hostile_sockets_harm_nobody(tmp_path: Path) -> None:
    """Two hundred hostile sockets, twice, cause no wrong reply to any client, and their memory is returned."""
    storms(tmp_path, int(os.environ.get("MILLSTREAM_SEED", "1")), 200, 200)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_very_many_hostile_sockets_harm_nobody(tmp_path: Path) -> None:
    """A thousand hostile sockets, five times on each of twelve servers, cause no wrong reply to any client."""
    campaign.run(
        "hostile-sockets",
        lambda seed: storms(tmp_path / str(seed), seed, *[1000] * 5),
        range(2, 14),
        unit="connections",
    )
