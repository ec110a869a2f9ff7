"""Writes that only a former primary has are saved to files, before the new primary's data replace them.

Another process does it, from the log: see :mod:`millstream.maintenance.log.diverged`. Nothing is replaced before the
files are on the disk. So at any moment the writes are in the files or still in the log.
"""

import asyncio
from pathlib import Path

from millstream.errors import StorageError
from millstream.logs import logger
from millstream.node.durability.held_replies import ReplyGate
from millstream.node.log.children import environment
from millstream.node.log.rewriting import PROGRAM
from millstream.node.node import Node
from millstream.texts import plural

log = logger("millstream.server")

_PROGRAM = "millstream.maintenance.log.diverged"
# Replaces a history's name if no replica ever followed this server
_ALONE = "alone"
# Seconds between two checks whether the log is written
_HELD = 0.05


def remove_parts(directory: Path) -> None:
    """Remove unfinished files of a server that was killed."""
    for part in directory.glob("diverged-*.part"):
        part.unlink(missing_ok=True)


def count(directory: Path) -> int:
    """Return the number of such files in a data directory, older ones included."""
    return sum(1 for _ in directory.glob("diverged-*.jsonl"))


async def keep(node: Node, gate: ReplyGate, directory: Path | None, upto: int) -> None:
    """Save the history's commands after an offset to files, and wait until they are on the disk."""
    past = node.keyspace.history
    name = past.replid or past.replid2 or _ALONE
    if directory is None:
        log.warning(
            "%s bytes of the history %s, from offset %d on, reached no other server and are replaced; no log is kept "
            "(--memory), so there is no file of them",
            past.offset - upto if past.replid else "an unknown number of",
            name,
            max(upto, 0),
        )
        return
    assert node.journal.log is not None
    while gate.kept < node.journal.log.appended:  # noqa: ASYNC110 - a disk does not send events
        await asyncio.sleep(_HELD)
    path = directory.absolute() / f"diverged-{name[:8]}-{max(upto, 0)}.jsonl"  # noqa: ASYNC240 - asks no disk
    words = [str(path.parent), str(upto), path.name, str(node.config.values["replica-keep-diverged"])]
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(
        *PROGRAM[:-1], _PROGRAM, *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()
    )
    try:
        assert program.stdout is not None
        assert program.stderr is not None
        said, why = await asyncio.gather(program.stdout.read(), program.stderr.read())
        await program.wait()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        if program.returncode:
            for suffix in (".jsonl.part", ".resp.part"):
                path.with_suffix(suffix).unlink(missing_ok=True)
    if program.returncode:
        reason = why.decode(errors="replace").strip().rpartition("\n")[2]
        raise StorageError(f"the changes that reached no other server cannot be written to {path}: {reason}")
    records, lost, files = map(int, said.split())
    node.primary.diverged[path.name] = records  # overwrites the same figure if a failed copy is repeated
    node.primary.diverged_files = files
    if records:
        log.warning(
            "%s no other server %s in %s, and as commands next to it",
            plural(records, "record that reached", "records that reached"),
            "is" if records == 1 else "are",
            path,
        )
    if lost:
        log.warning(
            "the log was rewritten since the other server was the primary: the changes between offset %d and then are "
            "unknown",
            max(upto, 0),
        )
