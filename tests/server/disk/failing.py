"""``millstream`` on a disk whose fdatasync fails once the file named first on the command line exists."""

import errno
import os
import sys
from pathlib import Path

from millstream.cli.main import main
from millstream.persistence.disk import RealFile

TRIGGER = Path(sys.argv.pop(1))
datasync = RealFile.datasync


def failing(self: RealFile) -> None:
    """Sync, or fail if the trigger exists."""
    if TRIGGER.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    datasync(self)


RealFile.datasync = failing  # type: ignore[method-assign] # no system lets a test break its disk
sys.exit(main())
