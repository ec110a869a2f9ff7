"""Streams moved to Parquet and trimmed, read back as one table with the live entries, and replayed.

The archive holds exactly the files that its manifest names (``manifest``, PURE). The manifest is one file, which a
rename replaces (``directory``). Everything else in its directory is data the manifest names, or rubbish that the next
job removes. So a crash leaves the archive before a batch or after it, never between. A stream is trimmed (``trim``)
only up to the id that a manifest on disk names.

Writing: ``job`` is the query that reads streams, ``store`` takes its batches in, ``files`` are the Parquet files.
Reading: ``reader`` joins archive and live stream; ``model/bounds.py`` says what a filter makes needless to read.
Writing back: ``replay`` takes entries from ``replay_source`` to ``replay_target``, whose cursor says how far it is.
"""
