"""Looking after a data directory and a server: the content of a log, damage, backup, restore, diagnosis.

The three packages are the three needs of an operator. ``log`` shows what a log holds, what is damaged and where to cut
it. ``backup`` makes a copy, and a directory from a copy. ``health`` is the doctor, which joins both with its own
measurements. ``locate`` and ``owner`` find the directory of a URL, and whether a process holds it.

Everything here works next to a running server: it reads a frozen view and never takes the server's lock. The exceptions
are ``log cut`` and ``restore``: they change a directory and need it to themselves.
"""
