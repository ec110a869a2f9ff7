"""Looking after a data directory and a server: what a log holds, what is damaged, backup, restore, diagnosis."""
