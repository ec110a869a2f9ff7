"""Which queries run, and which ran, told to the server and to people."""
