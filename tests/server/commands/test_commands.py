"""Commands on clients, parameters and the server itself, which no Redis of another version can check."""

import re
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millstream.clock import ManualClock
from millstream.commands.admin.info import (
    SECTIONS,
    CommandFacts,
    DatabaseFacts,
    InfoFacts,
    LogFacts,
    ShellFacts,
    human,
    render,
)
from millstream.commands.connection.clients import describe
from millstream.commands.context.config import PARAMETERS, Config
from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.commands.table.table import TABLE, every
from millstream.commands.users.categories import categories
from millstream.errors import CommandError, ConfigError
from millstream.node.node import Node
from millstream.server.thread import ServerThread
from support.waiting import eventually
from support.wire import Wire

Connect = Callable[..., Wire]


def fields(line: bytes) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in line.decode().split())


def section(text: bytes) -> dict[str, str]:
    lines = [line for line in text.decode().split("\r\n") if line and not line.startswith("#")]
    return dict(line.split(":", 1) for line in lines)


# ---------------------------------------------------------------------- CLIENT


def test_client_list_tells_what_each_does(connect: Connect) -> None:
    """CLIENT LIST has a line for each client with its state: name, database, transaction, subscriptions, wait."""
    one, two, three = connect(), connect(3), connect()
    one.ask("CLIENT", "SETNAME", "me")
    one.ask("CLIENT", "SETINFO", "LIB-NAME", "mine")
    one.ask("SELECT", 3)
    one.ask("WATCH", "a")
    one.ask("MULTI")
    one.ask("PING")
    two.ask("SUBSCRIBE", "c1", "c2")
    lines = [fields(line) for line in three.ask("CLIENT", "LIST").splitlines()]
    assert [line["id"] for line in lines] == sorted((line["id"] for line in lines), key=int)
    first, second, third = lines
    assert [first[name] for name in ("name", "lib-name", "db", "multi", "watch")] == ["me", "mine", "3", "1", "1"]
    assert (first["flags"], second["flags"], third["flags"]) == ("x", "P", "N")
    assert (second["sub"], second["resp"], third["cmd"]) == ("2", "3", "client|list")
    host, port = one.socket.getsockname()
    assert first["addr"] == f"{host}:{port}"
    now = fields(three.ask("CLIENT", "INFO"))
    counters = {"tot-net-in", "tot-net-out", "tot-cmds", "read-events"}
    assert all(int(now[name]) > int(third[name]) for name in counters)
    assert now == {**third, "cmd": "client|info", **{name: now[name] for name in counters}}
    assert len(three.ask("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) == 1


def test_descriptions_of_clients_are_verbatim_in_resp3(connect: Connect) -> None:
    """CLIENT LIST and CLIENT INFO are verbatim text in RESP3 and bulk strings in RESP2, an empty list too."""
    plain, wire = connect(), connect(3)
    assert wire.ask_exact("CLIENT", "LIST", "ID", "999999") == b"txt:"
    assert plain.ask_exact("CLIENT", "LIST", "ID", "999999") == b""
    for word in ("INFO", "LIST"):
        reply = wire.ask_exact("CLIENT", word)
        assert isinstance(reply, bytes)
        assert reply.startswith(b"txt:id=")


def test_describe_flags() -> None:
    """CLIENT LIST and CLIENT INFO show a letter for every state of a session."""
    session = Session(7, blocked=True, closing=True, is_unix=True, no_evict=True, no_touch=True, watch_broken=True)
    assert fields(describe(session, 0).encode())["flags"] == "bdcUeT"


def test_client_kill_filters(connect: Connect) -> None:
    """CLIENT KILL ends clients that match all filters, by default not the caller. The old form takes an address."""
    control, one, two = connect(), connect(), connect()
    ids = [wire.ask("CLIENT", "ID") for wire in (one, two)]
    assert control.ask("CLIENT", "KILL", "ID", ids[0], "TYPE", "pubsub") == 0
    assert control.ask("CLIENT", "KILL", "ID", ids[0], "MAXAGE", 1000) == 0
    assert control.ask("CLIENT", "KILL", "ID", ids[0], "USER", "default", "TYPE", "normal") == 1
    assert one.is_closed()
    host, port = two.socket.getsockname()
    assert control.ask("CLIENT", "KILL", f"{host}:{port}") == b"OK"
    assert two.is_closed()
    assert str(control.ask("CLIENT", "KILL", f"{host}:{port}")) == "ERR No such client"
    host, port = control.socket.getpeername()
    assert control.ask("CLIENT", "KILL", "LADDR", f"{host}:{port}") == 0
    assert control.ask("PING") == b"PONG"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("CLIENT LIST ID x", "ERR Invalid client ID"),
        ("CLIENT LIST TYPE x", "ERR Unknown client type 'x'"),
        ("CLIENT LIST x", "ERR syntax error"),
        ("CLIENT KILL USER nobody", "ERR No such user 'nobody'"),
        ("CLIENT KILL MAXAGE x", "ERR maxage is not an integer or out of range"),
        ("CLIENT KILL ID 1 MAXAGE", "ERR syntax error"),
        ("CLIENT TRACKING OFF BAD", "ERR syntax error"),
        ("PSETEX a 9223372036854775807 v", "ERR invalid expire time in 'psetex' command"),
        ("DECRBY a -9223372036854775808", "ERR decrement would overflow"),
        ("MEMORY USAGE a SAMPLES", "ERR syntax error"),
        ("SHUTDOWN x", "ERR syntax error"),
        ("SHUTDOWN SAVE NOSAVE", "ERR syntax error"),
        ("SHUTDOWN NOW ABORT", "ERR syntax error"),
        ("SHUTDOWN ABORT", "ERR No shutdown in progress."),
        ("COMMAND LIST FILTERBY BAD x", "ERR syntax error"),
        ("COMMAND LIST x", "ERR syntax error"),
        ("COMMAND GETKEYS XGROUP BAD x", "ERR Invalid command specified"),
    ],
)
def test_refusals(connect: Connect, words: str, line: str) -> None:
    """Invalid arguments are refused with Redis's errors."""
    assert str(connect().ask(*words.split())) == line


