"""A real redis-server follows Millstream: a copy, the stream, cuts and restarts on both sides."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.server.thread import ServerThread
from replication.replicated import Changes, state
from support.needs import program
from support.ports import free_port
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with redis_server(Path(tmp_path_factory.mktemp("replica"))) as server:
        yield server


@pytest.fixture(params=["log", "memory"])
def primary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data" if request.param == "log" else None) as server:
        yield server


def port_of(server: ServerThread) -> str:
    return str(server.server.facts.tcp_port)


def info(wire: Wire, section: str = "replication") -> dict[str, str]:
    text = wire.ask("INFO", section)
    if str(text).startswith("LOADING"):  # Valkey says so while it takes a copy over
        return {"master_link_status": "loading", "role": "slave"}
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


def follows(replica: Wire, primary: Wire) -> bool:
    """Return True if the replica has everything of the primary."""
    mine, its = info(replica), info(primary)
    return mine.get("master_link_status") == "up" and mine["master_repl_offset"] == its["master_repl_offset"]


def write(wire: Wire, seed: int, count: int) -> None:
    since = 1000 * int(wire.ask("TIME")[0])
    chance = random.Random(seed)
    commands = list(Changes(seed, since).some(count))
    while commands:
        some = [commands.pop(0) for _ in range(min(len(commands), chance.choice([1, 7, 50])))]
        wire.ask_together(some)


def test_a_copy_then_the_stream_then_a_cut(primary: ServerThread, each_redis: ServerProcess) -> None:
    """A Redis replica takes a copy, continues after a cut where it was, and WAIT reports when it has a write."""
    with Wire(primary.url) as ours, Wire(each_redis.url) as theirs:
        write(ours, 1, 600)
        follow(theirs, port_of(primary))
        write(ours, 2, 300)
        eventually(lambda: follows(theirs, ours), what="the replica has its copy")
        write(ours, 3, 600)
        assert ours.ask("WAIT", 1, 30_000) == 1
        assert state(theirs.ask) == state(ours.ask)
        assert ours.ask("CLIENT", "KILL", "TYPE", "replica") == 1
        write(ours, 4, 300)
        eventually(lambda: follows(theirs, ours), what="the replica has come back")
        assert state(theirs.ask) == state(ours.ask)
        stats = info(ours, "stats")
        assert (stats["sync_full"], stats["sync_partial_ok"]) == ("1", "1")
        theirs.ask("REPLICAOF", "NO", "ONE")


def follow(replica: Wire, port: int | str) -> None:
    replica.ask("REPLICAOF", "127.0.0.1", str(port))


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_primary_that_starts_again_goes_on_with_its_replica(
    fsync: str, replica: ServerProcess, tmp_path: Path
) -> None:
    """A restarted Millstream needs no copy for its Redis replica: its log has the offset and the former history."""
    port = free_port()
    with Wire(replica.url) as theirs:
        with ServerThread(tmp_path, port=port, fsync=fsync) as primary, Wire(primary.url) as ours:
            follow(theirs, port)
            write(ours, 5, 300)
            ours.ask("PUBLISH", "c", "no record counts this by itself")
            eventually(lambda: follows(theirs, ours), what="the replica has its copy")
        with ServerThread(tmp_path, port=port, fsync=fsync) as primary, Wire(primary.url) as ours:
            write(ours, 6, 300)
            eventually(lambda: follows(theirs, ours), what="the replica has come back")
            assert state(theirs.ask) == state(ours.ask)
            stats, past = info(ours, "stats"), info(ours)
            assert (stats["sync_full"], stats["sync_partial_ok"]) == ("0", "1")
            assert past["master_replid2"] != "0" * 40
            assert int(past["second_repl_offset"]) > 1
        theirs.ask("REPLICAOF", "NO", "ONE")


def test_a_primary_that_is_killed_goes_on_with_its_replica(replica: ServerProcess, tmp_path: Path) -> None:
    """A killed primary restarts with everything that its replica has, since only durable bytes are sent."""
    with millstream_server(tmp_path) as primary, Wire(replica.url) as theirs:
        follow(theirs, primary.port)
        with Wire(primary.url) as ours:
            eventually(lambda: follows(theirs, ours), what="the replica has its copy")
            for seed in range(3):
                write(ours, seed, 200)
        primary.kill()
        primary.start()
        with Wire(primary.url) as ours:
            eventually(lambda: follows(theirs, ours), what="the replica has come back")
            assert state(theirs.ask) == state(ours.ask)
        theirs.ask("REPLICAOF", "NO", "ONE")


def test_a_replica_that_starts_again_gets_what_it_missed(primary: ServerThread, tmp_path: Path) -> None:
    """A Redis replica that was stopped cleanly gets only the missed bytes after its restart."""
    options = ("--replicaof", "127.0.0.1", port_of(primary))
    with Wire(primary.url) as ours, redis_server(tmp_path / "r", *options, "--appendonly", "no") as second:
        write(ours, 7, 300)
        with Wire(second.url) as theirs:
            eventually(lambda: follows(theirs, ours), what="the replica has its copy")
            theirs.ask("CONFIG", "SET", "save", "900 1")
        second.stop()
        write(ours, 8, 300)
        second.start()
        with Wire(second.url) as theirs:
            eventually(lambda: follows(theirs, ours), what="the replica has come back")
            assert state(theirs.ask) == state(ours.ask)
        assert info(ours, "stats")["sync_full"] == "1"


def test_cuts_at_any_moment(primary: ServerThread, replica: ServerProcess) -> None:
    """A Redis replica cut again and again under load continues where it was each time, and ends with equal data."""
    with Wire(primary.url) as ours, Wire(replica.url) as theirs:
        follow(theirs, port_of(primary))
        eventually(lambda: follows(theirs, ours), what="the replica has its copy")
        cuts = 0
        for seed in range(30):
            write(ours, seed, 60)
            cuts += ours.ask("CLIENT", "KILL", "TYPE", "replica")
        eventually(lambda: follows(theirs, ours), what="the replica has come back")
        assert state(theirs.ask) == state(ours.ask)
        stats = info(ours, "stats")
        assert (cuts > 0, stats["sync_full"], stats["sync_partial_ok"]) == (True, "1", str(cuts))
        theirs.ask("REPLICAOF", "NO", "ONE")


def test_replicas_that_come_together_share_a_copy(
    primary: ServerThread, replica: ServerProcess, tmp_path: Path
) -> None:
    """Redis replicas that come together share one copy and end equal; INFO, ROLE and CLIENT LIST have each."""
    with (
        redis_server(tmp_path / "r") as second,
        Wire(second.url) as other,
        Wire(replica.url) as theirs,
        Wire(primary.url) as ours,
    ):
        write(ours, 9, 300)
        follow(theirs, port_of(primary))
        follow(other, port_of(primary))
        write(ours, 10, 300)
        eventually(lambda: follows(theirs, ours) and follows(other, ours), what="both have their copies")
        write(ours, 11, 100)
        assert ours.ask("WAIT", 2, 30_000) == 2
        assert state(theirs.ask) == state(ours.ask) == state(other.ask)
        known = info(ours)
        assert known["connected_slaves"] == "2"
        shown = sorted(known[name].partition(",offset=")[0] for name in ("slave0", "slave1"))
        assert shown == sorted(f"ip=127.0.0.1,port={each.port},state=online" for each in (replica, second))
        role = ours.ask("ROLE")
        assert (role[0], sorted(row[1] for row in role[2])) == (
            b"master",
            sorted(b"%d" % each.port for each in (replica, second)),
        )
        lines = ours.ask("CLIENT", "LIST", "TYPE", "replica").splitlines()
        assert [b" flags=S " in line for line in lines] == [True, True]
        theirs.ask("REPLICAOF", "NO", "ONE")


def test_fields_of_info_are_those_of_redis_in_their_order(primary: ServerThread, replica: ServerProcess) -> None:
    """INFO replication has Redis's fields in Redis's order, for monitoring made for Redis."""
    with Wire(primary.url) as ours, Wire(replica.url) as theirs:
        follow(theirs, port_of(primary))
        ours.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        theirs.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        eventually(lambda: follows(theirs, ours), what="the replica has its copy")
        mine = list(info(ours))
        theirs.ask("REPLICAOF", "NO", "ONE")
        assert [name for name in mine if name != "slave0" and not name.startswith("millstream_")] == list(info(theirs))
        theirs.ask("CONFIG", "SET", "min-replicas-to-write", "0")


def test_writes_are_refused_without_enough_replicas(primary: ServerThread, replica: ServerProcess) -> None:
    """Without ``min-replicas-to-write`` replicas, writes are refused: alone, in transactions and in scripts."""
    refused = "NOREPLICAS Not enough good replicas to write."
    with Wire(primary.url) as ours, Wire(replica.url) as theirs:
        ours.ask("XADD", "s", "*", "f", "v")
        ours.ask("CONFIG", "SET", "min-slaves-to-write", "1")
        for words in (["XADD", "s", "*", "f", "v"], ["SET", "k", "v"], ["INCR", "n"]):
            assert str(ours.ask(*words)) == refused
        assert "NOREPLICAS" in str(ours.ask("EVAL", "return redis.call('SET', 'k', 'v')", 0))
        assert ours.ask("XLEN", "s") == 1
        ours.ask("MULTI")
        assert str(ours.ask("SET", "k", "v")) == refused
        assert str(ours.ask("EXEC")).startswith("EXECABORT")
        follow(theirs, port_of(primary))
        eventually(lambda: ours.ask("SET", "k", "v") == b"OK", what="writes are taken")
        theirs.ask("REPLICAOF", "NO", "ONE")
        eventually(lambda: str(ours.ask("SET", "k", "v")) == refused, what="writes are refused")


def test_wait_tells_how_many_when_its_time_is_up(primary: ServerThread, replica: ServerProcess) -> None:
    """WAIT returns the number of replicas with the data at its timeout, and after CLIENT UNBLOCK, not an error."""
    with Wire(primary.url) as ours, Wire(replica.url) as theirs:
        assert ours.ask("WAIT", 0, 0) == 0
        follow(theirs, port_of(primary))
        eventually(lambda: info(ours).get("slave0", "").find("state=online") > 0, what="the replica follows")
        ours.ask("XADD", "s", "*", "f", "v")
        assert ours.ask("WAIT", 2, 50) == 1
        assert ours.ask("WAITAOF", 0, 0, 50) == [int(primary.server.settings.directory is not None), 0]
        theirs.ask("REPLICAOF", "NO", "ONE")


def test_redis_cli_takes_a_copy_and_listens(primary: ServerThread, tmp_path: Path) -> None:
    """``redis-cli --rdb`` writes a file from which redis-server starts; ``--replica`` prints the stream."""
    cli = [program("redis-cli"), "-p", port_of(primary)]
    with Wire(primary.url) as ours:
        write(ours, 12, 300)
        ours.ask("SELECT", 0)
        done = subprocess.run([*cli, "--rdb", str(tmp_path / "dump.rdb")], capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        with redis_server(tmp_path) as loaded, Wire(loaded.url) as theirs:
            assert state(theirs.ask) == state(ours.ask)
        with subprocess.Popen([*cli, "--replica"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as listener:
            assert listener.stdout is not None
            eventually(lambda: info(ours)["connected_slaves"] == "1", what="redis-cli follows")
            ours.ask("SET", "told", "to the listener")
            heard = b""
            while b"to the listener" not in heard:
                heard += listener.stdout.readline()
            listener.kill()


@pytest.mark.parametrize("old", [True, False], ids=["SYNC", "PSYNC"])
def test_a_tool_that_moves_data_listens_as_a_replica(old: bool, primary: ServerThread, tmp_path: Path) -> None:
    """A tool such as RedisShake takes a copy with the oldest options and the stream, and writes equal data elsewhere.

    It need not support a copy's database: the stream after a copy begins with SELECT.
    """
    with Wire(primary.url) as ours, Wire(primary.url) as first:
        first.send("PSYNC", "?", "-1")
        eventually(lambda: "state=online" in info(ours).get("slave0", ""), what="a history has begun")
        ours.ask("CONFIG", "SET", "requirepass", "secret")
        write(ours, 13, 300)
        ours.ask("SELECT", 1)
        ours.ask("SET", "in", "another")
        with Wire(primary.url) as tool, tool.socket.makefile("rb") as file:
            assert tool.ask("AUTH", "secret") == b"OK"
            assert tool.ask("REPLCONF", "listening-port", "10007") == b"OK"
            assert tool.ask("REPLCONF", "capa", "eof") == b"OK"
            tool.send(*(["SYNC"] if old else ["PSYNC", "?", "-1"]))
            line = b"\n"
            while line == b"\n" or line.startswith(b"+FULLRESYNC "):
                line = file.readline()
            (tmp_path / "dump.rdb").write_bytes(file.read(int(line.removeprefix(b"$"))))
            ours.ask("SET", "still", "there")
            write(ours, 14, 300)
            ours.ask("SELECT", 0)
            ours.ask("SET", "the", "end")
            with redis_server(tmp_path) as target, Wire(target.url) as theirs:
                while theirs.ask("GET", "the") != b"end":
                    words = [file.read(int(file.readline()[1:]) + 2)[:-2] for _ in range(int(file.readline()[1:]))]
                    if words[0] not in {b"PING", b"REPLCONF"}:
                        assert "ERR" not in str(theirs.ask(*words)), words
                tool.send("REPLCONF", "ACK", info(ours)["master_repl_offset"])
                assert state(theirs.ask) == state(ours.ask)
            assert old or ours.ask("WAIT", 1, 30_000) == 1


def test_a_replica_that_takes_nothing_is_cut(primary: ServerThread) -> None:
    """A replica that reads nothing is disconnected at client-output-buffer-limit, at least the backlog's size."""
    with Wire(primary.url) as ours, Wire(primary.url) as slow:
        ours.ask("CONFIG", "SET", "client-output-buffer-limit", "replica 1mb 0 0", "repl-backlog-size", "16kb")
        slow.send("PSYNC", "?", "-1")
        eventually(lambda: "state=online" in info(ours).get("slave0", ""), what="it has its copy")
        value = "x" * 200_000
        most = 0
        for _ in range(200):
            ours.ask("SET", "k", value)
            most = max(most, int(info(ours, "memory")["mem_total_replication_buffers"]))
        assert most > 500_000  # far above the backlog's size
        eventually(lambda: info(ours)["connected_slaves"] == "0", what="it is cut")
        assert slow.is_closed()


