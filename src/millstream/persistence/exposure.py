"""The other users who may read a data directory: new files are for its user alone, old ones may not be."""

import stat
from pathlib import Path

from millstream.texts import plural

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def exposed(directory: Path) -> str:
    """The rights of others than the owner in a data directory, and how to end them, as a sentence; empty if none.

    Files in a directory that is closed to others are out of their reach, whatever their own rights.
    """
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if not mode & _OTHERS:
            return ""
        open_files = sorted(path.name for path in directory.iterdir() if path.lstat().st_mode & _OTHERS)
    except OSError:  # the next user of it reports it better
        return ""
    files = (
        f", and have rights on {plural(len(open_files), 'file')} in it, such as {open_files[0]}" if open_files else ""
    )
    return (
        f"others on this machine may enter or list {directory} (mode {mode:04o}){files}; "
        f"unless that is intended, `chmod -R go= {directory}` keeps the data to its owner"
    )
