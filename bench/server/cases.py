"""The measured commands: a table of cases, and the run of a case.

A case has a command for redis-benchmark, or packed commands for the generator; the preparation is sent before, and
is not measured. Streams have the ids 1-1, 2-1 and so on, so that a command can name any of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.server.load import Measured, Word, benchmark, pack, send
from bench.server.servers import MEMORY, SETTINGS, Server

FIELDS = ("user", "u-12345", "action", "click", "amount", "12.50")
LARGE = ("payload", "x" * 1024)
ENTRIES, LANES = 100_000, 50
"""Number of entries in streams that are read; and clients, each with its own stream if order matters."""

Commands = Callable[[], Iterator[bytes]]


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: Name of the case.
        commands: A command for redis-benchmark, or a function that makes commands for the generator.
        ready: Function that makes the prepared data, once for each server.
        fresh: True to empty the server before each run.
        pipeline: Commands that a client sends before it waits.
        setting: One of :data:`bench.server.servers.SETTINGS`.
        clients: Number of connections.
    """

    name: str
    commands: tuple[Word, ...] | Commands
    ready: Commands = lambda: iter(())
    fresh: bool = False
    pipeline: int = 1
    setting: str = MEMORY
    clients: int = LANES

    def run(self, server: Server, total: int) -> Measured:
        """Run the case with so many commands."""
        if self.fresh:
            server.client.flushall()
        how = {"total": total, "clients": self.clients, "pipeline": self.pipeline}
        if isinstance(self.commands, tuple):
            return benchmark(server, self.commands, **how)
        return send(server, self.commands(), **how)


def stream(key: str = "s", entries: int = ENTRIES, fields: tuple[str, ...] = FIELDS) -> Iterator[bytes]:
    """Yield commands for a stream with the ids 1-1 and on, without a group."""
    yield pack("DEL", key)
    for number in range(1, entries + 1):
        yield pack("XADD", key, f"{number}-1", *fields)


def pending(entries: int = ENTRIES) -> Iterator[bytes]:
    """Yield commands for a stream whose entries are all pending in a group with one consumer."""
    yield from stream(entries=entries)
    yield pack("XGROUP", "CREATE", "s", "g", 0)
    for _ in range(0, entries, 1000):
        yield pack("XREADGROUP", "GROUP", "g", "a", "COUNT", 1000, "STREAMS", "s", ">")


def scattered(entries: int = ENTRIES, step: int = 10) -> Iterator[int]:
    """Yield a thousand positions in a stream, in an order without locality, each with some entries after it."""
    return (number * 7919 * step % (entries - 1100) + 1 for number in range(1000))


def ranges(count: int) -> Commands:
    """Return commands XRANGE of so many entries at scattered positions."""
    return lambda: (pack("XRANGE", "s", f"{at}-1", "+", "COUNT", count) for at in scattered())


def reads(count: int) -> Commands:
    """Return commands XREAD of so many entries at scattered positions."""
    return lambda: (pack("XREAD", "COUNT", count, "STREAMS", "s", f"{at}-1") for at in scattered())


