"""Engine, commands, log and waiters joined, with no I/O of its own; the server and in-process use share it.

Begin with ``node``, whose text says what to read next. Rooms: ``clients`` (sessions, what they wait for, their
replies), ``durability`` (group commit, full disks), ``log`` (what a record and a snapshot hold), ``scripting`` (Lua).
``commands`` has the commands that ask a part of the node.
"""
