"""The doctor finds planted problems of a directory and of real servers, each with a reason and a next step."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from maintenance.conftest import content, flip, segments
from millstream import core
from millstream.cli.main import main
from millstream.maintenance.health import directory, machine
from millstream.maintenance.health.directory import diagnose_directory, file_system, fsync_speed
from millstream.maintenance.health.findings import Finding, worst
from millstream.maintenance.health.machine import diagnose_machine
from millstream.maintenance.health.server import Limits, diagnose_server
from millstream.printable import printable
from support.ports import free_port
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    found = list(findings)
    for finding in found:
        assert finding.level in {"ok", "note"} or (finding.why and finding.advice), finding
    return {finding.check: finding for finding in found}


DISK = {"fsync", "disk space", "file system"}  # what the machine that runs the tests decides


def levels(findings: Iterator[Finding]) -> dict[str, str]:
    return {check: finding.level for check, finding in by_check(findings).items() if finding.level != "ok"}


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reports versions, missing libraries and low limits of the machine."""
    monkeypatch.setattr(core, "NAME", core.NATIVE)
    found = by_check(diagnose_machine())
    assert "redis " in found["libraries"].what
    assert found["uvloop"].level == "ok"
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (1024, 4096))
    assert levels(diagnose_machine({"no-such-library": "why"})) == {"no-such-library": "note", "descriptors": "warning"}


@pytest.mark.parametrize(
    ("name", "is_chosen", "level", "words"),
    [
        ("native", False, "ok", "native"),
        ("python", True, "ok", "python, as MILLSTREAM_CORE demands"),
        ("python", False, "note", "python: the native core is not installed"),
    ],
)
def test_which_core_runs(monkeypatch: pytest.MonkeyPatch, name: str, is_chosen: bool, level: str, words: str) -> None:
    """If the slower core runs by default, the doctor explains how to get the native one."""
    monkeypatch.setattr(core, "NAME", name)
    monkeypatch.setattr(core, "IS_CHOSEN", is_chosen)
    found = by_check(diagnose_machine())["core"]
    assert (found.level, words in found.what) == (level, True)
    assert ("make core" in found.advice) == (level == "note")


def test_a_healthy_directory(home: Path) -> None:
    """The doctor finds no problem in a healthy directory, changes nothing, and measures the fsync speed."""
    before = content(home)
    found = by_check(diagnose_directory(home))
    assert {finding.level for check, finding in found.items() if check not in DISK} == {"ok"}
    assert found.keys() >= DISK
    assert f"process {os.getpid()}, which has ended" in found["owner"].what
    assert content(home) == before
    p50, p99 = fsync_speed(home)
    assert 0 < p50 <= p99


def test_a_damaged_log(home: Path) -> None:
    """The doctor reports a damaged log as a problem with its loss and the next step, and a torn end as a warning."""
    with segments(home)[-1].open("ab") as file:
        file.write(b"half a record")
    assert {check: level for check, level in levels(diagnose_directory(home)).items() if check not in DISK} == {
        "log": "warning"
    }
    (home / "torn-log-1.seg-5-0").write_bytes(b"x")
    flip(segments(home)[0], 80)
    found = by_check(diagnose_directory(home))
    assert (found["log"].level, found["kept aside"].level) == ("problem", "note")
    assert "millstream log check" in found["log"].advice
    assert "whole records follow" in found["log"].why


def test_a_disk_in_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reports a disk that is full, slow, in memory or on a network."""
    monkeypatch.setattr(directory.RealDisk, "free", lambda *_: 1 << 30)
    monkeypatch.setattr(directory, "fsync_speed", lambda _: (25.0, 26.0))
    monkeypatch.setattr(directory, "file_system", lambda _: "nfs4")
    assert levels(diagnose_directory(home)) == {"file system": "warning", "disk space": "warning", "fsync": "warning"}
    monkeypatch.setattr(directory.RealDisk, "free", lambda *_: 1 << 20)
    monkeypatch.setattr(directory, "file_system", lambda _: "tmpfs")
    assert levels(diagnose_directory(home)) == {"file system": "problem", "disk space": "problem", "fsync": "warning"}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no memory file system to look at")
def test_memory_is_told_from_a_disk() -> None:
    """A file system in memory is recognized by the system's table of mounts."""
    assert file_system(Path("/dev/shm")) == "tmpfs"


