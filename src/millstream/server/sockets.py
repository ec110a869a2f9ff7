"""Clients' sockets: all that are ready in one turn of the loop are read, then run, then committed, then answered.

An asyncio loop makes separate calls for each ready socket. Here the loop watches only one descriptor, an epoll of all
clients. When that is ready, one turn reads the bytes from all of them, as redis-server does. So a group commit covers
everything that arrived together, with one sync for all its replies. TLS uses the loop's own transports, as do all
clients without the native core or epoll.

Invariants:

* A descriptor is in the epoll exactly while it is in ``_open`` and has events to watch for. It is taken out before its
  socket is closed, so an event of an earlier socket never reaches another one.
* A transport sends bytes in the order in which they were written. This module does not decide which may be sent.
"""

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from millstream import core
from millstream.replies import Buffer
from millstream.server.connection import Connection
from millstream.server.serving import Serving

# Number of buffers passed to the kernel in one call; its limit is 1,024
_TOGETHER = 64
_AGAIN = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR})
# EPOLLIN, EPOLLOUT, and the events that are always reported: EPOLLERR, EPOLLHUP
_READABLE, _WRITABLE, _BROKEN = 1, 4, 8 | 16
# Replaces a reply in a turn's list that must not be sent with it
_NONE = (-1, b"")

Event = tuple[int, "bytes | int | None", int]
"""A descriptor; the bytes read, an ``errno``, or None for nothing; its epoll events."""


ReadReady = Callable[[select.epoll], Iterator[Event]]
"""Reads the bytes that have arrived, at most 64 KiB from each socket, and from 256 sockets of an epoll."""

SendEach = Callable[[list[Any]], None]
"""Sends to each descriptor the bytes after it, and replaces both by the result.

The result is the number of bytes that the kernel took, a negative ``errno``, or None without memory for a number.
"""


def native_calls() -> tuple[ReadReady, SendEach] | None:
    """Return the native core's calls for a turn, if it has them: in Python, they would cost more than the loop's."""
    native: Any = core.native
    return (native.read_ready, native.send_each) if hasattr(native, "read_ready") else None


