"""The stream of alerts on the server."""
