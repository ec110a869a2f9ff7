"""The link is cut at random bytes under eight writers: the replica continues where it was, and ends with equal data."""

import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from replication.campaigns.load import Writers, all_of, assert_same
from replication.test_following_redis import WITH_DEBUG, follow, seen
from replication.test_redis_follows import info
from support import needs
from support.between import Between
from support.campaign import LIMIT, run
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

WAYS = {"mm": "ours follows ours", "mr": "Redis follows ours", "rm": "ours follows Redis", "mmm": "a chain of ours"}
STORES = (("--fsync", "always"), ("--fsync", "everysec"), ("--fsync", "no"), ("--memory",))
# The farthest a cut is from where the link was up, in bytes of the stream
FARTHEST = 200_000


def ours(folder: Path, seed: int) -> ServerProcess:
    """Return a server of ours, with another persistence for each seed."""
    return millstream_server(folder, *STORES[seed % len(STORES)], "--set", "repl-backlog-size=256mb")


def theirs(folder: Path, seed: int) -> ServerProcess:
    """Return a Redis: in turn the one on PATH, and a newer one if there is one."""
    path = needs.found("redis8") if seed % 2 else None
    return redis_server(folder, *WITH_DEBUG, "--repl-backlog-size", "256mb", path=path or "")


def made(way: str, folder: Path, seed: int) -> list[ServerProcess]:
    """Start the servers, each of which follows the one before it."""
    makers: dict[str, Callable[[Path, int], ServerProcess]] = {"m": ours, "r": theirs}
    return [makers[kind](folder / str(at), seed + at) for at, kind in enumerate(way)]


def cuts(way: str, seed: int, count: int = 10) -> int:
    """Cut links ``count`` times under load, a third of the times during reconnection; return the number."""
    chance = random.Random(f"{way} {seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(server) for server in made(way, folder, seed)]
        wires = [stack.enter_context(Wire(server.url)) for server in servers]
        links = [stack.enter_context(Between(server.port, seed)) for server in servers[:-1]]
        # Redis 8 empties a database beside its other work, and a replica that is cut meanwhile forgets where it was
        options = {"of_redis": way[0] == "r", "spares": way[1] == "r"}
        writers = stack.enter_context(Writers(servers[0].url, seed, **options))
        writers.more(200)
        for link, replica in zip(links, wires[1:], strict=True):
            follow(replica, link.port)
            wait_up(replica)
        in_stream = [0] * len(links)
        refused = [info(wire, "stats")["sync_partial_err"] for wire in wires]  # Redis asks for its own history at first
        for number in range(count):
            at = chance.randrange(len(links))
            wanted = links[at].cuts + 1
            links[at].cut_after(chance.randint(1, FARTHEST))
            in_stream[at] += 1
            eventually(lambda at=at, wanted=wanted: links[at].cuts >= wanted, what=f"cut {number} is made")
            if chance.random() < 0.3:
                links[at].cut_after(chance.randint(1, 120))  # in the handshake, or soon behind it
            # The link of a replica that has not noticed the cut is up as well: a next one would be of its handshake
            eventually(lambda at=at: partial_syncs(wires[at]) >= in_stream[at], what="it goes on")
            wait_up(wires[at + 1])
            writers.more(100)
        writers.stop()
        for link in links:
            link.cut_after(1 << 60)
        for replica, primary in zip(wires[1:], wires, strict=False):
            assert_same(replica, primary, seen if way[0] == "r" else all_of)
        for at, primary in enumerate(wires[:-1]):
            stats = info(primary, "stats")
            assert (stats["sync_full"], stats["sync_partial_err"]) == ("1", refused[at]), told(servers)
            assert in_stream[at] <= int(stats["sync_partial_ok"]) <= links[at].cuts
        assert all(info(wire)["master_replid"] == info(wires[0])["master_replid"] for wire in wires)
        return sum(link.cuts for link in links)


def told(servers: list[ServerProcess]) -> str:
    """Return the first log line of each server about its copy."""
    return "\n\n".join(server.log.read_text(errors="replace")[:20_000] for server in servers)


def partial_syncs(primary: Wire) -> int:
    """Return the number of syncs without a copy."""
    return int(info(primary, "stats")["sync_partial_ok"])


def wait_up(replica: Wire) -> None:
    eventually(lambda: info(replica)["master_link_status"] == "up", what="the link is up")


def test_some_cuts_under_writers() -> None:
    """A replica cut off under writers continues where it was, needs no second copy, and ends with equal data.

    The campaigns make 200 cuts of each kind.
    """
    assert cuts("mm", 0, 2) >= 2


@pytest.mark.long
@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("way", WAYS)
def test_two_hundred_cuts_under_writers(way: str) -> None:
    """A replica cut off 200 times gets the missed bytes and no copy, and has equal data in the end.

    That holds on any store, and in a chain.
    """
    run(f"repl-cuts-{way}", partial(cuts, way), range(20), unit="cuts")
