"""Cold entries in a running node: commands that read them."""
