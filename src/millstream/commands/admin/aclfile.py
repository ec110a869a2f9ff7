"""The ACL file on disk: read whole, replaced whole.

A file next to it is written and synced, then takes its name; then the folder is synced, or the new name could be lost
with the power. A reader meanwhile sees the old one or the new one, whole.
"""

import contextlib
import os
from pathlib import Path

from millstream.commands.users.accounts import Accounts, AclFileError
from millstream.paths import sync_directory


def load(accounts: Accounts, path: Path) -> None:
    """Take the users that the file holds."""
    try:
        text = path.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise AclFileError(f"Error loading ACLs, opening file '{path}': {error.strerror or error}") from None
    accounts.load(text, str(path))


def save(accounts: Accounts, path: Path) -> None:
    """Put the users there are into the file: on the disk when this returns, and the old file or the new at any time.

    Only the server's own user may read it, since it holds what could be tried against passwords.
    """
    import tempfile  # noqa: PLC0415 - it brings the compressors along, and hardly any server saves its users

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
