"""Queries about entries."""
