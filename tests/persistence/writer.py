"""Write a log and print the durable positions, for tests that kill the process.

Arguments: data directory, records per batch, and optionally a limit in bytes for any file it
writes. Each printed line is the durable position after one batch.
"""

import resource
import sys

from millstream.errors import DiskError
from millstream.persistence.log import Log


def payload(number: int) -> bytes:
    """Return the record for a position."""
    return b"%d " % number * (1 + number % 97)


def main() -> None:
    """Write until killed or until the disk fails."""
    directory, batch = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
    log, recovery = Log.open(directory, segment_bytes=50_000)
    number = recovery.report.last
    log.announce(f"test:{number}")
    print(log.durable, flush=True)  # noqa: T201 - what the test waits for
    try:
        while True:
            for _ in range(batch):
                number += 1
                assert log.append(payload(number)) == number
            log.write()
            print(log.sync(), flush=True)  # noqa: T201 - what the test waits for
    except DiskError as error:
        print(error, file=sys.stderr)  # noqa: T201 - what the test reads
        sys.exit(3)


if __name__ == "__main__":
    main()
