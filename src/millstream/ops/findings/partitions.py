"""Findings about partitioned streams."""

from collections.abc import Mapping

from millstream.client.partitions.layout import PartitionLayout
from millstream.ops.findings.advice import Advice, Level
from millstream.ops.findings.status import LOOKED_AT
from millstream.ops.streams.balance import skew
from millstream.ops.streams.status import StreamsSeen
from millstream.ops.words import command_words, name
from millstream.texts import plural, span_text

SKEW = 3.0
"""Ratio of the busiest partition to the mean above which a stream is uneven."""

_ADDED = 1_000  # number of entries ever added below which an uneven distribution may be chance

_SEALED_MS = 3_600_000
"""Age of a group's unfinished entries, in milliseconds, from which a sealed partition is a finding."""

UNOWNED_MS = 60_000
"""Milliseconds without an owner from which a partition is a finding."""


def unowned_partitions(
    seen: StreamsSeen, layouts: Mapping[str, PartitionLayout], unowned: Mapping[tuple[str, str], int]
) -> list[Advice]:
    """Return findings on groups with partitions that have had no owner for a minute."""
    there = {(group.stream, group.name): group for one in seen.streams for group in one.groups}
    found = []
    for stream, layout in layouts.items():
        keys = set(layout.every_key)
        for group in sorted({place[1] for place in unowned if place[0] in keys}):
            places = [place for place in unowned if place[0] in keys and place[1] == group]
            free = {place: unowned[place] for place in places if unowned[place] >= UNOWNED_MS}
            if not free:
                continue
            longest, groups = max(free.values()), [there[place] for place in free if place in there]
            waits = sum(one.lag.worst + one.pending for one in groups)
            says = f"{len(free)} of {plural(len(places), 'partition')} had no owner for {span_text(longest)}"
            says += ": start the group's workers" if len(free) == len(places) else ""
            evidence = {"partitions": len(free), "for_ms": longest, "pending": sum(one.pending for one in groups)}
            remedy = command_words("group owners", stream, group)
            level: Level = "problem" if waits else "hint"
            began = seen.at_ms - longest
            found.append(Advice("no-owner", level, stream, group, says, evidence, remedy, since_ms=began))
    return found[:LOOKED_AT]


def uneven_streams(seen: StreamsSeen, layouts: Mapping[str, PartitionLayout]) -> list[Advice]:
    """Return findings on streams with uneven partitions, or with old entries in sealed partitions."""
    there = {one.key: one for one in seen.streams}
    found = []
    for stream, layout in layouts.items():
        added = {key: there[key].entries_added or 0 if key in there else 0 for key in layout.keys}
        uneven = skew(added.values())
        if uneven is not None and uneven > SKEW and sum(added.values()) >= _ADDED:
            busiest = max(added, key=lambda key: added[key])
            says = f"one of {len(added)} partitions has {uneven:.1f} times the entries of the mean: {name(busiest)}"
            remedy = command_words("stream balance", stream)
            found.append(Advice("uneven-partitions", "warning", stream, None, says, {"skew": uneven}, remedy))
        sealed = [key for one in layout.generations[:-1] for key in one.keys if key in there and not one.finished]
        for group in (group for key in sealed for group in there[key].groups):
            late = max(group.oldest_undelivered.age(seen.at_ms) or 0, group.oldest_pending.age(seen.at_ms) or 0)
            if late >= _SEALED_MS:
                says = "the group has not finished a partition from before the number of partitions changed"
                where = (group.stream, group.name)
                evidence = {"lag": group.lag.entries, "pending": group.pending, "oldest_ms": late}
                remedy = command_words("group show", *where)
                began = seen.at_ms - late
                found.append(Advice("sealed-not-finished", "warning", *where, says, evidence, remedy, since_ms=began))
    return found[:LOOKED_AT]
