"""``millstream serve`` with log files of 30 kB, so that the log rolls and is rewritten often during a test."""

import sys

from millstream.cli.main import main
from millstream.persistence.log import Log

Log.open.__func__.__kwdefaults__["segment_bytes"] = 30_000

if __name__ == "__main__":
    sys.argv[0] = "millstream"
    main()
