"""A frozen server keeps its sockets open and never replies. No client waits for it without end."""

import asyncio
import gc
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import millstream
from millstream import App, StreamSub
from millstream.client import bounded
from millstream.client.bounded import blocks_for
from millstream.client.connect import async_client
from millstream.client.discovery import waiting_pool
from millstream.client.line import Disconnected, Line
from millstream.worker.monitoring.health import readyz
from millstream.worker.subscriber import intake
from support.clusters import Three
from support.sentinels import Watched
from support.servers import ServerProcess, redis_server
from support.waiting import aeventually, eventually

pytestmark = pytest.mark.realserver


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short reply limit, so that the tests are quick."""
    monkeypatch.setattr(bounded, "LIMIT", 0.4)


@pytest.fixture
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real reply limit, for tests without a freeze and with many connections."""
    monkeypatch.setattr(bounded, "LIMIT", 10.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with redis_server(tmp_path) as found:
        yield found
        thaw(found)


def freeze(server: ServerProcess) -> None:
    """Stop the server's process; its sockets stay open."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)


def thaw(server: ServerProcess) -> None:
    """Continue the server's process."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGCONT)


COMMANDS: list[tuple[Any, ...]] = [
    ("SET", "k", 1),
    ("XREAD", "BLOCK", 100, "STREAMS", "s", "$"),
    ("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$"),
    ("XREAD", "BLOCK", 0, "STREAMS", "s", "$"),
    ("BLPOP", "l", 0),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: " ".join(map(str, one[:3])))
@pytest.mark.parametrize("fresh", [False, True], ids=["pooled", "fresh"])
async def test_a_frozen_server_is_a_timeout(server: ServerProcess, command: tuple[Any, ...], fresh: bool) -> None:
    """Blocking and asyncio clients raise a timeout for a frozen server, connected or not."""
    waiting: Any = async_client(server.url)
    client: Any = millstream.connect(server.url)
    with client:
        if not fresh:
            client.ping()
            await waiting.ping()
        freeze(server)
        with pytest.raises(redis.TimeoutError):
            await asyncio.to_thread(client.execute_command, *command)
        with pytest.raises(redis.TimeoutError):
            await waiting.execute_command(*command)
        with pytest.raises(redis.TimeoutError):
            await waiting.pipeline(transaction=False).execute_command(*command).execute()
        thaw(server)
        assert client.ping()
    await waiting.aclose()


def test_a_large_write_to_a_frozen_server_is_a_timeout(server: ServerProcess) -> None:
    """A large write to a frozen server raises a timeout although the socket's buffer is full."""
    with millstream.connect(server.url) as client:
        client.ping()
        freeze(server)
        with pytest.raises(redis.TimeoutError, match="did not answer in time"):
            client.set("k", b"x" * 20_000_000)


async def test_what_waits_on_purpose_is_left_waiting(server: ServerProcess) -> None:
    """BLOCK 0, a long BLOCK, and SUBSCRIBE may wait longer than the limit on a live server."""
    waiting: Any = async_client(server.url)
    client: Any = millstream.connect(server.url)
    with client, server.client() as other:
        listening = waiting.pubsub()
        await listening.subscribe("c")
        await listening.get_message(timeout=5)
        reads = [
            asyncio.ensure_future(asyncio.to_thread(client.execute_command, "BLPOP", "l", 0)),
            asyncio.ensure_future(waiting.execute_command("BLPOP", "l", 0)),
            asyncio.ensure_future(waiting.execute_command("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$")),
            asyncio.ensure_future(anext(listening.listen())),
        ]
        probes = 4  # three reads have no end, and each probe is a connection
        before = int(other.info("stats")["total_connections_received"])
        await aeventually(lambda: int(other.info("stats")["total_connections_received"]) >= before + 3 + probes)
        assert not any(read.done() for read in reads)
        other.rpush("l", 1, 2)
        other.xadd("s", {"a": 1})
        other.publish("c", "x")
        done = await asyncio.wait_for(asyncio.gather(*reads), 10)
        assert all(done)
        await listening.aclose()
    await waiting.aclose()


async def test_clients_follow_the_sentinels_away_from_a_frozen_primary(tmp_path: Path) -> None:
    """App, publisher and ``connect()`` follow the Sentinels to the new primary, and leave the frozen one."""
    with Watched(tmp_path, redis_server, silence=1_000) as watched:
        app = App(watched.url)
        with millstream.connect(watched.url) as client:
            await asyncio.gather(*(app.client.incr("before") for _ in range(5)))  # several connections in the pool
            client.set("mine", 0)
            await app.publish("s", {"x": 0}, retry="30s")
            freeze(watched.master)
            assert await app.publish("s", {"x": 1}, retry="60s")

            async def writes() -> bool:
                try:
                    await app.client.set("after", 1)
                except redis.RedisError:
                    return False
                return True

            await aeventually(writes, what="the app's client writes to the new primary")

            def mine() -> bool:
                try:
                    client.set("mine", 1)
                except redis.RedisError:
                    return False
                return True

            await asyncio.to_thread(eventually, mine)
            with watched.replica.client() as new:
                assert (new.get("after"), new.get("mine"), new.xlen("s")) == (b"1", b"1", 2)
                thaw(watched.master)
                assert await app.client.incr("after") == 2
                assert new.get("after") == b"2"
        await app.close()


async def test_kept_connections_and_polled_subscribers_leave_a_frozen_primary(tmp_path: Path) -> None:
    """A single-connection client and ``get_message(timeout=)`` continue with the new primary, blocking and async."""
    with Watched(tmp_path, redis_server, silence=1_000) as watched:
        waiting: Any = async_client(watched.url)
        client: Any = millstream.connect(watched.url)
        kept, one = await waiting.client().initialize(), client.client()
        polled, listening = client.pubsub(), waiting.pubsub()
        polled.subscribe("c")
        await listening.subscribe("c")
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "async": lambda: kept.set("async", 1),
            "blocking": lambda: asyncio.to_thread(one.set, "blocking", 1),
            "polled": lambda: asyncio.to_thread(polled.get_message, timeout=0.01),
            "listening": lambda: listening.get_message(timeout=0.01),
        }
        for each in writes.values():
            await each()
        freeze(watched.master)
        await aeventually(lambda: watched.chosen() is watched.replica)
        with watched.replica.client() as new:

            async def moved() -> bool:
                found = await asyncio.gather(*(each() for each in writes.values()), return_exceptions=True)
                assert all(isinstance(error, redis.RedisError) for error in found if isinstance(error, BaseException))
                return bool(new.exists("async", "blocking") == 2 and new.pubsub_numsub("c") == [(b"c", 2)])

            new.delete("async", "blocking")
            await aeventually(moved)
            thaw(watched.master)
        polled.close()
        one.close()
        client.close()
        await listening.aclose()
        await kept.aclose()
        await waiting.aclose()


