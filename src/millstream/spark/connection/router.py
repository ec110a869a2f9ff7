"""Commands to the servers of their keys: a round trip for each server, redirections followed, errors as values."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from millstream.spark.connection import routing
from millstream.spark.connection.connection import BlockingConnection, Command, ErrorReply, Reply
from millstream.spark.connection.retry import RETRY_SECONDS, retrying


class Router:
    """Connections that are made on first use, one to each server that has some of the requested keys.

    On a cluster a command goes to the node that has its key. A command without a key (TIME, MULTI) goes with the next
    one that has a key, or with the previous one. The commands of a call on one key keep their order.

    A WATCH binds the following transaction to its connection: on any other connection the transaction is refused, since
    a new connection watches nothing.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connections: dict[str, BlockingConnection] = {}
        self._last = ""
        self._watching: BlockingConnection | None = None
        self.received = 1  # Bytes of the last replies

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies to repeatable commands; they are sent again for a while if the server is away."""
        return retrying(lambda: self.once(commands)) if commands else []

    def once(self, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies to commands that are sent once; a redirected command, which did not run, is sent again."""
        names = {command[0] for command in commands}
        guard = self._watching if "MULTI" in names else None
        deadline = time.monotonic() + RETRY_SECONDS
        try:
            while True:
                try:
                    return self._sent(commands, whole=bool(names & {"WATCH", "MULTI"}), guard=guard)
                except routing.Redirected:
                    if guard is not None or time.monotonic() > deadline:
                        raise
                time.sleep(routing.MOVE_PAUSE)  # no node reports that a slot has arrived
        finally:
            if "WATCH" in names:
                self._watching = self._connections.get(self._last)
            elif names & {"EXEC", "UNWATCH"}:
                self._watching = None

    def once_at(self, server: str, commands: Sequence[Command]) -> list[Reply]:
        """Return the replies of this server, whatever keys the commands have."""
        try:
            connection = self.connect(server)
            replies = connection.ask(commands)
        except BaseException:
            self.close()
            routing.forget(self._url)
            raise
        self.received = connection.received
        return replies

    def _sent(self, commands: Sequence[Command], *, whole: bool, guard: BlockingConnection | None) -> list[Reply]:
        """Send the commands to their servers and return all replies."""
        replies: list[Reply] = [None] * len(commands)
        for server, part in routing.by_server(self._url, commands, self._last).items():
            self._last = server
            if guard is not None and self._connections.get(server) is not guard:
                raise routing.Redirected(
                    "the connection that watched is no more, or no longer the right one: look again"
                )
            for at, reply in zip(part, self.once_at(server, [commands[at] for at in part]), strict=True):
                replies[at] = reply
        lost = None
        for at, reply in enumerate(replies):
            where = routing.redirection(self._url, reply)
            if where and not whole:
                replies[at] = self.once_at(where, [("ASKING",), commands[at]])[1]
                where = routing.redirection(self._url, replies[at])
            lost = reply if where is not None else lost
        if lost is not None:
            self.close()
            raise routing.Redirected(f"the server did not run it: {lost}")
        return replies

    # --- connections, for callers that send ahead of their replies ----------------------------------------------------

    def server_of(self, key: str) -> str:
        """Return the URL of the server that has a key now."""
        return routing.server_of(self._url, key)

    def connect(self, server: str) -> BlockingConnection:
        """Return the connection to a server, made on first use."""
        if server not in self._connections:
            self._connections[server] = BlockingConnection(server)
        return self._connections[server]

    def connection_of(self, key: str) -> BlockingConnection | None:
        """Return the connection to the server that has a key; None without one."""
        return self._connections.get(self.server_of(key))

    def receive(self, connection: BlockingConnection, count: int) -> list[Reply]:
        """Return the next replies over a connection; raise if one of them is a redirection."""
        replies = connection.receive(count)
        # This includes ASK: while a slot moves, the keys of a transaction may be on two nodes, but its WATCH is on one
        # connection
        for reply in replies:
            if routing.redirection(self._url, reply) is not None:
                raise routing.Redirected(f"the server did not run it: {reply}")
        return replies

    def drop(self, reason: BaseException, servers: Iterable[str] | None = None) -> None:
        """Close connections after an error; the next command connects to the present servers of the keys."""
        for server in list(self._connections if servers is None else servers):
            if (found := self._connections.pop(server, None)) is not None:
                found.close()
        if not isinstance(reason, routing.Redirected):
            routing.forget(self._url)

    def close(self) -> None:
        """Close the connections; the next command makes others."""
        for one in self._connections.values():
            one.close()
        self._connections = {}


def checked(reply: Reply) -> Reply:
    """Return the reply; raise if it is an error."""
    if isinstance(reply, ErrorReply):
        raise routing.refusal(reply, f"the server refused a command: {reply}")
    return reply


def absent(reply: Reply) -> bool:
    """Return True if a command was refused because its stream or its group does not exist."""
    return isinstance(reply, ErrorReply) and ("no such key" in str(reply).lower() or str(reply).startswith("NOGROUP"))


def pairs(flat: Reply) -> dict[bytes, Any]:
    """Return a reply of names and values in turn as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
