"""``millstream backup`` and ``restore``: a data directory copied while its owner goes on, and made again from a copy.

``copying`` is the common part: files copied to a directory that gets its name last. ``backup`` copies everything and
adds the backup's facts about itself. ``restore`` copies up to a moment and puts the result in the place of another
directory, by ``exchange`` where the system can.
"""