@pytest.mark.parametrize("fail", [False, True], ids=["quiet", "frozen"])
async def test_a_polled_subscriber_tells_quiet_from_frozen(server: ServerProcess, fail: bool) -> None:
    """``get_message(timeout=)`` returns None on a quiet channel, and raises for a frozen server."""
    waiting: Any = async_client(server.url)
    with millstream.connect(server.url) as client, server.client() as other:
        polled, listening = client.pubsub(), waiting.pubsub()
        polled.subscribe("c")
        await listening.subscribe("c")
        before = int(other.info("stats")["total_connections_received"])
        polls: list[Callable[[], Awaitable[object]]] = [
            lambda: asyncio.to_thread(polled.get_message, ignore_subscribe_messages=True, timeout=0.01),
            lambda: listening.get_message(ignore_subscribe_messages=True, timeout=0.01),
        ]

        async def probed() -> bool:
            assert not any([await poll() for poll in polls])
            return int(other.info("stats")["total_connections_received"]) >= before + 4

        async def refused(poll: Callable[[], Awaitable[object]]) -> bool:
            try:
                await poll()
            except redis.TimeoutError:
                return True
            return False

        await aeventually(probed)
        if fail:
            freeze(server)
            for poll in polls:
                await aeventually(lambda poll=poll: refused(poll))
            thaw(server)
        polled.close()
        await listening.aclose()
    await waiting.aclose()


async def test_a_sentinel_on_the_frozen_host_holds_up_no_client(tmp_path: Path) -> None:
    """If the URL's first Sentinel is frozen with its primary, clients use another Sentinel."""
    with Watched(tmp_path, redis_server, silence=1_000) as watched:
        app, waiting = App(watched.url), async_client(watched.url)
        await app.publish("s", {"x": 0}, retry="10s")
        await waiting.set("a", 1)
        frozen = (watched.master, watched.sentinels[0])
        for each in frozen:
            freeze(each)

        def fresh() -> None:
            with millstream.connect(watched.url) as client:
                client.set("new", 1)

        works: dict[str, Callable[[], Awaitable[object]]] = {
            "pooled": lambda: waiting.set("a", 1),
            "fresh": lambda: asyncio.to_thread(fresh),
            "short": lambda: app.publish("s", {"x": 1}, retry="2s"),
        }

        async def done(work: Callable[[], Awaitable[object]]) -> bool:
            try:
                await work()
            except (redis.RedisError, Disconnected):
                return False
            return True

        tries = [aeventually(lambda work=work: done(work), what=name) for name, work in works.items()]
        async with asyncio.timeout(12):
            await asyncio.gather(*tries)
        with watched.replica.client() as new:
            assert (new.get("a"), new.get("new"), new.xlen("s")) == (b"1", b"1", 2)
        for each in frozen:
            thaw(each)
        await app.close()
        await waiting.aclose()


