"""Writes that only a former primary has are saved in files before the new primary's data replaces them."""

import json
import logging
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream.server.thread import ServerThread
from replication.test_following_redis import follow, wait_level, write
from replication.test_redis_follows import info, port_of
from support.readme import block
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("diverged-*.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def take_alone(wire: Wire, name: str) -> None:
    """Write four records: a string, an entry, a transaction, a read of a group."""
    wire.ask("SET", f"alone:{name}", name)
    wire.ask("XADD", "orders", "*", "from", name)
    wire.ask_together([["MULTI"], ["SELECT", 3], ["LPUSH", "list", name], ["SELECT", 0], ["INCR", "number"], ["EXEC"]])
    wire.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", ">")


def test_what_was_taken_alone_is_in_files_and_can_be_put_back(tmp_path: Path) -> None:
    """The files have every record that only the former primary has, across its restarts, and no other.

    They can be replayed on the new primary.
    """
    former = millstream_server(tmp_path / "former")
    data = tmp_path / "former" / "data"
    with former, ServerThread(tmp_path / "next") as server, Wire(server.url) as leader:
        with Wire(former.url) as first:
            write(first, 1, 200)
            first.ask("XGROUP", "CREATE", "orders", "g", "0", "MKSTREAM")
            follow(leader, former.port)
            wait_level(leader, first)
            first.ask("SET", "shared", "v")
            wait_level(leader, first)
            leader.ask("REPLICAOF", "NO", "ONE")
            leader.ask("SET", "newer", "v")
            take_alone(first, "one")
        former.kill()
        former.start()
        with Wire(former.url) as first:
            take_alone(first, "two")
            follow(first, int(port_of(server)))
            wait_level(first, leader)
            assert first.ask("GET", "alone:one") is None
            assert (info(first)["millstream_diverged_records"], info(first)["millstream_diverged_files"]) == ("8", "1")
        (kept,) = files(data)
        held = [[change["key"] for change in line["changes"] if change["key"]] for line in lines(kept)]
        assert [keys[0] for keys in held if keys[0].startswith("alone")] == ["alone:one", "alone:two"]
        assert {key for keys in held for key in keys} == {"alone:one", "alone:two", "orders", "list", "number"}
        leader.socket.sendall(kept.with_suffix(".resp").read_bytes())
        leader.socket.sendall(b"SELECT 0\r\nECHO end\r\n")
        replies = iter(leader.read, b"end")
        assert not [each for each in replies if isinstance(each, Exception)]
        assert (leader.ask("GET", "alone:two"), leader.ask("XLEN", "orders")) == (b"two", 2)
        assert leader.ask("XPENDING", "orders", "g")[0] == 2
        leader.ask("SELECT", 3)
        assert leader.ask("LRANGE", "list", 0, -1) == [b"two", b"one"]


def test_messages_of_producers_are_put_back_with_their_entries(tmp_path: Path) -> None:
    """Replaying the files restores producers' messages: a repeated message adds nothing, and iids-added counts it."""
    with ServerThread(tmp_path / "a") as former, ServerThread(tmp_path / "b") as server, ExitStack() as stack:
        first, leader = (stack.enter_context(Wire(each.url)) for each in (former, server))
        first.ask("XADD", "orders", "IDMP", "p", "of-both", "*", "n", "0")
        follow(leader, int(port_of(former)))
        wait_level(leader, first)
        leader.ask("REPLICAOF", "NO", "ONE")
        first.ask("XCFGSET", "orders", "IDMP-DURATION", "500", "IDMP-MAXSIZE", "200")
        entry = first.ask("XADD", "orders", "IDMP", "p", "alone", "*", "n", "1")
        first.ask_together([["MULTI"], ["XADD", "new", "IDMPAUTO", "q", "*", "n", "2"], ["EXEC"]])
        first.ask("XADD", "orders", "IDMP", "p", "gone", "*", "n", "3")
        gone = first.ask("XADD", "orders", "IDMP", "p", "gone", "*", "n", "3")
        first.ask("XDEL", "orders", gone)
        had = [first.ask("XINFO", "STREAM", name) for name in ("orders", "new")]
        follow(first, int(port_of(server)))
        wait_level(first, leader)
        (kept,) = files(tmp_path / "a")
        leader.socket.sendall(kept.with_suffix(".resp").read_bytes() + b"SELECT 0\r\nECHO end\r\n")
        replies = iter(leader.read, b"end")
        assert not [each for each in replies if isinstance(each, Exception)]
        assert leader.ask("XADD", "orders", "IDMP", "p", "alone", "*", "n", "9") == entry
        made = [leader.ask("XINFO", "STREAM", name) for name in ("orders", "new")]
        for before, after in zip(had, made, strict=True):
            for name in (b"iids-added", b"iids-tracked", b"idmp-duration", b"idmp-maxsize", b"length"):
                assert after[after.index(name) + 1] == before[before.index(name) + 1], name


def test_entries_are_added_anew_as_the_page_says(tmp_path: Path) -> None:
    """The documented steps add such entries anew, with any ids and fields. Only the server's user can read them."""
    with ServerThread(tmp_path / "a") as former, ServerThread(tmp_path / "b") as server, ExitStack() as stack:
        first, leader = (stack.enter_context(Wire(each.url)) for each in (former, server))
        first.ask("XADD", "orders", "*", "of", "both")
        follow(leader, int(port_of(former)))
        wait_level(leader, first)
        leader.ask("REPLICAOF", "NO", "ONE")
        first.ask("XADD", "orders", "*", "lost", b"\xff\x00")
        first.ask("SET", "plain", "v")
        first.ask("XADD", b"\xfe", "*", "a", "1", "a", "2")
        leader.ask("XADD", "orders", "*", "newer", "v")
        follow(first, int(port_of(server)))
        wait_level(first, leader)
        (kept,) = files(tmp_path / "a")
        assert {each.stat().st_mode & 0o777 for each in kept.parent.glob("diverged-*")} == {0o600}
        snippet = block("python", "diverged-....jsonl", page="docs/replication.md")
        subprocess.run([sys.executable, "-c", snippet, kept, server.url], check=True, stdout=subprocess.DEVNULL)
        held = leader.ask("XRANGE", "orders", "-", "+")
        assert [fields for _, fields in held] == [[b"of", b"both"], [b"newer", b"v"], [b"lost", b"\xff\x00"]]
        assert [fields for _, fields in leader.ask("XRANGE", b"\xfe", "-", "+")] == [[b"a", b"1", b"a", b"2"]]


def test_nothing_is_written_where_nothing_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No file is written if nothing is lost: without a copy, or on following a server with an unrelated history."""
    with ExitStack() as stack:
        names = ("a", "b", "c")
        servers = {name: stack.enter_context(ServerThread(tmp_path / name)) for name in names}
        wires = {name: stack.enter_context(Wire(server.url)) for name, server in servers.items()}
        for name in ("a", "c"):  # what a server holds that nobody ever followed would be lost
            write(wires[name], 1, 50)
        for follower, leader in (("b", "a"), ("b", "c"), ("c", "a")):
            follow(wires[follower], int(port_of(servers[leader])))
            wait_level(wires[follower], wires[leader])
        wait_level(wires["b"], wires["a"])
        assert [files(tmp_path / name) for name in names] == [[], [], []]
    assert "taken over" not in caplog.text


@pytest.mark.parametrize("rewritten", [False, True], ids=["log", "snapshot"])
def test_what_a_server_took_that_nobody_had_followed_is_kept_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, rewritten: bool
) -> None:
    """A server without a history, which had no replica, saves its writes too. The log reports those in a snapshot."""
    with ServerThread(tmp_path / "a") as alone, ServerThread(tmp_path / "b") as server, ExitStack() as stack:
        first, leader = (stack.enter_context(Wire(each.url)) for each in (alone, server))
        first.ask("SET", "alone:early", "v")
        if rewritten:
            first.ask("BGREWRITEAOF")
            eventually(lambda: info(first, "persistence")["aof_rewrite_in_progress"] == "0", what="it is rewritten")
        first.ask("XGROUP", "CREATE", "orders", "g", "0", "MKSTREAM")
        take_alone(first, "one")
        follow(first, int(port_of(server)))
        wait_level(first, leader)
        assert first.ask("DBSIZE") == 0
        (kept,) = files(tmp_path / "a")
        assert kept.name == "diverged-alone-0.jsonl"
        leader.socket.sendall(kept.with_suffix(".resp").read_bytes() + b"SELECT 0\r\nECHO end\r\n")
        assert not [each for each in iter(leader.read, b"end") if isinstance(each, Exception)]
        assert (leader.ask("GET", "alone:one"), leader.ask("XLEN", "orders")) == (b"one", 1)
        assert leader.ask("GET", "alone:early") == (None if rewritten else b"v")
        assert ("the log was rewritten since" in caplog.text) == rewritten


def test_without_a_log_it_is_said_that_there_is_no_file(caplog: pytest.LogCaptureFixture) -> None:
    """A server with --memory cannot save diverged writes, and logs their number."""
    with ServerThread() as former, ServerThread() as server, Wire(former.url) as first, Wire(server.url) as leader:
        write(first, 1, 50)
        follow(leader, int(port_of(former)))
        wait_level(leader, first)
        leader.ask("REPLICAOF", "NO", "ONE")
        first.ask("SET", "alone", "v")
        with caplog.at_level(logging.WARNING):
            follow(first, int(port_of(server)))
            wait_level(first, leader)
    assert "no log is kept (--memory), so there is no file of them" in caplog.text


def test_only_the_latest_files_are_kept(tmp_path: Path) -> None:
    """`replica-keep-diverged` limits the number of saved files; each has its commands beside it."""
    folder = tmp_path / "a"
    with ServerThread(folder) as former, ServerThread(tmp_path / "b") as server:
        with Wire(former.url) as first, Wire(server.url) as leader:
            first.ask("CONFIG", "SET", "replica-keep-diverged", "1")
            first.ask("SET", "k", "v")
            for turn in range(2):
                follow(leader, int(port_of(former)))
                wait_level(leader, first)
                leader.ask("REPLICAOF", "NO", "ONE")
                take_alone(first, str(turn))
                follow(first, int(port_of(server)))
                wait_level(first, leader)
                first.ask("REPLICAOF", "NO", "ONE")
            assert info(first)["millstream_diverged_files"] == "1"
        (kept,) = files(folder)
        held = {change["key"] for line in lines(kept) for change in line["changes"] if change["key"]}
        assert lines(kept)[0]["changes"][0]["key"] == "alone:1"
        assert held == {"alone:1", "orders", "list", "number"}
        assert sorted(each.name for each in folder.glob("diverged-*")) == [kept.name, kept.stem + ".resp"]
        with Wire(former.url) as first:
            for path in folder.glob("diverged-*"):  # as the doctor says; the number stayed until the next start
                path.unlink()
            assert info(first)["millstream_diverged_files"] == "0"


def test_killed_while_it_is_written_it_is_there_or_still_in_the_log(tmp_path: Path) -> None:
    """A former primary killed while it saves diverged writes, or right after, has them in the file or in the log."""
    former = millstream_server(tmp_path / "former")
    data = tmp_path / "former" / "data"
    with former, ServerThread(tmp_path / "next") as server, Wire(server.url) as leader:
        with Wire(former.url) as first:
            first.ask("SET", "k", "v")
            follow(leader, former.port)
            wait_level(leader, first)
            leader.ask("REPLICAOF", "NO", "ONE")
            first.ask_together(["SET", f"alone:{at}", "v"] for at in range(3000))
            follow(first, int(port_of(server)))
            eventually(lambda: list(data.glob("diverged-*.part")), what="it is being written")
        former.kill()
        former.launch()
        eventually(lambda: list(data.glob("diverged-*.jsonl")), what="it is written")
        former.kill()
        former.start()
        with Wire(former.url) as first:
            wait_level(first, leader)
        keys = {change["key"] for line in lines(files(data)[0]) for change in line["changes"]}
        assert keys >= {f"alone:{at}" for at in range(3000)}
        assert not list(data.glob("*.part"))


@pytest.mark.parametrize("way", ["counted", "uncounted", "rewritten"])
def test_what_was_taken_after_the_history_was_given_up_is_kept_too(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Diverged writes are saved even if no replica has followed for `repl-backlog-ttl`, when bytes are not counted."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "diverged-of-one-killed-1.jsonl.part").touch()
    with ServerThread(tmp_path / "b") as server, Wire(server.url) as leader:
        former = ServerThread(tmp_path / "a", parameters={"repl-backlog-ttl": "1"})
        with former, Wire(former.url) as first:
            first.ask("SET", "shared", "v")
            follow(leader, int(port_of(former)))
            wait_level(leader, first)
            leader.ask("REPLICAOF", "NO", "ONE")
            if way == "counted":
                first.ask("SET", "alone:counted", "v")
            eventually(lambda: info(first)["repl_backlog_active"] == "0", what="the history is given up")
            assert (info(first)["second_repl_offset"], info(first)["master_replid2"]) == ("-1", "0" * 40)
            first.ask("SET", "alone:uncounted", "v")
            if way == "rewritten":
                first.ask("BGREWRITEAOF")
                eventually(lambda: info(first, "persistence")["aof_rewrite_in_progress"] == "0", what="it is rewritten")
        monkeypatch.chdir(tmp_path)
        with ServerThread(Path("a")) as former, Wire(former.url) as first:
            first.ask("SET", "alone:later", "v")
            follow(first, int(port_of(server)))
            wait_level(first, leader)
    kept = [line for file in files(tmp_path / "a") for line in lines(file)]
    held = [change["key"] for line in kept for change in line["changes"] if change["key"]]
    every = ["alone:counted", "alone:uncounted", "alone:later"]
    assert held == every[("counted", "uncounted", "rewritten").index(way) :]
    assert ("the log was rewritten since the other server was the primary" in caplog.text) is (way == "rewritten")
    assert f" in {tmp_path / 'a' / 'diverged-'}" in caplog.text  # a relative path is of a folder unknown
    assert not list((tmp_path / "a").glob("*.part"))


def test_what_was_taken_between_two_histories_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Diverged writes in a log that was rewritten since are reported, though they cannot be saved."""
    with (
        ServerThread(tmp_path / "b") as server,
        ServerThread(tmp_path / "a", parameters={"repl-backlog-ttl": "1"}) as former,
        Wire(server.url) as leader,
        Wire(former.url) as first,
    ):
        first.ask("SET", "shared", "v")
        follow(leader, int(port_of(former)))
        wait_level(leader, first)
        leader.ask("REPLICAOF", "NO", "ONE")
        eventually(lambda: info(first)["repl_backlog_active"] == "0", what="the history is given up")
        first.ask("SET", "alone", "v")
        with Wire(former.url) as another:
            another.send("PSYNC", "?", "-1")
            eventually(lambda: "state=online" in info(first).get("slave0", ""), what="it has its copy")
            follow(first, int(port_of(server)))
            wait_level(first, leader)
    assert "the log was rewritten since the other server was the primary" in caplog.text


@pytest.mark.parametrize(("starts", "others"), [(2, 0), (0, 1), (2, 2)], ids=str)
def test_what_was_taken_alone_is_known_behind_further_starts_of_either(
    tmp_path: Path, starts: int, others: int
) -> None:
    """Diverged writes are found and saved after any number of restarts of either server."""
    with ServerThread(tmp_path / "a") as former, ServerThread(tmp_path / "b") as server, ExitStack() as stack:
        first, leader = (stack.enter_context(Wire(each.url)) for each in (former, server))
        first.ask("SET", "shared", "v")
        follow(leader, int(port_of(former)))
        wait_level(leader, first)
        leader.ask("REPLICAOF", "NO", "ONE")
        leader.ask("SET", "newer", "v")
        first.ask("SET", "alone:0", "v")
    for number in range(1, starts + 1):
        with ServerThread(tmp_path / "a") as former, Wire(former.url) as first:
            first.ask("SET", f"alone:{number}", "v")
    for _ in range(others):
        with ServerThread(tmp_path / "b") as server, Wire(server.url) as leader:
            leader.ask("SET", "newer", "v")
    with ServerThread(tmp_path / "a") as former, ServerThread(tmp_path / "b") as server, ExitStack() as stack:
        first, leader = (stack.enter_context(Wire(each.url)) for each in (former, server))
        follow(first, int(port_of(server)))
        wait_level(first, leader)
        assert sorted(first.ask("KEYS", "*")) == [b"newer", b"shared"]
    kept = [line for path in files(tmp_path / "a") for line in lines(path)]
    names = [change["key"] for line in kept for change in line["changes"] if change["key"]]
    assert names == [f"alone:{number}" for number in range(starts + 1)]


@pytest.mark.parametrize("keeps_log", [True, False], ids=["log", "memory"])
def test_what_was_taken_alone_is_known_to_who_has_a_copy_of_the_new_primary(tmp_path: Path, *, keeps_log: bool) -> None:
    """A promoted replica that took a copy knows the earlier histories, so diverged writes are still found."""
    with ExitStack() as stack:
        former = stack.enter_context(ServerThread(tmp_path / "a"))
        leader = stack.enter_context(ServerThread(tmp_path / "b" if keeps_log else None))
        server = stack.enter_context(ServerThread(tmp_path / "c"))
        first, second, third = (stack.enter_context(Wire(each.url)) for each in (former, leader, server))
        first.ask("SET", "shared", "v")
        follow(second, int(port_of(former)))
        wait_level(second, first)
        second.ask("REPLICAOF", "NO", "ONE")
        first.ask("SET", "alone", "v")
        follow(third, int(port_of(leader)))
        wait_level(third, second)
        third.ask("REPLICAOF", "NO", "ONE")
    with ExitStack() as stack:
        former, server = (stack.enter_context(ServerThread(tmp_path / name)) for name in "ac")
        first, third = (stack.enter_context(Wire(each.url)) for each in (former, server))
        follow(first, int(port_of(server)))
        wait_level(first, third)
        assert first.ask("KEYS", "*") == [b"shared"]
    kept = [line for path in files(tmp_path / "a") for line in lines(path)]
    assert [change["key"] for line in kept for change in line["changes"] if change["key"]] == ["alone"]