def test_string_that_would_be_too_long(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """APPEND beyond the size limit of a word is refused, and leaves the string unchanged."""
    monkeypatch.setattr("millstream.commands.keyspace.strings.MAX_BYTES", 10)
    wire = connect()
    assert wire.ask("APPEND", "a", "x" * 10) == 10
    assert str(wire.ask("APPEND", "a", "y")).startswith("ERR string exceeds maximum allowed size")
    assert wire.ask("GET", "a") == b"x" * 10


def test_time_that_has_passed_deletes(connect: Connect) -> None:
    """A key whose time to live is in the past is deleted at once, though GETEX still returns its value."""
    wire = connect()
    wire.ask("SET", "a", 1)
    assert wire.ask("GETEX", "a", "PXAT", 1) == b"1"
    wire.ask("SET", "b", 1, "PX", 5)
    eventually(lambda: wire.ask("DBSIZE") == 0)
    assert wire.ask("MGET", "a", "b") == [None, None]


def test_randomkey_and_object(connect: Connect) -> None:
    """RANDOMKEY returns existing keys, each sooner or later. OBJECT returns the values of Redis."""
    wire = connect()
    assert wire.ask("RANDOMKEY") is None
    wire.ask("MSET", "a", 1, "b", "x", "c", "y" * 50)
    seen: set[bytes] = set()
    eventually(lambda: seen.add(wire.ask("RANDOMKEY")) or len(seen) == 3)
    assert seen == {b"a", b"b", b"c"}
    assert [wire.ask("OBJECT", "ENCODING", key) for key in "abcd"] == [b"int", b"embstr", b"raw", None]
    assert [wire.ask("OBJECT", "REFCOUNT", key) for key in "ad"] == [1, None]


def test_command_list_by_all_filters_is_consistent() -> None:
    """No command is both fast and slow, or both reading and writing."""
    for row in rows():
        found = set(categories(row))
        assert len(found & {"@fast", "@slow"}) == 1
        assert not {"@read", "@write"} <= found


def test_client_tracking_on_is_refused(connect: Connect) -> None:
    """CLIENT TRACKING ON is refused, since Millstream sends no invalidations."""
    assert str(connect().ask("CLIENT", "TRACKING", "ON")) == "ERR client tracking is not supported by Millstream"


def test_names_are_printable(connect: Connect) -> None:
    """A client's name cannot have a line break, which would forge lines of CLIENT LIST."""
    wire = connect()
    for words in (["SETNAME", "a\nb"], ["SETINFO", "LIB-NAME", "a b"], ["SETINFO", "LIB-VER", "\x01"]):
        assert str(wire.ask("CLIENT", *words)).startswith("ERR ")
    assert str(wire.ask("HELLO", 2, "SETNAME", "a b")).startswith("ERR Client names")
    assert str(wire.ask("CLIENT", "SETINFO", "LIB", "x")) == "ERR Unrecognized option 'LIB'"


def test_reset_makes_the_connection_new(connect: Connect) -> None:
    """RESET ends the transaction, watches and subscriptions, and resets protocol, database and name."""
    wire, other = connect(3), connect()
    wire.ask("SELECT", 2)
    wire.ask("CLIENT", "SETNAME", "me")
    wire.ask("WATCH", "a")
    wire.ask("SUBSCRIBE", "c")
    wire.ask("MULTI")
    assert wire.ask("RESET") == b"RESET"
    line = fields(wire.ask("CLIENT", "INFO"))
    assert (line["db"], line["name"], line["resp"], line["multi"], line["watch"], line["sub"]) == (
        "0", "", "2", "-1", "0", "0",
    )  # fmt: skip
    assert other.ask("PUBLISH", "c", "x") == 0


def test_ping_among_messages(connect: Connect) -> None:
    """PING of a RESP2 subscriber has a reply in the form of a message; in RESP3 it is the usual one."""
    old, new = connect(2), connect(3)
    old.ask("SUBSCRIBE", "c")
    new.ask("SUBSCRIBE", "c")
    assert old.ask("PING") == [b"pong", b""]
    assert old.ask("PING", "hi") == [b"pong", b"hi"]
    assert new.ask("PING") == b"PONG"


# ---------------------------------------------------------------------- CONFIG


def test_config_get_and_set(connect: Connect) -> None:
    """CONFIG GET matches patterns in any case, CONFIG SET changes all or nothing, and sizes are shown in bytes."""
    wire = connect(3)
    assert wire.ask("CONFIG", "GET", "STREAM-node-max-*", "save") == {
        b"stream-node-max-bytes": b"4096",
        b"stream-node-max-entries": b"100",
        b"save": b"",
    }
    assert wire.ask("CONFIG", "SET", "stream-node-max-bytes", "8kb", "MaxClients", 77) == b"OK"
    assert wire.ask("CONFIG", "GET", "stream-node-max-bytes", "maxclients") == {
        b"stream-node-max-bytes": b"8192",
        b"maxclients": b"77",
    }
    bad = wire.ask("CONFIG", "SET", "maxclients", 5, "stream-idmp-duration", 0)
    assert "must be between 1 and 86400 inclusive" in str(bad)
    assert wire.ask("CONFIG", "GET", "maxclients") == {b"maxclients": b"77"}
    assert "can't set immutable config" in str(wire.ask("CONFIG", "SET", "port", 1))
    assert str(wire.ask("CONFIG", "REWRITE")) == "ERR The server is running without a config file"
    everything = wire.ask("CONFIG", "GET", "*")
    assert set(everything) == {name.encode() for name in PARAMETERS}
    assert everything[b"port"] == b"%d" % wire.socket.getpeername()[1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("normal 1 2", "Wrong number of arguments"),
        ("master 1 2 3", "Invalid client class"),
        ("normal 1 2 3 pubsub 1 2", "Wrong number of arguments"),
        ("normal x 2 3", "Error in hard, soft or soft_seconds"),
    ],
)
def test_output_limit_reasons(value: str, reason: str) -> None:
    """An invalid output limit is refused, and the error names the wrong part."""
    with pytest.raises(CommandError, match=reason):
        Config().set([("client-output-buffer-limit", value)])


