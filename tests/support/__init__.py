"""Helpers shared by tests of every area; import them as ``from support.waiting import eventually``."""
