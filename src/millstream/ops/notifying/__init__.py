"""Watching a server for alerts, and telling hooks of them."""
