"""The state of a server as tables: streams, groups, consumers, pending entries, dead letters."""
