"""``millstream log``: what a log holds, what is damaged, what cutting it would lose, and the cut.

Read in this order: ``walk`` reads the records of a directory, whole or damaged; ``records`` makes them readable;
``moment`` is a place in the log by position or time; ``dump`` shows what was chosen. ``examine`` is the check: it joins
``persistence/check.py`` with ``unreadable`` (right by their checksum, and yet no start could apply them) and
``data_loss`` (what stands behind the damage). ``cut`` ends a damaged log on purpose; ``next_steps`` is the advice.
"""
