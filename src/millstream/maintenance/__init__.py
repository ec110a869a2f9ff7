"""Maintenance of a data directory and a server: log contents, damage, backup, restore, diagnosis.

The three packages serve three tasks of an operator. ``log`` shows the contents of a log, its damage and the right place
for a cut. ``backup`` makes a copy, and restores a directory from one. ``health`` is ``millstream doctor``, which uses
both and makes its own measurements. ``locate`` finds the directory of a URL, and ``owner`` reports whether a process
holds it.

All of this works next to a running server: it reads a frozen view and never takes the server's lock. The exceptions are
``log cut`` and ``restore``: they change a directory and need exclusive access to it.
"""
