"""Threads that read parts of packs: their order, their rate, and parts that nobody wants any more."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from millstream.clock import ManualClock, Now
from millstream.commands.context.config import Config
from millstream.engine.cold import Range
from millstream.node.node import Node
from millstream.node.tiering.fetching import JOINED_MAX, PIECE, Fetch, FetchThreads, joined
from millstream.node.tiering.packreader import PackSource
from millstream.node.tiering.tickets import ColdShell, Tickets
from support.waiting import eventually


class Disk:
    """A source whose reads end when a test lets them."""

    def __init__(self) -> None:
        self.begun: list[Range] = []
        self.advice: list[Range] = []
        self.turns = threading.Semaphore(0)

    def fetch(self, pack: int, offset: int, length: int, /) -> bytes:
        self.begun.append((pack, offset, length))
        self.turns.acquire()
        if pack == 13:
            raise OSError(5, "Input/output error")
        return bytes(length)

    def advise(self, pack: int, offset: int, length: int, is_needed: bool, /) -> None:
        assert is_needed
        self.advice.append((pack, offset, length))


@contextmanager
def running(
    disk: Disk, threads: int = 1, rate: Callable[[], int] = lambda: 0
) -> Iterator[tuple[FetchThreads, list[Fetch]]]:
    """Run threads; yield them with the list of what they have read."""
    done: list[Fetch] = []
    pool = FetchThreads(disk, lambda: threads, rate, done.append, lambda size, seconds: None)
    try:
        yield pool, done
    finally:
        disk.turns.release(1000)
        pool.close()


def test_ranges_are_joined() -> None:
    """Neighbours and overlapping ranges become one."""
    assert joined([(1, 10, 5), (1, 0, 10), (2, 15, 5), (1, 16, 1), (1, 3, 2)]) == [(1, 0, 15), (1, 16, 1), (2, 15, 5)]


def test_a_joined_range_has_a_largest_size() -> None:
    """The bytes of a part are held until all of it is read, so neighbours become one only up to a size."""
    step = JOINED_MAX // 4
    parts = joined([(1, at * step, step) for at in range(10)])
    assert parts == [(1, 0, 4 * step), (1, 4 * step, 4 * step), (1, 8 * step, 2 * step)]
    large = (1, 0, 3 * JOINED_MAX)
    assert joined([large, (1, 5, 10), (1, 6, 3 * JOINED_MAX), (1, 7, 10)]) == [large, (1, 6, 3 * JOINED_MAX)]


def test_clients_take_turns() -> None:
    """A client with few parts does not wait for all parts of one with many, nor do new clients starve that one."""
    disk = Disk()
    with running(disk) as (pool, done):
        many = [Fetch((1, at * 10 * PIECE, 2 * PIECE)) for at in range(3)]
        few = [Fetch((2, at * 10 * PIECE, PIECE)) for at in range(3)]
        for fetch in many:
            pool.add(fetch, 1)
        eventually(lambda: len(disk.begun) == 1)
        for client, fetch in enumerate(few, start=2):
            pool.add(fetch, client)
        pool.add(many[2], 5)  # another client waits for it too
        disk.turns.release(9)
        eventually(lambda: len(done) == 6)
        packs = [(pack, offset // (10 * PIECE)) for pack, offset, _ in disk.begun]
        assert packs == [(1, 0), (1, 0), (2, 0), (2, 1), (2, 2), (1, 2), (1, 1), (1, 2), (1, 1)]


def test_what_is_wanted_comes_before_what_is_read_ahead() -> None:
    """Parts are read in order in pieces; a part that was only read ahead moves up when a client wants it."""
    disk = Disk()
    with running(disk) as (pool, done):
        first, ahead, other, wanted = (
            Fetch((1, at * 10 * PIECE, size)) for at, size in enumerate((8, PIECE + 5, 7, 6))
        )
        ahead.is_ahead = other.is_ahead = True
        pool.add(first)
        eventually(lambda: len(disk.begun) == 1)
        pool.add(other, is_ahead=True)
        pool.add(ahead, is_ahead=True)
        pool.add(wanted)
        pool.add(ahead)
        disk.turns.release(10)
        eventually(lambda: len(done) == 4)
        assert done == [first, wanted, ahead, other]
        assert [length for _, _, length in disk.begun] == [8, 6, PIECE, 5, 7]
        assert disk.advice == [ahead.wanted, other.wanted]


def test_a_part_that_nobody_wants_is_not_read_on() -> None:
    """Pieces that are not begun are left out; the piece that is being read ends first."""
    disk = Disk()
    with running(disk) as (pool, done):
        large, small = Fetch((1, 0, 5 * PIECE)), Fetch((1, 90 * PIECE, 1))
        pool.add(large)
        eventually(lambda: len(disk.begun) == 1)
        pool.add(small)
        pool.drop(large)
        disk.turns.release(2)
        eventually(lambda: len(done) == 2)
        assert len(disk.begun) == 2


def test_pieces_of_one_part_are_read_side_by_side() -> None:
    """Several threads read the pieces of one part, and an error is kept with its piece."""
    disk = Disk()
    with running(disk, threads=3) as (pool, done):
        part, broken = Fetch((1, 0, 3 * PIECE)), Fetch((13, 0, 4))
        pool.add(part)
        pool.add(broken)
        pool.add(Fetch((1, 0, 1)))
        eventually(lambda: len(disk.begun) == 3)
        disk.turns.release(5)
        eventually(lambda: len(done) == 3)
        assert [len(each) for each in part.parts if isinstance(each, bytes)] == [PIECE] * 3
        assert isinstance(broken.parts[0], OSError)


def test_threads_end_when_fewer_are_wanted() -> None:
    """A smaller number counts at once: threads above it end when they have read their pieces."""
    disk, most = Disk(), [4]
    pool = FetchThreads(disk, lambda: most[0], lambda: 0, lambda fetch: None, lambda size, seconds: None)
    try:
        pool.add(Fetch((1, 0, 4 * PIECE)))
        pool.add(Fetch((2, 0, PIECE)))
        pool.add(Fetch((3, 0, PIECE)))
        pool.add(Fetch((4, 0, PIECE)))
        eventually(lambda: len(disk.begun) == 4)
        most[0] = 1
        disk.turns.release(4)
        eventually(lambda: len(disk.begun) == 5)
        for read in (6, 7):
            disk.turns.release()
            eventually(lambda read=read: len(disk.begun) == read)  # type: ignore[misc]  # a default binds the number
        eventually(lambda: sum(each.name.startswith("packs-") for each in threading.enumerate()) == 1)
    finally:
        disk.turns.release(1000)
        pool.close()


def test_a_rate_holds_reads_back() -> None:
    """With a rate the next read waits, and the end of the threads does not wait for it."""
    disk = Disk()
    disk.turns.release(100)
    with running(disk, rate=lambda: 1) as (pool, done):
        for at in range(3):
            pool.add(Fetch((1, 10 * at, 1000)))
        eventually(lambda: len(done) == 1)
    assert len(disk.begun) == 1


def test_an_error_of_another_kind_leaves_nobody_waiting() -> None:
    """A lack of memory while a part is read is an error of that part."""

    class Full(Disk):
        def fetch(self, pack: int, offset: int, length: int, /) -> bytes:
            raise MemoryError

    with running(Full()) as (pool, done):
        pool.add(Fetch((1, 0, 10)))
        eventually(lambda: len(done) == 1)
        assert isinstance(done[0].parts[0], OSError)


def test_a_thread_that_cannot_be_started_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any thread the part fails at once, and a later one is read once a thread can be started."""
    disk = Disk()
    with running(disk, threads=2) as (pool, done):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            pool.add(Fetch((1, 0, 3 * PIECE)))
            pool.add(Fetch((1, 0, 5)), is_ahead=True)
        assert [each.is_done for each in done] == [True, True]
        assert all(isinstance(part, OSError) for each in done for part in each.parts)
        assert [len(each.parts) for each in done] == [3, 1]
        pool.add(Fetch((1, 20, 10)))
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _refuse)
            pool.add(Fetch((1, 40, 10)))
        disk.turns.release(2)
        eventually(lambda: len(done) == 4)
        assert [each.parts for each in done[2:]] == [[bytes(10)], [bytes(10)]]


