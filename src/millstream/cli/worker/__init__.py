"""Subcommands for workers: run, worker, dead."""
