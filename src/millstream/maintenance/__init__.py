"""Looking after a data directory and a server: what a log holds, what is damaged, backup, restore, diagnosis.

The three rooms are the three needs of an operator: ``log`` (what is in there, what is wrong, where to cut it),
``backup`` (a copy, and a directory made from one), ``health`` (the doctor, which joins them with what it measures).
``locate`` and ``owner`` find the directory behind a URL, and whether a process holds it. Everything here works beside a
running server: it reads a frozen view and never takes the server's lock, but for ``log cut`` and ``restore``, which
change a directory and therefore must have it to themselves.
"""
