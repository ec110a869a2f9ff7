"""The options of reads by ``format("millstream")``: text from Spark in, one checked value out, errors with a remedy.

Messages are one line: Spark puts a traceback before them, so that this line is the last that a user sees.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from millstream import times
from millstream.client.jsontext import TooDeepError
from millstream.client.jsontext import parse as parse_json
from millstream.client.url import CLUSTERS
from millstream.errors import ConfigError
from millstream.glob import matcher
from millstream.paths import archive_place
from millstream.spark.model.offsets import MAX_PART, Id, Position, before_time, parse_id
from millstream.spark.options import common, names
from millstream.spark.options.common import boolean, check_names, duration, find_url, not_empty, one_of, positive, read

DEFAULT_DELAY_MS = 15 * 60 * 1000
"""Longest milliseconds that a micro-batch waits for ``minEntriesPerTrigger``; Kafka's source has the same default."""

NO_STREAM = "option 'stream' is missing"
"""Beginning of the error if no option names the streams to read."""

Where: TypeAlias = str | Mapping[str, "Id | Position | str"]
"""A position in the streams: ``"earliest"``, ``"latest"``, or a mapping.

The mapping has, for each stream, an id (with or without its count) or one of these words.
"""


@dataclass(frozen=True)
class Options(common.ServerOptions):
    """The options of a read; pickled to the executors."""

    streams: tuple[str, ...] = ()  # Keys of the streams; empty for a pattern or a partitioned stream
    pattern: str | None = None  # Glob of keys, as in SCAN MATCH
    partitioned: str | None = None  # Name of a partitioned stream
    starting: Where | None = None  # Beginning of a new query or a batch read; None for the default of its kind
    ending: Where = "latest"  # End of a batch read
    max_entries: int | None = None  # Largest number of entries in a micro-batch
    # Number of entries that a micro-batch waits for, until ``max_delay_ms`` have passed since the last one
    min_entries: int | None = None
    max_delay_ms: int = DEFAULT_DELAY_MS
    min_partitions: int | None = None  # Smallest number of parts of a batch or micro-batch
    max_per_partition: int | None = None  # Largest number of entries in one part
    fail_on_loss: bool = True  # True if it is an error when unread entries are lost
    skip_missing: bool = False  # True if a query continues after one of its streams was deleted
    group: str | None = None  # Consumer group that shows the query's progress
    fields: tuple[str, ...] = ()  # Fields to read as string columns; empty for the map
    headers: bool = False  # True if envelopes are decoded into columns of headers and a body
    from_replica: bool = False  # True if tasks read from replicas; the primary still determines the ranges
    archive: str | None = None  # Location of the archive of trimmed entries; None for none
    live_tail: bool = True  # True if the streams themselves are read after the archive
    # True if filters on ids, times and streams limit the read; safe only for one query per ``load()``
    pushdown: bool = False
    given: frozenset[str] = field(default_factory=frozenset)  # Names of the given options, in lower case

    def refuse(self, use: str, kind: str) -> None:
        """Raise if an option was given that has no effect in this use (see ``names``), called ``kind``."""
        common.refuse(self.given, names.others(use), f"in {kind}: leave it out")

    def reads(self, key: str) -> bool:
        """Return True if this read includes a stream."""
        from millstream.client.partitions.layout import logical  # noqa: PLC0415 - it imports redis

        if self.partitioned is not None:
            return self.partitioned in {key, logical(key)}
        return key in self.streams if self.streams else matcher((self.pattern or "*").encode())(key.encode())

    @property
    def on_cluster(self) -> bool:
        """True if the streams are spread over several servers."""
        return self.url.startswith(CLUSTERS)


