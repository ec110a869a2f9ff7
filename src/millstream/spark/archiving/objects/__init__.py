"""An archive in an object store (S3, Google Cloud Storage, Azure), by ``obstore``.

``storage`` is the place, ``upload`` brings files there and reads them, ``lease`` is the lock, ``refusals`` are a
store's errors in words. What an object store has not (a rename, a lock, a sync) is made of the one thing that it
has: a put that happens only if nobody else's was first.
"""
