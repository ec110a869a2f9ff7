"""The command table: one row a command, the notation of its arguments, and what is made from the rows."""
