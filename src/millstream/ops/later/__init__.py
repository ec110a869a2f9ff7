"""Schedules: entries stored next to a stream until they are due."""
