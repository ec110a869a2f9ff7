"""The registry of workers: its keys on the server, heartbeats, pauses and orders, and removal of dead consumers.

Read ``protocol`` first: the keys, and their use by workers and by people. ``heartbeat`` is the worker's side.
``watchdog`` sends heartbeats in its place while the event loop is blocked. ``reaper`` removes consumers of dead
processes. ``facts`` checks records that are read back. ``lookup`` lists existing names when a user names a stream or
group that does not exist.
"""
