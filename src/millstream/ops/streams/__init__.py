"""Streams with the state of their groups and consumers."""
