"""The ``millstream`` command, the top layer. A subcommand imports only the part that it uses."""
