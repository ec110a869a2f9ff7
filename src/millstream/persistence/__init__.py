"""The data directory: disk, log records, group commit, recovery; never imports the engine or a command."""
