"""If a system call fails while packs are written anew, released or made hot, a real server goes on.

No acknowledged change is lost, and no removed entry comes back.
"""

import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from server.disk.test_tier_faults import ENTRIES, OPTIONS, spilled
from support import campaign
from support.callfaults import SHORT, Call, CallFault, calls, library, preloading
from support.coldness import IS_COLD
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

AGO = 2 * 86_400_000
NOW = time.time_ns() // 1_000_000
OLD = 1100
"""Number of the last entry that is two days old. All of these are cold."""
PENDING = OLD - 100
"""Number of the last entry that a group still needs before a thaw."""
BLOCKS = ("--set", "stream-node-max-bytes=0")
AGAIN = 1_000_000
FAULTS: list[tuple[str, str, int, int]] = [
    ("server", "open", errno.EIO, 1),
    ("server", "open", errno.EMFILE, 1),
    ("server", "write", errno.EIO, 1),
    ("server", "write", errno.ENOSPC, 1),
    ("server", "write", SHORT, 1),
    ("server", "fsync", errno.EIO, 1),
    ("server", "fsync", -errno.EIO, 1),
    ("server", "fsync", errno.ENOSPC, 1),
    ("server", "rename", errno.EIO, 1),
    ("server", "rename", -errno.EIO, 1),
    ("server", "rename", errno.ENOSPC, 1),
    ("server", "unlink", errno.EIO, 1),
    ("server", "unlink", -errno.EIO, 1),
    ("server", "pread", errno.EIO, 1),
    ("server", "preadv", errno.EIO, 1),
    ("server", "preadv", SHORT, 1),
    ("server", "preadv", SHORT, AGAIN),
    ("server", "preadv", errno.EAGAIN, AGAIN),
    ("server", "preadv", errno.EOPNOTSUPP, AGAIN),
    ("child", "open", errno.EIO, 1),
    ("child", "write", errno.EIO, 1),
    ("child", "fsync", errno.EIO, 1),
]
STEPS = 3
"""Places of a call at which a fault of a vacuum is tried at least, spread over it; of other work, first and last."""


def id_of(number: int) -> str:
    """Return the id of an entry."""
    return f"{NOW + number - AGO * (number <= OLD)}-1"


def rows(numbers: Iterable[int], value: str = "x") -> list[str]:
    """Return what is seen of entries."""
    return [f"{id_of(number)} {value}" for number in numbers]


def ask(wire: Wire, *words: str) -> Any:
    """Return a reply; a command that the disk refused is repeated once, since the fault has passed."""
    try:
        reply = wire.ask(*words)
        return wire.ask(*words) if str(reply).startswith("MSDAMAGED") else reply
    except ConnectionError as error:
        raise EOFError from error


def rest(wire: Wire) -> list[str]:
    """Return what is seen of all entries."""
    return [f"{each[0].decode()} {each[1][1][:1].decode()}" for each in ask(wire, "XRANGE", "s", "-", "+")]


def do(wire: Wire, *words: str) -> None:
    """Run a command until it is accepted."""
    eventually(lambda: not isinstance(ask(wire, *words), Exception))


def care(wire: Wire, *words: str) -> None:
    """Run a command that begins a vacuum or a rewriting, and wait for its end, and for that of what it begins."""
    do(wire, *words)

    def is_over() -> bool:
        told = ask(wire, "INFO", "persistence", "tier").decode().splitlines()
        return {"tier_vacuum_in_progress:0", "aof_rewrite_in_progress:0"} <= {*told}

    eventually(is_over)


@dataclass
class Told:
    """The states that clients may have seen since the work began."""

    states: list[list[str]]
    acknowledged: int = 0
    """Number of the last acknowledged state."""
    before: int = 0
    """Number of the calls before the work; 0 if it did not begin."""

    def change(self, wire: Wire, state: list[str], *words: str) -> None:
        """Run a command that leads to a state."""
        self.states.append(state)
        do(wire, *words)
        self.acknowledged = len(self.states) - 1

    @property
    def possible(self) -> list[list[str]]:
        """States that a start may find."""
        return self.states[self.acknowledged :]


def vacuum(wire: Wire, told: Told) -> None:
    """Write extents anew, and remove the pack that they lay in."""
    del told
    care(wire, "TIER", "VACUUM")


def rewriting(wire: Wire, told: Told) -> None:
    """Rewrite a log with packs."""
    del told
    care(wire, "BGREWRITEAOF")


def retention(wire: Wire, told: Told) -> None:
    """Remove old entries, and then the packs that they lay in."""
    told.states.append(new := rows(range(OLD + 1, ENTRIES + 1)))
    do(wire, "CONFIG", "SET", "stream-retention", "* 1d 0")
    eventually(lambda: ask(wire, "XLEN", "s") == len(new))
    told.acknowledged = 1
    care(wire, "TIER", "VACUUM")


def thaw(wire: Wire, told: Told) -> None:
    """Remove the end of a stream with all that is hot, and add entries under the same ids."""
    left = rows(range(1, PENDING + 1))
    told.change(wire, left, "XTRIM", "s", "MINID", str(NOW + AGO), "ACKED")
    told.change(wire, left, "XSETID", "s", id_of(PENDING))
    for number in range(PENDING + 1, PENDING + 6):
        left = left + rows([number], "y")
        told.change(wire, left, "XADD", "s", id_of(number), "f", "y")
    care(wire, "BGREWRITEAOF")