async def test_a_demoted_primary_is_left(tmp_path: Path) -> None:
    """After READONLY on a pooled connection, the next command goes to the primary that the Sentinels name."""
    with Watched(tmp_path, redis_server) as watched:
        waiting = async_client(watched.url)
        await waiting.set("a", 1)
        with watched.sentinels[0].client() as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", "orders")

        async def writes() -> bool:
            try:
                await waiting.set("a", 2)
            except redis.RedisError:
                return False
            with watched.replica.client() as new:
                return bool(new.get("a") == b"2")

        await aeventually(writes)
        await waiting.aclose()


@pytest.mark.usefixtures("patient")
async def test_a_hundred_commands_at_once_wait_for_a_connection(server: ServerProcess) -> None:
    """More concurrent commands than the pool has connections are all answered, on a server and an in-process store."""
    for url in (server.url, "memory://many-at-once"):
        app = App(url)
        assert await asyncio.gather(*(app.client.blpop("nothing", 0.1) for _ in range(150))) == [None] * 150
        await app.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("option", ["", "?max_connections=110"])
async def test_no_command_waits_without_end_for_a_connection(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """If all connections are held, a command ends with an error that gives the limit and remedy."""
    monkeypatch.setattr(waiting_pool, "PATIENCE", 0.2)
    app = App(server.url + option)
    limit = 110 if option else 100
    listening = [app.client.pubsub() for _ in range(limit + 20)]
    ended = await asyncio.gather(*(one.subscribe("c") for one in listening), return_exceptions=True)
    refused = [error for error in ended if error is not None]
    assert len(refused) == 20
    assert all(isinstance(error, redis.exceptions.MaxConnectionsError) for error in refused)
    assert f"all {limit} connections of this client were in use for 0.2 s" in str(refused[0])
    assert "?max_connections=" in str(refused[0])
    with pytest.raises(redis.exceptions.MaxConnectionsError):
        await app.client.ping()
    await listening[0].aclose()  # type: ignore[no-untyped-call] # redis-py's gap
    assert await app.client.ping()
    for one in listening[1:]:
        await one.aclose()  # type: ignore[no-untyped-call] # as above
    await app.close()


async def test_a_store_of_this_process_has_a_connection_for_each() -> None:
    """An in-process store has no connection limit: 120 pub/sub objects work."""
    app = App("memory://many-listeners")
    listening = [app.client.pubsub() for _ in range(120)]
    for one in listening:
        await one.subscribe("c")
    assert await app.client.publish("c", "x") == 120
    for one in listening:
        await one.aclose()  # type: ignore[no-untyped-call] # as above
    await app.close()


async def test_publish_tries_more_than_once_in_its_time(server: ServerProcess) -> None:
    """A publish with ``retry=`` adds its entry once when a frozen server continues in time."""
    app = App(server.url)
    await app.publish("s", {"x": 0}, retry="10s")
    with server.client() as client:
        before = int(client.info("stats")["total_connections_received"])
    freeze(server)
    publishing = asyncio.ensure_future(app.publish("s", {"x": 1}, retry="9s"))
    line = app._sending()._tries()  # noqa: SLF001 - that the first try was given up shows in nothing but its closed connection
    await aeventually(lambda: not line.connected, 8, what="the first try is given up")
    thaw(server)
    assert await publishing
    with server.client() as client:
        assert client.xlen("s") == 2
        assert int(client.info("stats")["total_connections_received"]) > before
    await app.close()


@pytest.mark.parametrize("options", [{"delay": "1h"}, {"unique": "u"}, {"key": "k"}], ids=lambda one: next(iter(one)))
async def test_no_form_of_publish_outlasts_its_retry(server: ServerProcess, options: dict[str, Any]) -> None:
    """With ``retry=`` every form of publish ends in time on a frozen server."""
    app = App(server.url)
    await app.publish("other", {"x": 0}, retry="10s")
    freeze(server)
    with pytest.raises(Disconnected):
        async with asyncio.timeout(8):
            await app.publish("s", {"x": 1}, retry="1s", **options)
    thaw(server)
    await app.close()


# redis-py drops a node that does not answer without closing its connections
@pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <(function (AbstractConnection|ClusterNode|StreamWriter|_SelectorTransport)\.__del__"
    r"|socket\.socket ):pytest.PytestUnraisableExceptionWarning"
)
async def test_a_frozen_node_of_a_cluster_is_an_error(tmp_path: Path) -> None:
    """Both kinds of cluster client raise an error for a frozen node, and work when it continues."""
    with Three(tmp_path) as three:
        waiting = async_client(three.url)
        client = millstream.connect(three.url)
        await waiting.set("k", 1)
        client.set("k", 2)
        node = three.owner("k")
        freeze(node)
        try:
            with pytest.raises(redis.RedisError):
                await waiting.set("k", 3)
            with pytest.raises(redis.RedisError):
                await asyncio.to_thread(client.set, "k", 4)
        finally:
            thaw(node)
        await aeventually(lambda: client.set("k", 5))
        client.close()
        await waiting.aclose()
    gc.collect()  # here, under this test's filter, and not in a later test


async def test_a_worker_goes_on_with_the_new_primary(tmp_path: Path) -> None:
    """A worker continues with the new primary although handlers use its injected client or ``connect()``."""
    with Watched(tmp_path, redis_server, silence=1_000) as watched:
        app = App(watched.url)
        done: dict[str, set[int]] = {"injected": set(), "connected": set()}

        @app.subscriber(StreamSub("s", group="injected", min_idle_time=2_000))
        async def injected(x: int, client: redis.asyncio.Redis) -> None:
            await client.set(f"injected:{x}", x)
            done["injected"].add(x)

        @app.subscriber(StreamSub("s", group="connected", min_idle_time=2_000))
        def connected(x: int) -> None:
            with millstream.connect(watched.url) as client:
                client.set(f"connected:{x}", x)
            done["connected"].add(x)

        async with app.running():
            await app.publish("s", {"x": 0})
            await aeventually(lambda: all(0 in found for found in done.values()))
            assert readyz(app)[0] == 200
            freeze(watched.master)
            await aeventually(lambda: watched.chosen() is watched.replica)
            with watched.replica.client() as new:  # a Sentinel closed the earlier clients
                await aeventually(lambda: readyz(app)[0] == 200)
                new.xadd("s", {"x": 1})
                await aeventually(lambda: all(1 in found for found in done.values()))
                thaw(watched.master)
                assert await app.publish("s", {"x": 2})
                await aeventually(lambda: all(2 in found for found in done.values()))
                assert new.exists(*(f"{name}:{x}" for name in done for x in (1, 2))) == 4


async def test_a_line_follows_the_sentinels_while_it_waits(tmp_path: Path) -> None:
    """A waiting command, with any timeout, ends once the Sentinels name another master."""
    with Watched(tmp_path, redis_server, silence=1_000) as watched:
        line = Line(watched.url, timeout=3600)
        assert await line.call("XLEN", "s") == 0
        freeze(watched.master)
        waits = line.calls((("XLEN", "s"),))
        await aeventually(waits.done, what="the frozen server is given up")
        assert isinstance(waits.exception(), Disconnected)
        assert watched.chosen() is watched.replica
        assert await line.call("XLEN", "s") == 0
        thaw(watched.master)
        await line.close()


async def test_a_full_worker_of_a_frozen_server_is_not_ready(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with all lanes busy on a frozen server is not ready."""
    monkeypatch.setattr(intake, "_SILENT_MS", 500)
    app, going = App(server.url, registry=False), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000, max_records=1), concurrency=1)
    async def handle(x: int) -> None:
        await going.wait()

    async with app.running():
        for x in range(5):
            await app.publish("s", {"x": x})
        await aeventually(lambda: app.progress()[0].doing == "full")
        assert readyz(app)[0] == 200
        freeze(server)
        await aeventually(lambda: readyz(app)[0] == 503)
        assert app.progress()[0].doing == "unreachable"
        thaw(server)
        await aeventually(lambda: readyz(app)[0] == 200)
        going.set()


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (("XREADGROUP", "GROUP", "block", "c", "BLOCK", 12_000, "STREAMS", "s", ">"), 12.0),
        (("XREADGROUP", "GROUP", "g", b"block", "COUNT", 1, "BLOCK", 12_000, "STREAMS", "s", ">"), 12.0),
        (("XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "s", "$"), math.inf),
        (("XREAD", "STREAMS", "block", "5"), 0.0),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "block", "9", ">", "0"), 0.0),
    ],
)
def test_a_name_is_not_taken_for_an_option(command: tuple[Any, ...], seconds: float) -> None:
    """Groups, consumers and streams named like BLOCK are not taken for the option."""
    assert blocks_for(command) == seconds
