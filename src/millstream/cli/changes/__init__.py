"""The subcommands that change streams, groups, consumers and pending entries."""
