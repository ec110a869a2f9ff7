"""Figures of the last 30 days, in three bounded streams on the server."""
