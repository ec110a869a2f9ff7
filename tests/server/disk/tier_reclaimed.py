"""Fill a small file system through a server with a tier, and get the space back without a restart.

Arguments: the mount point of a file system of 60 MiB; ``trim``, ``retention``, or ``keep`` for a trim that leaves some
entries in the packs.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.disk.tier_full import figures
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

_LINES = 1000


def fill(wire: Wire) -> int:
    """Add entries until spilling keeps the last space free; return their number."""
    added = 0
    while figures(wire)["tier_last_spill_status"] != "disk-low":
        assert added < 80_000, figures(wire)
        lines = [("XADD", "s", f"{number}-1", "f", "x" * 1000) for number in range(added + 1, added + _LINES + 1)]
        refused = [each for each in wire.ask_together(lines) if isinstance(each, Exception)]
        assert not refused, (refused[0], figures(wire))
        added += _LINES
    return added


@contextmanager
def showing(server: ServerProcess) -> Iterator[None]:
    """Print the end of the server's log if a check fails."""
    try:
        yield
    except BaseException:
        print(server.log.read_text()[-5000:])  # noqa: T201 - a script; its caller shows it
        raise


def main() -> None:
    """Check that packs go, that spilling then goes on, and that a start has all entries that are left."""
    home, how = Path(sys.argv[1]), sys.argv[2]
    server = millstream_server(home.parent / "server", "--set", "tier=yes", "--set", "tier-hot=64kb")
    server.command[server.command.index("--dir") + 1] = str(home / "data")
    with showing(server), server, Wire(server.url) as wire:
        if how == "keep":
            wire.ask_together([("XADD", "kept", f"{number}-1", "f", "x" * 1000) for number in range(1, 401)])
        added = fill(wire)
        before = int(figures(wire)["tier_bytes"])
        assert before > 1 << 20
        if how == "retention":
            wire.ask("CONFIG", "SET", "stream-retention", "* 0 100kb")
            eventually(lambda: wire.ask("XLEN", "s") < 200)
            wire.ask("CONFIG", "SET", "stream-retention", "")
        else:
            trimmed = wire.ask("XTRIM", "s", "MAXLEN", 20)
            assert isinstance(trimmed, int), trimmed
        eventually(lambda: int(figures(wire)["tier_bytes"]) < before // 4)
        entries = wire.ask("XRANGE", "s", "-", "+")
        assert entries[-1][0] == b"%d-1" % added
        freed = int(figures(wire)["tier_spilled_bytes"])

        def goes_on() -> bool:
            nonlocal added
            found = figures(wire)
            if int(found["tier_hot_bytes"]) < 400_000:  # what waits for packs needs room on the disk
                lines = [("XADD", "s", f"{each}-1", "f", "x" * 1000) for each in range(added + 1, added + 101)]
                added += sum(isinstance(each, bytes) for each in wire.ask_together(lines))
            return int(found["tier_spilled_bytes"]) > freed

        eventually(goes_on)
        left = wire.ask("XRANGE", "s", "-", "+"), wire.ask("XRANGE", "kept", "-", "+")
        assert len(left[1]) == 400 * (how == "keep")
    with server, Wire(server.url) as wire:
        assert eventually(lambda: (wire.ask("XRANGE", "s", "-", "+"), wire.ask("XRANGE", "kept", "-", "+")) == left)


if __name__ == "__main__":
    main()