class Pinning(Disk):
    """A source that notes what is pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.pins: list[tuple[int, int, int]] = []

    def pin(self, pack: int, offset: int, length: int, _what: bytes | int, /) -> None:
        self.pins.append((pack, offset, length))

    def unpin(self, pack: int, offset: int, length: int, _is_mark: bool = False, /) -> None:
        self.pins.remove((pack, offset, length))


class Posting:
    """A loop that does what was posted when a test says so."""

    def __init__(self) -> None:
        self.works: list[Callable[[Now], None]] = []

    def post(self, work: Callable[[Now], None]) -> None:
        self.works.append(work)


def tickets_of(disk: "Pinning", node: Node, shell: Posting, threads: int) -> Tickets:
    """Tickets of a node whose packs are on this disk."""
    source, posts = cast("PackSource", disk), cast("ColdShell", shell)
    how = {"threads": lambda: threads, "rate": lambda: 0, "measured": lambda size, seconds: None}
    return Tickets(source, node.sessions, posts, lambda now: None, **how)


def test_a_client_may_want_thousands_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDEL of many ids wants a part for each; they are not compared with each other, which would hold up the loop."""
    clock, disk, shell, compared = ManualClock(), Pinning(), Posting(), 0
    node, has = Node(Config({})), Fetch.has

    def counted(fetch: Fetch, wanted: Range) -> bool:
        nonlocal compared
        compared += 1
        return has(fetch, wanted)

    monkeypatch.setattr(Fetch, "has", counted)
    tickets = tickets_of(disk, node, shell, 1)
    parts = [(1, at * 20_000, 4000) for at in range(2000)]
    try:
        for _ in range(2):
            tickets.park(node.sessions.open(clock.now()), parts, 1, [])
        assert compared < 2 * 20 * len(parts)
        disk.turns.release(len(parts))
        eventually(lambda: len(shell.works) == len(parts))
        while shell.works:
            shell.works.pop(0)(clock.now())
        assert sorted(disk.begun) == parts
        assert tickets.pinned == 4000 * len(parts)
        for session in list(node.sessions):
            node.sessions.close(session)
        assert tickets.is_idle
        assert not disk.pins
    finally:
        disk.turns.release(10_000)
        tickets.threads.close()


