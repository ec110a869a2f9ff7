"""An archive as tables: which columns a stream's entries have, and the logs by which other tools find their files.

``shape``, ``columns`` and ``table`` are PURE: the form asked for, the columns, the changes that a log needs. ``rows``
makes columns of entries and entries of columns. ``delta`` and ``iceberg`` bring a table's own log to what the manifest
names, ``publishing`` chooses between them. ``storage`` is where all of it lies: one class of few methods, for a local
directory now.
"""
