"""Users of a server with the rights a test gives them."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis


@contextmanager
def user(client: redis.Redis, *rules: str) -> Iterator[str]:
    """A user of the server with these rights, as the part of a URL that names it."""
    client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
    try:
        yield "worker:secret@"
    finally:
        client.execute_command("ACL", "DELUSER", "worker")
