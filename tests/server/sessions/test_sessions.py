"""One client's life: pipelines, transactions, waits, refusals, and errors that do not affect others."""

import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import hiredis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream.clock import Now
from millstream.commands.context.session import Session
from millstream.commands.table.table import TABLE
from millstream.errors import StorageError
from millstream.node.outcome import Outcome
from millstream.protocol import limits
from millstream.server.settings import Delays
from millstream.server.thread import ServerThread
from support.needs import program
from support.waiting import eventually
from support.wire import Wire, pack

if TYPE_CHECKING:
    from millstream.commands.context.context import Context
    from millstream.replies import Reply

Connect = Callable[..., Wire]


def client(server: ServerThread, **options: object) -> redis.Redis:
    made: redis.Redis = redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=30, **options)
    return made


def blocked_clients(wire: Wire) -> int:
    text = wire.ask("INFO", "clients").decode()
    return int(text.partition("blocked_clients:")[2].partition("\r")[0])


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works(server: ServerThread, protocol: int) -> None:
    """An unmodified redis-py connects with either protocol and reads back its data."""
    with client(server, protocol=protocol) as redis_py:
        assert redis_py.ping()
        entry = redis_py.xadd("s", {"f": "v"})
        assert redis_py.xrange("s") == [(entry, {b"f": b"v"})]
        assert redis_py.info("server")["redis_version"] == "8.10.0"
        assert redis_py.config_get("maxclients") == {"maxclients": "10000"}
        assert redis_py.client_info()["resp"] == str(protocol)
        assert redis_py.command_getkeys("MSET", "a", 1, "b", 2) == ["a", "b"] or protocol == 3
        assert "xadd" in redis_py.command()


def test_redis_cli_works(server: ServerThread) -> None:
    """redis-cli runs commands, shows errors and pipes in bulk."""
    port = server.url.rpartition(":")[2]
    cli = [program("redis-cli"), "-p", port]
    run = subprocess.run([*cli, "XADD", "s", "1-1", "f", "v"], capture_output=True, text=True, check=True)
    assert run.stdout == "1-1\n"
    run = subprocess.run([*cli, "-3", "XRANGE", "s", "-", "+"], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1-1", "f", "v"]
    run = subprocess.run([*cli], input="NOSUCH\nPING\n", capture_output=True, text=True, check=True)
    assert "unknown command" in run.stdout
    assert run.stdout.strip().endswith("PONG")
    bulk = b"".join(pack("XADD", "s", "*", "n", n) for n in range(5000))
    run_bytes = subprocess.run([*cli, "--pipe"], input=bulk, capture_output=True, check=True)
    assert b"errors: 0, replies: 5000" in run_bytes.stdout


def test_pipeline_is_answered_in_order(connect: Connect) -> None:
    """Ten thousand commands sent at once have their replies in order, errors included."""
    wire = connect()
    wire.socket.sendall(b"".join(pack("ECHO", n) if n % 10 else pack("NOSUCH") for n in range(10_000)))
    for n in range(10_000):
        reply = wire.read()
        assert isinstance(reply, hiredis.ReplyError) if n % 10 == 0 else reply == b"%d" % n


def test_transactions(server: ServerThread) -> None:
    """MULTI runs all or nothing, and a WATCH that another client broke stops it."""
    with client(server) as redis_py, client(server) as other:
        with redis_py.pipeline() as pipe:
            pipe.set("a", 1).incr("a").xadd("s", {"f": "v"}, id="1-1")
            assert pipe.execute() == [True, 2, b"1-1"]
        with redis_py.pipeline() as pipe:
            pipe.watch("a")
            other.set("a", 5)
            pipe.multi()
            pipe.set("a", 6)
            with pytest.raises(redis.WatchError):
                pipe.execute()
        assert other.get("a") == b"5"


def test_blocked_reader_is_woken(connect: Connect) -> None:
    """XREAD BLOCK waits for another client's XADD; commands sent meanwhile have their replies after it, in order."""
    reader, writer = connect(), connect()
    reader.socket.sendall(pack("XREAD", "BLOCK", 0, "STREAMS", "s", "$") + pack("PING") + pack("ECHO", "x"))
    eventually(lambda: blocked_clients(writer) == 1)
    writer.ask("XADD", "s", "1-1", "f", "v")
    assert reader.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]
    assert reader.read() == b"PONG"
    assert reader.read() == b"x"


