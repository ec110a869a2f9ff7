"""A child process that works for the log while the server runs: its start, its messages and its end.

The child reads its standard input and exits when that ends, which happens at the latest when the parent exits. Its
output comes back through one pipe. After a failure the last line is the reason.
"""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.errors import StorageError


def reason_of(error: BaseException, what: str) -> str:
    """Return the reason of a failure as text; a :class:`MemoryError` has none of its own."""
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
    """One child process and its pipes."""

    def __init__(self, program: Sequence[str], words: Sequence[str], files: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            [*program, *words],
            pass_fds=files,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            process_group=0,  # Ctrl-C must reach only this process, whose end also ends the child
            bufsize=0,
        )
        self._gate = threading.Lock()  # ensures that it is closed only once

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send a line, and wait until the child has read it or has ended."""
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), True)
        rest = memoryview(line.encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]

    def hint(self, line: str) -> bool:
        """Send a short line without waiting; report whether the child can still read.

        The line may be lost or cut if the pipe is full, so a later one must replace it.
        """
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            return False
        return True

    def said(self) -> Iterator[str]:
        """The lines of the child's output, until its end; raise with the last line if it failed."""
        assert self._process.stdout is not None
        last = ""
        with open(self._process.stdout.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
            for line in lines:
                yield line
                last = line.strip() or last
        if code := self._process.wait():
            raise GivenUpError(last or f"the process that does it ended with code {code}", code)

    def kill(self) -> None:
        """Kill the child."""
        self._process.kill()

    def let_go(self) -> None:
        """Close the input pipe in another forked process, so that it does not keep the child alive."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # errors do not matter here
            self._process.stdin.close()

    def close(self) -> None:
        """Kill the child and wait for its end."""
        with self._gate:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def environment() -> dict[str, str]:
    """Return this process's environment, with the package's own location first on the import path."""
    root = str(Path(__file__).parents[3])
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root if not before else os.pathsep.join((root, before))}
