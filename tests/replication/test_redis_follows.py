"""A real redis-server follows ours: a copy, the stream, cuts and restarts on both sides."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.server.thread import ServerThread
from replication.replicated import Changes, state
from support.servers import ServerProcess, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = [pytest.mark.process, pytest.mark.realserver]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with redis_server(Path(tmp_path_factory.mktemp("replica"))) as server:
        yield server


@pytest.fixture(params=["log", "memory"])
def primary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data" if request.param == "log" else None) as server:
        yield server


def port_of(server: ServerThread) -> str:
    return str(server.server.facts.tcp_port)


def info(wire: Wire, section: str = "replication") -> dict[str, str]:
    text = wire.ask("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def follows(replica: Wire, primary: Wire) -> bool:
    """Whether the replica has all that the primary has made."""
    mine, its = info(replica), info(primary)
    return mine.get("master_link_status") == "up" and mine["master_repl_offset"] == its["master_repl_offset"]


def write(wire: Wire, seed: int, count: int) -> None:
    since = 1000 * int(wire.ask("TIME")[0])
    chance = random.Random(seed)
    commands = list(Changes(seed, since).some(count))
    while commands:
        some = [commands.pop(0) for _ in range(min(len(commands), chance.choice([1, 7, 50])))]
        wire.ask_together(some)


def test_a_copy_then_the_stream_then_a_cut(primary: ServerThread, replica: ServerProcess) -> None:
    """A replica comes to hold what we hold, goes on behind a cut where it was, and WAIT says when it has it."""
    with Wire(primary.url) as ours, Wire(replica.url) as theirs:
        write(ours, 1, 600)
        theirs.ask("REPLICAOF", "127.0.0.1", port_of(primary))
        write(ours, 2, 300)
        eventually(lambda: follows(theirs, ours), what="the replica has its copy")
        write(ours, 3, 600)
        assert ours.ask("WAIT", 1, 30_000) == 1
        assert state(theirs.ask) == state(ours.ask)
        assert ours.ask("CLIENT", "KILL", "TYPE", "replica") == 1
        write(ours, 4, 300)
        eventually(lambda: follows(theirs, ours), what="the replica has come back")
        assert state(theirs.ask) == state(ours.ask)
        stats = info(ours, "stats")
        assert (stats["sync_full"], stats["sync_partial_ok"]) == ("1", "1")
        theirs.ask("REPLICAOF", "NO", "ONE")