def parse(raw: Mapping[str, str]) -> Options:
    """Return the options, after a check of every one."""
    given = {name.lower(): value for name, value in raw.items()}
    check_names(given, names.options(names.BATCH, names.STREAM, names.VIEW, names.GROUP, names.LOOKUP), "load()")
    which = _which(given)
    sizes = ("maxEntriesPerTrigger", "minEntriesPerTrigger", "minPartitions", "maxEntriesPerPartition")
    max_entries, min_entries, min_partitions, max_per_partition = (read(given, name, positive) for name in sizes)
    archive, live_tail = _archive(given)
    found = replace(
        which,
        url=find_url(given) if live_tail else "",
        starting=_place(given, "starting", which),
        ending=_place(given, "ending", which) or "latest",
        max_entries=max_entries,
        min_entries=min_entries,
        max_delay_ms=read(given, "maxTriggerDelay", duration) or DEFAULT_DELAY_MS,
        min_partitions=min_partitions,
        max_per_partition=max_per_partition,
        fail_on_loss=read(given, "failOnDataLoss", boolean) is not False,
        skip_missing=read(given, "onMissingStream", one_of("fail", "skip")) == "skip",
        group=read(given, "group", not_empty),
        fields=read(given, "fields", _field_names) or (),
        headers=read(given, "includeHeaders", boolean) is True,
        from_replica=read(given, "readFrom", one_of("primary", "replica")) == "replica",
        archive=archive,
        live_tail=live_tail,
        pushdown=read(given, "pushdown", boolean) is True,
        given=frozenset(given),
    )
    if found.ending == "group":
        raise ConfigError("option 'endingOffsets' is invalid: it cannot be 'group'. Write latest, or a JSON of ids.")
    if found.ending == "earliest":
        raise ConfigError(
            "option 'endingOffsets' is 'earliest', which would read nothing. Use 'latest' or a JSON of ids."
        )
    _check_together(found)
    return found


def parse_entries(raw: Mapping[str, str]) -> Options:
    """Parse options for reading entries, and refuse a mixture of those of ``spark.read`` and ``spark.readStream``."""
    found = parse(raw)
    of_batches, of_streams = (
        next((name for name in names.others(other) if name in names.options(use) and name.lower() in found.given), None)
        for use, other in ((names.BATCH, names.STREAM), (names.STREAM, names.BATCH))
    )
    if of_batches and of_streams:
        raise ConfigError(
            f"option {of_batches!r} is for spark.read, and option {of_streams!r} for spark.readStream. Leave one out."
        )
    return found


def _check_together(found: Options) -> None:
    """Raise for options that contradict each other: one would have no effect, without the user's knowledge."""
    if found.headers and found.archive is not None:
        raise ConfigError("option 'includeHeaders' is for live streams. Leave it out where an archive is read.")
    if found.headers and set(found.fields) & set(names.ENVELOPE):
        raise ConfigError(
            "option 'fields' names 'headers' or 'body', which are columns of 'includeHeaders'. Remove them."
        )
    if found.starting == "group" and found.group is None:
        raise ConfigError("option 'startingOffsets' is 'group'. Name the consumer group by option 'group'.")
    if found.min_entries is None:
        if "maxtriggerdelay" in found.given:
            raise ConfigError("option 'maxTriggerDelay' does nothing without 'minEntriesPerTrigger'. Leave it out.")
    elif found.max_entries is not None and found.min_entries > found.max_entries:
        raise ConfigError(
            "option 'minEntriesPerTrigger' is more than 'maxEntriesPerTrigger'. Lower one or raise the other."
        )


def _names(text: str) -> tuple[str, ...]:
    """Parse names with commas between them; a repeated name is refused, since its stream would be read twice."""
    found = tuple(name.strip() for name in text.split(","))
    if not all(found):
        raise ValueError("it must be names with commas between them")
    if len(set(found)) < len(found):
        raise ValueError("it names one of them twice")
    return found


def _field_names(text: str) -> tuple[str, ...]:
    """Parse names of fields that become columns; a column of every entry is refused."""
    found = _names(text)
    for name in found:
        if (own := names.column_of_an_entry(name)) is not None:
            such = f"{name!r} is" if own == name else f"Spark takes {name!r} for {own!r},"
            raise ValueError(f"{such} a column of every entry; read that field from the map, fields['{name}']")
    return found


def _archive(given: Mapping[str, str]) -> tuple[str | None, bool]:
    """Return the archive's directory, made absolute here because tasks may have another working directory."""
    folder = read(given, "archive", _folder)
    live_tail = read(given, "liveTail", boolean)
    if "livetail" in given and folder is None:
        raise ConfigError("option 'liveTail' is for reading an archive. Name that by option 'archive'.")
    return folder, live_tail is not False


def _folder(text: str) -> str:
    """Return the place of an archive; raise ValueError for a wrong one, as every option's converter does."""
    try:
        return str(archive_place(not_empty(text)))
    except ConfigError as problem:
        raise ValueError(str(problem)) from None


def _which(given: Mapping[str, str]) -> Options:
    """Return options with only the streams: their names, or a pattern or partitioned stream with changing keys."""
    found = Options(
        "",
        read(given, "stream", _names) or (),
        read(given, "streamPattern", not_empty),
        read(given, "partitionedStream", not_empty),
    )
    ways = [name for name in ("stream", "streamPattern", "partitionedStream") if name.lower() in given]
    if len(ways) > 1:
        raise ConfigError(f"options {ways[0]!r} and {ways[1]!r} are both given. Name the streams by one of them.")
    if not ways:
        raise ConfigError(f"{NO_STREAM}. Set .option('stream', 'orders'), or several as 'orders,refunds'.")
    return found


