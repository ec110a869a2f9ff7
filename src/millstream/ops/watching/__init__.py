"""Readings that a long-lived door shares between its viewers."""
