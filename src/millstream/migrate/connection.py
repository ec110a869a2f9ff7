"""A connection to either server of a migration. It sends commands in batches and returns the raw replies."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from hiredis import pack_command
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoReplyError

from millstream.client.connect import sync_client
from millstream.migrate.errors import LinkError, NoEntryError, RefusedError
from millstream.printable import without_password

Word: TypeAlias = bytes | str | int
Command: TypeAlias = Sequence[Word]
Reply: TypeAlias = Any

TIMEOUT = 300.0
"""Seconds of silence after which a server counts as gone. A large DUMP or RENAME takes a while."""

CONNECT_TIMEOUT = 10.0

# Advice for refusals, by the first word of the server's error
ADVICE = {
    "MOVED": "this is one node of a cluster, and the stream belongs to another: as a source give each master's URL in "
    "turn; as a target a cluster cannot be used, since a stream is renamed at the end of its copy",
    "CLUSTERDOWN": "this is a node of a cluster that does not serve the stream's slot; a cluster cannot be a target",
    "CROSSSLOT": "a cluster cannot be a target, since a stream is renamed at the end of its copy",
    "READONLY": "this server is a replica: give the URL of its master",
    "OOM": "the target is full (maxmemory): make room or raise it, then run the same command again",
    "MISCONF": "the target cannot save to its disk and takes no writes: see its log",
    "NOPERM": "the user needs more rights: docs/moving.md lists the commands each end must allow",
}

# redis-py removes the first word if it has a class for the error
_CODES = {
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "NoPermissionError": "NOPERM",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
}


def pack(command: Command) -> bytes:
    """Return a command as it is sent to the server."""
    packed: bytes = pack_command(tuple(command))  # type: ignore[arg-type]  # its stub wants each word of every type
    return packed


class Link(AbstractContextManager["Link"]):
    """A connection that one thread uses and that repeats no command."""

    def __init__(self, url: str, *, db: int | None = None, timeout: float = TIMEOUT) -> None:
        self.name = without_password(url)
        # The store is in this process, where no other client waits for a reply
        self.is_own = url.startswith(("memory://", "file://"))
        self._client = sync_client(url, protocol=2, socket_timeout=timeout, socket_connect_timeout=CONNECT_TIMEOUT)
        try:
            self._connection = self._client.connection_pool.get_connection()
        except (RedisError, OSError) as error:
            self._client.close()
            raise self._lost(error) from None
        self._owed = 0
        self.database = int(self._connection.db if db is None else db)  # Number of the database
        if db is not None:
            self.call("SELECT", db)

    def send(self, commands: Iterable[Command]) -> None:
        """Send commands without waiting; :meth:`receive` reads their replies."""
        packed = [pack(command) for command in commands]
        self._owed += len(packed)
        try:
            self._connection.send_packed_command([b"".join(packed)])  # type: ignore[no-untyped-call]  # redis-py
        except (RedisError, OSError) as error:
            raise self._lost(error) from None

    def receive(self) -> Reply:
        """Return the next outstanding reply. An error reply is a value of type ResponseError."""
        assert self._owed, "nothing was asked"
        self._owed -= 1
        try:
            return self._connection.read_response(disable_decoding=True)
        except AuthenticationError as error:
            raise self._lost(error) from None
        except ResponseError as refused:
            return refused
        except (RedisError, OSError) as error:
            raise self._lost(error) from None

    def ask(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands together and return their replies. Error replies are values."""
        self.send(commands)
        return [self.receive() for _ in commands]

    def call(self, *command: Word) -> Reply:
        """Send one command and return its reply; raise an error for an error reply."""
        self.send([command])
        return self.accepted(self.receive(), command)

    def accepted(self, reply: Reply, command: Command) -> Reply:
        """Return the reply; raise an error if it is an error reply."""
        if not isinstance(reply, ResponseError):
            return reply
        text = refusal(reply)
        code = text.partition(" ")[0]
        advice = f"\n{ADVICE[code]}" if code in ADVICE else ""
        raise RefusedError(f"{self.name} refused {_verb(command)}: {text}{advice}", code=code)

    def scan(self, pattern: str = "*") -> Iterator[list[bytes]]:
        """Yield the keys that match, a page at a time, each key once."""
        cursor, seen = b"0", set()
        while True:
            cursor, page = self.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            yield [key for key in dict.fromkeys(page) if key not in seen]
            seen.update(page)  # SCAN may return a key twice
            if int(cursor) == 0:
                return

    def discard_replies(self) -> None:
        """Read and drop the outstanding replies, so that the link can be used again."""
        while self._owed:
            self.receive()

    def close(self) -> None:
        """Close the connection. A store of this process is closed with everything on disk."""
        self._client.connection_pool.release(self._connection)
        self._client.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lost(self, error: Exception) -> LinkError:
        if isinstance(error, AuthenticationError):
            return NoEntryError(
                f"{self.name} refused the login: {error}\nPut name and password into the URL, as in "
                "redis://USER:PASSWORD@HOST:PORT/DB"
            )
        if isinstance(error, NoReplyError) and (
            limit := self._client.connection_pool.connection_kwargs["socket_timeout"]
        ):
            return LinkError(f"{self.name} does not answer ({error}): waiting for it for {limit:g} s")
        return LinkError(f"{self.name} cannot be reached, or the connection broke: {error}")


def same_place(one: Link, other: Link) -> bool:
    """Return True if both connections lead to one database: a key created at one exists at the other."""
    mark = b"millstream:moving:same-place:" + secrets.token_hex(8).encode()
    other.call("SET", mark, "1", "PX", 10_000)
    try:
        return bool(one.call("EXISTS", mark))
    finally:
        other.call("DEL", mark)


def refusal(error: ResponseError) -> str:
    """Return the server's error text with its code, which redis-py's classes may have removed."""
    text = str(error)
    code = _CODES.get(type(error).__name__, "")
    return text if text.startswith(code) else f"{code} {text}"


def _verb(command: Command) -> str:
    """Return a command's name for messages."""
    words = [word.decode() if isinstance(word, bytes) else str(word) for word in command[:1]]
    return words[0] if words else "a command"
