"""Fill a small file system through a server with a tier, until the tier keeps the last space free.

Argument: the mount point of a file system of 40 MiB.
"""

import sys
from pathlib import Path

from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire


def figures(wire: Wire) -> dict[str, str]:
    """Return INFO's section."""
    lines = wire.ask("INFO", "tier").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def main() -> None:
    """Check that spilling stops before the disk is full, that writes go on, and that a start has all entries."""
    home = Path(sys.argv[1])
    options = ["--set", "tier=yes", "--set", "tier-hot=64kb", "--set", "auto-aof-rewrite-percentage=0"]
    server = millstream_server(home.parent / "server", *options)
    server.command[server.command.index("--dir") + 1] = str(home / "data")
    added = 0
    with server, Wire(server.url) as wire:
        while figures(wire)["tier_last_spill_status"] != "disk-low":
            assert added < 40_000, figures(wire)
            lines = [("XADD", "s", f"{number}-1", "f", "x" * 1000) for number in range(added + 1, added + 1001)]
            assert not any(isinstance(each, Exception) for each in wire.ask_together(lines))
            added += 1000
        eventually(lambda: int(figures(wire)["tier_entries"]) > 0)  # sums are up to a second old
        found = figures(wire)
        assert int(found["tier_spill_failures"]) > 0, found
        assert wire.ask("XADD", "s", f"{added + 1}-1", "f", "v") == b"%d-1" % (added + 1)
        assert wire.ask("XLEN", "s") == added + 1
        entries = wire.ask("XRANGE", "s", "-", "+")
    with server, Wire(server.url) as wire:
        assert eventually(lambda: wire.ask("XRANGE", "s", "-", "+") == entries)


if __name__ == "__main__":
    main()
