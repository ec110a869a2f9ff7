"""Ownership of partitions: a handler's members share the partitions of a stream, and each is read by its owner only."""
