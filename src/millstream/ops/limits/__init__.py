"""Limits of all workers: their use, and their rates set at run time."""
