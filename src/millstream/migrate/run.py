"""Copying of many streams, each independently: their list, the outcome of each, and the other content."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from millstream.client.partitions.layout import descriptor_key
from millstream.errors import UsageError
from millstream.migrate.capabilities import TargetFeatures, find_features
from millstream.migrate.command_file import Form, Writer, load, writing
from millstream.migrate.commands import unsupported
from millstream.migrate.compare import Side, compare
from millstream.migrate.connection import Link
from millstream.migrate.copy_stream import TEMPORARY, Copied, Copier, Way
from millstream.migrate.errors import ChangedError, LinkError, MigrationError, RefusedError, UnequalError
from millstream.migrate.read_stream import Overview, overview
from millstream.texts import plural

Existing = Literal["refuse", "replace", "skip"]
State = Literal["copied", "equal", "skipped", "behind", "failed"]
Tell = Callable[[str, int, int], None]
"""Callback with ``"copied"`` or ``"compared"``, the number of entries so far, and the number of all entries."""


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """The user's choices."""

    # Patterns of keys, as for SCAN; none means all. A pattern without a stream is reported and counts as a failure.
    patterns: Sequence[str] = ()
    # Action if the key exists on the target; ``refuse`` still accepts an equal stream
    existing: Existing = "refuse"
    way: Way = "auto"  # Way of copying, see :mod:`millstream.migrate.copy_stream`
    check: bool = True  # Read both sides again and compare them
    strict: bool = False  # Refuse a stream if anything is lost
    allow_none: bool = False  # A pattern without a stream is not a failure


@dataclass(slots=True)
class StreamOutcome:
    """The outcome for one stream."""

    key: bytes  # Key of the stream
    # ``copied``; ``equal``: it existed already; ``skipped``: another key of that name existed and was left; ``behind``:
    # copied, but entries were added since; ``failed``: nothing of it remains on the target
    state: State
    way: str = ""  # ``dump`` or ``commands``, empty if it was not copied
    entries: int = 0  # Number of entries in the copy
    groups: int = 0  # Number of groups in the copy
    pending: int = 0  # Number of pending records in the copy
    losses: list[str] = field(default_factory=list)  # Facts that the target cannot store
    reason: str = ""  # Reason why it is neither copied nor equal
    differences: list[str] = field(default_factory=list)  # Texts of the first differences

    @property
    def ok(self) -> bool:
        """True if the target has the whole stream."""
        return self.state in {"copied", "equal", "skipped"}


@dataclass(slots=True)
class MigrationReport:
    """The outcome of a migration."""

    streams: list[StreamOutcome] = field(default_factory=list)  # Outcomes by key
    others: dict[str, int] = field(default_factory=dict)  # Keys of other types at the source, by type: not copied
    other_keys: list[bytes] = field(default_factory=list)  # Names of these keys
    # Number of copied keys of other types (to and from RDB files), by type
    carried: dict[str, int] = field(default_factory=dict)
    # Keys of other types that were not copied, with the reason
    left: list[tuple[bytes, str]] = field(default_factory=list)
    # Contents of an RDB file that Millstream cannot store: kind, and key if any
    not_held: list[tuple[str, bytes | None]] = field(default_factory=list)
    # Number of keys in other databases of the source, which were not read, by database
    elsewhere: dict[int, int] = field(default_factory=dict)
    # Temporary keys that a killed run left on the target, for streams outside of this run
    leftovers: list[bytes] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)  # Patterns without a stream, unless that is allowed
    # Path of a file that differs from its streams, so that it lacks its final name
    different: Path | None = None
    lacks_times: bool = False  # Consumers of some streams have the time of the copy instead of their last activity

    @property
    def ok(self) -> bool:
        """True if the target has everything."""
        return not self.unmatched and not self.left and all(outcome.ok for outcome in self.streams)


