"""Entries that are published at a later time: they wait on the server, next to their stream."""
