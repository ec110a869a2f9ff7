"""Mixed load for a long time: resident bytes beside those that the server counts, with a tier and ``maxmemory``."""

import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.tier.places import Raw, base_memory, millstream, pack
from bench.tier.results import Result

MIB = 1 << 20
_ABOVE = 96 * MIB
"""Bytes of ``maxmemory`` above an empty server."""
_STREAMS, _KEYS, _BATCH = 20, 20_000, 400


def _command(draw: random.Random) -> bytes:
    """Return one command of the mix."""
    stream, key = f"s{draw.randrange(_STREAMS)}", f"k{draw.randrange(_KEYS)}"
    kind = draw.random()
    if kind < 0.6:
        return pack("XADD", stream, "*", "n", draw.randrange(10**9), "b", "x" * draw.choice((20, 60, 60, 300)))
    if kind < 0.7:
        return pack("XREADGROUP", "GROUP", "g", "c", "COUNT", 20, "NOACK", "STREAMS", stream, ">")
    if kind < 0.8:
        return pack("SET", key, "v" * draw.randrange(400), "EX", draw.randrange(1, 60))
    if kind < 0.86:
        return pack("HSET", f"h{draw.randrange(200)}", draw.randrange(500), "v" * draw.randrange(100))
    if kind < 0.9:
        return pack("DEL", key, f"h{draw.randrange(200)}")
    if kind < 0.95:
        return pack("XRANGE", stream, "-", "+", "COUNT", 100)
    if kind < 0.9998:
        return pack("XREVRANGE", stream, "+", "-", "COUNT", 20)
    return pack("XTRIM", stream, "MAXLEN", draw.randrange(200_000))


def mixed(folder: Path, seconds: int) -> Iterator[Result]:
    """Yield the largest ratio of resident to counted bytes after the first tenth of the time, and the median."""
    draw, limit = random.Random(1), base_memory(folder) + _ABOVE
    with millstream(
        folder / "soak", "soak", f"maxmemory={limit}", "tier=yes", "auto-aof-rewrite-percentage=50"
    ) as place:
        raw, client = Raw(place.server.port), place.server.client
        raw.ask(b"".join(pack("XGROUP", "CREATE", f"s{number}", "g", 0, "MKSTREAM") for number in range(_STREAMS)))
        begun, sampled, ratios, refused, most = time.monotonic(), 0.0, [], 0, 0
        while (spent := time.monotonic() - begun) < seconds:
            refused += raw.ask(b"".join(_command(draw) for _ in range(_BATCH))).count(b"-OOM ")
            if spent - sampled < 1:
                continue
            sampled = spent
            used, resident = int(client.info("memory")["used_memory"]), place.server.memory()
            most = max(most, resident)
            if spent > seconds / 10:
                ratios.append(resident / used)
            if len(ratios) % 60 == 1:
                print(f"{spent:.0f} s: {used / MIB:.0f} MiB, ratio {ratios[-1]:.2f}", file=sys.stderr, flush=True)
        raw.close()
    yield Result("test 9", f"resident to counted bytes, {seconds} s: largest", max(ratios), 1.3)
    yield Result("test 9", "resident to counted bytes: median", statistics.median(ratios))
    yield Result("test 9", "resident bytes to maxmemory: largest", most / limit, 1.3)
    yield Result("test 9", "commands refused for lack of memory", float(refused))
