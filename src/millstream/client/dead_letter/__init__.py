"""Dead letters: their contents, and how an entry becomes one and comes back. Sans I/O.

Read the modules in this order:

1. ``letter``: the format.
2. ``transaction``: out of the pending list and into the dead-letter stream, in one step.
3. ``put_back``: the way back.
4. ``drive``: sends for asyncio the commands that those two yield.

It is in ``client/`` because the worker, Spark's recovery and the commands of ``millstream dead`` all do it, and none of
them may import another. It does no I/O of its own because the worker is asyncio and Spark's part blocks. Each sends the
commands its own way, and the rules are here once.
"""
