"""A program that writes the records of a former primary, which no other server has, to files.

``python -m millstream.maintenance.log.diverged DIRECTORY UPTO NAME KEEP`` writes the history after offset ``UPTO`` (-1:
the whole history). ``NAME``, a ``.jsonl`` file, has the format of ``millstream log dump -o jsonl``. A ``.resp`` file
next to it has the changes as commands for ``redis-cli --pipe``. On success both files are on disk under their names,
and all but the ``KEEP`` latest pairs of files have been removed.

The process runs next to the server and ends when its standard input is closed, like compaction. It prints three
numbers. The first is the number of records. The second is 1 if the log was rewritten after ``UPTO``, so that earlier
changes are not separable, and else 0. The third is the number of pairs of files that exist now.

=========  ==================================================
exit code  meaning
=========  ==================================================
0          success; without a record no file is written
1          failure, for the reason given on standard error
=========  ==================================================
"""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from millstream.engine.history import NO_DATABASE
from millstream.engine.keyspace import Keyspace, Transition
from millstream.errors import MillstreamError
from millstream.maintenance.log.records import LogRecord, read_record
from millstream.maintenance.log.walk import manifest_of, records
from millstream.node.log import codec, replay
from millstream.node.log.children import reason_of
from millstream.node.log.compaction import end_with_parent
from millstream.paths import sync_directory
from millstream.persistence.disk import Disk, RealDisk
from millstream.persistence.frozen_view import FrozenView
from millstream.persistence.snapshot import snapshot_payloads
from millstream.replication.dialect import DIALECTS, NEVER, commands_of
from millstream.replication.units import Command, unit
from millstream.texts import json_text

# Transitions that set message ids of idempotent producers, or how many a stream remembers
_MESSAGES = frozenset({"xadd", "xcfg", "xidmp"})


class Tail:
    """The records of a log after an offset of its history."""

    def __init__(self, disk: Disk, directory: Path, upto: int) -> None:
        self._disk, self._directory, self._upto = disk, directory, upto
        self.is_rewritten = False  # True if the log was rewritten after the offset

    def __iter__(self) -> Iterator[tuple[LogRecord, bytes]]:
        """Yield each record that changed data, with the same changes as the bytes of commands."""
        space, selected = Keyspace(), NO_DATABASE
        with FrozenView(self._disk, self._directory) as view:
            manifest = manifest_of(view, self._directory)
            if manifest is not None and manifest.snapshot is not None:
                for payload in snapshot_payloads(view, self._directory, manifest.snapshot):
                    replay.apply(space, payload)
                self.is_rewritten = space.history.is_given_up or space.history.offset > self._upto
            for position, payload in records(view, self._directory):
                steps = [tuple(step) for step in codec.unpack(payload)[1]]
                if not space.history.is_given_up and _behind(space.history.offset, steps) <= self._upto:
                    replay.apply(space, payload)
                    continue
                commands: list[Command] = []
                for step in steps:
                    space.apply(step)
                    commands += _commands(space, step)
                if commands:
                    data, selected = unit(commands, selected)
                    yield read_record(position, payload), data


def _commands(space: Keyspace, step: Transition) -> list[Command]:
    """Return the commands for a transition that was just applied."""
    # A server without these newer commands refuses them, but loses nothing else. Other newer commands are not used:
    # they would replace commands that each server has, or create a group that may exist.
    dialect = "8.6" if step[0] in _MESSAGES else DIALECTS[0]
    return commands_of(space, step, soft=False, dialect=dialect, annotate=NEVER)


def _behind(offset: int, steps: list[Transition]) -> int:
    """Return the offset of the history after a record."""
    for step in steps:
        if step[0] == "off":
            offset += step[2]
        elif step[0] == "hist":
            offset = step[3]
    return offset


def write(disk: Disk, path: Path, upto: int) -> tuple[int, bool]:
    """Write both files. Return the number of records, and True if the log was rewritten after the offset."""
    tail, count = Tail(disk, path.parent, upto), 0
    places = path, path.with_suffix(".resp")
    parts = [each.with_name(each.name + ".part") for each in places]
    try:
        with open(parts[0], "w", encoding="utf-8", opener=_own) as shown, open(parts[1], "wb", opener=_own) as commands:
            for record, data in tail:
                shown.write(json_text(_line(record)) + "\n")
                commands.write(data)
                count += 1
            for file in (shown, commands):
                file.flush()
                os.fsync(file.fileno())
        if count:
            for part, place in zip(reversed(parts), reversed(places), strict=True):
                part.replace(place)
            sync_directory(path.parent)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return count, tail.is_rewritten


def _own(path: str, flags: int) -> int:
    """Open a file that no other user may read, like the log it comes from."""
    return os.open(path, flags, 0o600)


def _line(record: LogRecord) -> dict[str, object]:
    changes = [{"op": c.op, "db": c.db, "key": c.key, "arguments": c.arguments} for c in record.changes]
    return {"position": record.position, "wall_ms": record.wall, "bytes": record.size, "changes": changes}


def drop_older(directory: Path, keep: int) -> int:
    """Remove all but the ``keep`` latest pairs of files; return the number of pairs left."""
    found = sorted(directory.glob("diverged-*.jsonl"), key=lambda each: each.stat().st_mtime_ns)
    for each in found[:-keep]:
        each.with_suffix(".resp").unlink(missing_ok=True)
        each.unlink()
    return min(len(found), keep)


def main(argv: list[str]) -> int:
    """Run the program with the arguments that the module's docstring describes; return the exit code."""
    directory, upto, name, keep = argv
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        count, is_rewritten = write(RealDisk(), Path(directory) / name, int(upto))
        left = drop_older(Path(directory), int(keep))
    except (MillstreamError, OSError, MemoryError) as error:
        print(reason_of(error, "these files"), file=sys.stderr)  # noqa: T201 - this is a program
        return 1
    print(count, int(is_rewritten), left)  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as in compaction
