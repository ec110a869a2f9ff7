"""``millstream backup`` and ``restore``: a data directory copied while its owner goes on, and made again from a copy.

``copying`` is what both are made of: files copied to a directory that gets its name last. ``backup`` copies all there
is and adds what a backup says of itself; ``restore`` copies up to a moment and puts the result in the place of another
directory, by ``exchange`` where the system can.
"""