class Sockets:
    """The sockets of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Serving, calls: tuple[ReadReady, SendEach]) -> None:
        self.loop = loop  # Event loop
        self.turns = turns  # The server, which begins and ends turns
        self._read_ready, self._send_each = calls
        self._poll = select.epoll()
        self._open: dict[int, SocketTransport] = {}
        self._answered: list[SocketTransport | None] = []  # transports with output in this turn; None if already sent
        self._replies: list[Any] = []  # output of these transports: descriptor and bytes, later the result
        loop.add_reader(self._poll.fileno(), self._turn)

    def add(self, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        """Give a connected socket its protocol."""
        if sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = SocketTransport(self, sock, protocol)
        self._open[transport.fd] = transport
        protocol.connection_made(transport)
        transport.watch()

    def close(self) -> None:
        """Stop watching; every transport is closed by now."""
        self.loop.remove_reader(self._poll.fileno())
        self._poll.close()

    # ------------------------------------------------------------------ turns

    def _turn(self) -> None:
        """Read the bytes that have arrived, run their commands, commit, and send the replies."""
        wall_time, opened = self.turns.clock.wall_time, self._open
        wall, size = wall_time(), 0
        answers: list[Answer] = []
        found = self._read_ready(self._poll)  # from here on, a lack of memory affects a single client
        self.turns.in_turn = True
        try:
            for fd, data, events in found:
                transport = opened.get(fd)
                if transport is None:
                    continue  # another client's command has closed it
                try:
                    if type(data) is bytes and data and events == _READABLE and transport.reads and not transport.out:
                        replies = transport.run_at_once(data, wall)
                        if replies is not None:
                            size += len(data)
                            answers.append((fd, replies, transport))
                            continue
                    else:
                        transport.happened(data, events)
                    wall = wall_time()  # read again, since that may have taken long
                except Exception as error:  # noqa: BLE001 - an error ends one connection, not the turn of the others
                    self._end_one(transport, error)
            barrier, may_go = self.turns.end_turn(size)
            if not (may_go and self._send(answers)):
                for _, replies, transport in answers:
                    transport.client.answer(replies, barrier)
        except Exception:
            for _, _, transport in answers:
                transport.client.abort()  # it is unknown which of its commands have run
            raise
        finally:
            self.turns.in_turn = False
            self._answer()

    def _send(self, answers: "list[Answer]") -> bool:
        """Send replies directly, if their transports have nothing else to send; return False if nothing was sent.

        Most turns have no other replies, and a client that waits for each reply pays for every call here.
        """
        for _, replies, transport in answers:
            if transport.out or not transport.reads or len(replies) > transport.high:
                return False
        try:
            counts: list[Any] = answers.copy()
            each = zip(answers, counts, strict=True)
        except MemoryError:
            return False
        self._send_each(counts)
        total = 0
        for (_, replies, transport), count in each:
            try:
                size = len(replies)
                transport.client.sent += size
                total += size
                if count != size:
                    transport.sent_part(replies, count)
            except Exception as error:  # noqa: BLE001 - as in _turn
                self._end_one(transport, error)
        self.turns.facts.output_bytes += total
        return True

    def _answer(self) -> None:
        """Send the bytes written in this turn."""
        answered, replies = self._answered, self._replies
        if not answered:
            return
        try:
            each = zip(answered, replies, strict=True)
        except MemoryError:  # before anything is sent, since sent bytes must be recorded
            self.loop.call_soon(self._answer)
            return
        self._send_each(replies)
        for transport, count in each:
            if transport is not None:
                try:
                    transport.answered(count)
                except Exception as error:  # noqa: BLE001 - as in _turn
                    self._end_one(transport, error)
        answered.clear()
        replies.clear()

    def _end_one(self, transport: "SocketTransport", error: Exception) -> None:
        transport.abort()
        self.loop.call_exception_handler({"message": "a client's protocol failed", "exception": error})

    def put_off(self, transport: "SocketTransport", data: Buffer) -> int:
        """Send bytes at the end of the turn; return their number for :meth:`take_back`."""
        number, reply = len(self._replies), (transport.fd, data) if type(data) is bytes else _NONE
        self._answered.append(transport)
        try:
            self._replies.append(reply)
        except MemoryError:  # both lists must match, or later replies would go to other clients
            del self._answered[number:]
            raise
        return number

    def take_back(self, number: int) -> None:
        """Cancel bytes with this number: their transport has sent them, or never will."""
        self._answered[number], self._replies[number] = None, _NONE

    # ------------------------------------------------------------------ calls by transports

    def watch(self, fd: int, before: int, events: int) -> None:
        """Change the events for which a descriptor is watched; 0 for none."""
        if not before:
            self._poll.register(fd, events)
        elif events:
            self._poll.modify(fd, events)
        else:
            self._poll.unregister(fd)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor that is about to be closed."""
        self._open.pop(fd, None)


Answer = tuple[int, bytes, "SocketTransport"]
"""A descriptor, replies to send after the turn's commit, and their transport."""


