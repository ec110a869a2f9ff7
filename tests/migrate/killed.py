"""A transfer in a separate process that kills itself at a given point: SOURCE TARGET PHASE NTH."""

import os
import signal
import sys

from millstream.migrate import run
from millstream.migrate.connection import Link


def main(source: str, target: str, phase: str, nth: str) -> None:
    """Copy by commands, and SIGKILL the process at the NTH report of PHASE ("copied" or "compared")."""
    left = int(nth)

    def tell(what: str, _done: int, _total: int) -> None:
        nonlocal left
        left -= what == phase
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    with Link(source) as one, Link(target) as other:
        run.move(one, other, run.MigrationOptions(way="commands"), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
