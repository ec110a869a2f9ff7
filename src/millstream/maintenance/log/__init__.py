"""``millstream log``: show the contents of a log, its damage and the losses of a cut, and cut it.

Read in this order: ``walk`` reads the records of a directory, whole or damaged; ``records`` makes them readable;
``moment`` is a point in the log by position or time; ``dump`` shows the chosen records. ``examine`` is the check. It
joins ``persistence/check.py`` with ``unreadable`` (records with a valid checksum that no start can apply) and
``data_loss`` (the records after the damage). ``cut`` ends a damaged log on purpose; ``next_steps`` gives advice.
"""
