"""Cost of a command by size: length of the stream, pending entries, groups, clients."""

from collections.abc import Callable, Iterator
from functools import partial

from bench.server.cases import FIELDS, autoclaims, claims, pending, pending_ranges, stream
from bench.server.load import Measured, pack, send
from bench.server.servers import Server, all_started
from bench.server.turns import Effort, Rounds, in_turns, say

Curve = dict[str, Rounds]
"""Rounds by size, a text."""
BATCH = 16


def _add(_: int) -> list[bytes]:
    return [pack("XADD", "s", "*", *FIELDS)]


def _range(size: int) -> list[bytes]:
    places = (number * 7919 % max(size - 100, 1) + 1 for number in range(1000))
    return [pack("XRANGE", "s", f"{at}-1", "+", "COUNT", 100) for at in places]


def _many_groups(size: int) -> Iterator[bytes]:
    yield from stream(entries=1000)
    for number in range(size):
        yield pack("XGROUP", "CREATE", "s", f"g{number}", "$")


def _read_own(size: int) -> list[bytes]:
    """Return commands that add one entry and let the last of many groups read and acknowledge it."""
    read = pack("XREADGROUP", "GROUP", f"g{size - 1}", "c", "NOACK", "COUNT", 1, "STREAMS", "s", ">")
    return [pack("XADD", "s", "*", *FIELDS), read]


def _get(_: int) -> list[bytes]:
    return [pack("GET", "k")]


Ready = Callable[[int], Iterator[bytes]]
Commands = Callable[[int], list[bytes]]
LENGTHS = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
GROUPS = (1, 3, 10, 30, 100, 300, 1000)
CLIENTS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
CURVES: dict[str, tuple[tuple[int, ...], Ready, Commands]] = {
    "XADD by length of the stream": (LENGTHS, lambda size: stream(entries=size), _add),
    "XRANGE COUNT 100 by length of the stream": (LENGTHS, lambda size: stream(entries=size), _range),
    "XPENDING of 10 by pending entries": (LENGTHS[2:], pending, lambda size: list(pending_ranges(size))),
    "XAUTOCLAIM of 10 by pending entries": (LENGTHS[2:], pending, lambda size: list(autoclaims(size))),
    "XCLAIM of 10 by pending entries": (LENGTHS[2:], pending, lambda size: list(claims(size))),
    "XADD by groups": (GROUPS, _many_groups, _add),
    "XADD and XREADGROUP by groups": (GROUPS, _many_groups, _read_own),
    "GET by clients": (CLIENTS, lambda _: iter([pack("SET", "k", "value")]), _get),
    "XADD by clients": (CLIENTS, lambda _: iter([pack("DEL", "s")]), _add),
}
"""Sizes, preparation and commands of each curve, by name; the clients' curves are unpipelined."""


def all_curves(effort: Effort) -> dict[str, Curve]:
    """Measure every curve, all servers side by side."""
    with all_started() as servers:
        return {name: _curve(servers, effort, name) for name in CURVES}


def _sent(commands: list[bytes], clients: int, pipeline: int, server: Server, total: int) -> Measured:
    return send(server, commands, total=total, clients=clients, pipeline=pipeline)


def _curve(servers: list[Server], effort: Effort, name: str) -> Curve:
    sizes, ready, commands = CURVES[name]
    found: Curve = {}
    for size in sizes[:-1] if effort.quick else sizes:
        for server in servers:
            server.client.flushall()
            send(server, ready(size), patience=600)
        clients, pipeline = (size, 1) if sizes is CLIENTS else (4, BATCH)

        sent = partial(_sent, commands(size), clients, pipeline)
        found[str(size)] = in_turns(servers, effort, sent, first=max(500, 2 * clients))
        say(f"{name}, {size:,}", found[str(size)])
    return found
