"""Streams, groups, consumers and pending entries: ``nouns`` has the table of subcommands, each in a file of its own."""
