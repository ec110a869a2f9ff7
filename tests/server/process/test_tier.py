"""A running server with a tier: it takes far more than ``maxmemory``, and answers as a server without one."""

import logging
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import core
from millstream.errors import ConfigError, DiskError
from millstream.node.tiering import writing
from millstream.persistence.packs import PackWriter
from millstream.server.settings import Settings
from millstream.server.thread import ServerThread
from support.coldness import IS_COLD
from support.resident import collect_garbage
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

MIB = 1 << 20
OOM = "OOM command not allowed when used memory > 'maxmemory'."
PARAMETERS = {"tier": "yes", "tier-hot": "256kb", "stream-node-max-entries": "20"}


@pytest.fixture(autouse=True)
def _without_others() -> None:
    collect_garbage()  # streams of earlier tests count until they are freed, as one process has one count


@pytest.fixture
def wires(tmp_path: Path) -> Iterator[tuple[Wire, Wire]]:
    """Yield clients of a server with a tier, and of one without, which is another process and has its own count."""
    with (
        ServerThread(tmp_path / "cold", parameters=PARAMETERS) as cold,
        millstream_server(tmp_path, "--memory", "--set", "stream-node-max-entries=20") as hot,
        Wire(cold.url) as one,
        Wire(f"redis://127.0.0.1:{hot.port}") as other,
    ):
        yield one, other


