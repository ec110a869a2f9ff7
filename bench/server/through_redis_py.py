"""The same servers through redis-py, as its users see them; the client itself takes much of the time."""

import time
from collections.abc import Callable

import redis
from bench.server.cases import FIELDS
from bench.server.load import Measured, pack, send
from bench.server.servers import MEMORY, Server, all_started
from bench.server.turns import Effort, Rounds, in_turns, say

PAIRS = dict(zip(FIELDS[::2], FIELDS[1::2], strict=True))
BATCH, READ = 100, 500


def add_by_100(client: redis.Redis, entries: int) -> None:
    """Run XADD, a hundred at a time."""
    for _ in range(0, entries, BATCH):
        pipe = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipe.xadd("s", PAIRS)
        pipe.execute()


def add_one_by_one(client: redis.Redis, entries: int) -> None:
    """Run XADD one by one."""
    for _ in range(entries):
        client.xadd("s", PAIRS)


def read_range(client: redis.Redis, entries: int) -> None:
    """Run XRANGE COUNT 100, from the beginning."""
    last = "-"
    for _ in range(0, entries, 100):
        last = b"(" + client.xrange("s", last, "+", count=100)[-1][0]


def read_group(client: redis.Redis, entries: int) -> None:
    """Run XREADGROUP COUNT 500 and one XACK for each reply."""
    for _ in range(0, entries, READ):
        for _, rows in client.xreadgroup("g", "c", {"s": ">"}, count=READ):
            client.xack("s", "g", *[row[0] for row in rows])


CASES: dict[str, tuple[Callable[[redis.Redis, int], None], bool]] = {
    "XADD in pipelines of 100": (add_by_100, False),
    "XADD one by one": (add_one_by_one, False),
    "XRANGE COUNT 100": (read_range, True),
    "XREADGROUP COUNT 500 + XACK": (read_group, True),
}
"""Function of each case by name, and True if it reads existing entries."""


def all_cases(effort: Effort) -> dict[str, Rounds]:
    """Return the entries per second of each case."""
    found: dict[str, Rounds] = {}
    for setting, chosen in ((MEMORY, CASES), ("always", dict(list(CASES.items())[:2]))):
        with all_started(setting) as servers:
            for name, (work, reads) in chosen.items():

                def run(server: Server, total: int, work: Callable[..., None] = work, reads: bool = reads) -> Measured:
                    return _run(server, work, total - total % READ, reads=reads)

                known = name if setting == MEMORY else f"{name}, fsync {setting}"
                found[known] = in_turns(servers, effort, run, first=1000)
                say(f"redis-py: {known}", found[known])
    return found


def _run(server: Server, work: Callable[[redis.Redis, int], None], entries: int, *, reads: bool) -> Measured:
    client = server.client
    client.flushall()
    client.xgroup_create("s", "g", "0", mkstream=True)
    if reads:
        send(server, [pack("XADD", "s", "*", *FIELDS)], total=entries)
    before, began = server.clock(), time.perf_counter()
    work(client, entries)
    spent, took = server.clock() - before, time.perf_counter() - began
    return Measured(entries / took, spent / entries * 1e6)