@pytest.mark.parametrize("when", ["reading", "read"])
def test_bytes_of_a_pack_that_was_dropped_are_not_kept(when: str) -> None:
    """Another pack may get the number of one that is read: its clients run again, and no byte of the old one stays."""
    clock, disk, shell = ManualClock(), Pinning(), Posting()
    node = Node(Config({}))
    tickets = tickets_of(disk, node, shell, 2)
    sessions = [node.sessions.open(clock.now()) for _ in range(2)]
    for session, pack in zip(sessions, (1, 2), strict=True):
        tickets.park(session, [(pack, 0, 10)], 1, [])
    try:
        if when == "read":
            disk.turns.release(2)
            eventually(lambda: len(shell.works) == 2)
            while shell.works:
                shell.works.pop()(clock.now())
            node.cold.tickets = tickets
            assert tickets.pinned == node.memory.facts(0).not_counted == 20
            disk.pins.remove((1, 0, 10))  # as the reader itself does with a pack
        tickets.drop(1)
        disk.turns.release(2)
        eventually(lambda: when == "read" or len(shell.works) == 2)
        while shell.works:
            shell.works.pop()(clock.now())
        assert disk.pins == [(2, 0, 10)]
        assert tickets.pinned == 10
        assert [session.parked for session in sessions] == [False, False]
        assert tickets.fetch_of((1, 0, 10)).is_there is False
        for session in sessions:
            node.sessions.parking.drop(session)
        assert disk.pins == []
    finally:
        disk.turns.release(1000)
        tickets.threads.close()


class NoMemory(Pinning):
    """A source without memory for what is pinned."""

    def pin(self, *_: object) -> None:
        raise MemoryError


def test_a_client_runs_again_without_memory_to_pin_what_was_read() -> None:
    """Its part is not kept, and it is not left parked."""
    clock, disk, shell = ManualClock(), NoMemory(), Posting()
    node = Node(Config({}))
    tickets = tickets_of(disk, node, shell, 1)
    session = node.sessions.open(clock.now())
    tickets.park(session, [(1, 0, 10)], 1, [])
    disk.turns.release(1)
    try:
        eventually(lambda: len(shell.works) == 1)
        shell.works.pop()(clock.now())
        assert not session.parked
        node.sessions.close(session)
        assert tickets.is_idle
    finally:
        tickets.threads.close()


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError(f"can't start {thread.name}")
