"""Streams, and the state of their groups and consumers."""
