"""Streams with something to show, on a server of ours in this process."""

from collections.abc import Iterator

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.server.thread import ServerThread


@pytest.fixture(scope="module")
def data() -> Iterator[ServerThread]:
    """A server of ours in this process, kept in memory."""
    with ServerThread() as server:
        yield server


@pytest.fixture
def client(data: ServerThread) -> Iterator[redis.Redis]:
    """A client of the server, which is empty."""
    with redis.Redis.from_url(data.url) as found:
        found.flushall()
        yield found


@pytest.fixture
def orders(client: redis.Redis) -> redis.Redis:
    """A stream of ten; a group that was delivered six of them, one of which nobody holds; and a dead letter."""
    for number in range(1, 11):
        client.xadd("orders", {"amount": f"{number}.50"}, id=f"{number}-0")
    client.xgroup_create("orders", "billing", id="0")
    client.xreadgroup("billing", "web-1", {"orders": ">"}, count=4)
    client.xreadgroup("billing", "web-2", {"orders": ">"}, count=2)
    client.execute_command("XNACK", "orders", "billing", "FAIL", "IDS", 1, "3-0")
    letter = DeadLetter(
        ("amount", "x"), "orders", "1-0", "billing", "web-1", 5, "error", "ValueError: x", "Trace:\n  line", 1, 1001
    )
    client.execute_command("XADD", "orders:dead", "5-0", *pack(letter))
    return client
