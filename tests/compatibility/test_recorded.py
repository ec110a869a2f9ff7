"""The present code reads and continues the recordings of earlier versions: tests/fixtures/VERSION.

``scripts/record_fixture.py`` records them. The query of a recorded checkpoint is in tests/spark/test_recorded.py.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compatibility import content, shop
from millstream.server.thread import ServerThread
from support import needs
from support.clock import Ahead
from support.ports import free_port
from support.servers import ServerProcess, millstream_server
from support.waiting import aeventually
from support.wire import Wire

TESTS = Path(__file__).parents[1]
FIXTURES = sorted((TESTS / "fixtures").iterdir())
MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
HOUR_MS = 3_600_000


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> Path:
    """Return a fixture; tests copy the parts that they change."""
    found: Path = request.param
    return found


def expected(recorded: Path, name: str) -> dict[str, Any]:
    """Return the replies of the recording version."""
    found: dict[str, Any] = json.loads((recorded / f"{name}.json").read_text())
    return found


def run(*words: str | Path) -> str:
    """Run a program to its end; return its standard output."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("core", ["native", "python"])
@pytest.mark.parametrize("part", ["data", "backup"])
def test_a_recorded_directory_has_its_content(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, core: str
) -> None:
    """A data directory and a restored backup of an earlier version give the same replies as with that version."""
    if core == "native":
        needs.native_core()
    monkeypatch.setenv("MILLSTREAM_CORE", core)
    if part == "backup":
        run(MILLSTREAM, "restore", recorded / part, tmp_path / "data")
    else:
        shutil.copytree(recorded / part, tmp_path / "data")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    port = free_port()
    words = [sys.executable, "-m", "compatibility.dated_server", "serve", "--port", str(port)]
    with ServerProcess([*words, "--dir", str(tmp_path / "data")], port, tmp_path / "server.out") as server:
        with Wire(server.url) as wire:
            assert content.content(wire) == expected(recorded, part)
            # what was there stays with what comes, in the present form
            assert wire.ask("XADD", "small", "IDMP", "producer", "message", "*", "a", "b") == content.MESSAGE_ID
            wire.ask("XADD", content.STREAM, "*", "item", "coffee")
            assert wire.ask("BGREWRITEAOF")
            shown = content.content(wire)
        assert server.stop() == 0
        with Wire(server.start().url) as wire:
            assert content.content(wire) == shown


def test_a_recorded_log_is_whole(recorded: Path) -> None:
    """The check of a log finds no fault in the directories of an earlier version."""
    for part in ("data", "backup", "worker"):
        run(MILLSTREAM, "log", "check", recorded / part)


def test_a_recorded_archive_is_replayed(recorded: Path, tmp_path: Path) -> None:
    """A replay of an earlier version's archive restores each entry under its id, byte for byte."""
    needs.package("pyarrow")
    shutil.copytree(recorded / "archive", tmp_path / "archive")
    entries = expected(recorded, "data")[f"0:{content.STREAM}"][1]
    with millstream_server(tmp_path, "--memory") as server, Wire(server.url) as wire:
        words = ("--to", server.url, "--as", "again", "--ids", "keep")
        run(MILLSTREAM, "replay", tmp_path / "archive", content.STREAM, *words)
        assert content.plain(wire.ask("XRANGE", "again", "-", "+")) == entries


async def test_a_worker_goes_on_over_recorded_keys(recorded: Path, tmp_path: Path) -> None:
    """A worker continues with an earlier worker's pending entries, tries, due times, dead letters and pauses."""
    shutil.copytree(recorded / "worker", tmp_path / "data")
    clock = Ahead(content.BEGIN_MS + 60_000)
    with ServerThread(tmp_path / "data", clock=clock) as server, Wire(server.url) as wire:
        seen: list[tuple[str, str, int]] = []
        app = shop.shop(seen, works=True)
        async with app.running(server.url, clock=clock):
            await aeventually(lambda: len(seen) == 3, what="the crashed, the put back and the unread entry ran")
            # the marker of `once` holds, and the crash was not charged twice
            assert sorted(seen) == [("billing", "3 reject", 1), ("billing", "6 hang", 2), ("billing", "unread", 1)]
            await aeventually(lambda: wire.ask("XPENDING", shop.STREAM, "billing")[0] == 2)
            assert wire.ask("HGET", "billed", "6 hang") == b"1"
            clock.ms += HOUR_MS
            await aeventually(lambda: len(seen) == 4, what="the delayed retry ran")
            assert seen[-1] == ("billing", "2 fail", 2)
            # acked before the clock jumps, or its lease has ended and it is delivered again
            await aeventually(lambda: wire.ask("XPENDING", shop.STREAM, "billing")[0] == 1)
            clock.ms += 40 * 24 * HOUR_MS
            await aeventually(lambda: len(seen) == 5, what="the delay of 40 days is over")
            assert seen[-1] == ("billing", "4 later", 2)
            await aeventually(lambda: wire.ask("EXISTS", shop.TRIES, shop.DUE) == 0)
            await aeventually(lambda: wire.ask("XPENDING", shop.STREAM, "billing")[0] == 0)
            (letter,) = json.loads(run(MILLSTREAM, "dead", "ls", shop.STREAM, "-o", "json", "--url", server.url))
            assert (letter["group"], letter["reason"], letter["deliveries"]) == ("billing", "reject", 1)
            run(MILLSTREAM, "dead", "retry", shop.STREAM, "--all", "--yes", "--url", server.url)
            await aeventually(lambda: len(seen) == 6, what="the dead letter ran, for its group alone")
            assert seen[-1][:2] == ("billing", "5 reject")
            run(MILLSTREAM, "worker", "resume", shop.STREAM, "mailing", "--url", server.url)
            await aeventually(lambda: ("mailing", "unread", 1) in seen, what="the paused group reads")
