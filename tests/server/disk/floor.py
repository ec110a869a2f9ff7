"""Fill a small file system to the floor through a server, and get the space back by retention alone.

Arguments: the mount point of a file system of 32 MiB; ``yes`` or ``no`` for a tier.
"""

import sys
from pathlib import Path

from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire


def main() -> None:
    """Check that writes are taken again after a shorter retention, and that a start has the entries that are left."""
    home, tier = Path(sys.argv[1]), sys.argv[2]
    options = ["--set", f"tier={tier}", "--set", "tier-hot=1mb", "--set", "disk-free-floor=4mb"]
    server = millstream_server(home.parent / "server", *options)
    server.command[server.command.index("--dir") + 1] = str(home / "data")
    with server, Wire(server.url) as wire:
        added, replies = 0, [b""]
        while all(isinstance(each, bytes) for each in replies):
            assert added < 200_000
            lines = [("XADD", "s", f"{number}-1", "f", "x" * 1000) for number in range(added + 1, added + 1001)]
            replies = wire.ask_together(lines)
            added += 1000
        assert "MISCONF" in str(replies[-1])
        assert "MISCONF" in str(wire.ask("XTRIM", "s", "MAXLEN", 100))
        assert wire.ask("CONFIG", "SET", "stream-retention", "* 0 1mb") == b"OK"
        added += 1
        eventually(lambda: wire.ask("XADD", "s", f"{added}-1", "f", "v") == b"%d-1" % added)
        wire.ask("CONFIG", "SET", "stream-retention", "")
        left = wire.ask("XLEN", "s")
        assert left < 3000
    with server, Wire(server.url) as wire:
        assert eventually(lambda: wire.ask("XLEN", "s") == left)


if __name__ == "__main__":
    main()
