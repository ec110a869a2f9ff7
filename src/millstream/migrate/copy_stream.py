"""Copying of one stream: it is copied under a temporary name, compared with its source, and renamed.

A copy is made in one of two ways. DUMP and RESTORE carry all facts of one moment, if the target accepts the source's
format and the stream is small enough for one message. Otherwise commands carry the stream page by page, all but the
times of consumers and remembered messages.

An incomplete copy is never visible: a stream is compared before it gets its final name. A killed run leaves the
temporary key, which the next run deletes. :class:`Overview` before and after reveals writes to the stream meanwhile.
Added entries are copied too, and any other change makes the copy start again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from redis.exceptions import ResponseError

from millstream.migrate import commands as build
from millstream.migrate import read_stream
from millstream.migrate.capabilities import TargetFeatures
from millstream.migrate.compare import Side, compare
from millstream.migrate.connection import Command, Link, Reply
from millstream.migrate.errors import ChangedError, RefusedError, UnequalError

TEMPORARY = b"millstream:moving:"
"""Prefix of the name of an unfinished copy, before the stream's name."""

DUMP_BYTES = 8 << 20
"""Largest size for DUMP, by MEMORY USAGE. Larger streams are copied by commands, since RESTORE blocks its server."""

OWN_DUMP_BYTES = 400 << 20
"""Largest size for DUMP between two stores of this process. One command carries at most 512 MiB."""

ATTEMPTS = 3
"""Number of attempts to copy a stream that keeps changing."""

PAGES_AT_ONCE = 4
"""Number of pages sent before the first reply is read.

A server that syncs before it replies then syncs once for all.
"""

CATCH_UPS = 5
"""Number of times that one attempt copies the entries added meanwhile."""

Way = Literal["auto", "dump", "commands"]
Tell = Callable[[str, int], None]
"""Callback with ``"copied"`` or ``"compared"`` and the number of this stream's entries so far."""


@dataclass(slots=True)
class Copied:
    """The outcome for a copied stream."""

    way: str  # Way of copying that was used
    stream: read_stream.Overview  # Facts of the source at the time of the copy
    losses: list[str] = field(default_factory=list)  # Texts about facts that the target cannot store
    behind: int = 0  # Number of entries added to the source meanwhile, which the copy lacks
    lacks_times: bool = False  # Consumers have the time of the copy instead of their last activity


