"""``maxmemory`` and ``maxmemory-clients`` of a running server: the counted memory, refusals, and their end."""

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import millstream
from millstream.cli.main import main
from millstream.engine.streams.memory import stream_memory
from millstream.errors import CommandError
from millstream.server.thread import ServerThread
from support.inprocess import World
from support.resident import collect_garbage
from support.servers import millstream_server
from support.waiting import eventually
from support.wire import Wire, pack

OOM = "OOM command not allowed when used memory > 'maxmemory'."
MIB = 1 << 20


def fields(wire: Wire) -> dict[str, str]:
    """Return INFO's memory section."""
    lines = wire.ask("INFO", "memory").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def used(wire: Wire) -> int:
    """Return the count to which the limit applies."""
    return int(fields(wire)["used_memory"])


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """Yield a client of a server with a data directory."""
    collect_garbage()  # streams of earlier tests count until they are freed, as one process has one count
    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        yield wire


@pytest.mark.parametrize("kind", ["stream", "strings", "hash", "records"])
def test_a_limit_holds_and_ends_with_a_deletion(wire: Wire, kind: str) -> None:
    """Writes of any kind are refused close to the limit. DEL ends that at once, and frees all that was counted."""
    wire.ask("XGROUP", "CREATE", "g", "g", "0", "MKSTREAM")
    wire.ask("XADD", "s", "1-1", "f", "v")
    begin, limit = used(wire), 2 * MIB
    wire.ask("CONFIG", "SET", "maxmemory", begin + limit)
    add = {
        "stream": lambda at: ("XADD", "s", "*", "f", "x" * 500),
        "strings": lambda at: ("SET", f"k{at}", "x" * 500),
        "hash": lambda at: ("HSET", "h", f"f{at}", "x" * 500),
        "records": lambda at: ("XADD", "g", "*", "f", "v"),
    }[kind]
    replies: list[object] = []
    while not replies or str(replies[-1]) != OOM:
        replies += wire.ask_together(add(len(replies) + at) for at in range(32))
        wire.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", "g", ">")
        assert len(replies) < 100_000
    assert limit * 0.95 < used(wire) - begin < limit * 1.1
    wire.ask("DEL", *(f"k{at}" for at in range(len(replies))), "h", "s", "g")
    assert abs(used(wire) - begin) < 20_000
    assert wire.ask("XADD", "s", "1-1", "f", "v") == b"1-1"


def test_what_began_below_the_limit_ends_above_it(wire: Wire) -> None:
    """A transaction or script that began below the limit runs to its end above it, and the next one is refused."""
    wire.ask("XADD", "s", "1-1", "f", "v")
    wire.ask("CONFIG", "SET", "maxmemory", used(wire) + 8 * MIB)
    script = "for at = 1, 1000 do redis.call('XADD', 's', '*', 'f', ARGV[1]) redis.call('SET', at, ARGV[1]) end"
    assert wire.ask("EVAL", script, "0", "x" * 6000) is None
    assert wire.ask("XLEN", "s") == 1001
    assert str(wire.ask("EVAL", script, "0", "x")).startswith(f"{OOM} script: ")
    wire.ask("FLUSHALL")
    wire.ask("SET", "k", "x" * 5 * MIB)
    copies = [("COPY", "k", "l"), ("COPY", "k", "m"), ("SET", "n", "v")]
    assert wire.ask_together([("MULTI",), *copies, ("EXEC",)])[-1] == [1, 1, b"OK"]
    assert str(wire.ask("SET", "k", "v")) == OOM


