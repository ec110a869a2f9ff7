"""Jobs: entries whose publishers want a result."""
