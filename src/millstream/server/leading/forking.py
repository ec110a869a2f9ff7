"""Writing the data in memory to a file, by a forked child process with the memory of that moment.

The child shares each page of memory with the server until one of them changes it. So a fork takes as long as copying
the page tables.

The child only makes bytes and writes them. It takes no lock, since a thread of the server may have held it, and does
not log. It exits without cleanup, since all its resources belong to the server.
"""

import asyncio
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import IO

from millstream.node.log.children import reason_of

# True if fork is safe: elsewhere, the system's own libraries may use threads
_FORKS = sys.platform == "linux"
# Message of a successful child; and the number of bytes of a failed child's reason that are read
_WELL = b"\0"
_SAID = 500


def can_fork() -> bool:
    """True if :func:`write_in_child` works here."""
    return _FORKS


def write_in_child(
    loop: asyncio.AbstractEventLoop, file: "IO[bytes]", data: Iterable[bytes], done: Callable[..., None]
) -> None:
    """Fork a child that writes a file."""
    reading, writing = os.pipe()
    try:
        with warnings.catch_warnings():
            # Python 3.12 and later warn about threads; see the module's docstring
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if child == 0:
        _write(file.fileno(), writing, data)
    os.close(writing)

    def ended() -> None:
        loop.remove_reader(reading)
        said = os.read(reading, _SAID)
        os.close(reading)
        with contextlib.suppress(ChildProcessError):  # a program that ignores SIGCHLD has no zombie to wait for
            os.waitpid(child, 0)
        failed = said.decode("utf-8", "replace") or "the process that wrote it was killed"
        done("" if said == _WELL else failed)

    loop.add_reader(reading, ended)  # readable when the child sends its message or ends


def _write(fd: int, heard: int, data: Iterable[bytes]) -> None:
    """Run the child; ``heard`` stays open until its end."""
    status = 1
    try:
        gc.disable()
        # Otherwise a client would not notice its disconnection meanwhile, and a restarted server would find its port in
        # use
        first, second = sorted((fd, heard))
        for begin, end in ((3, first), (first + 1, second), (second + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(begin, end)
        for piece in data:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(fd, rest) :]
        os.write(heard, _WELL)
        status = 0
    except BaseException as error:  # noqa: BLE001 - the parent process reports it
        os.write(heard, reason_of(error, "a copy").encode("utf-8", "replace")[:_SAID])
    finally:
        os._exit(status)
