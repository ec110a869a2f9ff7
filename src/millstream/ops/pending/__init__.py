"""Pending entries."""