def test_commands_behind_a_wait_are_run_after_a_large_reply(connect: Connect) -> None:
    """Commands behind a wait run after its reply, even if that is larger than the client reads at once."""
    reader, writer = connect(), connect()
    reader.socket.sendall(pack("XREAD", "BLOCK", 0, "STREAMS", "s", "$") + pack("PING"))
    eventually(lambda: blocked_clients(writer) == 1)
    writer.ask("XADD", "s", "1-1", "f", b"v" * 16_000_000)
    assert len(reader.read()[0][1][0][1][1]) == 16_000_000
    assert reader.read() == b"PONG"


def test_blocked_reader_times_out(connect: Connect) -> None:
    """A wait with a timeout ends with null by itself."""
    assert connect().ask("XREAD", "BLOCK", 20, "STREAMS", "s", "$") is None


def test_many_blocked_readers_are_served_in_turn(connect: Connect) -> None:
    """Waiting consumers of one group are served in the order in which they began to wait."""
    control = connect()
    control.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    readers = []
    for number in range(20):
        readers.append(connect())
        readers[-1].send("XREADGROUP", "GROUP", "g", f"c{number}", "BLOCK", 0, "STREAMS", "s", ">")
        eventually(lambda: blocked_clients(control) == len(readers))
    for number, reader in enumerate(readers):
        control.ask("XADD", "s", f"{number + 1}-1", "f", "v")
        assert reader.read()[0][1][0][0] == b"%d-1" % (number + 1)


def test_closing_while_blocked_leaves_nothing(connect: Connect, server: ServerThread) -> None:
    """A client that disconnects while it waits is removed, and the entry goes to the next one."""
    control, gone, stays = connect(), connect(), connect()
    control.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    for name, wire in (("gone", gone), ("stays", stays)):
        wire.send("XREADGROUP", "GROUP", "g", name, "BLOCK", 0, "STREAMS", "s", ">")
        eventually(lambda name=name: control.ask("XINFO", "CONSUMERS", "s", "g")[-1][1] == name.encode())
    gone.close()
    eventually(lambda: blocked_clients(control) == 1)
    control.ask("XADD", "s", "1-1", "f", "v")
    assert stays.read()[0][1][0][0] == b"1-1"


def test_client_unblock_and_kill(connect: Connect) -> None:
    """Another client can end a wait with CLIENT UNBLOCK, or the whole connection with CLIENT KILL."""
    control, waiting = connect(), connect()
    number = waiting.ask("CLIENT", "ID")
    waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    eventually(lambda: blocked_clients(control) == 1)
    assert control.ask("CLIENT", "UNBLOCK", number, "ERROR") == 1
    assert "UNBLOCKED" in str(waiting.read())
    assert control.ask("CLIENT", "KILL", "ID", number) == 1
    assert waiting.is_closed()
    assert control.ask("CLIENT", "LIST", "ID", number) == b""
    assert control.ask("CLIENT", "KILL", "ID", control.ask("CLIENT", "ID"), "SKIPME", "no") == 1
    assert control.is_closed()


def test_quit_answers_then_closes(connect: Connect) -> None:
    """QUIT has its reply after those of earlier commands, and later commands do not run."""
    wire, other = connect(), connect()
    wire.socket.sendall(pack("SET", "a", 1) + pack("QUIT") + pack("SET", "a", 2))
    assert [wire.read(), wire.read()] == [b"OK", b"OK"]
    assert wire.is_closed()
    assert other.ask("GET", "a") == b"1"


def test_half_closed_client_gets_its_replies(connect: Connect, server: ServerThread) -> None:
    """A client that sends everything and shuts its sending side, as nc does, gets all replies."""
    wire = connect()
    wire.socket.sendall(b"".join(pack("ECHO", n) for n in range(3000)))
    wire.socket.shutdown(socket.SHUT_WR)
    assert [wire.read() for _ in range(3000)] == [b"%d" % n for n in range(3000)]
    assert wire.is_closed()