Work = Callable[[Wire, Told], None]
WORKS: tuple[Work, ...] = (vacuum, rewriting, retention, thaw)
DELETED = [number for number in range(1, ENTRIES) if number % 3]


def live(folder: Path, made: Path, work: Work, fault: CallFault | None) -> tuple[Told, list[Call]]:
    """Let a call of some work fail; return what clients may have seen, and all calls."""
    trace = folder.parent / f"{folder.name}.trace"
    server = millstream_server(folder, *OPTIONS, *BLOCKS)
    server.command[:0] = preloading(made, folder / "data", trace, fault)
    gone = set(DELETED) if work is vacuum else set()
    told = Told([rows(number for number in range(1, ENTRIES + 1) if number not in gone)])
    with server, Wire(server.url) as wire:
        try:
            for at in range(0, ENTRIES, 100):
                numbers = range(at + 1, at + 101)
                wire.ask_together([("XADD", "s", id_of(number), "f", "x" * 500) for number in numbers])
            spilled(wire)
            if gone:  # a fault just before the work may have writes refused for a moment
                eventually(lambda: ask(wire, "XDEL", "s", *map(id_of, sorted(gone))) == len(gone))
            if work is thaw:
                do(wire, "XGROUP", "CREATE", "s", "g", "0")
                do(wire, *(read := ("XREADGROUP", "GROUP", "g", "a", "COUNT", str(PENDING))), "STREAMS", "s", ">")
                do(wire, *read, "NOACK", "STREAMS", "s", ">")
            told.before = len(calls(trace))
            work(wire, told)
            assert rest(wire) == told.states[-1]
        except (EOFError, ConnectionError):  # a call on the log failed
            assert server.process is not None
            assert server.process.wait(30) == 1
    text = server.log.read_text(errors="replace")
    assert "Traceback" not in text, text[-3000:]
    return told, calls(trace)


def survives(folder: Path, made: Path, work: Work, fault: CallFault) -> bool:
    """Expect that nothing is lost by a fault; return False if it met no call of the work."""
    told, seen = live(folder, made, work, fault)
    if not told.before:
        return False  # the number of earlier calls differs a little
    with millstream_server(folder, *OPTIONS) as server, Wire(server.url) as wire:
        assert rest(wire) in told.possible, fault
    return any(each.failed for each in seen)


def without_fault(folder: Path, made: Path, work: Work) -> list[Call]:
    """Return the calls of some work without a fault, which removed a file."""
    for attempt in range(9):
        told, seen = live(folder / f"server-{attempt}", made, work, None)
        assert told.acknowledged == len(told.states) - 1
        # The files that it replaced may go before it ends, or with the next rewriting
        if any(each.call == "unlink" for each in seen[told.before :]):
            return seen[told.before :]
    pytest.fail("no file was removed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library."""
    return library(tmp_path_factory.mktemp("made"))


CASES = [
    pytest.param(work, fault, id="-".join(map(str, (work.__name__, *fault))))
    for number, work in enumerate(WORKS)
    for fault in (FAULTS if work is vacuum else FAULTS[number % 3 :: 3])
]
"""All faults of a vacuum, and each fault in one other work; the campaign tries all of them in all work."""


@pytest.fixture(scope="module")
def whole(
    made: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Work, list[Call]]:
    """Return some work, and its calls without a fault."""
    return request.param, without_fault(tmp_path_factory.mktemp("whole"), made, request.param)


@pytest.mark.parametrize(("whole", "fault"), CASES, indirect=["whole"])
def test_a_failing_call_loses_nothing(
    fault: tuple[str, str, int, int], whole: tuple[Work, list[Call]], made: Path, tmp_path: Path
) -> None:
    """Each call fails in turn; the server answers, and a start has what is left of the entries and nothing else."""
    work, seen = whole
    who, call, how, times = fault
    places = places_of(seen, who, call)
    if work is retention and call == "preadv":  # whole extents go, unread
        assert not places
        return
    failed, spread = 0, places[:: max(len(places) // STEPS if work is vacuum else len(places) - 1, 1)]
    # A busy machine has a few calls more or fewer before the work, so other places follow if the fault met none of it
    others = [*(place for place in places if place not in spread), *range(places[-1] + 1, places[-1] + 9)]
    for place in (*spread, *others):
        if failed and (times > 1 or place not in spread):
            break
        failed += survives(tmp_path / str(place), made, work, CallFault(who, call, place, how, times))
    assert failed


def places_of(seen: list[Call], who: str, call: str) -> list[int]:
    """Return the numbers of a process's calls of a kind."""
    return [each.at for each in seen if (each.who, each.call) == (who, call)]


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_every_call_fails_once(made: Path, tmp_path: Path) -> None:
    """Any call of any of this work may fail, in any way."""

    def piece(seed: int) -> int:
        work, (who, call, how, times) = WORKS[seed // 100], FAULTS[seed % 100]
        folder = tmp_path / str(seed)
        places = places_of(without_fault(folder, made, work), who, call)
        return sum(survives(folder / str(at), made, work, CallFault(who, call, at, how, times)) for at in places)

    seeds = [100 * work + fault for work in range(len(WORKS)) for fault in range(len(FAULTS))]
    campaign.run("tier-call-faults", piece, seeds, unit="faults")
