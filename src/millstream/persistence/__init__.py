"""The data directory: disk, log files, snapshots, recovery; never imports the engine or a command.

Read in this order: ``disk`` is what a disk must do, ``frame`` how bytes lie in a file, ``manifest`` which files make up
the log, ``segment`` and ``snapshot`` how one file is read and what its end proves, ``inventory`` all files of a
directory, ``recovery`` how a start uses them, ``log`` the log itself, ``rewrite`` how it gets shorter. ``predecessor``
is the way back from a snapshot that cannot be used. ``check`` and ``frozen_view`` only read: they are for
``maintenance/``, beside a running server too.
"""
