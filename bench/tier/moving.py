"""G6 to G8: clients beside a reader of cold entries, writers beside spilling, and the speed of the disk."""

import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from bench.server.cases import FIELDS
from bench.server.load import pack as encode
from bench.server.load import send
from bench.server.servers import Server
from bench.stalls import used
from bench.tier.places import KEY, Raw, base_memory, fill, forget, millstream, pack, packs, pages, settled, tier
from bench.tier.results import Result
from bench.tier.standing import limit_for

MIB = 1 << 20
_PAUSE = 0.001
_PAGE = 1000


def _probe(port: int, pid: int, pipe: Connection) -> None:
    """Send PING each millisecond until told; send the times of the replies and the longest work of the loop."""
    raw, waited, longest, before = Raw(port), [], 0.0, used(pid)
    ping = pack("PING")
    while not pipe.poll(_PAUSE):
        begun = time.perf_counter()
        raw.ask(ping)
        waited.append(time.perf_counter() - begun)
        now = used(pid)
        longest, before = max(longest, now - before), now
    pipe.send((waited, longest))


def _watched(server: Server, job: Callable[[], object]) -> tuple[float, float]:
    """Run a job; return the 99th percentile of PING's times, and the longest work between two, in seconds."""
    ours, theirs = multiprocessing.Pipe()
    prober = multiprocessing.Process(target=_probe, args=(server.port, server.pid, theirs), daemon=True)
    prober.start()
    job()
    ours.send("end")
    waited, longest = ours.recv()
    prober.join()
    return statistics.quantiles(waited, n=100)[98], longest


def _by_group(server: Server, wait: Callable[[int], None] = lambda number: None) -> None:  # noqa: ARG005 - as in pages()
    """Read the stream as a reader of partitions does: MULTI, XREADGROUP, EXEC."""
    raw, number = Raw(server.port), 0
    raw.ask(pack("XGROUP", "DESTROY", KEY, "g") + pack("XGROUP", "CREATE", KEY, "g", 0))
    read = pack("XREADGROUP", "GROUP", "g", "c", "COUNT", _PAGE, "NOACK", "STREAMS", KEY, ">")
    unit = pack("MULTI") + read + pack("EXEC")
    while not (reply := raw.ask(unit)).endswith((b"*1\r\n*-1\r\n", b"*1\r\n$-1\r\n", b"*1\r\n_\r\n")):
        if b"\r\n-" in reply[:200]:
            raise RuntimeError(reply[:200].decode())
        number += 1
        wait(number)
    raw.close()


def beside_reader(folder: Path, entries: int, rounds: int) -> Iterator[Result]:
    """G6: PING while another client reads cold entries from the disk, beside a hot server that is read as fast."""
    cold = millstream(folder / "cold", "cold", f"maxmemory={limit_for(entries, base_memory(folder))}", "tier=yes")
    with millstream(folder / "hot", "hot") as hot, cold:
        for place in (hot, cold):
            fill(place.server, entries)
        settled(cold.server.client)
        ways: dict[str, Callable[..., object]] = {
            "XRANGE": lambda server, **more: pages(server, _PAGE, **more),
            "MULTI, XREADGROUP, EXEC": _by_group,
        }
        for name, read in ways.items():
            ratios, longest = [], []
            for _ in range(rounds):
                forget(packs(cold.folder))
                begun = time.perf_counter()
                slow, stall = _watched(cold.server, lambda read=read: read(cold.server))
                each = (time.perf_counter() - begun) / (entries / _PAGE)
                start = time.perf_counter()

                def pace(number: int, start: float = start, each: float = each) -> None:
                    # Reads come as fast as those of the cold server
                    time.sleep(max(start + number * each - time.perf_counter(), 0))

                quick, _ = _watched(hot.server, lambda read=read, pace=pace: read(hot.server, wait=pace))
                ratios.append(slow / quick)
                longest.append(stall)
            text = f"PING beside {name}"
            yield Result("G6", f"{text}: p99, cold to hot ({min(ratios):.2f} to {max(ratios):.2f})", max(ratios), 2.0)
            yield Result("G6", f"{text}: longest work of the loop to 50 ms", max(longest) / 0.05, 1.0)


def writers(folder: Path, entries: int, rounds: int) -> Iterator[Result]:
    """G7: the rate of 50 writers with spilling to that without, in turns."""
    add = [encode("XADD", "s", "*", *FIELDS)]
    for fsync in ("always", "everysec"):
        with (
            millstream(folder / "off", "off", fsync=fsync) as off,
            millstream(folder / "on", "on", "tier=yes", "tier-hot=4mb", fsync=fsync) as on,
        ):
            total = max(entries // 20, 20_000)
            found: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
            for number in range(max(rounds, 3)):
                for place in (off, on) if number % 2 else (on, off):
                    got = send(place.server, add, total=total, clients=50, pipeline=16, patience=600)
                    found[place.name].append((got.rate, got.micros))
                settled(on.server.client)
            pairs = list(zip(found["on"], found["off"], strict=True))
            rates = [one[0] / other[0] for one, other in pairs]
            costs = statistics.median(one[1] / other[1] for one, other in pairs)
            text = f"fsync {fsync}, 50 writers by 16: rate with spilling to that without"
            yield Result("G7", f"{text} ({min(rates):.2f} to {max(rates):.2f})", statistics.median(rates), 0.85, True)
            yield Result("G7", f"fsync {fsync}: processor of the server, with spilling to without", costs)


def _copy(source: str, target: str, *more: str) -> None:
    """Copy a file by dd."""
    subprocess.run(["dd", f"if={source}", f"of={target}", "bs=8M", *more], check=True, stderr=subprocess.DEVNULL)


def disk(folder: Path, entries: int, rounds: int) -> Iterator[Result]:
    """G8: spilling, and reading a backlog, beside dd."""
    with millstream(folder / "disk", "disk") as place:
        fill(place.server, entries)
        client = place.server.client
        client.config_set("tier-hot", "64kb")
        begun = time.perf_counter()
        client.config_set("tier", "yes")
        size, ends = 0, begun
        while time.perf_counter() - ends < 2 or not size:
            spilled = tier(client)["tier_spilled_bytes"]
            if spilled != size:
                size, ends = spilled, time.perf_counter()
            time.sleep(0.05)  # the figure is sampled until it stands still
        ours = size / (ends - begun)
        copy, theirs = folder / "copy", []
        for _ in range(rounds):
            copy.unlink(missing_ok=True)
            begun = time.perf_counter()
            for each in packs(place.folder):
                _copy(str(each), str(copy), "oflag=append", "conv=fdatasync,notrunc")
            theirs.append(copy.stat().st_size / (time.perf_counter() - begun))
        copy.unlink()
        text = f"spilling {size / 1e6:.0f} MB: to dd with fdatasync"
        yield Result("G8", text, ours / statistics.median(theirs), 0.6, True)
        shares = []
        for _ in range(rounds):
            forget(packs(place.folder))
            begun = time.perf_counter()
            for each in packs(place.folder):
                _copy(str(each), "/dev/null")
            plain = time.perf_counter() - begun
            forget(packs(place.folder))
            begun = time.perf_counter()
            pages(place.server, 10_000)
            shares.append(plain / (time.perf_counter() - begun))
        yield Result("G8", "reading a backlog by XRANGE COUNT 10000: to dd", statistics.median(shares), 0.6, True)