def test_output_limits_of_a_class() -> None:
    """Each client class has its own output limit. Unnamed classes stay. ``replica`` is another name of ``slave``."""
    config = Config()
    name = "client-output-buffer-limit"
    assert config.texts()[name] == "normal 268435456 67108864 60 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
    config.set([(name, "replica 1mb 2 3 PUBSUB 5 6 7")])
    assert config.texts()[name] == "normal 268435456 67108864 60 slave 1048576 2 3 pubsub 5 6 7"
    config.set([(name, "")])
    assert config.output_limits.pubsub.soft == 6


def test_config_at_the_start() -> None:
    """Parameters given at the start are checked as in CONFIG SET, and the error names them."""
    assert Config({"Stream-Idmp-Maxsize": "7"}).idmp_maxsize == 7
    with pytest.raises(ConfigError, match=r"no parameter 'nosuch'.*maxclients"):
        Config({"nosuch": "1"})
    with pytest.raises(ConfigError, match="maxclients cannot be 'x'"):
        Config({"maxclients": "x"})


def test_values_shown_can_be_set_again() -> None:
    """CONFIG SET accepts every value that CONFIG GET returns, since Redis's test suite restores parameters so."""
    config = Config()
    before = dict(config.values)
    config.set([(name, text) for name, text in config.texts().items() if PARAMETERS[name].mutable])
    assert config.values == before


# ---------------------------------------------------------------------- INFO


