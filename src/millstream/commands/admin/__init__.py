"""Commands about the server: INFO, CONFIG, ACL, COMMAND, DEBUG, persistence, scripts."""
