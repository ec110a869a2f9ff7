"""Files with a password. A file that other users can read is refused, as ssh refuses such a key.

A file that root gives another user is accepted: a secret mounted into a container belongs to root, and the user cannot
change its mode. A pipe has no other readers.
"""

import os
import stat
from pathlib import Path
from typing import IO

from millstream.errors import ConfigError

_LONGEST = 1 << 16  # largest number of bytes read from the first line


def first_line(path: Path) -> str:
    """Return the first line of a file, which is the secret; empty if the line is empty."""
    with path.open("rb") as file:
        check_secret(path, file)
        return file.readline(_LONGEST).rstrip(b"\r\n").decode(errors="surrogateescape")


def check_secret(path: object, file: IO[bytes]) -> None:
    """Refuse a secret's file that other users can read or write."""
    status = os.fstat(file.fileno())
    given_by_root = status.st_uid == 0 and os.geteuid() != 0
    if stat.S_ISREG(status.st_mode) and not given_by_root and status.st_mode & 0o077:
        raise ConfigError(f"{path} has a password, and other users can read it. Run chmod 600 {path}.")
