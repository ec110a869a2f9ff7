"""What is in streams: entries shown, followed, added, trimmed: subcommands of ``millstream stream``."""
