"""The ``millstream`` command, top layer of all; a subcommand imports only the part it is the door to."""
