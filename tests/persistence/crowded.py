"""Use a log with no file descriptor free: add a log file, write a snapshot, remove replaced files.

Argument: a folder. Every descriptor that the process frees is taken again at once, as connections would take it.
"""

import os
import resource
import sys
from pathlib import Path

import pytest

from millstream.errors import DiskFullError
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log
from millstream.persistence.rewrite import contents, make

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
crowd: list[int] = []


def take_all() -> None:
    """Take every descriptor that is left."""
    try:
        while True:
            crowd.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass


def leave(count: int) -> None:
    """Free ``count`` descriptors."""
    for _ in range(count):
        os.close(crowd.pop())


home = Path(sys.argv[1]) / "data"
log, _ = Log.open(home)
appended = 0
for life in range(5):
    take_all()
    appended += 1
    log.append(b"%d" % appended)
    log.write()
    log.sync()
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    take_all()
    leave(4)  # for what makes the snapshot, another process in truth
    make(RealDisk(), home, rewrite, list(contents(RealDisk(), home, rewrite)))
    take_all()
    log.commit_rewrite(rewrite)
    log.remove_obsolete()
    leave(1)
    with os.scandir(home) as found:
        assert len(list(found)) == 4, life
take_all()
leave(1)
with pytest.raises(DiskFullError, match="Too many open files"):
    log.files(appended)  # a snapshot and a log file: for a replica's copy, which may take for ever
leave(1)
copy = log.files(appended)
take_all()
log.append(b"beside")
log.write()
assert log.begin_rewrite() is not None  # the reserve is as it was
copy.close()
take_all()
spare, log._disk._held[home]._spare[:] = list(log._disk._held[home]._spare), []  # the reserve is used up too  # noqa: SLF001 - a process without spare descriptors
log.append(b"held")
log.write()
with pytest.raises(DiskFullError, match="Too many open files"):
    log.begin_rewrite()
leave(3)
assert log.begin_rewrite() is not None
log.close()
for fd in (*crowd, *spare):
    os.close(fd)
log, recovery = Log.open(home)
assert list(recovery.payloads()) == [*(b"%d" % number for number in range(1, appended + 1)), b"beside", b"held"]
log.close()
sys.stdout.write(f"went on {appended}\n")
