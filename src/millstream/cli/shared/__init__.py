"""Shared parts of the subcommands: output, options, signals, one way to ask a server."""
