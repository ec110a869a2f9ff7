"""``millstream later``, ``schedule`` and ``limit``: the subcommands that only read."""
