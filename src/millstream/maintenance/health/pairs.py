"""Diagnosis of a primary and its replicas, by comparing the reports of both. This module does no I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from millstream.maintenance.health.findings import LEVELS, Finding
from millstream.texts import plural

_, _note, _warning, _problem = (partial(Finding, level, "replication") for level in LEVELS)
_SKEW = 1000.0
"""Difference of two clocks, in milliseconds, from which idle times are noticeably wrong."""
_SHAPES = ("stream-node-max-bytes", "stream-node-max-entries")
PAIR_SETTINGS = ("sync-replicas", "repl-dialect", *_SHAPES)
"""Settings that are read from each server with CONFIG GET."""


@dataclass(frozen=True, slots=True)
class ServerWords:
    """The reports of one server."""

    place: str  # Address of the server, without a password
    info: Mapping[str, Any]  # INFO in redis-py's form, including ``cmdstat_wait``
    settings: Mapping[str, str | None] = field(default_factory=dict)  # CONFIG parameters; empty where it does not say
    clock: float = 0.0  # Server's wall clock minus this machine's, in milliseconds
    doubt: float = 0.0  # Possible error of ``clock`` in milliseconds


def diagnose_pairs(primary: ServerWords, replicas: Sequence[ServerWords]) -> Iterator[Finding]:
    """Yield findings about a primary and the replicas that the user named."""
    for each in replicas:
        if each.info.get("role") != "slave":
            yield _warning(
                f"{each.place} is not a replica",
                "it was given as a replica, and has no data of this server",
                "give the URLs of replicas of this server, or make it follow (REPLICAOF)",
            )
            continue
        yield from _commands(primary, each)
        yield from _clocks(primary, each)
        yield from _shapes(primary, each)
    yield from _priorities(primary, [each for each in replicas if each.info.get("role") == "slave"])


def _commands(primary: ServerWords, replica: ServerWords) -> Iterator[Finding]:
    """Yield findings about commands that the replica could not run, or will not be able to at its version."""
    failed = int(replica.info.get("unexpected_error_replies", 0))
    if failed:
        yield _problem(
            f"{replica.place} failed to run {plural(failed, 'command')} of its primary or of its own log",
            "their changes are missing, and nothing else reports it",
            "make it take a new copy (REPLICAOF NO ONE, then REPLICAOF again), and set repl-dialect to its version",
        )
    dialect, version = primary.settings.get("repl-dialect"), str(replica.info.get("redis_version", ""))
    is_ours = "millstream_version" in replica.info
    if dialect and not is_ours and _version(version) and _version(version) < _version(dialect):
        yield _problem(
            f"{replica.place} is of version {version}, and replicas get the commands of version {dialect}",
            "it refuses newer commands without stopping, and its data differs from then on",
            f"CONFIG SET repl-dialect to {version} or less here, then make it take a new copy",
        )


def _clocks(primary: ServerWords, replica: ServerWords) -> Iterator[Finding]:
    apart = abs(primary.clock - replica.clock)
    if apart - primary.doubt - replica.doubt >= _SKEW:
        yield _warning(
            f"the clocks of {primary.place} and {replica.place} are {apart / 1000:.1f} s apart",
            "idle times, times to live and new ids shift by that when the replica is promoted",
            "synchronize both clocks with the same source (NTP)",
        )


def _shapes(primary: ServerWords, replica: ServerWords) -> Iterator[Finding]:
    for name in _SHAPES:
        here, there = primary.settings.get(name), replica.settings.get(name)
        if here is not None and there is not None and here != there:
            yield _note(
                f"{name} is {here} on {primary.place} and {there} on {replica.place}",
                "trimming with ~ leaves different numbers of entries when the replica is promoted",
                "set the same on both",
            )


def _priorities(primary: ServerWords, replicas: Sequence[ServerWords]) -> Iterator[Finding]:
    """Yield findings about priorities. Sentinel compares them first, and offsets only at equal priority."""
    asked = int(primary.settings.get("sync-replicas") or 0) or "cmdstat_wait" in primary.info
    both = pairwise((each.place, each.info.get("slave_priority")) for each in replicas)
    differing = [f"{one[0]} {one[1]}, {other[0]} {other[1]}" for one, other in both if one[1] != other[1]]
    if asked and differing:
        yield _warning(
            f"replicas have different priorities: {differing[0]}",
            "Sentinel promotes the lowest number, even if it misses writes that WAIT or sync-replicas confirmed",
            "set the same replica-priority on all",
        )


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,9})\.(\d{1,9})", text)
    return tuple(map(int, found.groups())) if found else ()