@dataclass(slots=True)
class Copier:
    """Copies streams from one connection to the other."""

    source: Link  # Server that is only read
    target: Link  # Server that is written to
    supports: TargetFeatures  # Features of the target
    way: Way = "auto"  # Way of copying; ``auto`` uses DUMP if the payload is small enough and the target accepts it
    check: bool = True  # Read both sides again and compare them
    strict: bool = False  # Refuse a stream if anything is lost
    tell: Tell = lambda _what, _done: None  # Called with the progress, see :data:`Tell`
    takes_dumps: bool = True  # True until the target refuses a payload

    def copy(self, key: bytes, *, replaces: bool) -> Copied:
        """Copy one stream."""
        temporary = TEMPORARY + key
        try:
            copied = self._attempts(key, temporary)
            self._end(key, temporary, replaces=replaces)
        except (ChangedError, UnequalError, RefusedError):
            self.source.discard_replies()
            self.target.discard_replies()
            self.target.call("DEL", temporary)
            raise
        return copied

    def _attempts(self, key: bytes, temporary: bytes) -> Copied:
        for left in range(ATTEMPTS - 1, -1, -1):
            self.target.call("DEL", temporary)
            try:
                return self._attempt(key, temporary)
            except ChangedError:
                self.source.discard_replies()
                self.target.discard_replies()
                if not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, key: bytes, temporary: bytes) -> Copied:
        dumped = self._restored(key, temporary)
        if dumped is not None:
            copied = Copied("dump", dumped)
            self.tell("copied", dumped.length)
        else:
            copied = self._by_commands(key, temporary, read_stream.overview(self.source, key))
        if self.check:
            self._compare(key, temporary, copied)
        after = read_stream.overview(self.source, key)
        if after != copied.stream:
            if not _only_added(copied.stream, after):
                raise ChangedError(_changes(copied.stream, after))
            copied.behind = after.length - copied.stream.length
        return copied

    def _compare(self, key: bytes, temporary: bytes, copied: Copied) -> None:
        source, copy = Side(self.source, key), Side(self.target, temporary)
        found = compare(
            source,
            copy,
            copied.stream,
            self.supports,
            times=copied.way == "dump",
            tell=lambda done: self.tell("compared", done),
        )
        if found.count:
            after = read_stream.overview(self.source, key)
            if after != copied.stream and not _only_added(copied.stream, after):
                raise ChangedError(_changes(copied.stream, after))
            raise UnequalError(found.texts, found.count)

    # ------------------------------------------------------------------ DUMP and RESTORE

    def _restored(self, key: bytes, temporary: bytes) -> read_stream.Overview | None:
        """Copy the stream by DUMP and RESTORE. Return its overview at that moment, None if the target refused it."""
        reason, restored = self._restoring(key, temporary)
        if self.way == "dump" and restored is None:
            raise RefusedError(f"only DUMP and RESTORE were allowed, and {reason}", code="DUMP")
        return restored

    def _restoring(self, key: bytes, temporary: bytes) -> tuple[str, read_stream.Overview | None]:
        """Try DUMP and RESTORE; return the reason of a failure, and the overview or None."""
        if self.way == "commands" or not self.takes_dumps:
            return "the target has refused a DUMP of the source", None
        if not self._fits(key):
            return "it is too large for one RESTORE", None
        seen, payload = self._dumped(key)
        if isinstance(payload, ResponseError):
            return "the user may not run DUMP at the source", None
        reply = self.target.ask([("RESTORE", temporary, 0, payload)])[0]
        if isinstance(reply, ResponseError):
            self.takes_dumps = False
            return f"the target does not take the source's DUMP: {reply}", None
        return "", seen

    def _dumped(self, key: bytes) -> tuple[read_stream.Overview, Reply]:
        """Return the stream's overview and its payload, both of the same moment."""
        words: tuple[Command, ...] = (("MULTI",), read_stream.overview_command(key), ("DUMP", key), ("EXEC",))
        replies = self.source.ask(words)
        refused = next((reply for reply in replies[:3] if isinstance(reply, ResponseError)), None)
        if refused is not None:
            return read_stream.overview(self.source, key), refused
        seen, payload = self.source.accepted(replies[3], ("EXEC",))
        if payload is None:
            raise ChangedError("the key is gone")
        return read_stream.parse_overview(self.source.accepted(seen, ("XINFO",))), payload

    def _fits(self, key: bytes) -> bool:
        size = self.source.ask([("MEMORY", "USAGE", key)])[0]
        most = OWN_DUMP_BYTES if self.source.is_own and self.target.is_own else DUMP_BYTES
        return isinstance(size, int) and size <= most

    # ------------------------------------------------------------------ commands

    def _by_commands(self, key: bytes, temporary: bytes, before: read_stream.Overview) -> Copied:
        lost = build.unsupported(before, self.supports)
        if lost and self.strict:
            raise RefusedError("something would be lost (--strict): " + "; ".join(lost), code="STRICT")
        missing = missing_records(self.source, key, before)
        self._do(build.creating(temporary, before.groups))
        self._do(build.orphaned_records(temporary, missing, self.supports))
        self._add(key, temporary, b"", before.last_id, 0)
        for commands in claims(self.source, key, temporary, before, missing, self.supports):
            self._do(commands)
        self._do(build.closing(temporary, before, self.supports))
        now = before
        for _ in range(CATCH_UPS):
            after = read_stream.overview(self.source, key)
            if after == now:
                break
            if not _only_added(now, after):
                raise ChangedError(_changes(now, after))
            self._add(key, temporary, now.last_id, after.last_id, now.length)
            self._do(build.closing(temporary, after, self.supports))
            now = after
        has_consumers = any(group.consumers for group in now.groups)
        return Copied("commands", now, lost, lacks_times=has_consumers)

    def _add(self, key: bytes, temporary: bytes, after: bytes, upto: bytes, done: int) -> None:
        """Add entries. While the target adds one page, the source prepares the next."""
        waiting: deque[list[bytes]] = deque()
        for page in read_stream.Entries(self.source, key, after, upto):
            ids = [entry[0] for entry in page]
            assert read_stream.ascending(ids)
            self.target.send(build.adding(temporary, page))
            waiting.append(ids)
            if len(waiting) > PAGES_AT_ONCE:
                done += self._added(waiting.popleft())
                self.tell("copied", done)
        while waiting:
            done += self._added(waiting.popleft())
            self.tell("copied", done)

    def _added(self, ids: list[bytes]) -> int:
        """Check the target's confirmation of each id; return their number."""
        for entry_id in ids:
            reply = self.target.accepted(self.target.receive(), ("XADD",))
            if reply != entry_id:
                raise RefusedError(f"{self.target.name} added {entry_id!r} as {reply!r}", code="XADD")
        return len(ids)

    def _do(self, commands: Iterable[Command]) -> None:
        for some in batched_commands(commands):
            for command, reply in zip(some, self.target.ask(some), strict=True):
                check_reply(command, self.target.accepted(reply, command))

    # ------------------------------------------------------------------ finishing

    def _end(self, key: bytes, temporary: bytes, *, replaces: bool) -> None:
        ends = read_stream.deadline(self.source, key)
        if ends is not None and not self.target.call("PEXPIREAT", temporary, ends):
            raise ChangedError("its time to live ended")
        if ends is not None and not self.target.call("EXISTS", temporary):
            raise ChangedError("its time to live ended")
        if replaces:
            self.target.call("RENAME", temporary, key)
        elif not self.target.call("RENAMENX", temporary, key):
            raise RefusedError("another client created a key of this name at the target meanwhile", code="EXISTS")


