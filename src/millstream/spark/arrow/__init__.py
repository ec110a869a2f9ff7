"""Between replies of a server and Arrow: entries to columns and rows to commands."""
