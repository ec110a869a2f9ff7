"""The stream commands, one file a family: adding, reading, pending entries, groups, XINFO."""