def test_an_old_offset_gets_a_copy(primary: ServerThread) -> None:
    """A replica whose offset is not in the backlog, or whose history is unknown, gets a copy."""
    with Wire(primary.url) as ours:
        ours.ask("CONFIG", "SET", "repl-backlog-size", "16kb")
        with Wire(primary.url) as first:
            first.send("PSYNC", "?", "-1")
            eventually(lambda: "state=online" in info(ours).get("slave0", ""), what="it has its copy")
            for _ in range(50):
                ours.ask("SET", "k", "x" * 10_000)
            past = info(ours)
        first_byte = int(past["repl_backlog_first_byte_offset"])
        for replid, offset, wanted in (
            (past["master_replid"], first_byte - 1, b"+FULLRESYNC"),
            (past["master_replid"], first_byte, b"+CONTINUE"),
            (past["master_replid"], int(past["master_repl_offset"]) + 1000, b"+FULLRESYNC"),
            ("f" * 40, first_byte, b"+FULLRESYNC"),
        ):
            with Wire(primary.url) as other:
                other.send("PSYNC", replid, offset)
                heard = b""
                while not heard.lstrip(b"\n") or len(heard.lstrip(b"\n")) < 12:
                    heard += other.socket.recv(100)
                assert heard.lstrip(b"\n").startswith(wanted)