def test_client_reply_off_and_skip(connect: Connect) -> None:
    """CLIENT REPLY OFF and SKIP silence exactly the replies that they name."""
    wire = connect()
    wire.socket.sendall(
        pack("CLIENT", "REPLY", "OFF") + pack("SET", "a", 1) + pack("CLIENT", "REPLY", "ON") + pack("GET", "a")
    )
    assert [wire.read(), wire.read()] == [b"OK", b"1"]
    wire.socket.sendall(pack("CLIENT", "REPLY", "SKIP") + pack("SET", "a", 2) + pack("GET", "a"))
    assert wire.read() == b"2"


@pytest.mark.parametrize(
    "hostile",
    [
        b"*3\r\n$3\r\nSET\r\n:1\r\n",
        b"*2147483648\r\n",
        b"*-x\r\n",
        b"*1\r\n$536870913\r\n",
        b"set 'a\r\n",
        b"a" * (limits.INLINE_MAX + 1),
        b"*1\r\n$" + b"1" * limits.INLINE_MAX,
    ],
)
def test_broken_protocol_ends_only_its_connection(connect: Connect, hostile: bytes) -> None:
    """Malformed input gets Redis's error and a close, after the replies to earlier commands. Others notice nothing."""
    wire, other = connect(), connect()
    wire.socket.sendall(pack("PING") + hostile)
    assert wire.read() == b"PONG"
    assert str(wire.read()).startswith("ERR Protocol error: ")
    assert wire.is_closed()
    assert other.ask("PING") == b"PONG"
    assert b"millstream_protocol_errors:1\r\n" in other.ask("INFO", "stats")


@pytest.mark.parametrize("header", [b"*2147483647\r\n", b"*1\r\n$536870912\r\n", b"*1048576\r\n$9\r\n"])
def test_promises_of_gigabytes_cost_nothing(connect: Connect, header: bytes) -> None:
    """Clients that announce huge commands and send nothing do not delay others."""
    for _ in range(50):
        connect().socket.sendall(header)
    assert connect().ask("PING") == b"PONG"


@pytest.mark.parametrize("request_", [b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"Host: x\r\n", pack("post", "/")])
def test_http_is_cut(connect: Connect, request_: bytes) -> None:
    """An HTTP client is disconnected without a reply, so that a browser cannot send commands in a request's body."""
    wire, other = connect(), connect()
    wire.socket.sendall(request_ + pack("SET", "smuggled", 1))
    assert wire.is_closed()
    assert other.ask("EXISTS", "smuggled") == 0
    assert b"millstream_cross_protocol_disconnections:1\r\n" in other.ask("INFO", "stats")


