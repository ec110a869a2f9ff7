"""Shared parts of the subcommands: output, options, signals, and requests to a server."""
