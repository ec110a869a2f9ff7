"""Large reads of one stream as bytes of replies, from the server that has it; connections outlive their tasks.

Reading changes nothing, so every missing reply is requested again: after a broken connection, and after a redirection
to the server that has the key now.

The primary gives the last id of a range. A task reads from a replica only after the replica has shown that id on the
same connection. A stream reaches a replica in order, so its last id proves that all earlier entries are there. A
replication lag would be only an estimate.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from millstream.client.url import CLUSTERS
from millstream.spark.connection import routing
from millstream.spark.connection.connection import Command, ErrorReply, Reply
from millstream.spark.connection.raw_connection import RawConnection, parsed
from millstream.spark.connection.retry import lost_contact, retrying
from millstream.spark.connection.router import pairs
from millstream.spark.model.offsets import Id, parse_id

logger = logging.getLogger("millstream.spark")

REPLICA_SECONDS = 5.0
"""Seconds that a task waits for a replica with all of its range before it reads from the primary."""


class ReadFrom(NamedTuple):
    """A server, and the role in which it is read."""

    url: str  # URL of a single server (or of the Sentinels that name it)
    replica: bool = False  # True for a replica: if it fails, another server is tried
    readonly: bool = False  # True for a replica in a cluster


_idle: dict[tuple[int, ReadFrom], RawConnection] = {}
"""Connections kept between the tasks of one worker process, by process id (workers are forked)."""


def borrow(server: ReadFrom) -> RawConnection:
    """Return a connection, if possible one that an earlier task left."""
    kept = _idle.pop((os.getpid(), server), None)
    if kept is not None:
        return kept
    if server.replica:
        return RawConnection(server.url, readonly=server.readonly, patience=REPLICA_SECONDS)
    return RawConnection(server.url)


def give_back(server: ReadFrom, found: RawConnection) -> None:
    """Keep the connection for the next task, unless it has open replies or another one is kept already."""
    mine = (os.getpid(), server)
    if found.waiting or mine in _idle:
        found.close()
    else:
        _idle[mine] = found


class BulkReader:
    """Reads large parts of one stream."""

    def __init__(self, url: str, key: str, until: Id | None = None) -> None:
        self._url = url
        self._key = key
        self._until = until
        self._sent: Sequence[Command] = ()
        self._connection: RawConnection | None = None
        self._server = ReadFrom("")
        self._deadline: float | None = None

    @property
    def from_replica(self) -> bool:
        """True if the present connection is to a replica, or the next one may be."""
        return self._until is not None

    def send(self, commands: Sequence[Command]) -> None:
        """Send a request without waiting for the reply."""
        self._sent = tuple(commands)
        retrying(self._send)

    def receive(self) -> bytes:
        """Return the replies to the last request."""
        return retrying(self._receive)

    def last_id(self) -> Id | None:
        """Return the stream's last-generated-id on the last server; None if that has no such stream."""
        if self._connection is None:
            raise ConnectionError("the connection is closed")
        try:
            return _last_id(self._ask_now())
        except OSError:
            self.drop()
            raise

    def _ask_now(self) -> Reply:
        self._sent = (("XINFO", "STREAM", self._key),)
        self._send()
        return parsed(self._receive())[0]

    def _send(self) -> None:
        if self._connection is None:
            self._open()
        assert self._connection is not None
        try:
            self._connection.request(self._sent)
        except OSError:
            self._lost()
            raise

    def _receive(self) -> bytes:
        if self._connection is None:
            self._send()
        assert self._connection is not None
        try:
            raw = self._connection.receive_raw()
        except OSError:
            self._lost()
            raise
        error = _error_in(raw)
        where = None if error is None else routing.redirection(self._url, error)
        if where is None:
            return raw
        if where:
            return self._asking(where)
        self.drop()
        raise routing.Redirected(str(error))

    def _asking(self, where: str) -> bytes:
        """Return the replies from the node that takes over the slot, to which the key has moved already."""
        there = borrow(ReadFrom(where))
        found = []
        try:
            for command in self._sent:
                there.request([("ASKING",), command])
                raw = there.receive_raw().removeprefix(b"+OK\r\n")
                if raw.startswith(b"-"):
                    raise routing.Redirected(raw[:100].decode(errors="replace").strip())
                found.append(raw)
        except OSError:
            there.close()
            raise
        give_back(ReadFrom(where), there)
        return b"".join(found)

    # --- connections -------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._until is not None and self._open_replica(self._until):
            return
        if self._until is not None:
            logger.warning(
                "stream %r: no replica that has entry %s was found within %g s; this range is read from the primary",
                self._key, self._until, REPLICA_SECONDS,
            )  # fmt: skip
            self._until = None
        self._server = ReadFrom(routing.server_of(self._url, self._key))
        try:
            self._connection = borrow(self._server)
        except Exception:
            routing.forget(self._url)
            raise

    def _open_replica(self, until: Id) -> bool:
        """Connect to a replica that has all of the range; return False if none has it in time."""
        if self._deadline is None:
            self._deadline = time.monotonic() + REPLICA_SECONDS
        while True:
            there = self._replicas()
            random.shuffle(there)  # spreads tasks over the replicas
            for url in there:
                if self._has(url, until):
                    return True
            if not there or time.monotonic() + routing.MOVE_PAUSE > self._deadline:
                return False
            time.sleep(routing.MOVE_PAUSE)  # the replica lags or is unreachable, and no event reports a change

    def _replicas(self) -> list[str]:
        try:
            return routing.replicas(self._url, self._key)
        except Exception as reason:
            if not lost_contact(reason):
                raise
            routing.forget(self._url)
            return []

    def _has(self, url: str, until: Id) -> bool:
        """Connect to a replica; return True, and keep the connection, if it has all entries up to an id."""
        self._server = ReadFrom(url, replica=True, readonly=self._url.startswith(CLUSTERS))
        try:
            self._connection = borrow(self._server)
            self._connection.request([("XINFO", "STREAM", self._key)])
            last = _last_id(parsed(self._connection.receive_raw())[0])
        except Exception as reason:
            if not lost_contact(reason):
                raise
            self._lost()
            return False
        if last is not None and last >= until:
            return True
        self.close()
        return False

    def _lost(self) -> None:
        """Drop the connection and the known route, so that the next request looks up the stream's server again."""
        self.drop()
        routing.forget(self._url)

    def drop(self) -> None:
        """Close the connection; the next request makes another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Keep the connection for the next task if it has no open request."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                give_back(self._server, self._connection)
            self._connection = None


def _error_in(raw: bytes) -> Reply:
    """Return the error if it is the first or last reply: a redirection applies to all later replies too."""
    last_line = raw[raw.rfind(b"\r\n", 0, -2) + 2 :] if b"\r\n" in raw[:-2] else raw
    if not raw.startswith(b"-") and not last_line.startswith(b"-"):
        return None
    replies = parsed(raw)  # the last line may be part of a value
    return next((reply for reply in (replies[0], replies[-1]) if isinstance(reply, ErrorReply)), None)


def _last_id(reply: Reply) -> Id | None:
    """Return the last id in the reply to XINFO STREAM; None for an error."""
    return None if isinstance(reply, ErrorReply) else parse_id(pairs(reply)[b"last-generated-id"].decode())
