"""Types of the native core that have no double in Python."""

from collections.abc import Callable, Mapping
from typing import Any

from millstream.commands.context.config import Config
from millstream.engine.keyspace import Database
from millstream.node.plain import PlainRun

class PlainRunner:
    """Runs plain commands (``_core/runner.c``)."""

    def __init__(
        self, config: Config, waiting: Mapping[Any, Any], claimers: Mapping[Any, Any], records: bool, /
    ) -> None: ...

    records: bool  # Changes go into records, for a log or for replicas
    # Commands that the client may run by key, a bit for each of ``PLAIN_COMMANDS``; None: all. Set for a run alone
    rights: dict[bytes, int] | None
    room: int  # Bytes that commands of clients may add; those that would add more are not plain
    # Commands that took at least ``Config.slow_from``, each as it was sent, with its nanoseconds; whoever runs them
    # empties it, and a script's are not plain while it holds ``SLOW_MAX``
    slow: list[tuple[bytes, int]]

    def run(self, db: Database, data: bytes, at: int, wall: int, resp: int) -> PlainRun:
        """Run plain commands from the head of ``data`` on."""

    def obey(self, db: Database, data: bytes, at: int, wall: int, is_open: bool) -> PlainRun:
        """Run plain commands of a primary, of ``data`` from ``at`` on; without replies.

        A command that is not plain stays where it is, but of a transaction of which commands were run: there it is
        taken, and in ``words``.
        """

    def begin(self, db: Database, wall: int, left: int, table: Callable[..., Any], faults: list[BaseException]) -> None:
        """Begin a run, of :meth:`call` from here on until :meth:`end`."""

    def call(self, data: bytes) -> object:
        """Run a command; its reply as a value of the script's, under RESP2. None: it was not run.

        A status is True and its text. A small array is True, False, its shape and its leaves. The shape has two bytes
        for each array: its number of items, and 0x8000 if some are arrays; then each other item has 0xffff.
        """

    def end(self) -> PlainRun:
        """The outcome of all calls since :meth:`begin`; without replies."""

    def drain(self) -> list[tuple[str, int, int]]:
        """Name, calls and nanoseconds of each command since this was last asked."""

class PackReader:
    """Reads packs, as a ``ColdSource`` does (``_core/packs.c``); native stores read without a call of Python code."""

    def __init__(self, cache: int = ...) -> None: ...

    held: int  # Bytes of tables and single nodes that are kept, at most ``cache``
    reads: int  # Number of reads
    read_bytes: int  # Bytes that were read
    misses: int  # Reads that would have waited for the disk
    blocking: int  # Reads that waited for the disk
    nowait: int  # 1 if the file system reads without waiting for the disk, 0 if not, -1 if that is not known yet

    def add(self, number: int, descriptor: int, name: str, /) -> None:
        """Read a pack by its descriptor, which the reader closes."""

    def drop(self, number: int, /) -> None:
        """Close a pack and forget what was kept of it."""

    def read(self, pack: int, offset: int, length: int, *, may_wait: bool = True) -> bytes:
        """Return a part of a pack; ``ColdMiss`` if that would wait, OSError if the disk fails."""

    def name(self, pack: int, /) -> str:
        """Name of a pack's file."""

    def fetch(self, pack: int, offset: int, length: int, /) -> bytes:
        """Return a part of a pack, in any thread: others run while it waits for the disk. OSError if that fails."""

    def pin(self, pack: int, offset: int, data: bytes, /) -> None:
        """Keep the bytes of a part until :meth:`unpin`, so that a read finds them."""

    def fail(self, pack: int, offset: int, length: int, code: int, /) -> None:
        """Let reads that need a part and would wait for it fail with this ``errno``, until :meth:`unpin`."""

    def unpin(self, pack: int, offset: int, length: int, /) -> bool:
        """Undo one :meth:`pin` or :meth:`fail`; return False if there is none."""

    def mark(self, pack: int, offset: int, length: int, /) -> None:
        """Let reads within a part that may not wait miss, until :meth:`unmark`."""

    def unmark(self, pack: int, offset: int, length: int, /) -> bool:
        """Remove one mark; return False if there is none."""

    def advise(self, pack: int, offset: int, length: int, is_needed: bool, /) -> None:
        """Tell the system that a part will be needed, or will not be needed again."""

    def limit(self, cache: int, /) -> None:
        """Keep at most this many bytes of tables and nodes."""
