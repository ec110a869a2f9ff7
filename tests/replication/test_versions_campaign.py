"""Chains of Millstream and each other server, each leading in turn: random changes, copies, cuts, equality."""

import contextlib
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.replicated import Changes, state
from replication.test_following_redis import WITH_DEBUG, follow, info, seen, wait_level
from support import needs
from support.campaign import LIMIT, run
from support.servers import ServerProcess, millstream_server, redis_server
from support.wire import Wire

OURS = "millstream"
THEIRS = ("redis", "redis8", "valkey")
# Programs of further versions, in the campaign alone
MORE = [path for path in os.environ.get("MILLSTREAM_MORE_SERVERS", "").split(os.pathsep) if path]
# The order of servers that follow each other, first to last; "*" is each of the other servers
CHAINS = ((OURS, "*", OURS), ("*", OURS, "*"), (OURS, OURS, "*"), ("*", OURS, OURS))
ROUNDS, CHANGES = 5, 1000
SEEDS = 4


def chains() -> list[tuple[str, ...]]:
    """Return the chains of the available servers."""
    there = [name for name in THEIRS if name == "redis" or needs.found(name)]
    return [tuple(name.replace("*", other) for name in chain) for other in there + MORE for chain in CHAINS]


def program(name: str) -> str:
    """Return the path of another server's program; empty for the installed one."""
    if name in MORE:
        return name
    return "" if name == "redis" else needs.other(name)


def server(name: str, folder: Path, port_above: int | None) -> ServerProcess:
    """Return a server of the chain, not started yet."""
    options = [] if port_above is None else ["--replicaof", f"127.0.0.1:{port_above}"]
    if name == OURS:
        return millstream_server(folder, "--fsync", "everysec", *options)
    options = [] if port_above is None else ["--replicaof", "127.0.0.1", str(port_above)]
    return redis_server(folder, *WITH_DEBUG, *options, path=program(name))


def changes(seed: int, count: int, first: str, since: int) -> Iterator[list[bytes]]:
    """Yield random changes, except rereads of pending entries, which Redis does not replicate."""
    for words in Changes(seed, since).some(count):
        if first == OURS or words[0] != b"XREADGROUP" or words[-1] == b">":
            yield words


def try_chain(names: tuple[str, ...], seed: int, changed: int) -> int:
    """Change data on the first server while the others connect and are cut off; all end with equal data.

    Args:
        names: of the servers, the first leads.
        seed: of all that is random.
        changed: changes of each of the rounds.

    Returns:
        The number of commands that were run.
    """
    chance, count = random.Random(seed), 0
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        started: list[ServerProcess] = []
        for at, name in enumerate(names):
            above = started[-1].port if started else None
            started.append(stack.enter_context(server(name, Path(folder) / str(at), above)))
        wires = [stack.enter_context(Wire(each.url)) for each in started]
        since = 1000 * int(wires[0].ask("TIME")[0])
        for round_ in range(ROUNDS):
            commands = list(changes(seed * ROUNDS + round_, changed, names[0], since))
            count += len(commands)
            while commands:
                some = [commands.pop(0) for _ in range(min(len(commands), chance.choice([1, 7, 50, 200])))]
                wires[0].ask_together(some)
                if chance.random() < 0.02:
                    chance.choice(wires[:-1]).ask("CLIENT", "KILL", "TYPE", "replica")
            if round_ == ROUNDS // 2:  # all over: the last one first follows nobody, then begins with a copy
                wires[-1].ask("REPLICAOF", "NO", "ONE")
                wires[-1].ask("SET", "own", "history")
                follow(wires[-1], started[-2].port)
            for upper, lower in itertools.pairwise(wires):
                wait_level(lower, upper)
        # Facts that Redis sends to no replica are on no server after one
        look: Callable[[Wire], Any] = seen if set(names[:-1]) != {OURS} else lambda wire: state(wire.ask)
        held = [look(wire) for wire in wires]
        for name, mine in zip(names[1:], held[1:], strict=True):
            assert mine == held[0], f"{name} in {names}"
        for name, wire in zip(names[1:], wires[1:], strict=True):
            if name == OURS:
                assert info(wire)["millstream_link_divergences"] == "0"
    return count


def piece(seed: int) -> int:
    """Run one chain."""
    found = chains()
    return try_chain(found[seed % len(found)], seed, CHANGES)


@pytest.mark.parametrize("names", [(OURS, "valkey", OURS), ("valkey", OURS)], ids=" ".join)
def test_valkey_follows_and_is_followed(names: tuple[str, ...]) -> None:
    """Valkey follows Millstream and passes the writes on, and Millstream follows Valkey, as with Redis."""
    needs.other("valkey")
    try_chain(names, 1, 200)


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(LIMIT)
def test_versions() -> None:
    """Each other server behind Millstream, before it, and between two Millstreams has the first one's data."""
    run("repl-versions", piece, range(SEEDS * len(chains())), unit="commands")
