"""Streams, groups, consumers and pending entries. ``nouns`` has the tables of subcommands, each in its own file."""
