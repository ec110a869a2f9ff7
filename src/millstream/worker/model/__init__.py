"""What is decided from values alone: retries, the life of an entry, counters. PURE."""
