"""Reading the memory of a stream, its entries in packs on disk, and the rule of retention that applies to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.line import Line
from millstream.glob import Rule, Rules
from millstream.ops.asking import calls
from millstream.ops.server.retention import SETTINGS, rule_facts, settings_of
from millstream.ops.streams.places import place_of
from millstream.ops.words import Facts, picked


@dataclass(frozen=True, slots=True)
class StreamStorage:
    """The memory of a stream, and its retention."""

    memory_bytes: int | None = None  # Bytes in memory, of all partitions; None if the server does not report it
    hot_bytes: int | None = None  # Bytes of its entries in memory; None if the server does not report them
    cold_bytes: int | None = None  # Bytes of its entries in packs on disk; None if the server does not report them
    rule: Rule | None = None  # Rule that applies; None if the stream keeps everything, or if the rules are not known
    holds: bool = False  # Entries stay until every group has acknowledged them
    differs: bool = False  # True if the partitions that receive entries have different rules


async def read_storage(line: Line, key: str, parts: Sequence[str] = (), receiving: Sequence[str] = ()) -> StreamStorage:
    """Read the memory of a stream, or of its partitions, and its retention; what a server refuses stays unknown.

    The retention is that of the partitions that receive new entries: a sealed one can have another rule.
    """
    keys = parts or (key,)
    (settings,), sizes, tiers = await asyncio.gather(
        calls(line.near(keys[0]), [SETTINGS]),
        calls(line, [("MEMORY", "USAGE", each) for each in keys]),
        read_tiers(line, keys),
    )
    known = [size for size in sizes if isinstance(size, int)]
    found = settings_of(settings)
    every_rule = Rules() if found is None else found.rules
    named = [each.encode(errors="surrogateescape") for each in receiving or (key,)]
    rules = await asyncio.to_thread(lambda: [every_rule.find(each) for each in named])  # many partitions take long
    differs = any(each is not rules[0] for each in rules)
    rule = None if differs else rules[0]
    memory = sum(known) if len(known) == len(keys) else None
    hot, cold = (sum(row[at] for row in tiers.values()) if len(tiers) == len(keys) else None for at in (0, 1))
    return StreamStorage(memory, hot, cold, rule, rule is not None and found is not None and found.holds, differs)


async def read_tiers(line: Line, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the bytes of each stream's entries in memory and in packs; nothing for one that the server refuses.

    Redis has no such command, and refuses it.
    """
    replies = await calls(line, [("TIER", "USAGE", key) for key in keys])
    found = {}
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, list | dict):
            place = place_of(key, reply)
            found[key] = place.hot_bytes, place.cold_bytes
    return found


def storage_facts(found: StreamStorage) -> Facts:
    """Return the memory and the retention of a stream as data."""
    rule = None if found.rule is None else {**rule_facts(found.rule), "holds": found.holds}
    return {**picked(found, "memory_bytes hot_bytes cold_bytes"), "retention": rule}
