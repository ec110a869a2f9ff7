"""``log``, ``backup``, ``restore`` and ``doctor`` beside a real server, through the installed command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.engine.streams import extents
from millstream.engine.streams.nodes import Block
from millstream.persistence.log import Log
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command and return exit code and output."""
    command = [MILLSTREAM, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def here(*words: object) -> Result:
    """Run the command in this process, which has its imports done."""
    done = CliRunner().invoke(main, [*map(str, words)], prog_name="millstream")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def data(our_server: ServerProcess, tmp_path: Path) -> Path:
    """A running server's data directory with five entries and a group."""
    with our_server.client() as client:
        for number in range(1, 6):
            client.xadd("orders", {"n": number}, id=f"{number}-0")
        client.xgroup_create("orders", "billing", 0)
    return tmp_path / "data"


def test_check_dump_backup_restore_beside_a_server(our_server: ServerProcess, data: Path, tmp_path: Path) -> None:
    """Check, dump, backup and restore work beside a running server, also with JSON output."""
    checked = run("log", "check", data, "-o", "json")
    assert (checked.returncode, checked.stderr) == (0, "")
    report = json.loads(checked.stdout)
    assert (report["ok"], report["running"], report["records"], report["problems"]) == (True, True, 6, [])
    assert report["owner_pid"] == our_server.process.pid

    dumped = run("log", "dump", data, "--from", "2", "--to", "3", "--streams", "-o", "jsonl")
    lines = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [line["position"] for line in lines] == [2, 3]
    assert lines[0]["changes"][0]["arguments"]["entry_id"] == "2-0"
    assert "xadd db0 'orders' entry_id=5-0 fields=['n', '5']" in run("log", "dump", data).stdout

    made = run("backup", our_server.url, tmp_path / "backup", "-o", "json")
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["records"] == 6
    again = run("backup", data, tmp_path / "backup")
    assert (again.returncode, again.stdout) == (2, "")
    assert "exists already" in again.stderr

    restored = run("restore", tmp_path / "backup", tmp_path / "new", "--until", "3", "-o", "json")
    assert restored.returncode == 0
    facts = json.loads(restored.stdout)
    assert (facts["records"], facts["left_out_records"], facts["set_aside"]) == (3, 3, None)
    refused = run("restore", tmp_path / "backup", tmp_path / "new")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--force" in refused.stderr
    assert run("restore", tmp_path / "backup", data, "--force").returncode == 1  # a server runs on it
    assert run("restore", tmp_path / "backup", tmp_path / "new", "--force").returncode == 0
    assert len(list(tmp_path.glob("new.before-*"))) == 1


def test_damage_is_told_and_cut_only_on_request(our_server: ServerProcess, data: Path, tmp_path: Path) -> None:
    """On damage the server refuses to start, and ``log check`` names place, loss and next step.

    ``log cut`` asks first; afterwards the server starts.
    """
    our_server.stop()
    (path,) = data.glob("log-*")
    broken = bytearray(path.read_bytes())
    at = broken.index(b"xadd", broken.index(b"xadd") + 4)
    broken[at] ^= 1
    path.write_bytes(broken)
    with pytest.raises(RuntimeError, match="whole records"):
        our_server.start()

    checked = here("log", "check", data)
    assert checked.exit_code == 1
    place = re.search(rf"--at ({path.name}:\d+)", checked.stderr)
    assert place is not None
    assert "1 problem. After the first: 4 whole records (positions 3 to 6" in checked.stderr
    assert re.search(r"orders +4 +3 +3-0 +5-0 +xadd:3 gnew:1", checked.stdout)
    lost = json.loads(here("log", "check", data, "-o", "json").stdout)["lost_keys"]
    assert [(key["key"], key["entries"], key["first_id"], key["last_id"]) for key in lost] == [
        ("orders", 3, "3-0", "5-0")
    ]

    before = path.read_bytes()
    asked = here("log", "cut", data, "--at", place[1])
    assert (asked.exit_code, path.read_bytes()) == (2, before)
    assert "use --yes" in asked.stderr
    assert "loses 4 whole records" in asked.stderr
    cut = here("log", "cut", data, "--at", place[1], "--yes")
    assert cut.exit_code == 0
    (kept,) = data.glob("cut-*")
    assert str(kept) in cut.stderr
    assert [json.loads(line)["position"] for line in here("log", "dump", kept, "-o", "jsonl").stdout.splitlines()] == [
        3,
        4,
        5,
        6,
    ]
    our_server.start()
    with our_server.client() as client:
        assert client.xlen("orders") == 1


def test_a_pack_is_checked_quickly_and_shown(tmp_path: Path) -> None:
    """``log dump`` of a pack shows each entry in both formats, and refuses options that choose records.

    ``log check --quick`` finds a truncated pack.
    """
    log, _ = Log.open(tmp_path)
    node = Block(1 << 64, [b"n", b"\x1b"])
    node.append(2 << 64, [b"n", b"2"])
    pack = log.add_pack()
    pack.add([extents.encode([node])])
    log.end_pack(pack)
    log.close()
    (file,) = tmp_path.glob("pack-*")
    assert here("log", "check", tmp_path, "--quick").exit_code == 0
    shown = here("log", "dump", file)
    assert (shown.exit_code, shown.output.splitlines()[1:]) == (
        0,
        ["            1-0 ['n', '\\x1b']", "            2-0 ['n', '2']"],
    )
    lines = [json.loads(line) for line in here("log", "dump", file, "-o", "jsonl").output.splitlines()]
    assert lines[1] == {"extent": 32, "node": 0, "id": "2-0", "deleted": False, "fields": ["n", "2"]}
    refused = here("log", "dump", file, "--key", "x")
    assert (refused.exit_code, "has no records to choose" in refused.output) == (2, True)
    file.write_bytes(file.read_bytes()[:100])
    assert here("log", "check", tmp_path, "--quick").exit_code == 1


def test_without_a_place(tmp_path: Path) -> None:
    """Usage errors of ``log`` and ``backup`` end with 2 and the correct form. An unreadable directory ends with 1."""
    assert here("log", "cut", tmp_path, "--at", "nonsense", "--yes").exit_code == 2
    assert here("log", "check", tmp_path / "wrong").exit_code == 1
    assert here("log", "check", tmp_path).exit_code == 1
    nowhere = here("log", "cut", tmp_path / "wrong", "--at", "log-00000000000000000001.seg:32", "--yes")
    assert (nowhere.exit_code, "check that it is the right directory" in nowhere.stderr) == (1, True)
    for name in ("check", "dump"):
        remote = here("log", name, "redis://127.0.0.1:1")
        assert remote.exit_code == 2
        assert "name the data directory" in remote.stderr
    assert here("log", "check").exit_code == 2
    asked = here("log", "dump", tmp_path, "--from", "yesterday")
    assert (asked.exit_code, "not a position in a log" in asked.stderr) == (2, True)
    away = here("backup", "redis://127.0.0.1:1", tmp_path / "b")
    assert (away.exit_code, "cannot connect to redis://127.0.0.1:1: connection refused" in away.stderr) == (1, True)


def test_a_healthy_log_with_a_snapshot_of_every_kind_is_called_healthy(our_server: ServerProcess, data: Path) -> None:
    """``log check`` accepts a snapshot with every kind of record."""
    with our_server.client() as client:
        client.xreadgroup("billing", "ann", {"orders": ">"}, count=2)
        client.xadd("once", {"n": 1}, id="1-1")
        client.set("word", "x")
        client.hset("hash", mapping={"f": "v"})
        client.rpush("list", "a")
        client.sadd("set", "a")
        client.zadd("zset", {"a": 1})
        client.bgrewriteaof()
        eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    (snapshot,) = data.glob("snapshot-*")
    assert b"gpending" in snapshot.read_bytes()
    checked = here("log", "check", data)
    assert (checked.exit_code, "not known" in checked.stderr) == (0, False), checked.stderr
    examined = json.loads(here("doctor", data, "-o", "json").stdout)
    assert {row["level"] for row in examined if row["check"] in {"log", "snapshot"}} == {"ok"}
    assert here("log", "dump", data).exit_code == 0


@pytest.mark.realserver
def test_a_server_that_is_no_millstream_has_no_files_for_us(real_redis: ServerProcess, tmp_path: Path) -> None:
    """``backup`` of a server that is not Millstream is refused and names ``millstream export``."""
    ended = here("backup", real_redis.url, tmp_path / "b")
    assert (ended.exit_code, "millstream export" in ended.stderr) == (2, True)


@pytest.mark.parametrize("command", ["log check", "log dump", "log cut", "backup", "restore", "doctor"])
def test_help_teaches(command: str) -> None:
    """The help of these commands has examples and exit codes."""
    shown = here(*command.split(), "--help").stdout
    assert f"millstream {command}" in shown
    assert "Exit code" in shown


def test_doctor(our_server: ServerProcess, data: Path, tmp_path: Path) -> None:
    """``doctor`` ends with the code of its worst finding, and each format has finding, reason and advice."""
    well = here("doctor", data, "-o", "json")
    rows = json.loads(well.stdout)
    assert well.exit_code == (1 if any(row["level"] == "warning" for row in rows) else 0)
    assert {"level", "check", "what", "why", "advice", "cause"} == set(rows[0])
    assert any("which runs" in row["what"] for row in rows)
    assert here("doctor", our_server.url).exit_code == 0
    with our_server.client() as client:
        client.xreadgroup("billing", "anna", {"orders": ">"})
        client.xclaim("orders", "billing", "anna", 0, ["1-0"], idle=120_000)
    late = here("doctor", our_server.url, "--pending-older", "1m")
    assert (late.exit_code, "orders billing: 5 pending" in late.stdout, "XAUTOCLAIM" in late.stdout) == (1, True, True)
    assert here("doctor", tmp_path / "wrong").exit_code == 3
    assert here("doctor", our_server.url, "--pending-older", "soon").exit_code == 2


def test_the_help_of_check_names_each_kind_of_damage_of_the_page() -> None:
    """`log check --help` lists the same kinds as the table in the operations page."""
    page = (ROOT / "docs/operations.md").read_text()
    table = page.partition("| kind | meaning |")[2].partition("\n\n")[0]
    kinds = {kind for row in re.findall(r"(?m)^\| (`[^|]*) \|", table) for kind in re.findall(r"`(\w+)`", row)}
    listed = here("log", "check", "--help").output.partition("Kinds of damage:")[2].partition("\n\n")[0]
    assert "replaceable" in kinds
    assert set(re.findall(r"(?m)^ +(\w+) ", listed)) == kinds
