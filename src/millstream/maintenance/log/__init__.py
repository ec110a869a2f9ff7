"""``millstream log``: the content of a log, its damage, the losses of a cut, and the cut.

Read in this order: ``walk`` reads the records of a directory, whole or damaged; ``records`` makes them readable;
``moment`` is a place in the log by position or time; ``dump`` shows the chosen records. ``examine`` is the check: it
joins ``persistence/check.py`` with ``unreadable`` (right by their checksum, and yet no start could apply them) and
``data_loss`` (the records after the damage). ``cut`` ends a damaged log on purpose; ``next_steps`` is the advice.
"""
