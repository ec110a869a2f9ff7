"""Subcommands for alerts."""
