"""Reading the memory of a stream, and the rule of retention that applies to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.client.line import Line
from millstream.glob import Rule, Rules
from millstream.ops.asking import calls
from millstream.ops.server.retention import SETTINGS, rule_facts, settings_of
from millstream.ops.words import Facts


@dataclass(frozen=True, slots=True)
class StreamStorage:
    """The memory of a stream, and its retention."""

    memory_bytes: int | None = None  # Bytes in memory, of all partitions; None if the server does not report it
    rule: Rule | None = None  # Rule that applies; None if the stream keeps everything, or if the rules are not known
    holds: bool = False  # Entries stay until every group has acknowledged them
    differs: bool = False  # True if the partitions that receive entries have different rules


async def read_storage(line: Line, key: str, parts: Sequence[str] = (), receiving: Sequence[str] = ()) -> StreamStorage:
    """Read the memory of a stream, or of its partitions, and its retention; what a server refuses stays unknown.

    The retention is that of the partitions that receive new entries: a sealed one can have another rule.
    """
    keys = parts or (key,)
    (settings,), sizes = await asyncio.gather(
        calls(line.near(keys[0]), [SETTINGS]), calls(line, [("MEMORY", "USAGE", each) for each in keys])
    )
    known = [size for size in sizes if isinstance(size, int)]
    found = settings_of(settings)
    every_rule = Rules() if found is None else found.rules
    named = [each.encode(errors="surrogateescape") for each in receiving or (key,)]
    rules = await asyncio.to_thread(lambda: [every_rule.find(each) for each in named])  # many partitions take long
    differs = any(each is not rules[0] for each in rules)
    rule = None if differs else rules[0]
    memory = sum(known) if len(known) == len(keys) else None
    return StreamStorage(memory, rule, rule is not None and found is not None and found.holds, differs)


def storage_facts(found: StreamStorage) -> Facts:
    """Return the memory and the retention of a stream as data."""
    rule = None if found.rule is None else {**rule_facts(found.rule), "holds": found.holds}
    return {"memory_bytes": found.memory_bytes, "retention": rule}
