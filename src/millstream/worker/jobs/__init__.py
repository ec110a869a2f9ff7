"""Jobs: the result of a published entry, its progress and its end."""
