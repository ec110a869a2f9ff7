"""Fill a small file system through a server with a tier, and get the space back without a restart.

Arguments: the mount point of a file system of 60 MiB; ``trim`` or ``retention``.
"""

import sys
from pathlib import Path

from server.disk.tier_full import figures
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

_LINES = 1000


def fill(wire: Wire) -> int:
    """Add entries until spilling keeps the last space free; return their number."""
    added = 0
    while figures(wire)["tier_last_spill_status"] != "disk-low":
        assert added < 80_000, figures(wire)
        lines = [("XADD", "s", f"{number}-1", "f", "x" * 1000) for number in range(added + 1, added + _LINES + 1)]
        assert not any(isinstance(each, Exception) for each in wire.ask_together(lines))
        added += _LINES
    return added


def main() -> None:
    """Check that packs go, that spilling then goes on, and that a start has all entries that are left."""
    home, how = Path(sys.argv[1]), sys.argv[2]
    server = millstream_server(home.parent / "server", "--set", "tier=yes", "--set", "tier-hot=64kb")
    server.command[server.command.index("--dir") + 1] = str(home / "data")
    with server, Wire(server.url) as wire:
        added = fill(wire)
        before = int(figures(wire)["tier_bytes"])
        assert before > 1 << 20
        if how == "trim":
            trimmed = wire.ask("XTRIM", "s", "MAXLEN", 100)
            assert isinstance(trimmed, int), trimmed
        else:
            wire.ask("CONFIG", "SET", "stream-retention", "* 0 100kb")
        eventually(lambda: int(figures(wire)["tier_bytes"]) < before // 4)
        entries = wire.ask("XRANGE", "s", "-", "+")
        assert entries[-1][0] == b"%d-1" % added
        freed = int(figures(wire)["tier_spilled_bytes"])

        def goes_on() -> bool:
            nonlocal added
            added += 100
            wire.ask_together([("XADD", "s", f"{each}-1", "f", "x" * 1000) for each in range(added - 99, added + 1)])
            return int(figures(wire)["tier_spilled_bytes"]) > freed

        eventually(goes_on)
        wire.ask("CONFIG", "SET", "stream-retention", "")
        left = wire.ask("XLEN", "s")
    with server, Wire(server.url) as wire:
        assert eventually(lambda: wire.ask("XLEN", "s") == left)


if __name__ == "__main__":
    main()