def find_streams(link: Link, choices: MigrationOptions) -> tuple[list[bytes], MigrationReport]:
    """Return the keys of streams, sorted, and a report of the other content.

    Types are read key by key rather than by SCAN's TYPE, so that keys of other types can be counted and reported. A
    user who moves a server must see that they are not copied.
    """
    keys: set[bytes] = set()
    others: set[bytes] = set()
    kinds: Counter[str] = Counter()
    report = MigrationReport()
    for pattern in choices.patterns or ("*",):
        matched = False
        for page in link.scan(pattern):
            matched = matched or not keys.isdisjoint(page)
            fresh = [key for key in page if key not in keys and key not in others and not key.startswith(TEMPORARY)]
            for key, kind in zip(fresh, link.ask([("TYPE", key) for key in fresh]), strict=True):
                name = link.accepted(kind, ("TYPE",)).decode()
                if name == "stream":
                    keys.add(key)
                    matched = True
                elif name != "none":
                    others.add(key)
                    kinds[name] += 1
        if not matched and choices.patterns and not choices.allow_none:
            report.unmatched.append(pattern)
    _refuse_empty_name(link, keys, choices.patterns)
    report.others, report.other_keys = dict(kinds), sorted(others)
    report.elsewhere = _elsewhere(link)
    return sorted(keys), report


def _refuse_empty_name(link: Link, keys: set[bytes], patterns: Sequence[str]) -> None:
    """Refuse to copy a partitioned stream's own key alone, which is empty and sealed."""
    named = {name: name.encode(errors="surrogateescape") for name in patterns}
    alone = [
        name
        for name, key in named.items()
        if key in keys and not any(each.startswith((key + b"{", key + b"~")) for each in keys)
    ]
    found = link.ask([("EXISTS", descriptor_key(name)) for name in alone]) if alone else []
    for name, there in zip(alone, found, strict=True):
        if there == 1:
            raise UsageError(
                f"--stream {name} is invalid: the stream is partitioned, and this key has none of the new entries. "
                f"Write --stream '{name}*', and run `millstream stream partition {name}` at the target afterwards."
            )


def _elsewhere(link: Link) -> dict[int, int]:
    """Return the number of keys in the other databases, by database; empty if the server does not report it."""
    text = link.ask([("INFO", "keyspace")])[0]
    found = re.findall(rb"^db(\d+):keys=(\d+)", text, re.MULTILINE) if isinstance(text, bytes) else []
    return {int(number): int(count) for number, count in found if int(number) != link.database}


def move(source: Link, target: Link, choices: MigrationOptions, tell: Tell) -> MigrationReport:
    """Copy every chosen stream."""
    keys, report = find_streams(source, choices)
    report.leftovers = _leftovers(target, set(keys))
    lengths = [reply if isinstance(reply, int) else 0 for reply in source.ask([("XLEN", key) for key in keys])]
    total, done = sum(lengths), 0
    copier = Copier(source, target, find_features(target), way=choices.way, check=choices.check, strict=choices.strict)
    for key, length in zip(keys, lengths, strict=True):
        copier.tell = partial(_offset, tell, done, total)
        outcome = _move_stream(copier, key, choices, report)
        report.streams.append(outcome)
        done += length
    return report


def _offset(tell: Tell, before: int, total: int, what: str, count: int) -> None:
    tell(what, before + count, total)


def to_file(
    source: Link, path: Path, form: Form, supports: TargetFeatures, choices: MigrationOptions, tell: Tell
) -> MigrationReport:
    """Write every chosen stream to a file of commands."""
    keys, report = find_streams(source, choices)
    lengths = [reply if isinstance(reply, int) else 0 for reply in source.ask([("XLEN", key) for key in keys])]
    total, done = sum(lengths), 0
    differs = path.with_name(f"{path.name}.differs")
    with writing(path, lambda: differs if report.different else path) as (file, part):
        writer = Writer(file, form, supports)
        for key, length in zip(keys, lengths, strict=True):
            stream = _written(writer, source, key, choices, report, partial(_offset, tell, done, total, "copied"))
            report.lacks_times |= any(group.consumers for group in stream.groups) if stream else False
            done += length
        writer.end()
        file.close()
        if choices.check:
            alike = _check_file(source, part, supports, report, tell, total)
            report.different = None if alike else differs
    return report


def _written(
    writer: Writer,
    source: Link,
    key: bytes,
    choices: MigrationOptions,
    report: MigrationReport,
    tell: Callable[[int], None],
) -> Overview | None:
    try:
        lost = unsupported(overview(source, key), writer.supports)
        if lost and choices.strict:
            reason = "something would be lost (--strict): " + "; ".join(lost)
            report.streams.append(StreamOutcome(key, "failed", reason=reason, losses=lost))
            return None
        stream = writer.stream(source, key, tell)
    except (ChangedError, RefusedError) as error:
        source.discard_replies()
        report.streams.append(StreamOutcome(key, "failed", reason=str(error)))
        return None
    report.streams.append(_outcome(key, Copied("commands", stream, unsupported(stream, writer.supports))))
    return stream


