"""Schedules: entries that wait next to a stream for their time."""
