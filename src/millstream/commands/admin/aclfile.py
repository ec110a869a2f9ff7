"""The ACL file on disk: read whole, replaced whole.

A temporary file next to it is written and synced, then renamed. Then the directory is synced; otherwise a power cut
could undo the renaming. A reader meanwhile sees the old file or the new one, whole.
"""

import contextlib
import os
from pathlib import Path

from millstream.commands.users.accounts import Accounts, AclFileError
from millstream.paths import sync_directory


def load(accounts: Accounts, path: Path) -> None:
    """Replace the accounts by the users in the file."""
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise AclFileError(f"Error loading ACLs, opening file '{path}': {error.strerror or error}") from None
    accounts.load(text, str(path))


def save(accounts: Accounts, path: Path) -> None:
    """Write the users to the file: it is on the disk when this returns, and old or new, but whole, at any time.

    Only the server's own user may read it, since an attacker could guess passwords from the hashes.
    """
    import tempfile  # noqa: PLC0415 - loads compressors, and few servers save users

    number, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.write(accounts.text())
            file.flush()
            os.fsync(file.fileno())
        Path(made).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(made).unlink()
        raise
    sync_directory(path.parent)
