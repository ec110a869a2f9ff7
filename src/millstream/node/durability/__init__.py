"""When what commands changed is on the disk, what may be shown of it before, and what happens when the disk is full.

In the order to read them: ``group_commit`` (what to write and sync next, and how far replies may go), ``held_replies``
(one client's replies that wait for that). Then ``disk_guard`` (whether the disk takes writes) and ``outage`` (which
commands are refused while it does not). Nothing here knows asyncio, a thread or a socket: the server's committer and
the in-process store's background thread drive the same objects.
"""