def test_info_sections() -> None:
    """INFO has its sections in Redis's order, whatever the request's.

    Unknown sections are empty, and values are one line.
    """
    facts = InfoFacts(
        commands={"xgroup|create": CommandFacts(3, 30.4, 1, 2)},
        errors={"NOGROUP": 1},
        databases=[DatabaseFacts(0, 2, 1, 500), DatabaseFacts(1, 0, 0)],
        shell=ShellFacts(unix_socket="/s.sock"),
        log=LogFacts(enabled=True, policy="always"),
    )
    assert render(["nosuch"], facts) == ""
    assert re.findall("# (.*)\r\n", render(["CLIENTS", "server"], facts)) == ["Server", "Clients"]
    assert "cmdstat_xgroup|create:calls=3,usec=30,usec_per_call=10.13,rejected_calls=1,failed_calls=2\r\n" in render(
        ["commandstats"], facts
    )
    assert "errorstat_NOGROUP:count=1\r\n" in render([], facts)
    assert "db0:keys=2,expires=1,avg_ttl=500,subexpiry=0\r\n" in render([], facts)
    assert "db1:" not in render([], facts)
    assert "cmdstat" not in render(["default"], facts)
    everything = render(["everything"], facts)
    assert len(re.findall("# .*\r\n", everything)) == len(SECTIONS)
    for line in everything.split("\r\n"):
        assert not line or line.startswith("#") or ":" in line


def test_info_of_a_running_server(connect: Connect, server: ServerThread) -> None:
    """INFO of a running server has true values in the fields that tools read."""
    wire = connect()
    wire.ask("SET", "a", 1)
    wire.ask("NOSUCH")
    told = section(wire.ask("INFO", "everything"))
    assert told["redis_version"] == "8.10.0"
    assert told["tcp_port"] == server.url.rpartition(":")[2]
    assert told["connected_clients"] == "1"
    assert told["total_error_replies"] == "1"
    assert told["role"] == "master"
    assert told["cluster_enabled"] == "0"
    assert told["db0"].startswith("keys=1,")
    assert int(told["used_memory"]) > 1_000_000
    assert int(told["total_net_input_bytes"]) > 0
    wire.ask("CONFIG", "RESETSTAT")
    assert section(wire.ask("INFO", "stats"))["total_error_replies"] == "0"


def test_lastsave_follows_the_disk(tmp_path: object) -> None:
    """LASTSAVE and INFO have the time of the last sync. The size of the log is that of its files."""
    with ServerThread(str(tmp_path)) as server, Wire(server.url) as wire:
        before = wire.ask("TIME")
        wire.ask("SET", "a", "x" * 10_000)
        assert wire.ask("LASTSAVE") >= int(before[0]) - 1
        told = section(wire.ask("INFO", "persistence"))
        assert int(told["aof_current_size"]) > 10_000
        assert told["millstream_log_appended"] == told["millstream_log_durable"] == "1"
        assert told["rdb_last_save_time"] == str(wire.ask("LASTSAVE"))


def test_lastsave_tells_of_a_save_in_every_mode(tmp_path: object) -> None:
    """LASTSAVE moves after BGSAVE, also with ``--fsync no`` and with nothing new to write, since tools wait for it."""
    with ServerThread(str(tmp_path), fsync="no") as server, Wire(server.url) as wire:
        wire.ask("SET", "a", "x")
        for word in ("SAVE", "BGSAVE", "BGREWRITEAOF"):
            eventually(lambda: int(wire.ask("TIME")[0]) > wire.ask("LASTSAVE"))
            before = int(wire.ask("TIME")[0])
            assert not isinstance(wire.ask(word), Exception)
            if word == "BGREWRITEAOF":  # it syncs what there is, but not before it answers
                eventually(lambda at=before: wire.ask("LASTSAVE") >= at)
            assert wire.ask("LASTSAVE") >= before
            assert section(wire.ask("INFO", "persistence"))["rdb_last_save_time"] == str(wire.ask("LASTSAVE"))


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (1023, "1023B"), (1536, "1.50K"), (3 << 40, "3.00T")])
def test_human_sizes(size: int, text: str) -> None:
    """Sizes for people have Redis's form."""
    assert human(size) == text


def test_memory_usage_grows_with_what_is_kept(connect: Connect) -> None:
    """MEMORY USAGE is null for no key, and grows with entries and pending records."""
    wire = connect()
    assert wire.ask("MEMORY", "USAGE", "s") is None
    sizes = []
    for round_ in range(3):
        for number in range(200):
            wire.ask("XADD", "s", f"{round_ + 1}-{number + 1}", "f", "v" * 50)
        sizes.append(wire.ask("MEMORY", "USAGE", "s", "SAMPLES", 0))
    assert 600 * 51 < sizes[2] < 600 * 1000
    assert sizes == sorted(sizes)
    wire.ask("XGROUP", "CREATE", "s", "g", 0)
    wire.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 100, "STREAMS", "s", ">")
    assert wire.ask("MEMORY", "USAGE", "s") > sizes[2]
    assert str(wire.ask("MEMORY", "USAGE", "s", "SAMPLES", -1)) == "ERR syntax error"