def _check_file(
    source: Link, part: Path, supports: TargetFeatures, report: MigrationReport, tell: Tell, total: int
) -> bool:
    """Read the file back into a store in memory and compare. Return True if all its content is right."""
    done, alike = 0, True
    with Link("memory://") as made:
        load(part, made)
        for outcome in report.streams:
            if not outcome.ok:
                continue
            try:
                stream = overview(source, outcome.key)
                sides = Side(source, outcome.key), Side(made, outcome.key)
                found = compare(
                    *sides, stream, supports, times=False, tell=partial(_offset, tell, done, total, "compared")
                )
            except (ChangedError, RefusedError) as error:
                source.discard_replies()
                made.discard_replies()
                outcome.state, outcome.reason, alike = "failed", f"when the file was read back: {error}", False
                continue
            if found.count:
                outcome.state, outcome.differences, alike = "failed", found.texts, False
                outcome.reason = f"{found.count} differences between source and file"
            done += outcome.entries
    return alike


def _leftovers(target: Link, ours: set[bytes]) -> list[bytes]:
    pattern = TEMPORARY.decode() + "*"
    return sorted(key for page in target.scan(pattern) for key in page if key.removeprefix(TEMPORARY) not in ours)


def _move_stream(copier: Copier, key: bytes, choices: MigrationOptions, report: MigrationReport) -> StreamOutcome:
    """Copy one stream. An error that concerns only this stream becomes its outcome."""
    try:
        there = choices.existing != "replace" and copier.target.call("EXISTS", key)
        if there and choices.existing == "skip":
            return StreamOutcome(key, "skipped", reason="there is a key of this name at the target")
        if there:
            return _existing(copier, key)
        copied = copier.copy(key, replaces=choices.existing == "replace")
    except UnequalError as error:
        return StreamOutcome(key, "failed", reason=str(error), differences=error.differences)
    except ChangedError as error:
        return StreamOutcome(key, "failed", reason=str(error))
    except LinkError as error:
        raise type(error)(f"{error}\n{_so_far(report)}") from None
    except RefusedError as error:
        # The next stream would meet these refusals too
        if error.code in {"MOVED", "READONLY", "OOM", "MISCONF", "NOPERM", "CROSSSLOT", "CLUSTERDOWN"}:
            raise MigrationError(f"{error}\n{_so_far(report)}") from None
        return StreamOutcome(key, "failed", reason=str(error))
    report.lacks_times = report.lacks_times or copied.lacks_times
    return _outcome(key, copied)


def _outcome(key: bytes, copied: Copied) -> StreamOutcome:
    # The copy is a state that the source had, so entries added meanwhile are not a failure; but they are missing
    stream = copied.stream
    outcome = StreamOutcome(key, "copied", copied.way, stream.length, len(stream.groups), stream.records, copied.losses)
    if copied.behind:
        outcome.state = "behind"
        outcome.reason = (
            f"copied up to {stream.last_id.decode()}; {plural(copied.behind, 'entry was', 'entries were')} added to "
            "the source since: stop who writes, and copy it again with --replace"
        )
    return outcome


def _existing(copier: Copier, key: bytes) -> StreamOutcome:
    """Compare a stream that exists at the target. An equal one is a success, since an earlier run copied it."""
    stream = overview(copier.source, key)
    sides = Side(copier.source, key), Side(copier.target, key)
    found = compare(*sides, stream, copier.supports, times=False, tell=lambda done: copier.tell("compared", done))
    if not found.count:
        return StreamOutcome(key, "equal", "", stream.length, len(stream.groups), stream.records)
    reason = (
        f"the target has another stream of this name ({found.count} differences): --replace overwrites it, "
        "--skip-existing leaves it"
    )
    return StreamOutcome(key, "failed", reason=reason, differences=found.texts)


def _so_far(report: MigrationReport) -> str:
    done = sum(outcome.ok for outcome in report.streams)
    return (
        f"{plural(done, 'stream was', 'streams were')} copied before that; fix this, then run the same command again."
    )
