"""Subcommands for a server and its data directory: serve, log, backup, restore, doctor."""
