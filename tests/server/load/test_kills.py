"""A server killed at random moments under fifty writers, again and again, has all acknowledged data."""

import asyncio
import random
import signal
import threading
from pathlib import Path

import pytest

from server.load.crowd import Client, all_work, crowd
from support import campaign
from support.servers import ServerProcess, millstream_server


def a_life(server: ServerProcess, clients: list[Client], chance: random.Random, number: signal.Signals) -> None:
    """Let all clients write, and end the server at a random moment.

    The moment counts from the first replies, so that every life has writes.
    """
    before = sum(len(client.acknowledged) for client in clients)
    wanted = chance.choice((1, 30, 200, 600))

    async def work() -> None:
        working = asyncio.create_task(all_work(clients, server.port, chance))
        while sum(len(client.acknowledged) for client in clients) < before + wanted:
            await asyncio.sleep(0)  # until this many have been acknowledged; the kill then meets any work under way
            assert not working.done(), server.log.read_text(errors="replace")
        ending = threading.Thread(target=server.end, args=(number,))
        ending.start()
        await working
        ending.join()

    asyncio.run(work())


def lives(folder: Path, seed: int, cycles: int, fsync: str, number: signal.Signals = signal.SIGKILL) -> int:
    """Run ``cycles`` lives of one data directory, each checked in the next; return their number."""
    chance = random.Random(seed)
    clients = crowd()
    folder.mkdir(parents=True)
    server = millstream_server(folder, "--fsync", fsync)
    try:
        for _ in range(cycles):
            with_all(server, clients)
            a_life(server, clients, chance, number)
        assert with_all(server, clients) > cycles
        text = server.log.read_text(errors="replace")
        assert "Traceback" not in text, text[-3000:]
    finally:
        if server.process is not None:
            server.kill()
    return cycles


def with_all(server: ServerProcess, clients: list[Client]) -> int:
    """Start, and let each client check its acknowledged entries; return their number."""
    server.start()
    with server.client() as client:
        return sum(one.check(client) for one in clients)


def test_a_server_killed_again_and_again_has_all_it_acknowledged(tmp_path: Path) -> None:
    """Under ``always``, a server killed again and again under fifty writers loses and repeats no acknowledged write.

    No transaction is in pieces. Ten kills; ``make test-long`` has 3,600 with other seeds.
    """
    lives(tmp_path / "some", 0, 10, "always")


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_the_end_of_the_process_takes_nothing_in_any_mode(tmp_path: Path, fsync: str) -> None:
    """Under ``everysec`` and ``no``, a killed process loses no acknowledged write, since the kernel has it.

    Five kills in each mode; 600 in each are in ``make test-long``.
    """
    lives(tmp_path / "some", 7, 5, fsync)


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_sigterm_under_load_takes_nothing_in_any_mode(tmp_path: Path, fsync: str) -> None:
    """SIGTERM while fifty clients write loses no acknowledged write in any mode.

    Two stops in each mode, so that one is of a server with earlier data; 100 in each are in ``make test-long``.
    """
    lives(tmp_path / "some", 8, 2, fsync, signal.SIGTERM)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_server_killed_thousands_of_times(tmp_path: Path, part: int) -> None:
    """Under ``always``, 3,600 kills in three campaigns lose no acknowledged write."""
    seeds = range(1000 * (part + 1), 1000 * (part + 1) + 120)
    campaign.run(f"server-kills-{part}", lambda n: lives(tmp_path / str(n), n, 10, "always"), seeds, unit="kills")


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_a_weaker_server_killed_many_times(tmp_path: Path, fsync: str) -> None:
    """Under ``everysec`` and ``no``, 600 kills of the process in each mode lose no acknowledged write."""
    seeds = range(60)
    campaign.run(f"server-kills-{fsync}", lambda n: lives(tmp_path / str(n), n, 10, fsync), seeds, unit="kills")


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_sigterm_many_times(tmp_path: Path, fsync: str) -> None:
    """SIGTERM under load, 100 times in each mode, loses no acknowledged write."""
    seeds = range(10)
    name = f"server-stops-{fsync}"
    campaign.run(name, lambda n: lives(tmp_path / str(n), n, 10, fsync, signal.SIGTERM), seeds, unit="stops")
