"""Dead letters: what they hold, and how an entry becomes one and comes back. Sans I/O.

Read ``letter`` (the format), then ``transaction`` (out of the pending list and into the dead-letter stream, in one
step), then ``put_back`` (the way back), and ``drive`` last, which sends for asyncio what those two ask for.

It is in ``client/`` because the worker, Spark's recovery and the commands of ``millstream dead`` all do it, and none of
them may import another. It does no I/O of its own because the worker is asyncio and Spark's part blocks: each sends the
commands its own way, and the rules are here once.
"""
