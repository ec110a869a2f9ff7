"""The data directory: disk, log files, snapshots, recovery; never imports the engine or a command.

Read in this order:

1. ``disk``: the interface of a disk.
2. ``frame``: the layout of bytes in a file.
3. ``manifest``: the list of the log's files.
4. ``segment`` and ``snapshot``: reading one file, and the conclusions from its end.
5. ``inventory``: all files of a directory.
6. ``recovery``: loading them at a start.
7. ``log``: the log itself.
8. ``rewrite``: making it shorter.
9. ``packs``: files of entries that no log record contains any more.

``predecessor`` replaces a snapshot that cannot be used. ``check`` and ``frozen_view`` only read: they serve
``maintenance/``, also next to a running server.
"""
