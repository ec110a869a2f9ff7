"""What the subcommands share: output, options, signals, one way to ask a server."""
