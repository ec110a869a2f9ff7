"""A command's cost, counted and not timed: Python calls, memory blocks that stay, bytes in use at most.

The bytes of pipelined commands go into a connection as from the event loop, and from there through the
whole server. Replies come out at the other end. Counts are the same on every machine, however busy it is. A bound is
the count at the time of writing, and some room for another version of Python. A change that makes a command cheaper
lowers its bounds in the same commit. A change that must raise one gives the reason there.
"""

import asyncio
import gc
import os
import sys
import tracemalloc
from importlib.util import find_spec
from types import FrameType

import pytest

from millstream.clock import ManualClock
from millstream.server.app import Server
from millstream.server.connection import Clients, Connection
from millstream.server.settings import Settings
from support.wire import pack

BATCH, READS = 16, 64
CORE = "native" if find_spec("millstream._native") and os.environ.get("MILLSTREAM_CORE") != "python" else "python"
COMMANDS = {
    "PING": pack("PING"),
    "SET": pack("SET", "k", "value"),
    "GET": pack("GET", "k"),
    "XADD": pack("XADD", "s", "*", "user", "u-12345", "action", "click", "amount", "12.50"),
    "XRANGE": pack("XRANGE", "read", "50-1", "+", "COUNT", "10"),
    "XPENDING": pack("XPENDING", "read", "g", "50-1", "+", "10"),
    "XCLAIM": pack("XCLAIM", "read", "g", "c", "0", "50-1", "51-1"),
    "XAUTOCLAIM": pack("XAUTOCLAIM", "read", "g", "c", "0", "50-1", "COUNT", "10"),
}
# For each core: calls a command, blocks that stay of a command, bytes in use at most during a read of sixteen.
BOUNDS = {
    "python": {
        "PING": (16, 0.1, 4500),
        "SET": (20, 0.1, 7200),
        "GET": (21, 0.1, 6300),
        "XADD": (29, 0.3, 25_000),
        "XRANGE": (60, 0.1, 24_000),
        "XPENDING": (120, 0.1, 22_000),
        "XCLAIM": (167, 0.2, 18_000),
        # Bytes raised from 31,000: all sixteen are split at once now, which spares XADD a second look
        "XAUTOCLAIM": (445, 0.2, 39_000),
    },
    "native": {
        "PING": (2, 0.1, 1000),
        "SET": (3, 0.1, 1200),
        "GET": (3, 0.1, 1200),
        "XADD": (2, 0.1, 8000),
        "XRANGE": (2, 0.1, 8000),
        "XPENDING": (2, 0.1, 6000),
        "XCLAIM": (2, 0.1, 2500),
        "XAUTOCLAIM": (2, 0.1, 7000),
    },
}


class Sink(asyncio.Transport):
    """Client transport that accepts everything at once, and counts the bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.taken = 0
        self.last = b""

    def write(self, data: bytes) -> None:
        self.taken += len(data)
        self.last = bytes(data[:1])

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class Calls:
    """Profiler that counts calls of Python and C functions in this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        self.count += event in ("call", "c_call")


async def fed(name: str) -> tuple[float, float, int]:
    """Return the costs of a command: calls, blocks, bytes."""
    server = Server(Settings(directory=None, port=0), clock=ManualClock())
    await server.start()
    try:
        connection, sink = Connection(Clients(server), is_unix=True), Sink()
        connection.connection_made(sink)
        for number in range(1, 101):
            connection.data_received(pack("XADD", "read", f"{number}-1", "f", "v"))
        connection.data_received(pack("XGROUP", "CREATE", "read", "g", "0"))
        connection.data_received(pack("XREADGROUP", "GROUP", "g", "c", "STREAMS", "read", ">"))
        connection.data_received(COMMANDS["SET"])
        batch = COMMANDS[name] * BATCH
        for _ in range(READS):  # what a first command makes ready is not a command's cost
            connection.data_received(batch)
        found = counted(connection, batch)
        assert sink.taken > 0
        assert sink.last != b"-"  # a refusal costs less
        connection.connection_lost(None)
        return found
    finally:
        await server.stop()


def counted(connection: Connection, batch: bytes) -> tuple[float, float, int]:
    """Return calls and remaining blocks per command, and the most bytes that a read took."""
    calls = Calls()
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for _ in range(READS):
            connection.data_received(batch)
        kept = sys.getallocatedblocks() - before
        sys.setprofile(calls)
        for _ in range(READS):
            connection.data_received(batch)
        sys.setprofile(None)
        tracemalloc.start()
        start, _ = tracemalloc.get_traced_memory()
        connection.data_received(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
        gc.enable()
    commands = BATCH * READS
    return calls.count / commands, kept / commands, peak - start


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_costs_no_more_than_is_recorded(name: str) -> None:
    """Calls, remaining memory blocks and peak bytes of a pipelined command stay within their bounds."""
    found = asyncio.run(fed(name))
    bounds = BOUNDS[CORE][name]
    assert [f"{value:.2f} > {bound}" for value, bound in zip(found, bounds, strict=True) if value > bound] == []