def test_a_start_and_a_replica_refuse_nothing(tmp_path: Path) -> None:
    """A server starts with more data than its limit, and a replica accepts all data of its primary."""
    with ServerThread(tmp_path / "one") as server, Wire(server.url) as wire:
        wire.ask_together([("XADD", "s", "*", "f", "x" * 1000)] * 200)
    limit = {"maxmemory": "1kb"}
    with ExitStack() as stack:
        primary = stack.enter_context(ServerThread(tmp_path / "one", parameters=limit))
        replica = stack.enter_context(ServerThread(tmp_path / "two", parameters=limit))
        ours, theirs = stack.enter_context(Wire(primary.url)), stack.enter_context(Wire(replica.url))
        assert (ours.ask("XLEN", "s"), str(ours.ask("XADD", "s", "*", "f", "v"))) == (200, OOM)
        theirs.ask("REPLICAOF", "127.0.0.1", primary.url.rpartition(":")[2])
        eventually(lambda: theirs.ask("XLEN", "s") == 200)
        assert ours.ask("CONFIG", "SET", "maxmemory", "0") == b"OK"
        ours.ask("XADD", "s", "*", "f", "v")
        eventually(lambda: theirs.ask("XLEN", "s") == 201)
        assert str(theirs.ask("SET", "k", "v")).startswith("READONLY")
        assert theirs.ask("REPLICAOF", "NO", "ONE") == b"OK"
        assert str(theirs.ask("SET", "k", "v")) == OOM


def test_info_has_the_figures(wire: Wire) -> None:
    """INFO has the counted memory, its parts, the limit and refused commands. The peak stays after a deletion."""
    limit = used(wire) + 1024 * MIB  # the process has run other tests, and may be large
    wire.ask("CONFIG", "SET", "maxmemory", limit)
    empty = fields(wire)
    wire.ask("SET", "k", "x" * MIB)
    full = fields(wire)
    wire.ask("DEL", "k")
    after = fields(wire)
    human = f"{limit / (1024 * MIB):.2f}G"
    assert (full["maxmemory"], full["maxmemory_human"], full["maxmemory_policy"]) == (str(limit), human, "noeviction")
    assert MIB < int(full["used_memory"]) - int(after["used_memory"]) < MIB + 1000
    assert int(full["used_memory_dataset"]) - int(empty["used_memory_dataset"]) == MIB + 191
    assert int(after["used_memory_peak"]) >= int(full["used_memory"])
    assert int(after["used_memory"]) > int(after["used_memory_startup"]) > 0
    assert int(after["used_memory_rss_peak"]) >= int(after["used_memory_rss"]) > MIB
    assert after["total_oom_rejected"] == after["mem_not_counted_for_evict"] == "0"
    ratio = int(after["used_memory_rss"]) / int(after["used_memory"])
    assert abs(float(after["mem_fragmentation_ratio"]) - ratio) < 0.02
    wire.ask("CONFIG", "SET", "maxmemory", "1")
    assert str(wire.ask("SET", "k", "v")) == OOM
    assert fields(wire)["total_oom_rejected"] == "1"


def test_clients_are_counted(wire: Wire, tmp_path: Path) -> None:
    """Incomplete commands, queued commands and names of channels count as memory of their client."""
    with ServerThread(tmp_path / "other") as server, Wire(server.url) as wire, Wire(server.url) as other:
        before = used(wire)
        other.socket.sendall(pack("SET", "k", "x" * MIB)[:-10])
        eventually(lambda: used(wire) - before > MIB * 0.9)
        other.socket.sendall(b"x" * 8 + b"\r\n")
        assert other.read() == b"OK"
        wire.ask("DEL", "k")
        assert abs(used(wire) - before) < 10_000
        other.ask("MULTI")
        other.ask("SET", "k", "x" * MIB)
        assert MIB < used(wire) - before < MIB + 10_000
        other.ask("DISCARD")
        other.ask("SUBSCRIBE", "c" * MIB)
        assert MIB < used(wire) - before < MIB + 10_000