class SocketTransport(asyncio.Transport):
    """One socket, with asyncio's interface of a transport."""

    __slots__ = (  # noqa: SIM905 - a list would need one line for each name
        "_closing _ended _low _lost _number _paused _protocol _size _sock _sockets _waits _watched "
        "client fd high out reads run_at_once"
    ).split()

    def __init__(self, sockets: Sockets, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        client = cast("Connection", protocol)
        super().__init__({"socket": sock, "sockname": _name(sock.getsockname), "peername": _name(sock.getpeername)})
        self._sockets = sockets
        self._sock = sock
        self._protocol = protocol
        self.fd = sock.fileno()  # Descriptor of the socket
        self.client = client  # Connection, which is also the protocol
        self.run_at_once = cast("Callable[[Any, int], bytes | None]", client.run_at_once)  # Method of the connection
        self.reads = True  # True if input is read
        self.out: deque[Buffer] = deque()  # Unsent bytes
        self._size = 0  # bytes in ``out``
        self._number = -1  # index in the replies of this turn if ``out`` waits for its end, else -1
        self.high, self._low = 64 * 1024, 16 * 1024
        self._watched = 0  # epoll events that are registered
        self._waits = False  # the kernel accepts no more output for now
        self._paused = False  # the protocol was asked to stop writing
        self._ended = False  # the client has closed its sending side
        self._closing = False
        self._lost = False  # connection_lost was called, or is scheduled

    # ------------------------------------------------------------------ reading

    def happened(self, data: bytes | int | None, events: int) -> None:
        """Handle events other than the usual arrival of bytes."""
        # If a protocol stops reading in this turn, it still gets the bytes that were already read; the end is reported
        # again
        if data is not None and (self.reads or (data and not self._closing)):
            self._take(data)
        elif events & _BROKEN and not self._waits:
            self.abort()
        if self._waits and events & (_WRITABLE | _BROKEN):
            self._flush()

    def _take(self, data: bytes | int) -> None:
        if isinstance(data, int):
            self._lose(OSError(data, os.strerror(data)))
        elif data:
            self._protocol.data_received(data)
        else:
            self._ended = True
            if self._protocol.eof_received():
                self.pause_reading()
            else:
                self.close()

    def is_reading(self) -> bool:
        """See asyncio."""
        return self.reads

    def pause_reading(self) -> None:
        """See asyncio."""
        self.reads = False
        self.watch()

    def resume_reading(self) -> None:
        """See asyncio."""
        if not (self._closing or self._ended):
            self.reads = True
            self.watch()

    def watch(self) -> None:
        """Watch for the events that matter now."""
        events = 0 if self._lost else _READABLE * self.reads | _WRITABLE * self._waits
        if events != self._watched:
            self._sockets.watch(self.fd, self._watched, events)
            self._watched = events

    # ------------------------------------------------------------------ writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio; callers here always give both limits."""
        self.high, self._low = high or 0, low or 0

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self._size

    def write(self, data: Buffer) -> None:
        """See asyncio."""
        if self._lost or not data:
            return
        first = not self.out
        self.out.append(data)
        self._size += len(data)
        if first and self._sockets.turns.in_turn and self._size <= self.high:
            self._number = self._sockets.put_off(self, data)
        else:
            self._written()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """See asyncio."""
        for data in list_of_data:
            if data and not self._lost:
                self.out.append(data)
                self._size += len(data)
        self._written()

    def _written(self) -> None:
        if self._waits:
            self._look_at_size()
        elif self._number < 0 or self._size > self.high:  # try to send large output before the client counts as slow
            self._flush()

    def sent_part(self, data: bytes, count: int | None) -> None:
        """Handle bytes that were sent directly, without this transport, and only in part."""
        self.out.append(data)
        self._size = len(data)
        self.answered(count)

    def answered(self, count: int | None) -> None:
        """Handle the turn's end: the number of bytes that the kernel took, a failure, or None if unknown."""
        self._number = -1
        if count == self._size and not self._closing:
            self.out.clear()
            self._size = 0
        elif count is None or count < 0:
            count = -errno.ENOMEM if count is None else count
            self._lose(OSError(-count, os.strerror(-count)))
        else:
            self._sent(count)
            self._flush()
            if self._paused:
                self.client.check_output()

    def _flush(self) -> None:
        """Send as many bytes as the kernel takes."""
        out = self.out
        self._take_back()
        while out and not self._lost:
            try:
                sent = os.writev(self.fd, list(islice(out, _TOGETHER)))
            except OSError as error:
                if error.errno not in _AGAIN:
                    self._lose(error)
                    return
                break
            self._sent(sent)
        self._waits = bool(out)
        self.watch()
        self._look_at_size()
        if self._closing and not out:
            self._lose(None)

    def _look_at_size(self) -> None:
        """Notify the protocol to pause or resume writing."""
        if self._size > self.high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        elif self._paused and self._size <= self._low:
            self._paused = False
            self._protocol.resume_writing()

    def _take_back(self) -> None:
        if self._number >= 0:
            self._sockets.take_back(self._number)
            self._number = -1

    def _sent(self, count: int) -> None:
        out = self.out
        self._size -= count
        while count:
            head = out[0]
            if len(head) > count:
                out[0] = memoryview(head)[count:]
                return
            count -= len(head)
            out.popleft()

    # ------------------------------------------------------------------ closing

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._closing

    def close(self) -> None:
        """See asyncio: written bytes are sent first."""
        if self._closing:
            return
        self._closing, self.reads = True, False
        if self.out:
            self.watch()
        else:
            self._lose(None)

    def abort(self) -> None:
        """See asyncio: written and unsent bytes are dropped."""
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if self._lost:
            return
        self._closing = self._lost = True
        self.reads = False
        self._take_back()
        self.out.clear()
        self._size = 0
        self.watch()
        self._sockets.forget(self.fd)
        self._sockets.loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()


def _name(read: Callable[[], object]) -> object:
    """Return an address of a socket; None if the client has disconnected already."""
    try:
        return read()
    except OSError:
        return None
