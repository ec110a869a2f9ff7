"""``millstream backup`` and ``restore``: copy a data directory in use, and restore one from a copy.

``copying`` is the common part: it copies files to a directory that gets its final name last. ``backup`` copies
everything and adds facts about the backup. ``restore`` copies up to a moment and puts the result in place of another
directory. It uses ``exchange`` if the system supports it.
"""