def test_a_wrong_directory(tmp_path: Path) -> None:
    """A directory that does not exist is a problem, not an empty log."""
    assert levels(diagnose_directory(tmp_path / "wrong")) == {"directory": "problem"}
    assert worst(diagnose_directory(tmp_path / "wrong")) == "problem"


@pytest.fixture(params=["redis", "millstream"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a server that loses nothing."""
    if request.param == "millstream":
        running = millstream_server(tmp_path)
    else:
        running = redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    with running:
        yield running


@pytest.mark.realserver
def test_a_healthy_server(server: ServerProcess) -> None:
    """The doctor finds no problem in a healthy server, except features that an older one lacks, and changes nothing."""
    with server.client() as client:
        client.xadd("orders", {"n": 1})
        client.xgroup_create("orders", "billing", 0)
        client.xreadgroup("billing", "anna", {"orders": ">"})
        before = client.xinfo_stream("orders", full=True)
        assert levels(diagnose_server(server.url, Limits())).keys() <= {"capabilities"}
        assert client.xinfo_stream("orders", full=True) == before
        assert client.dbsize() == 1


@pytest.mark.realserver
def test_streams_in_trouble(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reports old pending entries, dead consumers, unknown lags and streams that nothing trims."""
    with server.client() as client:
        for number in range(1, 6):
            client.xadd("grows", {"n": number}, id=f"{number}-0")
            client.xadd("orders", {"n": number}, id=f"{number}-0")
        client.xtrim("orders", maxlen=4, approximate=False)
        client.xgroup_create("orders", "middle", "3-0")
        client.xgroup_create("orders", "billing", 0)
        client.xreadgroup("billing", "anna", {"orders": ">"}, count=2)
        client.xclaim("orders", "billing", "anna", 0, ["2-0"], idle=7_200_000)
    found = by_check(diagnose_server(server.url, Limits(large=5)))
    assert found["pending"].what.startswith("orders billing: 2 pending; 2-0")
    assert found["lag unknown"].what.startswith("orders middle:")
    assert found["untrimmed"].what.startswith("grows: 5 entries")
    assert "dead consumer" not in found
    found = by_check(diagnose_server(server.url, Limits(pending_ms=0, large=5)))
    assert "orders billing anna" in found["dead consumer"].what
    assert "claim its entries" in found["dead consumer"].advice


@pytest.mark.realserver
def test_bytes_that_are_no_text(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor handles entries, keys, groups and consumers of any bytes, and shows them escaped."""
    stream, group, consumer = b"or\xffders\x1b[2J", b"bil\xfeling", b"an\xfdna"
    with server.client() as client:
        client.execute_command("XADD", stream, "*", "__data__", b"\x89BIN\r\n\x1a\n\x00\x01")
        client.execute_command("XADD", stream, "*", b"\xff", b"\xfe")
        client.xgroup_create(stream, group, 0)
        client.xreadgroup(group, consumer, {stream: ">"}, count=1)
    found = by_check(diagnose_server(server.url, Limits(pending_ms=0, large=1)))
    for check in ("untrimmed", "pending", "dead consumer"):
        assert "or\\xffders\\x1b[2J" in printable(found[check].what)
    assert "bil\\xfeling an\\xfdna: idle" in printable(found["dead consumer"].what)
    for form in ("table", "json", "jsonl", "csv"):
        words = ["doctor", server.url, "--pending-older", "0s", "-o", form]
        done = CliRunner().invoke(main, words)
        assert done.exit_code in {1, 3}, done.stderr
        assert "\x1b" not in done.stdout
        assert "ders\\" in done.stdout


@pytest.mark.realserver
def test_settings_that_lose_events(tmp_path: Path) -> None:
    """The doctor reports eviction of any key, a missing append-only file, weak fsync, and nearly full memory."""
    with redis_server(tmp_path, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru") as server:
        found = levels(diagnose_server(server.url, Limits()))
        assert found == {"capabilities": "note", "maxmemory-policy": "problem", "appendonly": "problem"}
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("appendonly", "yes")
            client.config_set("maxmemory", client.info("memory")["used_memory"])
        found = levels(diagnose_server(server.url, Limits()))
        assert found == {"capabilities": "note", "memory": "warning", "appendfsync": "warning"}
        with server.client() as client:
            client.acl_setuser("eve", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-config"])
        url = server.url.replace("redis://", "redis://eve:pw@")
        assert by_check(diagnose_server(url, Limits()))["settings"].level == "note"


def test_memory_only_and_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reports a memory-only server as a problem, and summarizes many findings of one kind."""
    with millstream_server(tmp_path, "--memory") as server, server.client() as client:
        for number in range(30):
            client.xadd(f"s{number}", {"n": 1})
        findings = list(diagnose_server(server.url, Limits(streams=25, large=1)))
    assert {f.check: f.level for f in findings}["appendonly"] == "problem"
    untrimmed = [finding.what for finding in findings if finding.check == "untrimmed"]
    assert (len(untrimmed), untrimmed[-1]) == (21, "and 5 more findings of this kind")
    assert findings[-1].what == "25 in this database; more were not looked at (see --streams)"


def test_streams_with_a_rule_or_a_tier(tmp_path: Path) -> None:
    """A stream that retention covers does not grow without bound, and with a tier another one fills the disk."""
    rules = ("--tier", "yes", "--set", "stream-retention=kept* 30d 0 * 0 0")
    with millstream_server(tmp_path, *rules) as server, server.client() as client:
        for name in ("kept:1", "grows"):
            client.xadd(name, {"n": 1})
        findings = list(diagnose_server(server.url, Limits(large=1)))
    [found] = [each for each in findings if each.check == "untrimmed"]
    assert found.what.startswith("grows: 1 entry")
    assert found.why == "it grows until the disk is full"
    assert found.advice.startswith("a rule for it in stream-retention; or XADD grows")


def test_a_stream_without_ages(tmp_path: Path) -> None:
    """The doctor reports streams with ids that are not times, from which a rule's age removes nothing."""
    rules = ("--set", "stream-retention=sized* 30d 1gb own* 30d 0")
    with millstream_server(tmp_path, *rules) as server, server.client() as client:
        for name in ("own:1", "sized:1", "other"):
            client.xadd(name, {"n": 1}, id="5-1")
        client.xadd("own:2", {"n": 1})
        client.xgroup_create("own:3", "g", mkstream=True)
        findings = [each for each in diagnose_server(server.url, Limits()) if each.check == "stream-retention"]
    assert {each.what.partition(":1:")[0]: each.level for each in findings} == {"own": "warning", "sized": "note"}
    assert all("5-1, is not a time, so the age of its rule removes nothing" in each.what for each in findings)


def test_entries_that_went_unread(tmp_path: Path) -> None:
    """The doctor warns of entries that retention removed before a group read them, also without the right to CONFIG."""
    rules = ("--set", "stream-retention=* 1ms 0")
    with millstream_server(tmp_path, *rules) as server, server.client() as client:
        client.xgroup_create("s", "g", mkstream=True)
        client.xadd("s", {"n": 1})
        eventually(lambda: client.xlen("s") == 0)
        client.acl_setuser("few", enabled=True, passwords=["+p"], keys=["*"], commands=["+@all", "-config"])
        for url in (server.url, server.url.replace("://", "://few:p@")):
            found = by_check(diagnose_server(url, Limits()))["stream-retention"]
            assert (found.level, found.what) == ("warning", "1 entry removed before a group had read them")


def test_a_server_that_does_not_answer() -> None:
    """The doctor reports an unreachable server as one problem with a next step."""
    assert levels(diagnose_server(f"redis://127.0.0.1:{free_port()}", Limits())) == {"reachable": "problem"}


@pytest.mark.parametrize(("name", "level"), [("native", "ok"), ("python", "note")])
def test_which_core_a_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, level: str) -> None:
    """The doctor reports the server's core, and for the slower one how to get the native one on that machine."""
    if name == "native" and core.NAME != core.NATIVE:
        pytest.skip("no native core here")
    monkeypatch.setenv(core.VARIABLE, name)
    with millstream_server(tmp_path, "--memory") as server:
        found = by_check(diagnose_server(server.url, Limits()))["core"]
    assert (found.level, found.what) == (level, name)
    assert (core.REMEDY in found.advice, "on the server's machine" in found.advice) == (level == "note",) * 2


@pytest.mark.realserver
def test_redis_has_no_core_to_choose(tmp_path: Path) -> None:
    """The doctor reports no core for Redis."""
    with redis_server(tmp_path) as server:
        assert "core" not in by_check(diagnose_server(server.url, Limits()))
