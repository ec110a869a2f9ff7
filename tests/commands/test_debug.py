"""DEBUG, SAVE and related commands, and fixed CONFIG parameters: they do what they report, or are refused."""

from pathlib import Path

import pytest

from millstream.errors import DiskError
from millstream.replies import Error, Simple
from support.coldness import hot_log
from support.inprocess import WAITING, ListLog, World
from support.servers import millstream_server
from support.state import check, snapshot

OK = Simple(b"OK")
NOT_ALLOWED = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local '
    "connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


def world(allowed: str = "yes", *, logged: bool = True) -> World:
    return World({"enable-debug-command": allowed, "stream-node-max-entries": "3"}, logged=logged)


def fill(found: World) -> None:
    client = found.client()
    for number in range(1, 11):
        client.call("XADD", "s", f"{number}-1", "a", number)
    client.call("XADD", "s", "IDMP", "p", "m", "*", "a", "b")
    client.call("XGROUP", "CREATE", "s", "g", 0)
    client.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 7, "STREAMS", "s", ">")
    client.call("XNACK", "s", "g", "FAIL", "IDS", 1, "3-1")
    client.call("XDEL", "s", "4-1")
    client.call("SET", "word", "x", "PX", 5000)
    client.call("SELECT", 3)
    client.call("RPUSH", "list", "b", "a")
    client.call("SADD", "set", "3", "1", "b")
    client.call("ZADD", "zset", "-inf", "b", "2", "a")
    client.call("HSET", "hash", "f", "v")


@pytest.mark.parametrize("words", [("RELOAD",), ("LOADAOF",), ("LOG", "x"), ("HELP",), ("NOSUCH",)])
def test_debug_is_refused_unless_it_is_allowed(words: tuple[str, ...]) -> None:
    """DEBUG is refused by default. The setting ``local`` allows it to connections from the same machine."""
    assert World().client().call("DEBUG", *words) == Error(NOT_ALLOWED)
    found = world("local").client()
    for addr, is_local in (("127.0.0.1:5", True), ("[::1]:5", True), ("", True), ("10.0.0.1:5", False)):
        found.session.addr = addr
        assert (found.call("DEBUG", *words) == Error(NOT_ALLOWED)) is not is_local


@pytest.mark.parametrize("words", [("NOSUCH",), ("LOG",), ("SLEEP",), ("RELOAD", "NOSAVE"), ("SET-ACTIVE-EXPIRE",)])
def test_unknown_subcommands_of_debug(words: tuple[str, ...]) -> None:
    """An unknown DEBUG subcommand, or a wrong number of arguments, gets Redis's error."""
    expected = f"ERR unknown subcommand or wrong number of arguments for '{words[0]}'. Try DEBUG HELP."
    assert world().client().call("DEBUG", *words) == Error(expected)


@pytest.mark.parametrize("command", ["RELOAD", "LOADAOF"])
def test_everything_is_made_anew_and_is_the_same(command: str) -> None:
    """DEBUG RELOAD and LOADAOF rebuild all types, expiry times, groups and order in all databases, and log nothing."""
    found = world()
    fill(found)
    before, records = snapshot(found.node), len(found.log.payloads)
    old = found.node.keyspace.databases[0].keys[b"s"]
    assert found.client().call("DEBUG", command) == OK
    assert found.node.keyspace.databases[0].keys[b"s"] is not old
    assert snapshot(found.node) == before
    assert len(found.log.payloads) == records
    check(found.node)
    found.advance(6000)
    assert found.client().call("EXISTS", "word") == 0


