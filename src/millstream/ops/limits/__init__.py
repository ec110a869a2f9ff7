"""Limits that all workers share: their use, and their rates at run time."""
