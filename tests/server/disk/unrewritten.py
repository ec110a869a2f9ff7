"""Start a server on a small file system, and have its log rewritten without space for the snapshot.

Argument: the mount point of a file system of 16 MiB.
"""

import os
import re
import sys
from pathlib import Path

from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

DATA = 6 * 1024 * 1024
BALLAST = 6 * 1024 * 1024


def main() -> None:
    """Check that the log names snapshot, reason and advice, and that a retry with space succeeds."""
    home = Path(sys.argv[1])
    server = millstream_server(home.parent / "server")
    server.command[server.command.index("--dir") + 1] = str(home / "data")
    with server, Wire(server.url) as wire:
        for number in range(DATA // 65536):
            assert wire.ask("SET", f"key{number}", os.urandom(65536)) == b"OK"
        (home / "ballast").write_bytes(bytes(BALLAST))
        assert rewritten(wire) == "err"
        given_up = [line for line in server.log.read_text().splitlines() if "rewriting the log was cancelled" in line]
        assert len(given_up) == 1, given_up
        assert f"cannot make the snapshot {home / 'data'}/snapshot-" in given_up[0], given_up
        assert ".snap: No space left on device; free some space there; " in given_up[0], given_up
        numbers = r" MB are free, and the snapshot takes up to [0-9.]+ MB; a shorter stream-retention makes it "
        assert re.search(numbers + "smaller, and BGREWRITEAOF tries at once; the next try is in", given_up[0]), given_up
        (home / "ballast").unlink()
        assert rewritten(wire) == "ok"


def rewritten(wire: Wire) -> str:
    """Return the result of the rewriting from INFO."""
    wire.ask("BGREWRITEAOF")
    told = eventually(lambda: ended(wire), what="the rewriting has ended")
    return told["aof_last_bgrewrite_status"]


def ended(wire: Wire) -> dict[str, str]:
    """Return INFO's section; empty while a rewriting is under way."""
    rows = wire.ask("INFO", "persistence").decode().splitlines()
    told = dict(row.split(":", 1) for row in rows if ":" in row)
    return told if told["aof_rewrite_in_progress"] == "0" else {}


if __name__ == "__main__":
    main()
