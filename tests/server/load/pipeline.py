"""Clients that send plain commands without waiting for replies, each with a model that knows every reply.

A client has keys of its own and ids that are known beforehand, so each reply is compared with the model's. After a
crash the data must be the model after a first part of the commands. That part has all commands with a reply, and some
of the next, none of them in part. One stream is shared by all; entries of it that a client has seen must stay.
"""

import asyncio
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import hiredis
import redis

from support.wire import pack

SHARED = "shared"
SIZES = (1, 2, 16, 16, 100, 600)
"""Numbers of commands that are sent together; some exceed one run."""
FEW = (1, 4, 12)
"""Numbers so small that the commands refused by a full disk can be found."""
_AHEAD = 4_000_000_000_000  # milliseconds beyond the clock: the ids after it are -1, -2 and so on
_SEEN = 60  # newest entries that are compared after each start; all of them are in the end

Operation = tuple[Any, ...]


def name_of(at: int) -> bytes:
    """Return the id of an entry of a client's own stream."""
    return b"%d-%d" % (_AHEAD, at)


@dataclass
class Model:
    """The content of one client's keys.

    Attributes:
        entries: numbers of its stream's entries; the first has sequence number 0.
        value: number of the last SET.
        delivered: number of entries that the group has read.
        pending: consumer by index in ``entries``.
        shared: numbers of its entries in the shared stream.
    """

    entries: list[int] = field(default_factory=lambda: [0])
    value: int = 0
    delivered: int = 1
    pending: dict[int, bytes] = field(default_factory=dict)
    shared: list[int] = field(default_factory=list)

    def apply(self, operation: Operation) -> Any:
        """Apply a command; return its reply, or None if it is unknown."""
        kind, *words = operation
        reply: Any = None
        if kind == "add":
            reply = name_of(len(self.entries))
            self.entries += words
        elif kind == "share":
            self.shared += words
        elif kind == "set":
            [self.value] = words
            reply = b"OK"
        elif kind == "get":
            reply = b"%d" % self.value
        elif kind == "length":
            reply = len(self.entries)
        elif kind == "read":
            reply = self._read(*words)
        elif kind == "ack":
            reply = sum(self.pending.pop(at, None) is not None for at in words[0])
        return reply

    def _read(self, consumer: bytes, count: int) -> Any:
        taken = range(self.delivered, min(self.delivered + count, len(self.entries)))
        self.delivered = max(self.delivered, taken.stop)
        self.pending |= dict.fromkeys(taken, consumer)
        return [[b"n", b"%d" % self.entries[at]] for at in taken]

    def state(self) -> tuple[Any, ...]:
        """Return the values to compare after a start."""
        newest = (len(self.entries), self.entries[-_SEEN:])
        return (*newest, self.value, self.pending, self.shared[-1:])