def figures(wire: Wire, section: str) -> dict[str, str]:
    """Return a section of INFO."""
    lines = wire.ask("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_streams_grow_beyond_the_limit(wires: tuple[Wire, Wire], tmp_path: Path) -> None:
    """Writers wait for spilling instead of an error, and every reply is that of a server without a tier."""
    cold, hot = wires
    limit = int(figures(cold, "memory")["used_memory"]) + 2 * MIB
    cold.ask("CONFIG", "SET", "maxmemory", limit)
    for at in range(0, 16_000, 400):
        lines = [("XADD", "s", f"{number}-1", "f", "x" * 500) for number in range(at + 1, at + 401)]
        assert cold.ask_together(lines) == hot.ask_together(lines)
    # Copies on their way count as memory, and sums over all streams are valid for a second
    eventually(lambda: int(figures(cold, "memory")["used_memory"]) <= limit)
    eventually(lambda: int(figures(cold, "tier")["tier_entries"]) > 10_000)
    memory, tiered = figures(cold, "memory"), figures(cold, "tier")
    assert memory["total_oom_rejected"] == "0"
    assert tiered["tier_enabled"] == "1"
    assert int(tiered["tier_live_bytes"]) > 5 * MIB
    assert tiered["tier_last_spill_status"] == "ok"
    for words in (("XRANGE", "s", "-", "+"), ("XREVRANGE", "s", "+", "-", "COUNT", 50), ("XLEN", "s")):
        assert cold.ask(*words) == hot.ask(*words)
    assert int(figures(cold, "tier")["tier_reads"]) > 0
    cold.ask("DEL", "s")
    with ServerThread(tmp_path / "again") as other, Wire(other.url) as wire:
        assert figures(wire, "tier") == {"tier_enabled": "0", **figures(wire, "tier")}


def test_a_start_has_what_was_spilled(tmp_path: Path) -> None:
    """After a restart, with a tier and without, all entries are there."""
    lines = [("XADD", "s", f"{number}-1", "f", "x" * 500) for number in range(1, 4001)]
    with ServerThread(tmp_path, parameters=PARAMETERS) as server, Wire(server.url) as wire:
        wire.ask_together(lines)
        eventually(lambda: int(figures(wire, "tier")["tier_hot_bytes"]) < MIB // 2)
        before = wire.ask("XRANGE", "s", "-", "+")
    for parameters in ({}, PARAMETERS):
        with ServerThread(tmp_path, parameters=parameters) as server, Wire(server.url) as wire:
            assert wire.ask("XRANGE", "s", "-", "+") == before
            assert int(figures(wire, "tier")["tier_entries"]) > 2000


def test_a_write_waits_and_then_gets_the_error(tmp_path: Path) -> None:
    """A write gets the error of a server without a tier if spilling cannot help in time."""
    parameters = {**PARAMETERS, "tier-stall-ms": "50", "tier-max-bytes": "1"}
    with ServerThread(tmp_path, parameters=parameters) as server, Wire(server.url) as wire:
        wire.ask("CONFIG", "SET", "maxmemory", int(figures(wire, "memory")["used_memory"]) + MIB)
        replies: list[object] = []
        while not replies or str(replies[-1]) != OOM:
            replies += wire.ask_together(("XADD", "s", "*", "f", "x" * 500) for _ in range(200))
        assert eventually(lambda: figures(wire, "tier")["tier_last_spill_status"] == "max-bytes")
        wire.ask("EVAL", "return 1", 0)  # counts the memory of Lua, which cannot go to files
        wire.ask("CONFIG", "SET", "maxmemory", int(figures(wire, "memory")["used_memory"]) - MIB // 4)
        assert wire.ask("MULTI") == b"OK"
        assert str(wire.ask("XADD", "s", "*", "f", "v")) == OOM
        wire.ask("DISCARD")
        assert str(wire.ask("EVAL", "return redis.call('XADD', KEYS[1], '*', 'f', 'v')", 1, "s")).startswith("OOM")
        wire.ask("CONFIG", "SET", "tier-max-bytes", 0)
        assert eventually(lambda: isinstance(wire.ask("XADD", "t", "*", "f", "v"), bytes))


def test_a_client_that_leaves_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    """A waiting write whose client goes leaves nothing behind."""
    parameters = {**PARAMETERS, "tier-stall-ms": "60000"}
    with ServerThread(tmp_path, parameters=parameters) as server, Wire(server.url) as wire:
        assert server.server is not None
        stalls = server.server.node.sessions.stalls
        stalls.may_help = lambda now: True
        wire.ask("CONFIG", "SET", "maxmemory", 1)
        with Wire(server.url) as other:
            other.send("XADD", "s", "*", "f", "v")
            assert eventually(lambda: len(stalls.held) == 1)
        assert eventually(lambda: not stalls.held and not stalls.until)
        assert stalls.count == 1


def test_a_tier_needs_files_and_known_words(tmp_path: Path) -> None:
    """Without a data directory or with other words the start, and CONFIG SET, say why."""
    with pytest.raises(ConfigError, match="a tier needs a data directory"):
        Settings(parameters={"tier": "yes"}).config()
    with pytest.raises(ConfigError, match="argument must be 'yes' or 'no'"):
        Settings(directory=tmp_path, parameters={"tier": "on"}).config()
    with ServerThread() as server, Wire(server.url) as wire:
        assert "a tier needs a data directory" in str(wire.ask("CONFIG", "SET", "tier", "yes"))
        for wrong in ("much", "", "9" * 24):
            assert "memory or percent" in str(wire.ask("CONFIG", "SET", "tier-hot", wrong))
        assert "must be a memory value" in str(wire.ask("CONFIG", "SET", "tier-max-bytes", ""))
        assert "must be between 0 and 9223372036854775807" in str(wire.ask("CONFIG", "SET", "tier-max-bytes", "9" * 24))
        assert wire.ask("CONFIG", "SET", "tier-hot", "10%") == b"OK"


def test_a_start_without_files_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """``millstream serve --memory --tier yes`` ends with advice."""
    server = millstream_server(tmp_path, "--memory", "--tier", "yes")
    done = subprocess.run(server.command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "Error: --memory is invalid with tier yes: a tier needs a data directory. Give one (--dir, or a file:// URL), "
        "or leave tier at 'no'.\n"
    )


@pytest.mark.parametrize(("tier", "lines"), [("no", 1), ("yes", 0)])
def test_a_limit_without_a_tier_logs_one_line(
    tmp_path: Path, tier: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The line says what ``tier yes`` does; a server without a limit says nothing."""
    caplog.set_level(logging.INFO, "millstream.server")
    with ServerThread(tmp_path, parameters={"maxmemory": "1gb", "tier": tier}):
        assert caplog.text.count("--tier yes") == lines
    caplog.clear()
    with ServerThread(tmp_path):
        assert "--tier yes" not in caplog.text


def test_the_hot_part_is_a_share_of_the_limit(tmp_path: Path) -> None:
    """By default a quarter of ``maxmemory`` stays hot, and 256 MiB at most."""
    for limit, hot in (("0", 256 * MIB), ("100mb", 25 * MIB), ("8gb", 256 * MIB)):
        assert Settings(directory=tmp_path, parameters={"maxmemory": limit}).config().tier_hot == hot
    given = {"maxmemory": "1gb", "tier-hot": "512mb"}
    assert Settings(directory=tmp_path, parameters=given).config().tier_hot == 512 * MIB
    assert core.NAME


def test_a_pack_that_got_no_entry_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewriting removes a pack whose first batch failed, which was never opened for reading."""
    real, failures = PackWriter.add, [DiskError("Input/output error")]

    def add(self: PackWriter, payloads: list[bytes]) -> list[tuple[int, int]]:
        if failures:
            self.end()
            raise failures.pop()
        return real(self, payloads)

    monkeypatch.setattr(PackWriter, "add", add)
    monkeypatch.setattr(writing, "FIRST_PAUSE", 0.1)
    with ServerThread(tmp_path, parameters=PARAMETERS) as server, Wire(server.url) as wire:
        wire.ask_together(("XADD", "s", f"{number}-1", "f", "x" * 500) for number in range(1, 8001))
        eventually(lambda: int(figures(wire, "tier")["tier_spilled_bytes"]) > 0)
        assert figures(wire, "tier")["tier_spill_failures"] == "1"
        wire.ask("BGREWRITEAOF")
        eventually(lambda: figures(wire, "persistence")["aof_rewrite_in_progress"] == "0")
        assert figures(wire, "persistence")["aof_last_bgrewrite_status"] == "ok"
        assert eventually(lambda: len(list(tmp_path.glob("*.pack"))) == int(figures(wire, "tier")["tier_packs"]) == 1)


def test_a_pack_that_only_the_memory_needs_is_counted(tmp_path: Path) -> None:
    """``tier_disagreements`` counts packs that a rewriting kept though the log does not need them."""
    with ServerThread(tmp_path, parameters=PARAMETERS) as server, Wire(server.url) as wire:
        wire.ask_together(("XADD", "s", f"{number}-1", "f", "x" * 500) for number in range(1, 4001))
        eventually(lambda: int(figures(wire, "tier")["tier_spilled_bytes"]) > 0)
        assert figures(wire, "tier")["tier_disagreements"] == "0"
        rewriter = server.server.rewriter
        assert rewriter is not None
        rewriter.facts = replace(rewriter.facts, pack_disagreements=2)
        assert figures(wire, "tier")["tier_disagreements"] == "2"