def lanes_ready() -> Iterator[bytes]:
    """Yield commands for a stream and a group for each client."""
    for lane in range(LANES):
        yield from stream(f"s{lane}", ENTRIES // LANES)
        yield pack("XGROUP", "CREATE", f"s{lane}", "g", 0)


def lanes_read() -> Iterator[bytes]:
    """Yield commands that read each client's stream ten entries at a time and acknowledge them.

    They begin with a new group, wherever an earlier run ended: a group that has read everything has no work left.
    """
    for lane in range(LANES):
        yield pack("XGROUP", "DESTROY", f"s{lane}", "g")
        yield pack("XGROUP", "CREATE", f"s{lane}", "g", 0)  # two commands, so that batches keep their pairs
        for first in range(1, ENTRIES // LANES, 10):
            ids = (f"{number}-1" for number in range(first, first + 10))
            yield pack("XREADGROUP", "GROUP", "g", "c", "COUNT", 10, "STREAMS", f"s{lane}", ">")
            yield pack("XACK", f"s{lane}", "g", *ids)


def claims(entries: int = ENTRIES) -> Iterator[bytes]:
    """Yield commands XCLAIM of ten entries, at scattered positions of a large pending list."""
    for at in scattered(entries):
        yield pack("XCLAIM", "s", "g", "b", 0, *(f"{number}-1" for number in range(at, at + 10)))


def autoclaims(entries: int = ENTRIES) -> Iterator[bytes]:
    """Return commands XAUTOCLAIM of ten entries, at scattered positions of the pending list."""
    return (pack("XAUTOCLAIM", "s", "g", "b", 0, f"{at}-1", "COUNT", 10) for at in scattered(entries))


def pending_ranges(entries: int = ENTRIES) -> Iterator[bytes]:
    """Return commands XPENDING of ten entries, at scattered positions of the pending list."""
    return (pack("XPENDING", "s", "g", f"{at}-1", "+", 10) for at in scattered(entries))


def _rows() -> Iterator[Case]:
    add, add_large = ("XADD", "s", "*", *FIELDS), ("XADD", "s", "*", *LARGE)
    add_capped = ("XADD", "s", "MAXLEN", "~", "10000", "*", *FIELDS)
    for pipeline in (1, 16, 100):
        how = {1: "", 16: " by 16", 100: " by 100"}[pipeline]
        yield Case(f"PING{how}", ("PING",), pipeline=pipeline)
        yield Case(f"SET{how}", ("SET", "k", "value"), pipeline=pipeline)
        yield Case(f"GET{how}", ("GET", "k"), lambda: iter([pack("SET", "k", "value")]), pipeline=pipeline)
        yield Case(f"XADD{how}", add, fresh=True, pipeline=pipeline)
        yield Case(f"XADD 1 KiB{how}", add_large, fresh=True, pipeline=pipeline)
        yield Case(f"XADD MAXLEN ~ 10000{how}", add_capped, fresh=True, pipeline=pipeline)
        yield Case(f"XRANGE COUNT 1{how}", ranges(1), stream, pipeline=pipeline)
        yield Case(
            f"XREADGROUP COUNT 10 + XACK{how}", lanes_read, lanes_ready, pipeline=2 if pipeline == 1 else pipeline
        )
    for count in (1, 100, 1000):
        if count > 1:
            yield Case(f"XRANGE COUNT {count}", ranges(count), stream)
        yield Case(f"XREAD COUNT {count}", reads(count), stream)
    yield Case("XRANGE COUNT 100, 1 KiB", ranges(100), lambda: stream(entries=20_000, fields=LARGE))
    for name, commands in (("XCLAIM", claims), ("XAUTOCLAIM", autoclaims), ("XPENDING", pending_ranges)):
        yield Case(f"{name} of 10, 100,000 pending", commands, pending, pipeline=16)
    for setting in SETTINGS[1:]:
        for pipeline, how in ((1, ""), (16, " by 16")):
            yield Case(f"XADD{how}, fsync {setting}", add, fresh=True, pipeline=pipeline, setting=setting)


CASES = tuple(_rows())
QUICK = frozenset(
    {
        "PING by 16",
        "SET by 16",
        "GET by 16",
        "XADD",
        "XADD by 16",
        "XADD by 100",
        "XADD MAXLEN ~ 10000 by 16",
        "XADD 1 KiB by 16",
        "XRANGE COUNT 1 by 16",
    }
    | {"XRANGE COUNT 100", "XREAD COUNT 100", "XREADGROUP COUNT 10 + XACK by 16", "XCLAIM of 10, 100,000 pending"}
    | {"XAUTOCLAIM of 10, 100,000 pending", "XPENDING of 10, 100,000 pending"}
    | {"XADD, fsync always", "XADD by 16, fsync always"}
)
"""Cases that ``--quick`` measures: one for each goal."""
