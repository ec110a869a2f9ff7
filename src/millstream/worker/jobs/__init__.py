"""Jobs: results, progress and cancellation of published entries."""
