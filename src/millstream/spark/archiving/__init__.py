"""Streams moved to Parquet and trimmed, read back as one table with the live entries, and replayed.

The archive holds exactly the files that its manifest names (``manifest``, PURE). The manifest is one file, which a
rename replaces (``directory``). The next job removes every other data file in the archive's directory. So a crash
leaves the archive before a batch or after it, never between. A stream is trimmed (``trim``) only up to the id that a
manifest on disk names.

Writing: ``job`` is the query that reads streams, ``store`` commits its batches, ``files`` are the Parquet files.
Reading: ``reader`` joins archive and live stream; ``model/bounds.py`` finds the ids that a filter excludes.
Writing back: ``replay`` moves entries from ``replay_source`` to ``replay_target``, whose cursor marks its progress.
"""
