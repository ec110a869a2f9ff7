"""A server that is loading its data directory listens, and refuses commands with Redis's LOADING error."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from millstream.persistence.check import check
from millstream.server.thread import ServerThread
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

LOADING = "LOADING Redis is loading the dataset in memory"
KEYS = 200
# Microseconds before each record; ours would need minutes. Redis answers between two keys alone
SLOW, THEIR_SLOW = "500000", "20000"

# Requests of a client or a Sentinel to a server in that state; each gets the same answer from Redis
ASKED = [
    "PING",
    "GET k1",
    "SET k1 v",
    "XADD s * a b",
    "XLEN s",
    "DBSIZE",
    "KEYS *",
    "EVAL 'return_1' 0",
    "PSYNC ? -1",
    "REPLICAOF 127.0.0.1 1",
    "WAIT 0 0",
    "FAILOVER",
    "SCAN 0",
    "BGREWRITEAOF",
    "LASTSAVE",
    "ECHO here",
    "CLIENT GETNAME",
    "CLIENT SETNAME sentinel",
    "CONFIG GET port",
    "COMMAND COUNT",
    "INFO server",
    "ROLE",
    "SLOWLOG LEN",
    "PUBLISH c m",
    "PUBSUB CHANNELS",
    "ACL WHOAMI",
    "MULTI",
    "PING",
    "EXEC",
    "UNWATCH",
    "SELECT 1",
    "HELLO 2",
    "TIME",
    "RESET",
]


def fill(client: redis.Redis) -> None:
    """Give a server some keys, each a record of its own."""
    for at in range(KEYS):
        client.set(f"k{at}", "v" * 2000)  # Redis looks for clients after this many bytes
    client.xadd("s", {"a": "1"})


def state(client: redis.Redis) -> dict[str, object]:
    """Return INFO persistence once the server listens; empty before."""
    try:
        return dict(client.info("persistence"))
    except redis.ConnectionError:
        return {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory for copies."""
    folder = tmp_path_factory.mktemp("filled")
    with ServerThread(folder, fsync="no") as server, redis.Redis.from_url(server.url) as client:
        fill(client)
    return folder


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[ServerProcess]:
    """Yield a server of ours that loads its log for minutes, unless a test speeds it up."""
    folder = tmp_path_factory.mktemp("reading")
    shutil.copytree(data, folder / "data")
    server = millstream_server(folder, "--set", f"key-load-delay={SLOW}")
    server.launch()
    try:
        with server.client() as client:
            eventually(lambda: state(client).get("loading"), what="it reads its log")
        yield server
    finally:
        server.kill()


def outcomes(wire: Wire) -> list[str]:
    """Return the outcome of each command, sent together: its error, or that it had a reply."""
    return [
        str(answer) if isinstance(answer, Exception) else "answered"
        for answer in wire.ask_together(line.split() for line in ASKED)
    ]


@pytest.mark.realserver
def test_what_is_told_to_wait(reading: ServerProcess, tmp_path: Path) -> None:
    """Every command that Redis refuses while loading gets the same error here, and every other command works."""
    path = tmp_path / "theirs"
    with redis_server(path, "--rdbcompression", "no") as before, before.client() as client:
        fill(client)
        client.save()
    slow = ["--key-load-delay", THEIR_SLOW, "--loading-process-events-interval-bytes", "1024"]
    theirs = redis_server(path, *slow, "--rdbcompression", "no")
    theirs.launch()
    try:
        with theirs.client() as client:
            eventually(lambda: state(client).get("loading"), what="Redis loads")
        with Wire(theirs.url) as one, Wire(reading.url) as other:
            told = list(zip(ASKED, outcomes(one), outcomes(other), strict=True))
    finally:
        theirs.kill()
    assert not [each for each in told if each[1] != each[2]]
    assert ("GET k1", LOADING, LOADING) in told
    assert ("INFO server", "answered", "answered") in told


def test_a_client_stays_and_is_served(reading: ServerProcess) -> None:
    """A client that connects during the loading can stay connected; INFO shows the progress until the end."""
    with reading.client() as one, one.client() as client:
        assert client.execute_command("CLIENT SETNAME", "early")
        seen = state(client)
        assert 0 <= int(str(seen["loading_loaded_bytes"])) <= int(str(seen["loading_total_bytes"]))
        assert {"loading_start_time", "loading_rdb_used_mem", "loading_loaded_perc", "loading_eta_seconds"} <= set(seen)
        assert "ready" not in reading.log.read_text()
        client.config_set("key-load-delay", 0)
        eventually(lambda: not state(client)["loading"], what="it has read its log")
        assert (client.get("k7"), client.xlen("s")) == (b"v" * 2000, 1)
        client.set("later", "v")
        assert client.client_getname() == "early"
        assert "loading_start_time" not in state(client)
    eventually(lambda: "ready" in reading.log.read_text(), what="it says that it is ready")


@pytest.mark.parametrize("way", ["SIGTERM", "SHUTDOWN"])
def test_ending_while_the_log_is_read_and_who_may(tmp_path: Path, data: Path, way: str) -> None:
    """A stop during the loading works at once and loses nothing. Passwords and the ACL file apply at once."""
    shutil.copytree(data, tmp_path / "data")
    users = tmp_path / "users.acl"
    users.write_text("user default on >secret ~* &* +@all\nuser guest on nopass ~* &* -@all +ping\n")
    server = millstream_server(tmp_path, "--set", f"key-load-delay={SLOW}", "--aclfile", str(users))
    server.launch()
    try:
        wire = eventually(lambda: Wire(server.url), what="it listens")
        with wire:
            assert str(wire.ask("INFO")) == "NOAUTH Authentication required."
            assert wire.ask("AUTH", "secret") == b"OK"
            assert b"loading:1" in wire.ask("INFO", "persistence")
            assert str(wire.ask("GET", "k1")) == LOADING
            if way == "SHUTDOWN":
                wire.send("SHUTDOWN", "NOSAVE")
                assert server.process is not None
                assert server.process.wait(30) == 0
        if way == "SIGTERM":
            assert server.stop() == 0
    finally:
        if server.process is not None:
            server.kill()
    said = server.log.read_text()
    assert "stopped while the log was read" in said
    assert "ready" not in said
    assert check(tmp_path / "data").records == KEYS + 1
