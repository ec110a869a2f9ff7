"""Fill a real, small file system with a log, free some space and continue. Exits 0 if every check passes.

Argument: a directory on a file system of less than a megabyte.
"""

import sys
from pathlib import Path

from millstream.errors import DiskFullError
from millstream.persistence.log import Log

RECORD = 3000


def payload(number: int) -> bytes:
    """Return the record for a position."""
    return b"%08d" % number * (RECORD // 8)


def fill(log: Log) -> int:
    """Append and commit until the disk is full, and return the last durable position. One record is still unwritten."""
    while True:
        number = log.append(payload(log.appended + 1))
        try:
            log.write()
        except DiskFullError:
            assert log.sync() == log.written == log.durable == number - 1
            return log.durable
        assert log.sync() == number


def main() -> None:
    """Fill the disk, check the refusals, free space, continue, and recover."""
    home = Path(sys.argv[1])
    for ballast in ("one", "two"):
        (home / ballast).write_bytes(bytes(50_000))
    log, _ = Log.open(home / "data", segment_bytes=60_000)
    for ballast in ("one", "two"):
        durable = fill(log)
        assert durable > 5
        assert log.free() < RECORD + 8192
        for _ in range(3):
            try:
                log.write()
            except DiskFullError:
                continue
            raise AssertionError("the disk is full, but takes more")
        (home / ballast).unlink()
        assert log.write() == log.sync() == durable + 1
    last = log.durable
    log.close()
    log, recovery = Log.open(home / "data")
    assert list(recovery.payloads()) == [payload(number) for number in range(1, last + 1)]
    assert recovery.report.torn_bytes == 0
    log.close()


if __name__ == "__main__":
    main()
