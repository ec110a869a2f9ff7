"""If a system call of a vacuum fails, a real server goes on, and no acknowledged entry is lost or comes back."""

import errno
from pathlib import Path
from typing import Any

import pytest

from server.disk.test_tier_faults import ENTRIES, OPTIONS, spilled, tier_figures
from support.callfaults import SHORT, Call, CallFault, calls, library, preloading
from support.coldness import IS_COLD
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

DELETED = [number for number in range(1, ENTRIES) if number % 3]
LEFT = [b"%d-1" % number for number in range(1, ENTRIES + 1) if number not in set(DELETED)]
AGAIN = 1_000_000
FAULTS: list[tuple[str, int, int]] = [
    ("open", errno.EIO, 1),
    ("open", errno.EMFILE, 1),
    ("write", errno.EIO, 1),
    ("write", errno.ENOSPC, 1),
    ("write", SHORT, 1),
    ("fsync", errno.EIO, 1),
    ("fsync", -errno.EIO, 1),
    ("fsync", errno.ENOSPC, 1),
    ("rename", errno.EIO, 1),
    ("unlink", errno.EIO, 1),
    ("pread", errno.EIO, 1),
    ("preadv", errno.EIO, 1),
    ("preadv", SHORT, 1),
    ("preadv", SHORT, AGAIN),
    ("preadv", errno.EAGAIN, AGAIN),
    ("preadv", errno.EOPNOTSUPP, AGAIN),
]
STEPS = 3
"""Places of a call at which a fault is tried at least, spread over the vacuum."""


def asked(wire: Wire, *words: str) -> Any:
    """Return a reply; a command that the disk refused is repeated once, since the fault has passed."""
    reply = wire.ask(*words)
    return wire.ask(*words) if str(reply).startswith("MSDAMAGED") else reply


def rest(wire: Wire) -> list[bytes]:
    """Return the ids of all entries."""
    return [each[0] for each in asked(wire, "XRANGE", "s", "-", "+")]


def is_over(wire: Wire) -> bool:
    """Report whether the vacuum has ended, and the rewriting that it may have begun."""
    lines = wire.ask("INFO", "persistence").decode().splitlines()
    return tier_figures(wire)["tier_vacuum_in_progress"] == "0" and "aof_rewrite_in_progress:0" in lines


def live(folder: Path, made: Path, fault: CallFault | None) -> tuple[int, list[Call]]:
    """Run a vacuum with a fault; return the number of calls before it, 0 if it did not begin, and all calls."""
    trace = folder.parent / f"{folder.name}.trace"
    server = millstream_server(folder, *OPTIONS)
    server.command[:0] = preloading(made, folder / "data", trace, fault)
    before = 0
    with server, Wire(server.url) as wire:
        try:
            for at in range(0, ENTRIES, 100):
                wire.ask_together([("XADD", "s", f"{number}-1", "f", "x" * 500) for number in range(at + 1, at + 101)])
            spilled(wire)
            # A fault just before the vacuum may have writes refused for a moment
            eventually(lambda: asked(wire, "XDEL", "s", *(f"{number}-1" for number in DELETED)) == len(DELETED))
            before = len(calls(trace))
            eventually(lambda: wire.ask("TIER", "VACUUM") == b"Background vacuum started")
            process = server.process
            assert process is not None
            eventually(lambda: process.poll() is not None or is_over(wire))
            assert rest(wire) == LEFT
        except (EOFError, ConnectionError):  # a call on the log failed
            assert server.process is not None
            assert server.process.wait(30) == 1
    text = server.log.read_text(errors="replace")
    assert "Traceback" not in text, text[-3000:]
    return before, calls(trace)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """Return the library, and the calls of a server's vacuum without a fault."""
    folder = tmp_path_factory.mktemp("whole")
    made = library(folder)
    for attempt in range(9):
        before, seen = live(folder / f"server-{attempt}", made, None)
        # The files that it replaced may go before it ends, or with the next rewriting
        if any(each.call == "unlink" for each in seen[before:]):
            return made, seen[before:]
    pytest.fail("no vacuum removed a file")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[1]}-x{fault[2]}")
def test_a_failing_call_of_a_vacuum_loses_nothing(
    fault: tuple[str, int, int], whole: tuple[Path, list[Call]], tmp_path: Path
) -> None:
    """Each call fails in turn; the server answers, and a start has what is left of the entries and nothing else."""
    made, seen = whole
    call, how, times = fault
    places = [each.at for each in seen if (each.who, each.call) == ("server", call)]
    assert places, f"no {call} of a vacuum"
    failed, spread = 0, places[:: max(len(places) // STEPS, 1)]
    # A busy machine has a few calls more or fewer before the vacuum, so other places follow if the fault met none of it
    others = [*(place for place in places if place not in spread), *range(places[-1] + 1, places[-1] + 9)]
    for place in (*spread, *others):
        if failed and (times > 1 or place not in spread):
            break
        folder = tmp_path / str(place)
        before, those = live(folder, made, CallFault("server", call, place, how, times))
        if not before:
            continue  # the number of earlier calls differs a little
        failed += any(each.failed for each in those)
        with millstream_server(folder, *OPTIONS) as server, Wire(server.url) as wire:
            assert rest(wire) == LEFT
    assert failed
