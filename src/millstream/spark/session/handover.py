"""Stands in the place of a Python that Spark starts, and has the nursery make the process that Spark waits for.

The wrapper of ``local`` runs this file, by its path and without the installed packages, so that it starts in a
fiftieth of a second: standard library only. Spark's pipes travel to the nursery's child, and this waits until that
child and all that it forked are gone. Where there is no nursery, or it refuses, this very process becomes the Python
that was asked for; so it must not read or write Spark's pipes itself.
"""

import os
import socket
import sys
from collections.abc import Sequence

SOCKET = "MILLSTREAM_NURSERY"
"""The variable with the path of the nursery's socket."""

READY, TAKEN = b"r", b"t"
"""What the nursery says: that it listens, and that the process will be made. Before the second nothing has happened."""

_WAIT = 10.0
"""Seconds for a nursery that is still importing; after that an ordinary start is quicker."""


def packed(argv: Sequence[str]) -> bytes:
    """What the new process needs to know, with its length before it: folder, environment, arguments."""
    parts = [os.getcwdb(), b"%d" % len(os.environb)]  # noqa: PTH109 - pathlib takes as long to import as all else here
    parts += [name + b"=" + value for name, value in os.environb.items()]
    parts += map(os.fsencode, argv)
    body = b"\0".join(parts)
    return len(body).to_bytes(4, "big") + body


def unpacked(body: bytes) -> tuple[str, dict[str, str], list[str]]:
    """The folder, the environment and the arguments of such a message, without the length."""
    folder, count, *rest = (os.fsdecode(part) for part in body.split(b"\0"))
    pairs = (one.partition("=") for one in rest[: int(count)])
    return folder, {name: value for name, _, value in pairs}, rest[int(count) :]


def hand_over(path: str, argv: Sequence[str]) -> socket.socket | None:
    """The line to the process that the nursery makes; None if it makes none."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.settimeout(_WAIT)
        line.connect(path)
        if line.recv(1) == READY:
            line.settimeout(None)
            told = packed(argv)
            sent = socket.send_fds(line, [told], [0, 1, 2])
            line.sendall(told[sent:])
            if line.recv(1) == TAKEN:
                return line
    except OSError:  # no nursery, or one that died: nothing was made
        pass
    line.close()
    return None


def main(argv: Sequence[str]) -> None:
    """Hand over, and wait; or become the process."""
    path = os.environ.get(SOCKET)
    line = hand_over(path, argv) if path else None
    if line is None:
        os.execv(sys.executable, [sys.executable, *argv])  # noqa: S606 - the very start that Spark asked for
    line.recv(
        1
    )  # until the process and its own are gone; Spark ends its daemons itself, so one that is gone has failed
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
