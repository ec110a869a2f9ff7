"""Asyncio connections to a cluster: a line to the node that has a key, and one line for all nodes.

A stream lives on one node. A worker uses lines of its own to that node, which look up the slot's owner again at every
connection. When the slot moves or its node dies, such a line breaks like one to a server that is down. It then
connects to the new owner.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError

from millstream.client.connect import async_client
from millstream.client.line import Command, Line, Reply
from millstream.client.routes import Routes, no_node
from millstream.client.slots import Address, key_of, slot_of
from millstream.errors import Disconnected, UsageError

CLUSTER_INFO = ("CLUSTER", "INFO")
"""SCAN of one cluster node looks like that of a whole server: no MOVED shows that other nodes have more keys."""

_SIZE = re.compile(rb"^cluster_size:(\d+)", re.MULTILINE)
#: MOVED comes first, because redis-py's MovedError is a subclass of AskError.
_CODES: dict[type[RedisError], str] = {
    MovedError: "MOVED",
    AskError: "ASK",
    ClusterDownError: "CLUSTERDOWN",
    TryAgainError: "TRYAGAIN",
}
#: Seconds for one node to report the slots' owners; a dead node must not delay the query of the next one.
_PATIENCE = 2.0
#: Number of times that a command is sent to the reported node of its slot, and the seconds between attempts. For a
#: moment, no node has a slot that moves.
_TRIES = 20
_PAUSE = 0.1


class Places(Routes):
    """The routes of a cluster, read over asyncio connections."""

    def node_of(self, key: str | bytes) -> Address:
        """Return the node that has a key; raise :class:`Disconnected` if its slot has no owner."""
        address = self.of(key)
        if address is None:
            raise Disconnected(no_node(key))
        return address

    async def refresh(self) -> None:
        """Read the owners of slots from the first node that answers."""
        reason: object = None
        for address in self.candidates:
            client = async_client(
                self.cluster.url(address), protocol=2, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE
            )
            connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call] # redis-py's gap
            try:
                await connection.connect()
                await connection.send_command("CLUSTER", "SLOTS")
                rows = await connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                reason = error
                continue
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect()
                await client.aclose()
            self.learn(rows, address)
            return
        raise Disconnected(f"no node of the cluster answers: {reason}", sent=False)


class NearLine(Line):
    """A line to the node that has a key, looked up at every connection."""

    def __init__(self, url: str, key: str, *, greet: Sequence[Command] = ()) -> None:
        self._places = Places(url)
        super().__init__(self._places.cluster.url(self._places.cluster.nodes[0]), greet=greet)
        self.key = key
        self._moved = False

    async def _dial(self) -> Any:
        await self._places.refresh()
        before, self._client = (
            self._client,
            async_client(self._places.cluster.url(self._places.node_of(self.key)), protocol=2),
        )
        await before.aclose()
        return await super()._dial()

    def _answer(self, future: "asyncio.Future[list[Reply]]", replies: list[Reply]) -> None:
        """Treat a redirection as a broken connection: the caller finds out the outcome, as after any other break."""
        moved = next((reply for reply in replies if _said(reply)[0]), None)
        if moved is None:
            super()._answer(future, replies)
            return
        self._moved = True
        if not future.done():
            future.set_exception(Disconnected(f"{moved} (not on the node that had the slot of {self.key!r})"))
            future.exception()  # marks the exception as retrieved, which a cancelled caller does not do

    async def _exchange(self, batch: Any) -> None:
        await super()._exchange(batch)
        if self._moved:
            self._moved = False
            await self._hang_up()


class ClusterLine(Line):
    """All nodes as one line: each command goes to the node that has its key.

    A command that was redirected did not run, and is sent to the new node. Transactions, and commands without a key,
    need :meth:`near`.
    """

    def __init__(self, url: str, *, joint: bool = False) -> None:
        self._url = url
        self._places = Places(url)
        super().__init__(self._places.cluster.url(self._places.cluster.nodes[0]), joint=joint)
        self._nodes: dict[Address, Line] = {}
        self._near: dict[int, NearLine] = {}
        self._routes: set[asyncio.Task[list[Reply]]] = set()

    @property
    def connected(self) -> bool:
        """True while there is a connection to every node that got a command."""
        return bool(self._nodes) and all(line.connected for line in self._nodes.values())

    @property
    def trips(self) -> int:
        """Number of round trips so far on the connection with the most; connections work at once."""
        return max((line.trips for line in (*self._nodes.values(), *self._near.values())), default=0)

    def near(self, key: str) -> Line:
        """Return the line to the node of one key, made on first use; :meth:`close` closes it too."""
        slot = slot_of(key)
        if slot not in self._near:
            self._near[slot] = NearLine(self._url, key)
        return self._near[slot]

    async def nodes(self) -> list[Line]:
        """Return a line to each node that has slots."""
        await self._places.refresh()
        return [self._node(address) for address in self._places.slots.primaries]

    def calls(
        self, commands: Sequence[Command], *, timeout: float | None = None, only_if: Callable[[], bool] | None = None
    ) -> "asyncio.Future[list[Reply]]":
        """Send commands as :meth:`Line.calls` does; commands to one node keep their order."""
        keys = [_key(command) for command in commands]
        answer: asyncio.Future[list[Reply]] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.set_exception(Disconnected("the line is closed", sent=False))
            return answer
        task = asyncio.ensure_future(self._route(commands, keys, timeout, only_if))
        self._routes.add(task)
        task.add_done_callback(partial(self._tell, answer))
        return answer

    def _tell(self, answer: "asyncio.Future[list[Reply]]", task: "asyncio.Task[list[Reply]]") -> None:
        """Pass on the result of a route. Only :meth:`close` cancels a route, and that does not cancel the caller."""
        self._routes.discard(task)
        error = Disconnected("the line was closed") if task.cancelled() else task.exception()
        if answer.done():
            return
        if error is None:
            answer.set_result(task.result())
        else:
            answer.set_exception(error)
            answer.exception()  # marks the exception as retrieved, which a cancelled caller does not do

    async def _route(
        self,
        commands: Sequence[Command],
        keys: Sequence[str | bytes],
        timeout: float | None,  # noqa: ASYNC109 - passed on to the lines, which apply it
        only_if: Callable[[], bool] | None,
    ) -> list[Reply]:
        replies: list[Reply] = [None] * len(commands)
        left = list(range(len(commands)))
        if not self._places.known:
            await self._places.refresh()
        for _ in range(_TRIES):
            parts: dict[Address, list[int]] = {}
            for at in left:
                parts.setdefault(self._places.node_of(keys[at]), []).append(at)
            asked = [
                self._node(address).calls([commands[at] for at in part], timeout=timeout, only_if=only_if)
                for address, part in parts.items()
            ]
            try:
                for part, answers in zip(parts.values(), await asyncio.gather(*asked), strict=True):
                    for at, reply in zip(part, answers, strict=True):
                        replies[at] = reply
            except Disconnected:
                self._places.forget()
                raise
            left = [at for at in left if self._places.heed(*_said(replies[at]))]
            if not left:
                return replies
            await asyncio.sleep(_PAUSE)
            if not self._places.known:
                await self._places.refresh()
        raise Disconnected(f"{replies[left[0]]}: sent {_TRIES} times to where the cluster said it is")

    def _node(self, address: Address) -> Line:
        if address not in self._nodes:
            self._nodes[address] = Line(self._places.cluster.url(address), redial=True, joint=self._joint)
        return self._nodes[address]

    async def close(self) -> None:
        """Close all connections: callers that still wait get :class:`Disconnected`."""
        self._closed = True
        for task in list(self._routes):
            task.cancel()
        await asyncio.gather(*self._routes, return_exceptions=True)
        for line in (*self._nodes.values(), *self._near.values()):
            await line.close()
        await super().close()


def _key(command: Command) -> str | bytes:
    key = None if command[0] == "WATCH" else key_of(command)
    if key is None:
        raise UsageError(f"{command[0]!s} names no key: on a cluster it needs the line near one")
    return key


def _said(reply: Reply) -> tuple[str, str]:
    """Return the code of a redirection, which redis-py turns into a class, and the text of the error."""
    return next((code for kind, code in _CODES.items() if isinstance(reply, kind)), ""), str(reply)


def masters(reply: object) -> int:
    """Return the number of nodes with slots, from the reply to :data:`CLUSTER_INFO`; 1 for an error (no cluster)."""
    found = _SIZE.search(reply) if isinstance(reply, bytes) else None
    return int(found[1]) if found else 1


def part_of(count: int) -> str:
    """Return the sentence for a URL that names only one node of a cluster."""
    return f"the URL names one node of a Redis Cluster of {count} masters, which has a part of the keys"


async def require_whole(nodes: Sequence[Line]) -> None:
    """Raise :class:`UsageError` if the nodes hold only a part of the keys."""
    if len(nodes) == 1:
        (reply,) = await nodes[0].calls([CLUSTER_INFO])
        if (count := masters(reply)) > 1:
            raise UsageError(f"{part_of(count)}: use redis+cluster://HOST:PORT")
