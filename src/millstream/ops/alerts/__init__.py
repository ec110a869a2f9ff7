"""Alerts: causes of problems that opened and closed, kept on the server."""
