"""The facts of each page: its questions to the server, and its content."""
