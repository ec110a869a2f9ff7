"""``millstream server tier`` and ``vacuum``: with packs, without a tier, and on other servers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.server.thread import ServerThread
from support.coldness import IS_COLD
from support.resident import collect_garbage
from support.servers import ServerProcess
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

PARAMETERS = {"tier": "yes", "tier-hot": "64kb", "stream-node-max-entries": "10", "tier-vacuum-rate": "0"}
ENTRIES = 3000


def run(url: str, *words: str, code: int = 0) -> Result:
    """Run ``millstream server`` in this process."""
    done = CliRunner().invoke(main, ["server", *words, "--url", url])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Wire]:
    """Yield a client of a server with entries in packs."""
    collect_garbage()  # streams of earlier tests count until they are freed, as one process has one count
    with ServerThread(tmp_path / "data", parameters=PARAMETERS) as server, Wire(server.url) as wire:
        wire.url = server.url  # type: ignore[attr-defined]  # for the command line
        wire.ask_together([("XADD", "s", f"{number}-1", "f", "x" * 200) for number in range(1, ENTRIES + 1)])
        wire.ask("XADD", "t", "1-1", "f", "v")
        eventually(lambda: b"tier_spill_in_progress:0" in wire.ask("INFO", "tier") and usage(wire, "cold-entries"))
        # Its sums are valid for a second, so they may be older than the figures of TIER USAGE
        eventually(lambda: b"tier_entries:0\r" not in wire.ask("INFO", "tier"))
        yield wire


def usage(wire: Wire, name: str) -> int:
    """Return a figure of TIER USAGE."""
    reply = wire.ask("TIER", "USAGE", "s")
    return int(reply[reply.index(name.encode()) + 1])


def test_streams_are_listed_by_the_place_of_their_entries(cold: Wire) -> None:
    """The rows have what TIER USAGE replies, on request those with most in packs first, and a pattern selects."""
    url = cold.url  # type: ignore[attr-defined]  # see the fixture
    rows = json.loads(run(url, "tier", "--sort", "cold", "-o", "json").stdout)
    assert [row["key"] for row in rows] == ["s", "t"]
    assert rows[0]["entries"] == ENTRIES
    assert rows[0]["cold_entries"] == usage(cold, "cold-entries") > 0
    assert rows[0]["cold_bytes"] == usage(cold, "cold-bytes")
    assert (rows[1]["cold_entries"], rows[1]["packs"], rows[1]["oldest_id"]) == (0, 0, "1-1")
    assert "1 of 2 streams is shown" in run(url, "tier", "--limit", "1").stderr
    assert "all entries are in memory" in run(url, "tier", "t").stderr


def test_sizes_of_a_stream_have_units(cold: Wire) -> None:
    """``stream show`` prints the bytes in memory and in packs as ``server tier`` does."""
    done = CliRunner().invoke(main, ["stream", "show", "s", "--url", cold.url])  # type: ignore[attr-defined]  # see the fixture
    shown = [line.split() for line in done.output.splitlines()]
    for name in ("memory usage", "bytes in memory", "bytes in packs"):
        line = next(line for line in shown if line[: len(name.split())] == name.split())
        assert line[-1] in {"bytes", "kB", "MB"}, line


def test_the_state_of_a_server_omits_figures_that_are_0(cold: Wire) -> None:
    """The table has sizes with units, and of the figures that are 0 only the main ones; JSON has all."""
    url = cold.url  # type: ignore[attr-defined]  # see the fixture
    shown = [line.split() for line in run(url, "show").stdout.splitlines() if line.startswith("tier ")]
    assert ["tier", "stalls", "0"] in shown
    assert ["tier", "last", "spill", "status", "ok"] in shown
    assert not [line for line in shown if line[-1] == "0" and line[1] != "stalls"]
    assert next(line for line in shown if line[:3] == ["tier", "disk", "needed"])[-1] == "MB"
    found = json.loads(run(url, "show", "-o", "json").stdout)
    assert found["tier_spill_failures"] == found["tier_vacuumed_bytes"] == 0
    assert found["tier_disk_needed"] > 0


def test_a_tier_without_packs_reports_its_state(tmp_path: Path) -> None:
    """INFO has all figures before the first pack, so a new server does not look broken."""
    with ServerThread(tmp_path / "data", parameters=PARAMETERS) as server:
        found = json.loads(run(server.url, "show", "-o", "json").stdout)
    assert (found["tier_enabled"], found["tier_packs"], found["tier_last_spill_status"]) == (1, 0, "ok")
    assert found["tier_disk_needed"] > 0


def test_a_vacuum_takes_deleted_entries_off(cold: Wire) -> None:
    """The command waits for the end: extents have no holes, and a rewriting has removed the old pack."""
    url = cold.url  # type: ignore[attr-defined]  # see the fixture
    before, left = usage(cold, "cold-bytes"), cold.ask("XRANGE", "s", "-", "+")[::2]
    for at in range(2, ENTRIES, 200):
        cold.ask("XDEL", "s", *(f"{number}-1" for number in range(at, min(at + 200, ENTRIES + 1), 2)))
    found = json.loads(run(url, "vacuum", "-o", "json").stdout)
    assert found["status"] == "ok"
    assert found["extents"] > 0
    assert usage(cold, "cold-bytes") < before * 2 // 3
    eventually(lambda: b"tier_hole_bytes:0" in cold.ask("INFO", "tier"))  # sums are up to a second old
    assert [entry[0] for entry in cold.ask("XRANGE", "s", "-", "+")][: len(left) - 1] == [e[0] for e in left][:-1]
    eventually(lambda: cold.ask("INFO", "tier").count(b"tier_packs:1\r"))
    assert "0 parts of packs" in run(url, "vacuum").stdout


@pytest.mark.realserver
def test_other_servers_get_one_sentence(real_redis: ServerProcess) -> None:
    """Redis has neither command; the sentence says so."""
    with Wire(real_redis.url) as wire:
        wire.ask("XADD", "other", "1-1", "f", "v")
    assert "does not report the place of entries" in run(real_redis.url, "tier", code=4).stderr
    assert "has no packs to vacuum" in run(real_redis.url, "vacuum", code=4).stderr


def test_a_server_without_a_tier_has_no_vacuum(tmp_path: Path) -> None:
    """The table says that all entries are in memory, and the vacuum names the parameter."""
    with ServerThread(tmp_path / "data") as server, Wire(server.url) as wire:
        wire.ask("XADD", "s", "1-1", "f", "v")
        assert "all entries are in memory" in run(server.url, "tier").stderr
        assert "the tier is off. Set the parameter tier" in run(server.url, "vacuum", code=1).stderr
