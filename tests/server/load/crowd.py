"""Fifty clients that write to one server at once, in a process of their own, and record what was acknowledged.

Each client works on keys of its own, so that the right content afterwards is known exactly. It is everything that was
acknowledged, and perhaps the one write whose reply never came, whole or not at all. It is never a part and never twice.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import hiredis
import redis

from support.wire import pack

Words = tuple[bytes | str | int, ...]


class Gone(Exception):  # noqa: N818 - a state of the server
    """Raised when the server has closed the connection."""


class Line:
    """One connection of a client; :meth:`ask` raises :class:`Gone` when the server is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._replies = hiredis.Reader()

    @classmethod
    async def to(cls, port: int) -> "Line":
        """Connect."""
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port))
        except OSError:
            raise Gone from None

    async def ask(self, *commands: Words) -> list[Any]:
        """Send commands together; return their replies."""
        try:
            self._writer.write(b"".join(pack(*words) for words in commands))
            return [await self._next() for _ in commands]
        except OSError:
            raise Gone from None

    async def _next(self) -> Any:
        while (reply := self._replies.gets()) is False:
            data = await self._reader.read(65536)
            if not data:
                raise Gone
            self._replies.feed(data)
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@dataclass
class Client:
    """One client's work, over all lives of the server.

    Attributes:
        number: its own, from 0.
        sent: numbers of the entries sent so far.
        acknowledged: numbers of the entries with a reply.
        in_doubt: numbers of entries sent together, without a reply before the server ended.
    """

    number: int
    sent: int = 0
    acknowledged: list[int] = field(default_factory=list)
    in_doubt: list[list[int]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Return the name of its stream."""
        return f"own:{self.number}"

    def take(self, count: int) -> list[int]:
        """Return the numbers of the next entries."""
        self.sent += count
        return list(range(self.sent - count, self.sent))

    async def work(self, port: int, chance: random.Random) -> None:
        """Write until the server is gone."""
        numbers: list[int] = []
        line = None
        try:
            line = await Line.to(port)
            while True:
                numbers = self.take(self._size(chance))
                await self._write(line, numbers)
                self.acknowledged += numbers
                numbers = []
        except Gone:
            if numbers:
                self.in_doubt.append(numbers)
        finally:
            if line is not None:
                line.close()

    def _size(self, chance: random.Random) -> int:
        return 1

    async def _write(self, line: Line, numbers: list[int]) -> None:
        await line.ask(("XADD", self.key, "*", "n", numbers[0]))

    def check(self, client: redis.Redis) -> int:
        """Compare the server with the record; return the number of acknowledged entries found.

        Entries in doubt that exist count as acknowledged from now on.
        """
        there = numbers_in(client, self.key)
        assert there == sorted(set(there)), f"{self.key}: something is there twice, or out of order"
        found, known = set(there), set(self.acknowledged)
        lost = known - found
        assert not lost, f"{self.key}: {len(lost)} of {len(known)} acknowledged entries are lost: {sorted(lost)[:5]}"
        self._settle(found - known)
        return len(known)

    def _settle(self, more: set[int]) -> None:
        for numbers in self.in_doubt:
            kept = [number for number in numbers if number in more]
            assert kept == numbers[: len(kept)], f"{self.key}: {kept} of {numbers}"
            assert self._may_be(kept, numbers), f"{self.key}: a part of {numbers} is there: {kept}"
            more.difference_update(kept)
            self.acknowledged += kept
        assert not more, f"{self.key}: {sorted(more)[:5]} were invented"
        self.in_doubt.clear()

    def _may_be(self, kept: list[int], numbers: list[int]) -> bool:
        return True


class Pipeliner(Client):
    """Sends many entries at once; of those in doubt any first part may exist."""

    def _size(self, chance: random.Random) -> int:
        return chance.randint(2, 20)

    async def _write(self, line: Line, numbers: list[int]) -> None:
        await line.ask(*(("XADD", self.key, "*", "n", number) for number in numbers))


class Transactor(Client):
    """Adds to two streams in a transaction: both, or none."""

    def _size(self, chance: random.Random) -> int:
        return 3

    async def _write(self, line: Line, numbers: list[int]) -> None:
        adds: Iterable[Words] = (("XADD", key, "*", "n", n) for n in numbers for key in (self.key, f"{self.key}:too"))
        await line.ask(("MULTI",), *adds, ("EXEC",))

    def _may_be(self, kept: list[int], numbers: list[int]) -> bool:
        return kept in ([], numbers)

    def check(self, client: redis.Redis) -> int:
        """Check that the two streams are equal, too."""
        found = super().check(client)
        assert numbers_in(client, self.key) == numbers_in(client, f"{self.key}:too")
        return found


@dataclass
class Acker(Client):
    """Adds, reads in a group and acknowledges: an acknowledged entry never comes back.

    Attributes:
        acked: ids whose XACK had a reply.
        read: ids that were delivered to it.
    """

    acked: set[bytes] = field(default_factory=set)
    read: set[bytes] = field(default_factory=set)

    async def _write(self, line: Line, numbers: list[int]) -> None:
        await line.ask(("XGROUP", "CREATE", self.key, "g", "0", "MKSTREAM"))
        await line.ask(("XADD", self.key, "*", "n", numbers[0]))
        self.acknowledged += numbers
        [reply] = await line.ask(("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", self.key, ">"))
        ids = [entry for entry, _ in reply[0][1]] if reply else []
        self.read.update(ids)
        if ids and numbers[0] % 5:
            assert (await line.ask(("XACK", self.key, "g", *ids))) == [len(ids)]
            self.acked.update(ids)
        self.acknowledged.pop()

    def check(self, client: redis.Redis) -> int:
        """Check that exactly the entries read and not acknowledged are pending, except for one in doubt."""
        found = super().check(client)
        if not client.exists(self.key) or not client.xinfo_groups(self.key):
            assert not self.read
            return found
        rows: Any = client.xpending_range(self.key, "g", "-", "+", 1_000_000)
        pending = {row["message_id"] for row in rows}
        assert not pending & self.acked, f"{self.key}: acknowledged entries are pending again"
        missing = self.read - self.acked - pending
        assert len(missing) <= 2, f"{self.key}: read entries are not pending: {sorted(missing)[:5]}"
        self.acked |= missing
        self.read |= pending
        return found


KINDS = (Client, Pipeliner, Transactor, Acker, Client)


def crowd(size: int = 50) -> list[Client]:
    """Return clients of all kinds."""
    return [KINDS[number % len(KINDS)](number) for number in range(size)]


def numbers_in(client: redis.Redis, key: str) -> list[int]:
    """Return the numbers of a stream's entries, in order."""
    entries: Any = client.xrange(key)
    return [int(fields[b"n"]) for _, fields in entries]


async def all_work(clients: list[Client], port: int, chance: random.Random) -> None:
    """Let all clients write until the server is gone."""
    await asyncio.gather(*(client.work(port, random.Random(chance.random())) for client in clients))
