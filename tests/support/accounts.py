"""Temporary users of a server with the permissions that a test names."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis


@contextmanager
def user(client: redis.Redis, *rules: str) -> Iterator[str]:
    """Create a user of the server with these permissions, and yield it as the user part of a URL."""
    client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
    try:
        yield "worker:secret@"
    finally:
        client.execute_command("ACL", "DELUSER", "worker")