@dataclass
class Pipeline:
    """One client, over all lives of the server.

    Args:
        number: its own.
        sizes: commands that it sends together.
        refusals: a full disk may refuse commands.

    Attributes:
        model: the state after the commands with a reply.
        waiting: commands without a reply, oldest first.
        answered: number of commands with a reply.
    """

    number: int
    sizes: tuple[int, ...] = SIZES
    refusals: bool = False
    model: Model = field(default_factory=Model)
    waiting: list[Operation] = field(default_factory=list)
    answered: int = 0

    def __post_init__(self) -> None:
        self.key, self.text = f"own:{self.number}", f"text:{self.number}"
        self._sent = 0

    def prepare(self, client: redis.Redis) -> None:
        """Create the keys, which plain commands do not."""
        client.execute_command("XADD", self.key, name_of(0), "n", 0)
        client.execute_command("XGROUP", "CREATE", self.key, "g", name_of(0), "ENTRIESREAD", 1)
        for consumer in "ab":
            client.execute_command("XGROUP", "CREATECONSUMER", self.key, "g", consumer)
        client.set(self.text, 0)

    # ------------------------------------------------------------------ working

    def operations(self, chance: random.Random) -> Iterator[Operation]:
        """Yield endless commands, nearly all of them plain."""
        while True:
            self._sent += 1
            kind = chance.randrange(100)
            near = max(self.model.delivered - 20, 1)
            if kind < 50:
                yield "add", self._sent
            elif kind < 60:
                yield "share", self._sent
            elif kind < 70:
                yield "set", self._sent
            elif kind < 80:
                yield "read", chance.choice((b"a", b"b")), chance.choice((1, 5, 10))
            elif kind < 92:
                yield "ack", sorted({near + chance.randrange(60) for _ in range(chance.choice((1, 8)))})
            elif kind < 99 or self.number:
                yield chance.choice((("get",), ("length",)))
            else:
                yield ("rewrite",)

    def words(self, operation: Operation) -> bytes:
        """Return the command in wire form."""
        kind, *rest = operation
        if kind == "add":
            return pack("XADD", self.key, "*", "n", rest[0])
        if kind == "share":
            return pack("XADD", SHARED, "*", "by", self.number, "n", rest[0])
        if kind == "read":
            return pack("XREADGROUP", "GROUP", "g", rest[0], "COUNT", rest[1], "STREAMS", self.key, ">")
        if kind == "ack":
            return pack("XACK", self.key, "g", *(name_of(at) for at in rest[0]))
        if kind == "set":
            return pack("SET", self.text, rest[0])
        return {"get": pack("GET", self.text), "length": pack("XLEN", self.key), "rewrite": pack("BGREWRITEAOF")}[kind]

    async def work(self, port: int, chance: random.Random) -> None:
        """Send and read until the server is gone."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        operations, replies = self.operations(chance), hiredis.Reader()
        try:
            while True:
                fresh = list(islice(operations, chance.choice(self.sizes)))
                self.waiting += fresh
                data = b"".join(map(self.words, fresh))
                cut = chance.randrange(len(data)) if chance.randrange(3) else 0
                for piece in filter(None, (data[:cut], data[cut:])):
                    writer.write(piece)
                    await writer.drain()
                while len(self.waiting) > chance.choice((0, 0, 20)):
                    received = await reader.read(65536)
                    if not received:
                        return
                    replies.feed(received)
                    self._take(replies)
        except OSError:
            pass
        finally:
            writer.close()

    def _take(self, replies: hiredis.Reader) -> None:
        """Compare the received replies with the model's."""
        done = 0
        while (reply := replies.gets()) is not False:
            operation = self.waiting[done]
            done += 1
            if isinstance(reply, Exception) and (self.refusals or operation[0] == "rewrite"):
                assert str(reply).startswith(("MISCONF", "ERR")), reply
                continue
            expected = self.model.apply(operation)
            if operation[0] == "read":
                reply = [fields for _, fields in reply[0][1]] if reply else []
            assert expected is None or reply == expected, f"{self.key}: {operation} was answered {reply!r}"
        del self.waiting[:done]
        self.answered += done

    # ------------------------------------------------------------------ after a start

    def settle(self, client: redis.Redis, shared: list[tuple[int, int]]) -> None:
        """Find the commands without a reply that were done, and continue from there.

        Args:
            client: of the server.
            shared: the owners of the newest entries of the shared stream, and their numbers.
        """
        found = self._found(client, [number for who, number in shared if who == self.number][-1:])
        for model in self._possible():
            if model.state() == found:
                self.model = model
                self.waiting.clear()
                return
        raise AssertionError(f"{self.key}: {found} is not {self.model.state()}, nor that after some of {self.waiting}")

    def _found(self, client: redis.Redis, shared: list[int]) -> tuple[Any, ...]:
        newest: Any = client.xrevrange(self.key, count=_SEEN)
        rows: Any = client.xpending_range(self.key, "g", "-", "+", 10_000_000)
        places = {int(row["message_id"].partition(b"-")[2]): row["consumer"] for row in rows}
        assert all(row["times_delivered"] == 1 for row in rows)
        numbers = [int(fields[b"n"]) for _, fields in reversed(newest)]
        return client.xlen(self.key), numbers, int(client.get(self.text) or b"-1"), places, shared

    def _possible(self) -> Iterator[Model]:
        """Yield the model after each first part of the waiting commands; if some may be refused, with gaps."""
        gaps = [(0, 0)]
        if self.refusals:
            places = range(len(self.waiting) + 1)
            gaps += [(begin, end) for begin in places for end in places[begin + 1 :]]
        for begin, end in gaps:
            model = deepcopy(self.model)
            yield model
            for operation in self.waiting[:begin] + self.waiting[end:]:
                model.apply(operation)
                yield model

    def check_all(self, client: redis.Redis) -> int:
        """Check that every entry exists, here and in the shared stream; return their number."""
        entries: Any = client.xrange(self.key)
        assert [(key, int(fields[b"n"])) for key, fields in entries] == [
            (name_of(at), number) for at, number in enumerate(self.model.entries)
        ]
        others: Any = client.xrange(SHARED)
        mine = [int(fields[b"n"]) for _, fields in others if int(fields[b"by"]) == self.number]
        assert mine == self.model.shared
        return len(entries) + len(mine)


class Watcher:
    """Reads the shared stream; every entry that it has seen must stay."""

    def __init__(self) -> None:
        self.seen = b"0-1"

    async def work(self, port: int) -> None:
        """Read until the server is gone."""
        replies = hiredis.Reader()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        try:
            while True:
                writer.write(pack("XREAD", "BLOCK", 0, "STREAMS", SHARED, self.seen))
                while (reply := replies.gets()) is False:
                    data = await reader.read(65536)
                    if not data:
                        return
                    replies.feed(data)
                if not isinstance(reply, Exception):
                    self.seen = reply[0][1][-1][0]
        except OSError:
            pass
        finally:
            writer.close()

    def check(self, client: redis.Redis) -> None:
        """Check that the last entry it has seen exists."""
        assert client.xrange(SHARED, self.seen, self.seen), f"{self.seen!r} was shown to a reader, and is lost"