def test_the_largest_client_is_disconnected(tmp_path: Path) -> None:
    """Above ``maxmemory-clients`` the largest client is disconnected; others stay, and so do those with NO-EVICT."""
    with ServerThread() as server, ExitStack() as stack:
        wire, small, large, kept = (stack.enter_context(Wire(server.url)) for _ in range(4))
        wire.ask("CONFIG", "SET", "maxmemory-clients", "4mb")
        kept.ask("CLIENT", "NO-EVICT", "ON")
        for client, size in ((small, 100_000), (kept, 3 * MIB), (large, 2 * MIB)):
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            client.socket.sendall(pack("SET", "k", "x" * size)[:-10])
        eventually(lambda: wire.ask("INFO", "stats").count(b"evicted_clients:1"))
        assert large.is_closed()
        assert wire.ask("CONFIG", "SET", "maxmemory-clients", "0") == b"OK"
        for client in (small, kept):
            client.socket.sendall(b"x" * 8 + b"\r\n")
            assert client.read() == b"OK"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("maxmemory", "9223372036854775808", "argument must be greater or equal to 0"),
        ("tier-after", "7d", "argument must be a whole number of seconds from 0 to 2147483647, without a unit"),
        ("maxmemory-policy", "allkeys-lru", "argument must be noeviction: this server removes no data by itself. "),
    ],
)
def test_a_value_that_cannot_be_is_refused(wire: Wire, name: str, value: str, reason: str) -> None:
    """CONFIG SET refuses a policy that would evict data with advice, and too large a number as Redis 8.2 does."""
    head = f"ERR CONFIG SET failed (possibly related to argument '{name}') - "
    assert str(wire.ask("CONFIG", "SET", name, value)).startswith(head + reason)


def test_the_option_and_a_wrong_size(tmp_path: Path) -> None:
    """``--maxmemory`` accepts units; an invalid size ends the start with one sentence."""
    done = CliRunner().invoke(main, ["serve", "--memory", "--maxmemory", "much"])
    assert done.exit_code == 2
    assert "'much' is invalid: use bytes, or a number with kb, mb or gb" in done.output
    for words in (("--maxmemory", ""), ("--set", "maxmemory=")):  # such as an unset variable in a unit file
        done = CliRunner().invoke(main, ["serve", "--memory", *words])
        assert done.exit_code == 2
        assert "empty" in done.output
    with millstream_server(tmp_path, "--memory", "--maxmemory", "512mb") as server, Wire(server.url) as wire:
        assert wire.ask("CONFIG", "GET", "maxmemory") == [b"maxmemory", b"536870912"]


def test_a_limit_below_the_empty_server_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A start and CONFIG SET warn about a limit that the process passes without data, once for each value."""
    world = World({"maxmemory": "1mb"})
    client = world.client()
    world.node.memory.begin_from(stream_memory() + 40_000_000)
    said = "maxmemory is 1.0 MB, and the server takes 40.0 MB without any data: every command that adds data is refused"
    assert [line.startswith(said) for line in caplog.messages] == [True]
    caplog.clear()
    client.call("CONFIG", "SET", "maxmemory", "1mb")
    client.call("CONFIG", "SET", "maxmemory", "50mb")
    assert not any("without any data" in line for line in caplog.messages)
    client.call("CONFIG", "SET", "maxmemory", "2mb")
    assert caplog.messages[-1].startswith("maxmemory is 2.1 MB, and the server takes 40.0 MB without any data")


def test_a_process_that_outgrows_its_limit_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Resident memory that stays above 1.25 times the limit is logged once, and again only after it had fallen."""
    world = World({"maxmemory": "100mb"})
    for resident, warnings in (
        (124, 0),
        (124, 0),
        (126, 0),
        (124, 0),
        (126, 0),
        (126, 1),
        (126, 1),
        (90, 1),
        (200, 1),
        (200, 2),
    ):
        world.node.memory.look(resident * MIB)
        assert caplog.text.count("maxmemory is 104857600") == warnings
    World().node.memory.look(1 << 40)
    World().node.memory.look(1 << 40)
    assert caplog.text.count("takes") == 2


def test_an_embedded_store_has_the_limit_too() -> None:
    """An embedded store counts data, not its program, and refuses writes above its limit."""
    gc.collect()
    with millstream.open_store("memory://limited") as store:
        begin = int(
            dict(line.split(":") for line in store.execute("INFO", "memory").decode().split() if ":" in line)[
                "used_memory"
            ]
        )
        assert begin < stream_memory() + MIB  # streams of other tests' nodes, until they are collected
        store.execute("CONFIG", "SET", "maxmemory", str(begin + 10_000))
        store.execute("SET", "k", "x" * 20_000)
        with pytest.raises(CommandError, match=OOM.replace(">", ".")):
            store.xadd("s", {"f": "v"})
        store.execute("DEL", "k")
        assert store.xadd("s", {"f": "v"})
