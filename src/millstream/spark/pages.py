"""A range of a stream page by page: pages sized by bytes, asked for again when the server was away."""

import contextlib
import gc

from millstream.spark import wire
from millstream.spark.decode import Page, Want, fast, general, parse_replies
from millstream.spark.offsets import Id, parse_id

FIRST_COUNT = 1000
MOST_COUNT = 8000
PAGE_BYTES = 4 << 20
"""Pages are kept to about this size, so that a task with large entries stays small."""

_NOTHING = Want()


class Pages:
    """The entries of ``(start, end]`` of one stream, over a connection that outlives this.

    Args:
        url: of the server.
        key: the stream.
        start: exclusive.
        end: inclusive.
    """

    def __init__(self, url: str, key: str, start: Id, end: Id) -> None:
        self._url = url
        self._key = key
        self._end = end
        self._count = FIRST_COUNT
        self._asked = 0
        self._wire: wire.Wire | None = None
        self.cursor = start
        self.done = start >= end

    def ask(self, most: int | None = None) -> None:
        """Send for the page after the cursor, of at most ``most`` entries, without waiting for it."""
        self._asked = self._count if most is None else min(self._count, most)
        wire.retrying(self._send)

    def _send(self) -> None:
        if self._wire is None:
            self._wire = wire.borrow(self._url)
        try:
            self._wire.send(
                [
                    ("XRANGE", self._key, f"({self.cursor}", str(self._end), "COUNT", self._asked),
                    # After the page: what it shows as still there was there when the page was read.
                    ("XRANGE", self._key, "-", "+", "COUNT", 1),
                ]
            )
        except OSError:
            self._drop()
            raise

    def receive(self) -> bytes:
        """The replies to what was asked last; asked again if the connection broke, since reading changes nothing."""

        def once() -> bytes:
            if self._wire is None:
                self._send()
            assert self._wire is not None
            try:
                return self._wire.receive()
            except OSError:
                self._drop()
                raise

        return wire.retrying(once)

    def decode(self, raw: bytes, want: Want) -> tuple[Page | None, Id | None]:
        """The page in ``raw`` (None when it is empty), and the stream's first entry just after it was read.

        Moves the cursor past the page and sets ``done`` after the last one.
        """
        page, first = _decode(raw, want)
        rows = len(page.ids) if page else 0
        if page is not None:
            self.cursor = page.last
            self._count = max(1, min(MOST_COUNT, PAGE_BYTES * rows // len(raw)))
        self.done = rows < self._asked or self.cursor >= self._end
        return page, first

    def skip(self, most: int) -> tuple[int, Id] | None:
        """Pass over up to ``most`` entries and drop them: how many, and the last one's id; None at the end."""
        if self.done:
            return None
        self.ask(most)
        page, _ = self.decode(self.receive(), _NOTHING)
        return None if page is None else (len(page.ids), page.last)

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def close(self) -> None:
        """Keep the connection for the next range if nothing is under way on it."""
        if self._wire is not None:
            with contextlib.suppress(OSError):
                wire.give_back(self._url, self._wire)
            self._wire = None


def _decode(raw: bytes, want: Want) -> tuple[Page | None, Id | None]:
    found = fast(raw, want)
    if found is not None:
        page, size = found
        (head,) = parse_replies(raw[size:])
        return page, _first(head)
    collecting = gc.isenabled()
    gc.disable()  # a page is hundreds of thousands of objects, none of them in a cycle
    try:
        entries, head = parse_replies(raw)
        return general(entries, want), _first(head)
    finally:
        if collecting:
            gc.enable()


def _first(head: list[list[bytes]]) -> Id | None:
    return parse_id(head[0][0].decode()) if head else None
