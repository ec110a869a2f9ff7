"""The server itself, and its replicas."""
