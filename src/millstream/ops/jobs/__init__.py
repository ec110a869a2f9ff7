"""Jobs: entries with a result that their publishers read."""
