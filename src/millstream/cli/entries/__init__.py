"""Subcommands of ``millstream stream`` for entries: show, follow, add, trim."""
