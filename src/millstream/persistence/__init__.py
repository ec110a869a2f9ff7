"""The data directory: disk, log files, snapshots, recovery; never imports the engine or a command.

Read in this order:

1. ``disk``: the duties of a disk.
2. ``frame``: the layout of bytes in a file.
3. ``manifest``: which files make up the log.
4. ``segment`` and ``snapshot``: how one file is read, and the proof that its end gives.
5. ``inventory``: all files of a directory.
6. ``recovery``: how a start uses them.
7. ``log``: the log itself.
8. ``rewrite``: how it gets shorter.
9. ``packs``: files of entries that are in no record any more.

``predecessor`` is the way back from a snapshot that cannot be used. ``check`` and ``frozen_view`` only read: they are
for ``maintenance/``, next to a running server too.
"""
