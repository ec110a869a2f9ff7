"""A proxy between a replica and its primary, or clients and a server: it cuts, stops, delays and redirects."""

import contextlib
import random
import socket
import struct
import threading

from support.waiting import DEADLINE

_PIECE = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class Between:
    """Proxy that listens at its own port and forwards to another.

    Args:
        target: Port that connections are forwarded to.
        seed: Seed of the choice between a close and a reset, which loses bytes in transit.

    Attributes:
        port: Port that the proxy listens on.
        target: Port for new connections, which may change at any time.
        passed: Number of bytes from the target, of all connections.
        holds: True if the stopped proxy has bytes from the target, which it passes on when it continues.
        cuts: Number of cut connections.
    """

    def __init__(self, target: int, seed: int = 0) -> None:
        self.target = target
        self.passed = self.cuts = 0
        self._random = random.Random(seed)
        self._left: int | None = None  # bytes until the cut
        self._flows, self._rises = threading.Event(), threading.Event()  # from the target, and to it
        self.go_on()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._gate = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._start(self._accept)

    def cut_after(self, size: int) -> None:
        """Cut the connection on which the ``size``-th further byte from the target arrives, after that byte."""
        with self._gate:
            self._left = size

    def cut(self) -> int:
        """Cut all connections now and return their number."""
        with self._gate:
            pairs = list(self._pairs)
        for pair in pairs:
            self._cut(pair)
        return len(pairs)

    def stop(self) -> None:
        """Stop reading from the target, as if the client had stopped reading."""
        self._flows.clear()

    def part(self) -> None:
        """Forward nothing in either direction without a close, as in a network partition."""
        self._flows.clear()
        self._rises.clear()

    def go_on(self) -> None:
        """Continue to forward bytes."""
        self.holds = False
        self._flows.set()
        self._rises.set()

    def close(self) -> None:
        """Close all connections and the proxy."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.go_on()
        with self._gate:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)
        for thread in self._threads:
            thread.join(DEADLINE)

    def __enter__(self) -> "Between":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, act: object, *words: object) -> None:
        thread = threading.Thread(target=act, args=words, daemon=True)  # type: ignore[arg-type] # a method of this
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            pair = near, far
            with self._gate:
                self._pairs.add(pair)
            self._start(self._up, pair)
            self._start(self._down, pair)

    def _up(self, pair: tuple[socket.socket, socket.socket]) -> None:
        near, far = pair
        with contextlib.suppress(OSError):
            while data := near.recv(_PIECE):
                self._rises.wait()
                far.sendall(data)
        self._end(pair)

    def _down(self, pair: tuple[socket.socket, socket.socket]) -> None:
        near, far = pair
        with contextlib.suppress(OSError):
            while data := far.recv(_PIECE):
                if not self._flows.is_set():
                    self.holds = True
                    self._flows.wait()
                most = self._taken(len(data))
                near.sendall(data[:most])
                self.passed += most
                if most < len(data) or self._is_due():
                    self._cut(pair)
                    return
        self._end(pair)

    def _taken(self, size: int) -> int:
        with self._gate:
            if self._left is None:
                return size
            most = min(size, self._left)
            self._left -= most
            return most

    def _is_due(self) -> bool:
        with self._gate:
            return self._left == 0

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Cut both ends by a close or a reset."""
        if self._random.random() < 0.5:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._end(pair, is_cut=True)

    def _end(self, pair: tuple[socket.socket, socket.socket], *, is_cut: bool = False) -> None:
        """Close both ends once, and then count a cut."""
        with self._gate:
            if pair not in self._pairs:
                return
            self._pairs.remove(pair)
            if is_cut:
                self._left = None
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.cuts += is_cut
