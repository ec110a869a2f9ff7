"""Readings that the console or the live view shares between its viewers."""
