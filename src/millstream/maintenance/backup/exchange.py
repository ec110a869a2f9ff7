"""Two names that change places in one step, where the system can: each name exists at every moment."""

import ctypes
import errno
import os
import sys
from pathlib import Path

# From Linux's fcntl.h and fs.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# A C library without the function (musl), a kernel without it, a file system without it
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def exchange(one: Path, other: Path) -> bool:
    """Let two files or directories of one file system change names; False, without a change, if the system cannot."""
    if sys.platform != "linux":
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
