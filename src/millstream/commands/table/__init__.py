"""The command table: one row a command, the notation of its arguments, and what is made from the rows.

Read ``spec`` (a row), ``table`` (how rows get in and are found), ``args`` (how words are read), then ``syntax`` if a
row's notation is unclear. ``keyspecs`` and ``hints`` say which words are keys and what is done with them, ``docs`` is
COMMAND DOCS, ``events`` are keyspace events. ``long_double`` has the arithmetic of INCRBYFLOAT.
"""
