"""When changes are on the disk, which replies may go out before, and the behaviour on a full disk.

In the order to read them: ``group_commit`` (the next write or sync, and the position up to which replies may go),
``held_replies`` (one client's replies that wait for it). Then ``disk_guard`` (the state of the disk) and ``outage``
(commands that are refused while it takes no writes). The code here uses no asyncio, thread or socket: the server's
committer and the in-process store's background thread drive the same objects.
"""
