"""The facts of each page: what is asked of the server for it, and what is shown."""