def test_a_history_ends_when_nobody_has_followed_for_long(primary: ServerThread) -> None:
    """Without replicas for ``repl-backlog-ttl`` the backlog is freed and the history renamed, so none continues."""
    with Wire(primary.url) as ours:
        ours.ask("CONFIG", "SET", "repl-backlog-ttl", "1")
        with Wire(primary.url) as other:
            other.send("PSYNC", "?", "-1")
            eventually(lambda: info(ours)["repl_backlog_active"] == "1", what="a history begins")
            name = info(ours)["master_replid"]
        eventually(lambda: info(ours)["repl_backlog_active"] == "0", what="it ends")
        assert info(ours)["master_replid"] != name


def test_a_replica_with_a_user_of_its_own(replica: ServerProcess) -> None:
    """A replica's ACL user needs only three commands."""
    with ServerThread(parameters={"requirepass": "secret"}) as primary, Wire(replica.url) as theirs:
        with Wire(primary.url) as ours:
            ours.ask("AUTH", "secret")
            ours.ask("ACL", "SETUSER", "follower", "on", ">pass", "+psync", "+replconf", "+ping")
            ours.ask("SET", "k", "v")
            theirs.ask("CONFIG", "SET", "masteruser", "follower", "masterauth", "pass")
            follow(theirs, port_of(primary))
            eventually(lambda: follows(theirs, ours), what="the replica has its copy")
            assert theirs.ask("GET", "k") == b"v"
        theirs.ask("REPLICAOF", "NO", "ONE")
        theirs.ask("CONFIG", "SET", "masteruser", "", "masterauth", "")
