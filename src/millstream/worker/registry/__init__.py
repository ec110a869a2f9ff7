"""The registry of workers: its keys in the server, heartbeats, pauses and orders, consumers that are gone.

Read ``protocol`` first: the keys, and what both sides do with them. ``heartbeat`` is the worker's side, ``watchdog``
beats in its place while the event loop stands still, ``reaper`` removes consumers of dead processes. ``facts`` checks
records that are read back, and ``lookup`` names what is there when a user asks for a stream or group that is not.
"""
