"""A process that works for the log while the server goes on: how it is started, what it is told, and its end.

It reads its standard input, and ends at once when that does, which happens at the latest when this process ends. Its
output comes back by one pipe; after a failure the last line is the reason.
"""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.errors import StorageError


def reason_of(error: BaseException, what: str) -> str:
    """Why work failed, in words; a :class:`MemoryError` has none."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory for {what}: give this server more; it is tried again by itself"
    return str(error) or repr(error)


COPY = "the primary's copy"


class GivenUpError(StorageError):
    """A rewrite of the log ended without a snapshot; the log is unchanged.

    What to do: read the reason in the message, usually a lack of space or memory. The server tries again by itself.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class ChildProcess:
    """See the module's text."""

    def __init__(self, program: Sequence[str], words: Sequence[str], files: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            [*program, *words],
            pass_fds=files,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            process_group=0,  # Ctrl-C is for this process, whose end ends the child
            bufsize=0,
        )
        self._gate = threading.Lock()  # so that it is closed once

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Say something, however long it takes until it hears; one that has ended says why."""
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), True)
        rest = memoryview(line.encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]

    def hint(self, line: str) -> bool:
        """Say a short thing that what is said next makes up for, if it hears at once; whether it is still there."""
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            return False
        return True

    def said(self) -> Iterator[str]:
        """The lines of its output, until its end."""
        assert self._process.stdout is not None
        last = ""
        with open(self._process.stdout.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
            for line in lines:
                yield line
                last = line.strip() or last
        if code := self._process.wait():
            raise GivenUpError(last or f"the process that does it ended with code {code}", code)

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def let_go(self) -> None:
        """In a forked child of this process: hold nothing that keeps it alive."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # closing is all that matters
            self._process.stdin.close()

    def close(self) -> None:
        """End it, and wait for that."""
        with self._gate:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def environment() -> dict[str, str]:
    """For a process that runs a module of this package: this one's, with the place it was imported from put first."""
    root = str(Path(__file__).parents[3])
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root if not before else os.pathsep.join((root, before))}
