"""G2 to G5 and G9: the same entries once in memory and once in packs, and in redis-server."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from bench.server.servers import Server
from bench.tier.places import Place, base_memory, child_of, fill, millstream, packs, pages, redis_server, settled, tier
from bench.tier.results import Result

MIB = 1 << 20
_LIMIT, _RESIDENT = 128 * MIB, 160 * MIB
"""``maxmemory`` for ten million entries, and the bound of resident bytes."""
_WHOLE = 10_000_000


def limit_for(entries: int, base: int) -> int:
    """Return the ``maxmemory`` whose part above an empty server is in proportion to the entries."""
    return base + (_LIMIT - base) * min(entries, _WHOLE) // _WHOLE if entries < _WHOLE else _LIMIT


def standing(folder: Path, entries: int, program: str | None) -> Iterator[Result]:
    """Yield the results for data that stand: memory, replies, rewriting, reading and starts."""
    base = base_memory(folder)
    limit = limit_for(entries, base)
    cold = millstream(folder / "cold", "cold", f"maxmemory={limit}", "tier=yes")
    with millstream(folder / "hot", "hot") as hot, cold:
        for place in (hot, cold):
            fill(place.server, entries)
        settled(cold.server.client)
        cold_part = tier(cold.server.client)["tier_entries"] / entries
        yield Result("G2", f"cold entries to all {entries:,}", cold_part)
        resident = cold.server.memory()
        yield Result("G2", "resident bytes to the bound", resident / (limit * _RESIDENT / _LIMIT), 1.0)
        yield Result("G2", "resident bytes: cold to hot", resident / hot.server.memory())
        yield from _read(hot.server, cold.server)
        yield from _rewritten(hot, cold, "the first rewriting, which reads each entry in the log")
        for place in (hot, cold):
            fill(place.server, entries // 100, entries)
        settled(cold.server.client)
        yield from _rewritten(hot, cold, "a later rewriting, after 1 % more")
        memory = cold.server.memory()
        yield from _started(folder, hot, cold)
        if program is None:
            yield Result("G9", "skipped: no redis-server, see --redis")
            return
        hot.kill()
        with redis_server(folder / "redis", program) as other:
            fill(other.server, entries)
            theirs = other.server.memory()
            time.sleep(2)  # appendfsync is everysec
            version = other.server.client.info("server")["redis_version"]
            other.kill()
            other.start()
            cold.kill()
            cold.start()
            yield Result(
                "G9", f"start after SIGKILL: to that of redis-server {version}", cold.seconds / other.seconds, 0.2
            )
            yield Result("G9", f"resident bytes: to those of redis-server {version}", memory / theirs, 0.2)


def _read(hot: Server, cold: Server) -> Iterator[Result]:
    """Read all entries of both by pages of a thousand; the second time counts, from the page cache."""
    costs, digests = [], []
    for server in (hot, cold):
        found = []
        for _ in range(3):
            before = server.clock()
            pages(server, 1000)
            found.append(server.clock() - before)
        costs.append(min(found))
        digest = hashlib.sha256()
        pages(server, 1000, take=digest.update)
        digests.append(digest.digest())
    yield Result("G2", "replies that differ from the hot server's (0: none)", float(digests[0] != digests[1]), 1e-9)
    yield Result("G5", "XRANGE COUNT 1000: processor, cold to hot", costs[1] / costs[0], 1.6)


def rewrite(place: Place) -> tuple[int, float, int]:
    """Rewrite the log; return the child's peak in bytes, its seconds of processor, and the bytes of the snapshot."""
    client, pid = place.server.client, place.server.pid
    done = client.info("persistence")["aof_rewrites"]
    client.execute_command("BGREWRITEAOF")
    seen: dict[int, tuple[float, int]] = {}
    while (told := client.info("persistence"))["aof_rewrites"] == done or told["aof_rewrite_in_progress"]:
        seen |= {child: (seconds, peak) for child, seconds, peak in child_of(pid)}
        time.sleep(0.01)  # the child's memory is sampled while it runs
    size = client.info("persistence")["aof_base_size"]
    return max((peak for _, peak in seen.values()), default=0), sum(seconds for seconds, _ in seen.values()), size


def _rewritten(hot: Place, cold: Place, which: str) -> Iterator[Result]:
    """Rewrite both logs."""
    peaks, spent, sizes = zip(*(rewrite(place) for place in (hot, cold)), strict=True)
    held = tier(cold.server.client)["tier_hot_bytes"]
    yield Result("G3", f"{which}: peak of the child to hot bytes and 60 MB", peaks[1] / (held + 60e6), 1.0)
    yield Result("G3", f"{which}: processor of the child, cold to hot", spent[1] / spent[0], 0.1)
    yield Result("G3", f"{which}: bytes of the snapshot, cold to hot", sizes[1] / sizes[0], 0.1)


def _started(folder: Path, hot: Place, cold: Place) -> Iterator[Result]:
    """Kill both and start them from their snapshots, three times each; the least counts."""
    with millstream(folder / "none", "none") as none:
        bare = min(restart(none) for _ in range(3))
    took = [min(restart(place) for _ in range(3)) for place in (hot, cold)]
    yield Result("G4", "start: processor, cold to hot", took[1] / took[0], 0.1)
    yield Result(
        "G4", "start: processor, cold to hot, less that of an empty server", (took[1] - bare) / (took[0] - bare), 0.1
    )
    yield Result("G4", f"packs at the start: {len(packs(cold.folder))}")


def restart(place: Place) -> float:
    """Kill the server and start it; return the seconds of processor of the start."""
    place.kill()
    place.start()
    return place.processor