@pytest.mark.parametrize("command", ["RELOAD", "LOADAOF"])
def test_who_waits_goes_on_waiting(command: str) -> None:
    """Readers that are blocked during a DEBUG RELOAD or LOADAOF stay blocked, and get later entries in their order."""
    found = world()
    fill(found)
    client, one, two, three = (found.client() for _ in range(4))
    client.call("XGROUP", "CREATE", "s", "h", "$")
    one.send("XREADGROUP", "GROUP", "h", "one", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">")
    two.send("XREADGROUP", "GROUP", "h", "two", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">")
    three.send("XREADGROUP", "GROUP", "g", "three", "BLOCK", 0, "CLAIM", 9000, "COUNT", 1, "STREAMS", "s", ">")
    four = found.client()
    assert four.send("XREADGROUP", "GROUP", "h", "four", "BLOCK", 0, "CLAIM", 3000, "STREAMS", "s", ">") is WAITING
    assert client.call("DEBUG", command) == OK
    assert one.waits
    assert two.waits
    identity = client.call("XADD", "s", "*", "x", "y")
    assert one.inbox == [[[b"s", [[identity, [b"x", b"y"]]]]]]
    assert two.inbox == []
    found.advance(3001)
    assert found.node.next_deadline(found.clock.now()) is not None
    assert four.inbox[0][0][1][0][0] == identity


@hot_log
def test_a_log_that_tells_something_else_changes_nothing() -> None:
    """If the log differs from the data in memory, DEBUG LOADAOF changes nothing and its error names the keys."""
    found = world()
    fill(found)
    before = snapshot(found.node)
    del found.log.payloads[3]
    found.log.payloads.pop()
    told = found.client().call("DEBUG", "LOADAOF")
    assert isinstance(told, Error)
    assert told.line == "ERR nothing was changed: 2 keys would not be the same, among them hash, s"
    assert snapshot(found.node) == before


def test_without_a_log_there_is_none_to_load() -> None:
    """Without a data directory, DEBUG LOADAOF is an error. DEBUG RELOAD works, because it reads no log."""
    found = world(logged=False)
    fill(found)
    told = found.client().call("DEBUG", "LOADAOF")
    assert told == Error("ERR there is no log to load: the server was started without a data directory")
    assert found.client().call("DEBUG", "RELOAD") == OK


def test_keys_are_not_deleted_unasked_while_that_is_off() -> None:
    """After DEBUG SET-ACTIVE-EXPIRE 0, an expired key is removed only when a command reads it."""
    found = world()
    client = found.client()
    assert client.call("DEBUG", "SET-ACTIVE-EXPIRE", 0) == OK
    client.call("SET", "a", "x", "PX", 10)
    client.call("SET", "b", "x", "PX", 10)
    for _ in range(5):
        found.advance(200)
    assert client.call("DBSIZE") == 2
    assert client.call("EXISTS", "a") == 0
    assert client.call("DEBUG", "SET-ACTIVE-EXPIRE", 1) == OK
    for _ in range(5):
        found.advance(200)
    assert client.call("DBSIZE") == 0
    assert client.call("DEBUG", "SET-ACTIVE-EXPIRE", 2) == Error("ERR argument must be 0 or 1")


@pytest.mark.parametrize("seconds", ["0", "0.001"])
def test_sleep(seconds: str) -> None:
    """DEBUG SLEEP replies OK after the sleep."""
    assert world().client().call("DEBUG", "SLEEP", seconds) == OK


@pytest.mark.parametrize("seconds", ["x", "-1", "inf", "99999999"])
def test_sleeps_that_make_no_sense(seconds: str) -> None:
    """DEBUG SLEEP refuses a duration that is negative, infinite or not a number."""
    assert world().client().call("DEBUG", "SLEEP", seconds) == Error("ERR value is not a valid float")


def test_log_and_help(caplog: pytest.LogCaptureFixture) -> None:
    """DEBUG LOG writes its message to the server's log. DEBUG HELP names every subcommand."""
    client = world().client()
    assert client.call("DEBUG", "LOG", "### a test") == OK
    assert "### a test" in caplog.text
    lines = [line.text for line in client.call("DEBUG", "HELP")]
    assert [line.split()[0] for line in lines[1:] if not line.startswith(b" ")] == [
        b"LOADAOF",
        b"LOG",
        b"RELOAD",
        b"SET-ACTIVE-EXPIRE",
        b"SLEEP",
        b"HELP",
    ]


