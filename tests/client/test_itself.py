"""A client that waits for a server on its own machine never connects to itself."""

import asyncio
import socket
from typing import Any

import pytest
import redis

from millstream.client.connect import async_client, sync_client
from support.ports import free_port


class OnItself(socket.socket):
    """A socket whose own port is the port it connects to, as the kernel may choose."""

    def connect(self, address: Any) -> None:
        self.bind(address)
        super().connect(address)


def test_a_port_that_leads_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to its own port is refused."""
    port = free_port()
    monkeypatch.setattr(socket, "socket", OnItself)
    with (
        sync_client(f"redis://127.0.0.1:{port}/0", socket_timeout=5) as client,
        pytest.raises(redis.ConnectionError, match="no server listens"),
    ):
        client.ping()


async def test_the_same_under_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's asyncio connection to its own port is refused."""
    port = free_port()
    connect = asyncio.open_connection

    async def itself(host: str, port: int, **options: Any) -> Any:
        return await connect(host, port, local_addr=(host, port), **options)

    monkeypatch.setattr(asyncio, "open_connection", itself)
    client = async_client(f"redis://127.0.0.1:{port}/0", socket_timeout=5)
    try:
        with pytest.raises(redis.ConnectionError, match="no server listens"):
            await client.ping()
    finally:
        await client.aclose()
