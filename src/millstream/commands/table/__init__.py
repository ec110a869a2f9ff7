"""The command table: one row for each command, the notation of its arguments, and everything derived from the rows.

Read ``spec`` (a row), ``table`` (registering and finding rows), ``args`` (parsing arguments), then ``syntax`` if a
row's notation is unclear. ``keyspecs`` and ``hints`` have the positions and uses of keys, ``docs`` is COMMAND DOCS,
``events`` are keyspace events. ``long_double`` has the arithmetic of INCRBYFLOAT.
"""
