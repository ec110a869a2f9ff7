"""An archive as tables: the columns of a stream's entries, and the logs by which other tools find the files.

``shape``, ``columns`` and ``table`` are PURE: the requested form, the columns, the changes that a log needs. ``rows``
converts entries to columns and back. ``delta`` and ``iceberg`` update a table's own log to the files that the manifest
names; ``publishing`` chooses between them. ``storage`` is the place of all files: a class of few methods for a local
directory (``objects`` has the one for object stores).
"""