# ---------------------------------------------------------------------- SAVE and its kin


class Disk(ListLog):
    """Log that counts its writes and syncs, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.fails = False

    def write(self) -> int:
        if self.fails:
            raise DiskError("cannot write to data: no such device")
        self.asked.append("write")
        return super().write()

    def sync(self) -> int:
        self.asked.append("sync")
        return super().sync()


SAVES = [("SAVE", b"OK"), ("BGSAVE", b"Background saving started")]


@pytest.mark.parametrize(("name", "answer"), SAVES)
def test_saving_brings_the_log_to_the_disk(name: str, answer: bytes) -> None:
    """SAVE replies after the log is written and synced. Changes since the last save start at 0 again."""
    found = World()
    disk = found.node.journal.log = Disk()
    client = found.client()
    client.call("SET", "a", "x")
    assert client.call(name) == Simple(answer)
    assert disk.asked == ["write", "sync"]
    assert b"rdb_changes_since_last_save:0\r\n" in client.call("INFO", "persistence")
    disk.fails = True
    assert client.call(name) == Error("ERR cannot write to data: no such device")


@pytest.mark.parametrize("name", ["SAVE", "BGSAVE", "BGREWRITEAOF"])
def test_saving_is_refused_where_nothing_is_kept(name: str) -> None:
    """SAVE without a data directory is an error: the server never reports a save that did not happen."""
    told = World(logged=False).client().call(name)
    assert told == Error("ERR nothing is kept: the server was started without a data directory")


def test_words_of_bgsave() -> None:
    """BGSAVE accepts SCHEDULE and no other argument. SAVE is refused in a transaction."""
    client = World().client()
    assert client.call("BGSAVE", "schedule") == Simple(b"Background saving started")
    assert client.call("BGSAVE", "now") == Error("ERR syntax error")
    client.call("MULTI")
    assert client.call("SAVE") == Error("ERR Command not allowed inside a transaction")


# ---------------------------------------------------------------------- CONFIG


def test_config_takes_back_what_it_gave() -> None:
    """CONFIG SET accepts every value that CONFIG GET returns, one by one or all at once, and nothing changes."""
    client = World().client()
    pairs = client.call("CONFIG", "GET", "*")
    assert len(pairs) % 2 == 0
    for at in range(0, len(pairs), 2):
        assert client.call("CONFIG", "SET", pairs[at], pairs[at + 1]) == OK, pairs[at]
    assert client.call("CONFIG", "GET", "*") == pairs


@pytest.mark.parametrize(
    ("name", "value"),
    [("appendonly", "yes"), ("appendonly", "maybe"), ("appendfsync", "no"), ("save", "60 1"), ("port", "1")],
)
def test_facts_cannot_be_set_to_something_else(name: str, value: str) -> None:
    """CONFIG SET refuses another value for a parameter that is fixed."""
    told = World().client().call("CONFIG", "SET", name, value)
    assert told == Error(f"ERR CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config")


def test_a_server_is_told_at_its_start(tmp_path: Path) -> None:
    """``--set enable-debug-command`` allows DEBUG. A server rebuilds the same data from its rolling log files."""
    with millstream_server(tmp_path, "--set", "enable-debug-command=local", "--fsync", "everysec") as server:
        with server.client() as client:
            for number in range(100):
                client.xadd("s", {"n": str(number)})
            client.xgroup_create("s", "g", "0")
            client.xreadgroup("g", "anna", {"s": ">"})
            before = client.xinfo_stream("s", full=True)
            for command in ("LOADAOF", "RELOAD", "LOADAOF"):
                assert client.execute_command("DEBUG", command) in (b"OK", True)
                client.xadd("t", {"n": "1"})
            assert client.xinfo_stream("s", full=True) == before
            assert client.save() is True
            assert client.bgrewriteaof() is True
            assert client.config_set("appendonly", "yes") is True
        server.kill()
        server.start()
        with server.client() as client:
            assert client.xinfo_stream("s", full=True) == before
            assert client.xlen("t") == 3
