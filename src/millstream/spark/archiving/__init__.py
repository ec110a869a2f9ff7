"""Streams moved to Parquet and trimmed, read back as one table with what is still live, and replayed.

What an archive holds is what its manifest says (``manifest``, PURE), one file that is switched by a rename
(``folder``). Everything else in its directory is data the manifest names, or rubbish that the next job removes. So a
crash at any point leaves the archive before a batch or after it, never between; and a stream is trimmed (``trim``) only
up to what a manifest on disk holds.
"""