def test_query_buffer_limit(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with too much unread or queued input is closed and counted."""
    monkeypatch.setattr(limits, "QUERY_BUFFER_MAX", 100_000)
    one, two, other = connect(), connect(), connect()
    one.socket.sendall(b"*1\r\n$1000000\r\n" + b"x" * 200_000)
    assert one.is_closed()
    two.ask("MULTI")
    two.socket.sendall(pack("ECHO", "x" * 20_000) * 6)
    assert two.is_closed()
    assert b"client_query_buffer_limit_disconnections:2\r\n" in other.ask("INFO", "stats")


def test_slow_reader_is_cut() -> None:
    """A client that does not read a large reply is closed and counted; others are served meanwhile."""
    with ServerThread(parameters={"client-output-buffer-limit": "normal 4mb 0 0"}) as server, Wire(server.url) as other:
        other.ask("SET", "big", b"x" * (64 * 1024 * 1024))
        with Wire(server.url) as slow:
            slow.send("GET", "big")
            eventually(lambda: b"client_output_buffer_limit_disconnections:1\r\n" in other.ask("INFO", "stats"))
            assert other.ask("PING") == b"PONG"
            assert slow.is_closed()


def test_client_that_never_reads_is_not_read_either(server: ServerThread, connect: Connect) -> None:
    """Commands of a client that reads no replies are not run until it does, so its replies stay bounded."""
    other, greedy = connect(), connect()
    other.ask("SET", "a", b"x" * 100_000)
    sender = threading.Thread(target=greedy.socket.sendall, args=(pack("GET", "a") * 2000,))
    sender.start()
    before = -1

    def settled() -> bool:
        nonlocal before
        last, before = before, server.server.facts.output_bytes
        return last == before > 1_000_000

    eventually(settled)
    held = sum(connection.unsent for connection in server.server.open_connections)
    assert held < 4 * 1024 * 1024
    assert all(len(greedy.read()) == 100_000 for _ in range(2000))
    sender.join()


def test_max_clients() -> None:
    """A client beyond maxclients gets an error and is closed. After another leaves, a new one is accepted."""
    with ServerThread(parameters={"maxclients": "2"}) as server, Wire(server.url) as one, Wire(server.url) as two:
        assert two.ask("PING") == b"PONG"
        with Wire(server.url) as three:
            assert str(three.read()) == "ERR max number of clients reached"
            assert three.is_closed()
        assert b"rejected_connections:1\r\n" in one.ask("INFO", "stats")
        two.close()
        eventually(lambda: b"connected_clients:1\r\n" in one.ask("INFO", "clients"))
        with Wire(server.url) as four:
            assert four.ask("PING") == b"PONG"


def test_password() -> None:
    """Without the password no command runs and little is read; with it all do. RESET requires it again."""
    with ServerThread(parameters={"requirepass": "secret"}) as server:
        with Wire(server.url) as wire:
            assert str(wire.ask("GET", "a")).startswith("NOAUTH ")
            assert str(wire.ask("HELLO", 3)).startswith("NOAUTH ")
            assert str(wire.ask("AUTH", "wrong")).startswith("WRONGPASS ")
            assert str(wire.ask("AUTH", "nobody", "secret")).startswith("WRONGPASS ")
            assert wire.ask("AUTH", "secret") == b"OK"
            assert wire.ask("SET", "a", b"x" * 20_000) == b"OK"
            assert wire.ask("RESET") == b"RESET"
            assert str(wire.ask("GET", "a")).startswith("NOAUTH ")
            wire.socket.sendall(b"*1\r\n$16385\r\n")
            assert str(wire.read()) == "ERR Protocol error: unauthenticated bulk length"
            assert wire.is_closed()
        with Wire(server.url) as wire:
            assert wire.ask("HELLO", 3, "AUTH", "default", "secret")[b"proto"] == 3
            assert b"secret" not in wire.ask("CLIENT", "LIST") + wire.ask("INFO", "everything")
        with Wire(server.url) as wire:
            wire.socket.sendall(b"*11\r\n")
            assert str(wire.read()) == "ERR Protocol error: unauthenticated multibulk length"


def own_address() -> str:
    """Return an address of this machine that is not loopback, or an empty string."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the route tells the address
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if address.startswith("127.") else address


def test_protected_mode() -> None:
    """Without a password only connections from this machine work; others get an error with advice."""
    address = own_address()
    if not address:
        pytest.skip("this machine has only a loopback address")
    with ServerThread(host="0.0.0.0") as server, Wire(server.url) as local:
        outside = f"redis://{address}:{server.url.rpartition(':')[2]}"
        with Wire(outside) as wire:
            assert str(wire.read()).startswith("DENIED ")
            assert wire.is_closed()
        assert b"millstream_denied_connections:1\r\n" in local.ask("INFO", "stats")
        assert local.ask("CONFIG", "SET", "requirepass", "secret") == b"OK"
        with Wire(outside) as wire:
            assert wire.ask("AUTH", "secret") == b"OK"


def test_defect_in_a_command_is_contained(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that fails by an internal error replies with an error without a traceback, and the connection stays."""

    def broken(ctx: "Context", argv: list[bytes]) -> "Reply":
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(TABLE[b"echo"], "handler", broken)
    wire = connect()
    reply = str(wire.ask("ECHO", "x"))
    assert reply.startswith("ERR internal error")
    assert "secret detail" not in reply
    assert wire.ask("PING") == b"PONG"


def test_defect_in_the_node_is_contained(
    connect: Connect, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error outside any command ends its connection with an error and is counted; others are served."""
    wire, other = connect(), connect()
    wire.ask("PING")
    node = server.server.node
    execute = node.execute

    def broken(session: Session, argv: list[bytes], now: Now) -> Outcome | None:
        if argv == [b"ECHO", b"x"]:
            raise ZeroDivisionError("secret detail")
        return execute(session, argv, now)

    monkeypatch.setattr(type(node), "execute", staticmethod(broken))
    wire.socket.sendall(pack("PING") + pack("ECHO", "x") + pack("PING"))
    assert wire.read() == b"PONG"
    assert str(wire.read()) == "ERR internal error; the server's log has the details"
    assert wire.is_closed()
    assert b"millstream_internal_errors:1\r\n" in other.ask("INFO", "stats")


@pytest.mark.parametrize("behind", [b"", pack("ECHO", "x")], ids=["alone", "before another"])
def test_defect_in_serving_who_waits_is_contained(
    connect: Connect, server: ServerThread, monkeypatch: pytest.MonkeyPatch, behind: bytes
) -> None:
    """An internal error while a plain command wakes another client ends only its connection."""
    wire, waiting, other = connect(), connect(), connect()
    wire.ask("XADD", "s", "1-1", "a", "b")
    waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    eventually(lambda: b"blocked_clients:1\r\n" in other.ask("INFO", "clients"))

    def broken(db: int, key: bytes, now: Now) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(type(server.server.node), "serve", staticmethod(broken))
    wire.socket.sendall(pack("XADD", "s", "*", "a", "b") + behind)
    assert wire.is_closed()
    assert b"millstream_internal_errors:1\r\n" in other.ask("INFO", "stats")


def test_a_log_that_fails_while_others_are_served_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the effect of a plain command cannot be logged, the server ends and shows no client anything more."""

    def broken(db: int, key: bytes, now: Now) -> None:
        raise StorageError("no place for what was read")

    def live() -> None:
        with ServerThread() as server, Wire(server.url) as wire, Wire(server.url) as waiting, Wire(server.url) as other:
            wire.ask("XADD", "s", "1-1", "a", "b")
            waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
            eventually(lambda: b"blocked_clients:1\r\n" in other.ask("INFO", "clients"))
            monkeypatch.setattr(type(server.server.node), "serve", staticmethod(broken))
            wire.send("XADD", "s", "*", "a", "b")
            assert wire.is_closed()
            assert other.is_closed()

    with pytest.raises(StorageError, match="no place"):
        live()


def test_defect_in_timed_work_is_contained(
    connect: Connect, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A periodic task that fails is retried after a pause, and commands are served meanwhile."""
    wire = connect()
    tick, calls = server.server.node.tick, []

    def broken(now: Now) -> None:
        calls.append(now)
        if len(calls) == 1:
            raise ZeroDivisionError
        tick(now)

    server.server.settings = replace(server.settings, delays=Delays(after_error=0.05))
    monkeypatch.setattr(type(server.server.node), "tick", staticmethod(broken))
    assert wire.ask("XREAD", "BLOCK", 10, "STREAMS", "s", "$") is None
    assert len(calls) == 2
    assert calls[1].mono - calls[0].mono >= 40
    assert wire.ask("PING") == b"PONG"


def test_a_reader_is_woken_by_the_first_of_what_comes_together() -> None:
    """A blocked XREAD is woken by the first of two XADDs sent together, and does not see the second."""
    with ServerThread() as server, Wire(server.url) as reader, Wire(server.url) as writer:
        first = writer.ask("XADD", "s", "1-1", "f", "v")
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", first)
        eventually(lambda: b"blocked_clients:1" in writer.ask("INFO", "clients"))
        second, _, length = writer.ask_together([("XADD", "s", "*", "f", 2), ("XADD", "s", "*", "f", 3), ("XLEN", "s")])
        assert reader.read() == [[b"s", [[second, [b"f", b"2"]]]]]
        assert length == 3
