"""Ownership of partitions: a handler's members share a stream's partitions, and only its owner reads a partition."""