def batched_commands(commands: Iterable[Command]) -> Iterator[list[Command]]:
    """Split commands into batches whose replies fit into a socket's buffers.

    With larger batches, both sides might write while neither reads.
    """
    waiting = iter(commands)
    while some := list(islice(waiting, 100)):
        yield some


def check_reply(command: Command, reply: Reply) -> None:
    """Check the replies of XCLAIM and XNACK, which silently skip missing entries."""
    if command[0] == "XCLAIM":
        wanted: object = list(command[5 : command.index("TIME")])
    elif command[0] == "XNACK":
        wanted = command[5]
    else:
        return
    if reply != wanted:
        raise ChangedError("entries that are pending were deleted while the stream was read")


def missing_records(
    source: Link, key: bytes, stream: read_stream.Overview
) -> list[tuple[bytes, list[read_stream.PendingRecord]]]:
    """Return the pending records of deleted entries, by group. They are few, so they fit into memory."""
    found = []
    for group in stream.groups:
        missing: list[read_stream.PendingRecord] = []
        for page in read_stream.records(source, key, group):
            absent = set(read_stream.missing_ids(source, key, [record.id for record in page]))
            missing += [record for record in page if record.id in absent]
        if missing:
            found.append((group.name, missing))
    return found


def claims(
    source: Link,
    key: bytes,
    temporary: bytes,
    stream: read_stream.Overview,
    missing: list[tuple[bytes, list[read_stream.PendingRecord]]],
    supports: TargetFeatures,
) -> Iterable[list[Command]]:
    """Yield the commands for pending records of existing entries, a page at a time."""
    absent: dict[bytes, set[bytes]] = {name: {record.id for record in some} for name, some in missing}
    for group in stream.groups:
        without = absent.get(group.name, set())
        for page in read_stream.records(source, key, group):
            kept = [record for record in page if record.id not in without]
            yield list(build.claiming(temporary, group.name, kept, supports))


def _only_added(before: read_stream.Overview, after: read_stream.Overview) -> bool:
    """Return True if the only change of a stream is entries added at its end."""
    more = after.length - before.length
    if more <= 0 or before.entries_added is None or after.entries_added is None:
        return False
    same = replace(after, length=before.length, last_id=before.last_id, entries_added=before.entries_added)
    return same == before and after.entries_added - before.entries_added == more


def _changes(before: read_stream.Overview, after: read_stream.Overview) -> str:
    """Return a text with the differences."""
    what = [
        name
        for name, one, other in (
            ("length", before.length, after.length),
            ("last id", before.last_id, after.last_id),
            ("deleted entries", before.max_deleted, after.max_deleted),
            ("entries added", before.entries_added, after.entries_added),
            ("idempotence", (before.settings, before.messages), (after.settings, after.messages)),
        )
        if one != other
    ]
    here: dict[bytes, read_stream.GroupInfo] = {group.name: group for group in before.groups}
    there: dict[bytes, read_stream.GroupInfo] = {group.name: group for group in after.groups}
    what += [f"group {name!r}" for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    return f"it was written to while it was copied ({', '.join(what) or 'and back again'}): stop who writes and reads"
