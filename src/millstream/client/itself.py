"""Connections that are never to themselves.

Whoever tries again and again to reach a port of its own machine where nobody listens can be given that very port as its
own, if it is of the range of clients (``net.ipv4.ip_local_port_range``); TCP then connects it to itself. It would read
its own requests as replies, and the server that wants to start again would find its port in use. So that counts as what
it is: nobody listens there.
"""

import socket
from typing import Any

import redis
import redis.asyncio

NOBODY = "nobody listens there: it was connected to itself"


def _is_itself(connected: socket.socket) -> bool:
    try:
        return bool(connected.getsockname() == connected.getpeername())
    except OSError:  # closed by the other end meanwhile, which is then not this one
        return False


class CheckedConnection(redis.Connection):
    """Redis-py's blocking TCP connection."""

    def _connect(self) -> socket.socket:
        made: socket.socket = super()._connect()  # type: ignore[no-untyped-call] # redis-py's gap
        if _is_itself(made):
            made.close()
            raise ConnectionRefusedError(NOBODY)
        return made


class AsyncCheckedConnection(redis.asyncio.Connection):
    """The same under asyncio."""

    _writer: Any

    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call] # as above
        if _is_itself(self._writer.get_extra_info("socket")):
            self._writer.close()
            raise ConnectionRefusedError(NOBODY)
