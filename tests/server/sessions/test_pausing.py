"""CLIENT PAUSE over the network, in process, and in Redis."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import millstream
from conformance.pipe import Pipe
from millstream.server.thread import ServerThread
from support.inprocess import World, to_words
from support.servers import ServerProcess
from support.wire import Wire, pack

Connect = Callable[..., Wire]


@pytest.fixture(params=["ours", pytest.param("redis", marks=pytest.mark.realserver)])
def open_one(request: pytest.FixtureRequest) -> Iterator[Callable[[], Wire]]:
    """Yield a function that connects to our server, or to redis-server."""
    with ExitStack() as stack:
        if request.param == "ours":
            url = stack.enter_context(ServerThread()).url
        else:
            url = request.getfixturevalue("real_redis").url
        yield lambda: stack.enter_context(Wire(url))
        with Wire(url) as last:  # redis-server is other tests' too
            last.ask("CLIENT", "UNPAUSE")


def test_writers_wait_and_readers_do_not(open_one: Callable[[], Wire]) -> None:
    """Paused writes run after CLIENT UNPAUSE, in the order of each client, followed by its later commands."""
    boss, one, two = open_one(), open_one(), open_one()
    assert boss.ask("CLIENT", "PAUSE", 600_000, "WRITE") == b"OK"
    one.socket.sendall(pack("GET", "k") + pack("SET", "k", "1") + pack("GET", "k") + pack("MULTI") + pack("INCR", "k"))
    assert one.read() is None
    two.socket.sendall(pack("PUBLISH", "c", "m") + pack("PING"))
    assert boss.ask("GET", "k") is None
    assert b"blocked_clients:2" in boss.ask("INFO", "clients")
    assert boss.ask("CLIENT", "UNPAUSE") == b"OK"
    assert [one.read() for _ in range(4)] == [b"OK", b"1", b"OK", b"QUEUED"]
    assert [two.read() for _ in range(2)] == [0, b"PONG"]
    assert one.ask("EXEC") == [2]


def test_a_pause_ends_by_itself(open_one: Callable[[], Wire]) -> None:
    """During CLIENT PAUSE all clients wait until its time is over, its sender too; a QUIT gets its reply."""
    boss, one = open_one(), open_one()
    assert boss.ask("CLIENT", "PAUSE", 50) == b"OK"
    one.socket.sendall(pack("SET", "k", "1") + pack("QUIT"))
    assert boss.ask("SET", "b", "1") == b"OK"
    assert [one.read(), one.read()] == [b"OK", b"OK"]
    assert one.is_closed()


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_pause_in_process(tmp_path: Path, kind: str) -> None:
    """A pause in an embedded store ends by itself, or by another client's UNPAUSE."""
    url = "memory://pausing" if kind == "memory" else f"file://{tmp_path}/data"
    with millstream.connect(url) as one, millstream.connect(url) as two:
        one.execute_command("CLIENT PAUSE", 50)
        assert two.set("k", "1")
        one.execute_command("CLIENT PAUSE", 600_000, "WRITE")
        assert two.get("k") == b"1"
        one.execute_command("CLIENT UNPAUSE")
        assert two.incr("k") == 2


LINES = (
    "PAUSE x",
    "PAUSE -1",
    "PAUSE 1 foo",
    "PAUSE",
    "PAUSE 1 WRITE x",
    "PAUSE 0",
    "UNPAUSE",
    "UNPAUSE x",
    "CACHING yes",
    "CACHING",
    "CACHING foo",
    "CACHING yes x",
    "TRACKINGINFO",
    "TRACKINGINFO x",
    "TRACKING off BCAST",
    "TRACKING off OPTIN noloop PREFIX a",
    "TRACKING off foo",
    "TRACKING off REDIRECT 99999999",
    "TRACKING off REDIRECT",
    "TRACKING off REDIRECT x",
    "TRACKING foo",
    "TRACKING",
    "GETREDIR",
    "GETREDIR x",
    "KILL ID x",
    "KILL ID 0",
    "KILL",
    "KILL ID 1 ID",
    "KILL TYPE foo",
    "KILL SKIPME foo",
    "KILL 1.2.3.4:5",
    "KILL ADDR 1:1 ADDR 2:2",
    "KILL USER nobody",
    "KILL FOO x",
    "LIST TYPE foo",
    "LIST ID",
    "LIST ID x",
    "LIST ID 99999999",
    "LIST TYPE replica",
    "LIST TYPE master",
    "LIST foo",
    "NO-EVICT foo",
    "NO-EVICT on",
    "NO-EVICT off",
    "REPLY foo",
    "UNBLOCK 99999999",
    "UNBLOCK x",
    "UNBLOCK 1 foo",
    "UNBLOCK 1 TIMEOUT x",
    "FOO",
)


@pytest.mark.realserver
@pytest.mark.parametrize("resp", [2, 3])
def test_client_answers_as_redis_does(real_redis: ServerProcess, resp: int) -> None:
    """Every CLIENT subcommand except those that describe connections has Redis's replies to valid and invalid uses."""
    client = World().client(resp)
    pipe = Pipe(real_redis.port)
    try:
        pipe.ask([[b"HELLO", b"%d" % resp]])
        differing = []
        for line in LINES:
            words = to_words(["CLIENT", *line.split()])
            ours, theirs = client.call(*words), pipe.ask([words])[0]
            if ours != theirs:
                differing.append(f"CLIENT {line}\n  redis: {theirs!r}\n  here:  {ours!r}")
    finally:
        pipe.close()
    assert not differing, "\n".join(differing)
