"""Streams moved to Parquet and trimmed, read back as one table with what is still live, and replayed.

What an archive holds is what its manifest says (``manifest``, PURE), one file that is switched by a rename
(``directory``). Everything else in its directory is data the manifest names, or rubbish that the next job removes. So a
crash at any point leaves the archive before a batch or after it, never between; and a stream is trimmed (``trim``) only
up to what a manifest on disk holds.

Writing: ``job`` is the query that reads streams, ``store`` takes its batches in, ``files`` are the Parquet files.
Reading: ``reader`` joins archive and live stream; ``model/bounds.py`` says what a filter makes needless to read.
Writing back: ``replay`` takes entries from ``replay_source`` to ``replay_target``, whose cursor says how far it is.
"""
