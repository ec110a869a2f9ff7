"""Streams far larger than memory, for real: 300 million entries of 27 GB under ``maxmemory 1gb``.

The campaigns ``tier-30gb-*`` fill a stream with kills in between, read it to its end by Spark, and let retention free
the disk. Their data are kept in a folder beside the campaigns' records until the last one has removed them, so that an
interrupted run continues. They need 40 GB of free disk. ``MILLSTREAM_TIER_ENTRIES`` sets another number of entries,
with ``maxmemory`` and the disk in proportion; such runs have other names.
"""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import campaign
from support.resident import memory
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE = 300_000_000
ENTRIES = int(os.environ.get("MILLSTREAM_TIER_ENTRIES", WHOLE))
NAME = "tier-30gb" if ENTRIES == WHOLE else f"tier-{ENTRIES}"
FOLDER = campaign.FOLDER / f"{NAME}-data"
MIB = 1 << 20
LIMIT = max((1 << 30) * ENTRIES // WHOLE, 128 * MIB)
"""``maxmemory``; the process may take 1.3 times as much."""
NEEDED = max(40_000_000_000 * ENTRIES // WHOLE, 2_000_000_000)
PARTS, STEP, FIRST = 12, 10_000, 1_700_000_000_000
LONG = 3600.0
"""Seconds for one reply or start at most, since the machine may be busy."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(campaign.LIMIT),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see memory"),
]


@pytest.fixture(autouse=True)
def _room() -> None:
    """Require the disk space that is still missing."""
    campaign.FOLDER.mkdir(parents=True, exist_ok=True)
    held = sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) if FOLDER.exists() else 0
    free = shutil.disk_usage(campaign.FOLDER).free
    if free + held < NEEDED:
        pytest.fail(f"{NEEDED / 1e9:.0f} GB of free disk are needed, and {free / 1e9:.0f} GB are free: free some")


def entry_id(number: int) -> str:
    """Return the id of an entry, from 0 on."""
    return f"{FIRST + number // 10}-{number % 10}"


def additions(first: int, count: int) -> bytes:
    """Encode XADD for some entries of 72 bytes in two fields."""
    made = []
    for number in range(first, first + count):
        name = b"%d-%d" % (FIRST + number // 10, number % 10)
        words = b"$%d\r\n%b\r\n$1\r\nn\r\n$12\r\n%012d\r\n" % (len(name), name, number)
        made.append(b"*7\r\n$4\r\nXADD\r\n$1\r\ns\r\n%b$1\r\nb\r\n$60\r\n%060d\r\n" % (words, number))
    return b"".join(made)


class Watch:
    """Watches the resident memory of a server, five times a second."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ends = pid, threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.2):
            try:
                self.most = max(self.most, memory(self._pid))
            except (OSError, IndexError):  # it was killed
                return

    def stop(self) -> None:
        """End watching, and check the bound."""
        self._ends.set()
        self._thread.join()
        assert self.most < 1.3 * LIMIT, f"resident {self.most / MIB:.0f} MiB with maxmemory {LIMIT / MIB:.0f} MiB"


@contextmanager
def running(*options: str) -> Iterator[ServerProcess]:
    """Run the server on the campaign's data, check its memory, and kill it in the end."""
    words = [
        "--fsync",
        "everysec",
        "--maxmemory",
        str(LIMIT),
        "--set",
        "tier=yes",
        "--set",
        "stream-node-max-entries=100",
    ]
    server = millstream_server(FOLDER, *words, *options)
    server.start(LONG)
    assert server.process is not None
    watch = Watch(server.process.pid)
    try:
        yield server
        watch.stop()
    finally:
        server.kill()


def length(server: ServerProcess) -> int:
    """Return the number of entries."""
    with server.client() as client:
        return int(client.xlen("s"))


def filled(server: ServerProcess, upto: int) -> int:
    """Add entries up to a number, each of which must be there; return the number of those that were added."""
    begun = length(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=LONG) as sock:
        for at in range(begun, upto, STEP):
            count = min(STEP, upto - at)
            sock.sendall(additions(at, count))
            left = 2 * count  # lines of the replies
            while left:
                replies = sock.recv(1 << 20)
                assert replies, "the server closed the connection"
                assert b"-" not in replies[:1], replies[:100]
                left -= replies.count(b"\n")
    assert length(server) == max(upto, begun)
    return max(upto - begun, 0)


def part(number: int) -> tuple[int, int]:
    """Return the first entry of a part, and that of the next one."""
    return number * ENTRIES // PARTS, (number + 1) * ENTRIES // PARTS


def fill(number: int) -> int:
    """Add one part, and kill the server while entries are on their way to packs; the next start has all of them."""
    _, upto = part(number)
    with running() as server:
        filled(server, upto)
    with running() as server:
        assert length(server) >= upto
    return upto - part(number)[0]


def test_a_stream_of_30_gb_is_filled() -> None:
    """A stream grows to 27 GB with 1 GB of memory, and each of 12 kills loses no entry."""
    campaign.run(f"{NAME}-filled", fill, range(PARTS), unit="entries")


def test_a_stream_of_30_gb_is_read(spark: "SparkSession") -> None:
    """Spark reads each entry of such a stream once, and the server's memory stays bounded meanwhile."""

    def read(number: int) -> int:
        first, end = part(number)
        places = {"startingOffsets": entry_id(first - 1) if first else "0-0", "endingOffsets": entry_id(end - 1)}
        with running() as server:
            filled(server, ENTRIES)
            options = {name: json.dumps({"s": place}) for name, place in places.items()}
            reader = spark.read.format("millstream").option("url", server.url).option("stream", "s")
            rows = (
                reader.options(**options).schema("n BIGINT").load().selectExpr("count(n)", "sum(n)", "min(n)", "max(n)")
            )
            assert tuple(rows.collect()[0]) == (end - first, (first + end - 1) * (end - first) // 2, first, end - 1)
        return end - first

    campaign.run(f"{NAME}-read", read, range(PARTS), unit="entries")


def figure(server: ServerProcess, name: str) -> int:
    """Return a number of INFO's section ``tier``."""
    with server.client() as client:
        return int(client.info("tier")[name])


def retained(_: int) -> int:
    """Let retention remove most of the stream, and wait until its packs are gone from the disk."""
    with running("--set", "auto-aof-rewrite-min-size=1mb") as server, server.client() as client:
        filled(server, ENTRIES)
        before = figure(server, "tier_bytes")
        client.config_set("stream-retention", f"* 0 {before // 4}")
        eventually(lambda: client.xlen("s") < ENTRIES // 2, LONG, what="retention removes entries")
        client.execute_command("BGREWRITEAOF")
        eventually(lambda: figure(server, "tier_bytes") < before // 2, LONG, what="packs are removed")
        kept = int(client.xlen("s"))
        ((newest, _),) = client.xrevrange("s", count=1)
        assert newest.decode() == entry_id(ENTRIES - 1)
    with running() as server:
        assert 0 < length(server) <= kept
    shutil.rmtree(FOLDER)
    return ENTRIES


def test_a_stream_of_30_gb_is_removed() -> None:
    """Retention removes most of such a stream; its packs leave the disk, and a start after a kill agrees."""
    campaign.run(f"{NAME}-retained", retained, range(1), unit="entries")