# ---------------------------------------------------------------------- COMMAND


def rows() -> list[Command]:
    return [row for head in TABLE.values() for row in (head, *head.subcommands.values())]


def test_command_tells_the_table(connect: Connect) -> None:
    """COMMAND, COUNT, LIST, INFO and DOCS agree with each other and with the table, in both protocols."""
    for resp in (2, 3):
        wire = connect(resp)
        assert wire.ask("COMMAND", "COUNT") == len(TABLE) == len(wire.ask("COMMAND"))
        assert wire.ask("COMMAND", "LIST") == [row.name.encode() for row in every()]
        told = wire.ask("COMMAND", "INFO", "xadd", "XGROUP|CREATE", "nosuch", "get")
        assert [row and row[0] for row in told] == [b"xadd", b"xgroup|create", None, b"get"]
        assert told[0][1] == -5
        assert told[1][3:6] == [2, 2, 1]
        assert set(told[3][2]) == {b"readonly", b"fast"}
        assert set(told[3][6]) == {b"@read", b"@string", b"@fast"}
    docs = wire.ask("COMMAND", "DOCS")
    assert set(docs) == set(TABLE)
    assert b"xgroup|create" in docs[b"xgroup"][b"subcommands"]
    assert wire.ask("COMMAND", "DOCS", "nosuch") == {}
    assert b"xgroup|create" in wire.ask("COMMAND", "LIST", "FILTERBY", "PATTERN", "xg*")
    assert b"xadd" in wire.ask("COMMAND", "LIST", "FILTERBY", "ACLCAT", "stream")
    assert wire.ask("COMMAND", "LIST", "FILTERBY", "MODULE", "x") == []
    assert str(wire.ask("COMMAND", "BAD")) == "ERR unknown subcommand 'BAD'. Try COMMAND HELP."


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["SET", "k", "v"], ["k"]),
        (["MSET", "a", "1", "b", "2"], ["a", "b"]),
        (["XGROUP", "CREATE", "s", "g", "0"], ["s"]),
        (["XREAD", "COUNT", "1", "STREAMS", "a", "b", "0", "0"], ["a", "b"]),
        (["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"], ["s"]),
        (["DEL", "a", "b", "c"], ["a", "b", "c"]),
        (["PING"], "ERR The command has no key arguments"),
        (["GET"], "ERR Invalid number of arguments specified for command"),
        (["XREAD", "COUNT", "1", "a"], "ERR Invalid arguments specified for command"),
        (["NOSUCH"], "ERR Invalid command specified"),
    ],
)
def test_command_getkeys(connect: Connect, words: list[str], keys: object) -> None:
    """COMMAND GETKEYS finds keys at fixed positions and after STREAMS."""
    got = connect().ask("COMMAND", "GETKEYS", *words)
    assert (str(got) if isinstance(keys, str) else [key.decode() for key in got]) == keys


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_every_command_is_described(row: Command) -> None:
    """Every command has a summary, a group, a version and a handler (containers have subcommands instead)."""
    assert row.document.summary.endswith(".")
    assert row.group
    assert re.fullmatch(r"\d+\.\d+\.\d+", row.document.since)
    assert row.handler is not None or row.subcommands
    assert not {"write", "readonly"} <= row.flags


@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.subcommands))
def test_every_container_has_help(connect: Connect, name: bytes) -> None:
    """HELP of a container command names every subcommand."""
    lines = b"\n".join(connect().ask(name, "HELP"))
    for sub in TABLE[name].subcommands:
        assert re.search(rb"(?m)^%s\b" % sub.upper(), lines), sub


@given(st.lists(st.text(max_size=5).map(str.encode), min_size=1, max_size=5), st.sampled_from(sorted(TABLE)))
@settings(deadline=None)
def test_no_words_break_a_command(words: list[bytes], name: bytes) -> None:
    """Any arguments of any command get a reply, which is not an internal error."""
    assume(name not in {b"shutdown", b"quit"})
    assume((name, words[0].upper()) != (b"client", b"REPLY"))
    node = Node(Config())
    now = ManualClock().now()
    outcome = node.execute(node.sessions.open(now), [name, *words], now)
    assert outcome is not None
    assert b"internal error" not in b"".join(outcome.buffers)
