"""Process that writes a log, rewrites it with a real child and kills itself at one step, for a test.

Arguments: data directory, a disk operation with the start of a name, and its count. ``rename MANIFEST 1`` kills at the
first rename to a name that begins so after the rewriting has begun; ``none`` kills never. The process prints the
child's pid once it has one, and the number of durable records whenever it grows.
"""

import os
import signal
import sys
from pathlib import Path

from millstream.commands.context.config import Config
from millstream.node.log import codec
from millstream.node.log.rewriting import Rewriter
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log

STATE = {"armed": False, "left": int(sys.argv[4])}


def meet(what: str, path: Path) -> None:
    """Kill the process if this is the step."""
    if STATE["armed"] and what == sys.argv[2] and path.name.startswith(sys.argv[3]):
        STATE["left"] -= 1
        if not STATE["left"]:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyDisk(RealDisk):
    """The real disk; the process ends when a step is done."""

    __slots__ = ()

    def create(self, path: Path) -> object:  # type: ignore[override] # a real file all the same
        file = super().create(path)
        meet("create", path)
        return file

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        meet("rename", new)

    def remove(self, path: Path) -> None:
        super().remove(path)
        meet("remove", path)

    def sync_directory(self, directory: Path) -> None:
        super().sync_directory(directory)
        meet("sync_directory", directory)

    def list(self, directory: Path) -> list[str]:
        meet("list", directory)
        return super().list(directory)


def record(number: int) -> bytes:
    """Return a record that appends one element to a list."""
    return codec.pack(number, [("lpush", 0, b"l", [b"%d" % number], False)])


def say(*words: object) -> None:
    """Print one line at once, from any thread."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


class Telling(Rewriter):
    """Rewriter that prints the child's pid."""

    def _spawn(self) -> object:  # type: ignore[override] # a child all the same
        child = super()._spawn()
        say("child", child.pid)
        meet("child", Path("started"))
        return child


def main() -> None:
    """Write and rewrite until killed."""
    log, recovery = Log.open(sys.argv[1], DeadlyDisk(), segment_bytes=2000)
    number = recovery.report.last
    rewriter = Telling(log, Config())
    for _ in range(200):
        number += 1
        log.append(record(number))
        log.write()
    say("durable", log.sync())
    STATE["armed"] = True
    assert rewriter.start()
    while rewriter.facts.is_running:
        number += 1
        log.append(record(number))
        log.write()
        say("durable", log.sync())
    say("ended", rewriter.facts.is_ok)


if __name__ == "__main__":
    main()