def _place(given: Mapping[str, str], side: str, which: Options) -> Where | None:
    """Return the position that an option of a side (starting or ending) names; None if none is given."""
    offsets, moment, moments = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    named = [name for name in (offsets, moment, moments) if name.lower() in given]
    if len(named) > 1:
        raise ConfigError(f"options {named[0]!r} and {named[1]!r} are both given. Leave one out.")
    by_time = read(given, moment, _instant)
    if by_time is not None:
        return {"*": before_time(by_time)}
    by_times = read(given, moments, _instants)
    found = by_times or read(given, offsets, _offsets)
    if isinstance(found, Mapping):
        wanted = "a time" if by_times else "an id, earliest or latest"
        _check_streams(named[0], found, wanted, which)
        # A position with a count applies to a single key: the plain stream that was partitioned later.
        every = [key for key, place in found.items() if key == which.partitioned and not isinstance(place, Position)]
        return {"*" if key in every else key: place for key, place in found.items()}
    return found


def _check_streams(option: str, found: Iterable[str], wanted: str, which: Options) -> None:
    """Raise unless the positions are for exactly the streams that are read."""
    for key in found:
        if not which.reads(key):
            raise ConfigError(f"option {option!r} names stream {key!r}, which this query does not read. Remove it.")
    for key in which.streams:
        if key not in found:
            raise ConfigError(f"option {option!r} names no place for stream {key!r}. Add it ({wanted}).")


def _instants(text: str) -> Mapping[str, Id]:
    """Parse a position for each stream, from a JSON object of times."""
    wanted = 'it must be a JSON of milliseconds or times such as {"orders": 1700000000000}'
    parsed = _by_stream(text, wanted)
    for value in parsed.values():
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(wanted)  # noqa: TRY004 - shown as a bad option
    return {key: before_time(_instant(str(value))) for key, value in parsed.items()}


def _instant(text: str) -> int:
    """Parse a time in any form that options take, to milliseconds since 1970."""
    found = times.instant(text, time.time_ns() // 1_000_000)
    if found > MAX_PART:
        raise ValueError("no entry can be as late as that: it must be milliseconds since 1970")
    return max(0, found)


def _offsets(text: str) -> Where:
    """Parse a word for all streams, or a position for each.

    The form is that of Kafka's source, which users know; the ids and counts are those of Redis.
    """
    if text.lower() in ("earliest", "latest", "group"):
        return text.lower()
    wanted = 'it must be earliest, latest, or a JSON such as {"orders": "1700000000000-0"}'
    parsed = _by_stream(text, wanted)
    return {key: _one_place(key, value) for key, value in parsed.items()}


def _by_stream(text: str, wanted: str) -> dict[str, Any]:
    """Parse a JSON object with a value for each stream; ``wanted`` is the error for any other text."""
    try:
        parsed: Any = parse_json(text, object_pairs_hook=_once)
    except (json.JSONDecodeError, TooDeepError):
        raise ValueError(wanted) from None
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(wanted)
    return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, after a check for repeated names: JSON would keep the last of two positions of a stream."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in keys if keys.count(name) > 1)!r} twice")
    return found


def _one_place(key: str, value: Any) -> Id | Position | str:
    """Return a stream's position: a word, an id, or an id with the counts that a query's progress shows.

    With its counts a new query continues exactly where another one was, without counting entries again.
    """
    if isinstance(value, dict) and isinstance(value.get("id"), str) and "n" in value:
        at = parse_id(value["id"])  # an offset in the form in which a query reports its progress
        n, holes = (_count(key, name, value.get(name, 0)) for name in ("n", "holes"))
        return Position(at, n, at, n, holes)
    if isinstance(value, dict) and value and all(name.isdecimal() for name in value):
        raise ValueError(f'stream {key!r} has no partitions as a topic of Kafka\'s has: {{{json.dumps(key)}: "<id>"}}')
    if key == "offsets" and isinstance(value, dict):
        raise ValueError('an id is a text here, without the JSON object of spark-redis. Write {"orders": "<id>"}.')
    if not isinstance(value, str):
        raise ValueError(f"the place of stream {key!r} must be an id, earliest or latest")  # noqa: TRY004 - shown as a bad option
    return value if value in ("earliest", "latest") else parse_id(value)


def _count(key: str, name: str, value: Any) -> int:
    """Return a number of entries; True is refused, although Python treats it as an int."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name!r} of stream {key!r} is {value!r} and must be a number of entries")
    return value
