"""Engine, commands, log and waiters joined, with no I/O of its own; the server and in-process use share it.

Begin with ``node``, which lists the modules to read next. Rooms: ``clients`` (sessions, waits, replies), ``durability``
(group commit, full disks), ``log`` (the content of records and snapshots), ``scripting`` (Lua). ``commands`` has the
commands about the node itself.
"""
