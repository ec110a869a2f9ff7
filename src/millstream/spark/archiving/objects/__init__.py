"""An archive in an object store (S3, Google Cloud Storage, Azure), by ``obstore``.

``storage`` is the place, ``upload`` brings files there and reads them, ``lease`` is the lock, ``refusals`` are a
store's errors in words. An object store has no rename, lock or sync. It has one thing that replaces them: a put that
happens only if no other put was first.
"""
