"""Subcommands about workers: run, worker, dead."""
