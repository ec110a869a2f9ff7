"""Spark at work on a server's streams: its queries as their drivers tell of them, and the archive. Pure."""
