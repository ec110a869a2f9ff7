"""The state of a server and its replicas."""
