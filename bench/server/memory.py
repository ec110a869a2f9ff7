"""Main memory of data: the difference of a server with many items and without them, for each kind of item."""

from collections.abc import Callable, Iterator

from bench.server.cases import FIELDS
from bench.server.load import pack, send
from bench.server.servers import names, started


def _entries(count: int) -> Iterator[bytes]:
    return (pack("XADD", "s", "*", *FIELDS) for _ in range(count))


def _group(count: int) -> Iterator[bytes]:
    yield from _entries(count)
    yield pack("XGROUP", "CREATE", "s", "g", 0)


def _delivered(count: int) -> Iterator[bytes]:
    for _ in range(0, count, 100):
        yield pack("XREADGROUP", "GROUP", "g", "c", "COUNT", 100, "STREAMS", "s", ">")


def _consumers(count: int) -> Iterator[bytes]:
    return (pack("XGROUP", "CREATECONSUMER", "s", "g", f"consumer-{number}") for number in range(count))


def _streams(count: int) -> Iterator[bytes]:
    return (pack("XADD", f"stream-{number}", "*", *FIELDS) for number in range(count))


Make = Callable[[int], Iterator[bytes]]
THINGS: dict[str, tuple[int, Make | None, Make]] = {
    "an entry of three short fields": (300_000, None, _entries),
    "a pending entry": (300_000, _group, _delivered),
    "a consumer": (50_000, lambda _: _group(1), _consumers),
    "a stream of one entry": (50_000, None, _streams),
}
"""Number, preparation and commands of each kind of item, by name."""


def all_things(*, quick: bool) -> dict[str, dict[str, float]]:
    """Return the bytes per item by server."""
    return {name: {server: _bytes_of(server, *how, quick=quick) for server in names()} for name, how in THINGS.items()}


def _bytes_of(name: str, count: int, before: Make | None, make: Make, *, quick: bool) -> float:
    count //= 3 if quick else 1
    with started(name) as server:
        send(server, [pack("PING")] * 1000 + list(_streams(100)))  # what the first commands load counts for none
        if before is not None:
            send(server, before(count))
        empty = server.memory()
        send(server, make(count))
        return round((server.memory() - empty) / count, 1)
