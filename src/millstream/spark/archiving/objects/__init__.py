"""An archive in an object store (S3, Google Cloud Storage, Azure), by ``obstore``.

``storage`` is the place, ``upload`` writes and reads its files, ``lease`` is the lock, ``refusals`` explains a store's
errors. An object store has no rename, lock or sync. One operation replaces them: a put that happens only if no other
put was first.
"""
