"""Limits of the fleet: their use, and their rates at run time."""
