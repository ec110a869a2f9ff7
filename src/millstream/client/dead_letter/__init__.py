"""Dead letters: their contents, and the ways of an entry into the dead-letter stream and back. Sans I/O.

Read the modules in this order:

1. ``letter``: the format.
2. ``transaction``: out of the pending list and into the dead-letter stream, in one step.
3. ``put_back``: the way back.
4. ``drive``: sends the commands that ``transaction`` and ``put_back`` yield, under asyncio.

The code is in ``client/`` because the worker, Spark's recovery and ``millstream dead`` all need it, and none of them
may import another. It does no I/O of its own because the worker uses asyncio and Spark's part blocks. Each caller sends
the commands its own way, and the rules are here once.
"""
