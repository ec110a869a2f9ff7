"""The stream commands, one file for each family: adding, reading, pending entries, groups, XINFO."""
