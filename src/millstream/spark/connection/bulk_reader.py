"""Raw replies about one stream from whichever server has it; connections outlive their tasks.

Reading changes nothing, so whatever was asked for and did not come is asked for again: where the connection broke, and
where the server says that another one has the key now.
"""

import contextlib
import logging
import os
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis

from millstream.client.url import CLUSTERS
from millstream.spark.connection import routing, socket
from millstream.spark.model.offsets import Id, parse_id

logger = logging.getLogger("millstream.spark")

REPLICA_SECONDS = 5.0
"""How long a task waits for a replica that has all of its range; then it reads the range from the primary."""

Command = tuple[bytes | str | int, ...]


class Place(NamedTuple):
    """A server, and what it is read as.

    Attributes:
        url: of that one server (or of Sentinels, who say which).
        replica: it is one, so that there is another to turn to.
        readonly: it is one of a cluster.
    """

    url: str
    replica: bool = False
    readonly: bool = False


_idle: dict[tuple[int, Place], socket.Wire] = {}
"""Connections kept between the tasks of one worker process, by process id (workers are forked)."""


def borrow(place: Place) -> socket.Wire:
    """A connection, one that an earlier task left if there is one."""
    kept = _idle.pop((os.getpid(), place), None)
    if kept is not None:
        return kept
    if place.replica:
        return socket.Wire(place.url, readonly=place.readonly, patience=REPLICA_SECONDS)
    return socket.Wire(place.url)


def give_back(place: Place, found: socket.Wire) -> None:
    """Keep the connection for the next task, unless replies are still on their way or another is kept already."""
    mine = (os.getpid(), place)
    if found.waiting or mine in _idle:
        found.close()
    else:
        _idle[mine] = found


class Bulk:
    """Large reads of one stream.

    Args:
        url: of the server, or of all of them.
        key: the stream.
        until: for replicas: one is read from only after it has shown that it has everything up to this id. Where none
            does within :data:`REPLICA_SECONDS`, the primary is read from. None reads from the primary at once.
    """

    def __init__(self, url: str, key: str, until: Id | None = None) -> None:
        self._url = url
        self._key = key
        self._until = until
        self._sent: Sequence[Command] = ()
        self._wire: socket.Wire | None = None
        self._place = Place("")
        self._deadline: float | None = None

    @property
    def from_replica(self) -> bool:
        """Whether the present connection is to a replica, or the next one may be."""
        return self._until is not None

    def send(self, commands: Sequence[Command]) -> None:
        """Ask for something, without waiting for it."""
        self._sent = tuple(commands)
        socket.retrying(self._send)

    def receive(self) -> bytes:
        """The replies to what was sent last."""
        return socket.retrying(self._receive)

    def last_id(self) -> Id | None:
        """The stream's last-generated-id, as the server says that was read from last; None where it has no stream.

        Raises:
            OSError: that connection is no more.
        """
        if self._wire is None:
            raise ConnectionError("the connection is no more")
        try:
            return _last_id(self._ask_now())
        except OSError:
            self.drop()
            raise

    def _ask_now(self) -> Any:
        self._sent = (("XINFO", "STREAM", self._key),)
        self._send()
        return _parsed(self._receive())[0]

    def _send(self) -> None:
        if self._wire is None:
            self._open()
        assert self._wire is not None
        try:
            self._wire.send(self._sent)
        except OSError:
            self.drop()
            routing.forget(self._url)
            raise

    def _receive(self) -> bytes:
        if self._wire is None:
            self._send()
        assert self._wire is not None
        try:
            raw = self._wire.receive()
        except OSError:
            self.drop()
            routing.forget(self._url)
            raise
        refusal = _refusal(raw)
        where = None if refusal is None else routing.redirection(self._url, refusal)
        if where is None:
            return raw
        if where:
            return self._asking(where)
        self.drop()
        raise routing.Redirected(str(refusal))

    def _asking(self, where: str) -> bytes:
        """The replies from the node to which the slot is being moved, where the key has arrived."""
        there = borrow(Place(where))
        found = []
        try:
            for command in self._sent:
                there.send([("ASKING",), command])
                raw = there.receive().removeprefix(b"+OK\r\n")
                if raw.startswith(b"-"):
                    raise routing.Redirected(raw[:100].decode(errors="replace").strip())
                found.append(raw)
        except OSError:
            there.close()
            raise
        give_back(Place(where), there)
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
        self._place = Place(routing.home(self._url, self._key))
        try:
            self._wire = borrow(self._place)
        except Exception:
            routing.forget(self._url)
            raise

    def _open_replica(self, until: Id) -> bool:
        """Connect to a replica that has everything; False where there is none in time."""
        if self._deadline is None:
            self._deadline = time.monotonic() + REPLICA_SECONDS
        while True:
            there = self._replicas()
            random.shuffle(there)  # tasks spread over them
            for url in there:
                if self._has(url, until):
                    return True
            if not there or time.monotonic() + routing.PAUSE > self._deadline:
                return False
            time.sleep(routing.PAUSE)  # it is behind, or away; nothing tells when it is not

    def _replicas(self) -> list[str]:
        try:
            return routing.replicas(self._url, self._key)
        except Exception as reason:
            if not socket.lost_contact(reason):
                raise
            routing.forget(self._url)
            return []

    def _has(self, url: str, until: Id) -> bool:
        """Whether a replica is there and has everything up to an id; if so it is read from."""
        self._place = Place(url, replica=True, readonly=self._url.startswith(CLUSTERS))
        try:
            self._wire = borrow(self._place)
            self._wire.send([("XINFO", "STREAM", self._key)])
            last = _last_id(_parsed(self._wire.receive())[0])
        except Exception as reason:
            if not socket.lost_contact(reason):
                raise
            self.drop()
            routing.forget(self._url)
            return False
        if last is not None and last >= until:
            return True
        self.close()
        return False

    def drop(self) -> None:
        """Break the connection off; the next question makes another one."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def close(self) -> None:
        """Keep the connection for the next task if nothing is under way on it."""
        if self._wire is not None:
            with contextlib.suppress(OSError):
                give_back(self._place, self._wire)
            self._wire = None


def _parsed(raw: bytes) -> list[Any]:
    reader = hiredis.Reader()
    reader.feed(raw)
    found = []
    while (reply := reader.gets()) is not False:
        found.append(reply)
    return found


def _refusal(raw: bytes) -> Any:
    """The error among the replies, if one begins or ends them: where one is sent elsewhere, so are those after it."""
    last_line = raw[raw.rfind(b"\r\n", 0, -2) + 2 :] if b"\r\n" in raw[:-2] else raw
    if not raw.startswith(b"-") and not last_line.startswith(b"-"):
        return None
    replies = _parsed(raw)  # the last line may be that of a value
    return next((reply for reply in (replies[0], replies[-1]) if isinstance(reply, hiredis.ReplyError)), None)


def _last_id(reply: Any) -> Id | None:
    """From the reply to XINFO STREAM."""
    if isinstance(reply, hiredis.ReplyError):
        return None
    told = dict(zip(reply[::2], reply[1::2], strict=True))
    return parse_id(told[b"last-generated-id"].decode())
