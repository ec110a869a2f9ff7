"""The pool below redis-py's client behaves like redis-py's own pool."""

import os
import socket
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

import millstream
from millstream.embedded.aio import async_pool
from millstream.embedded.place import parse_place
from millstream.embedded.sync import StorePool
from millstream.errors import UsageError

FIELDS = {"item": "tea", "amount": "3"}


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each requested connection if it bypassed redis-py's own steps."""
    asked: list[bool] = []
    get, own = StorePool.get_connection, ConnectionPool.get_connection

    def ask(pool: StorePool, *args: Any) -> Any:
        asked.append(True)
        return get(pool, *args)

    def ask_redis_py(pool: ConnectionPool, *args: Any) -> Any:
        asked[-1] = False
        return own(pool, *args)

    monkeypatch.setattr(StorePool, "get_connection", ask)
    monkeypatch.setattr(ConnectionPool, "get_connection", ask_redis_py)
    return asked


def test_connections_are_lent_without_more(lent: list[bool]) -> None:
    """All connections but the new first one bypass redis-py's steps, also for clients that share the pool."""
    with millstream.connect(decode_responses=True) as client:
        entry = client.xadd("s", FIELDS)
        client.xgroup_create("s", "g", id="0")
        assert client.xreadgroup("g", "c", {"s": ">"}) == [["s", [(entry, FIELDS)]]]
        assert client.xack("s", "g", entry) == 1
        assert lent == [False, True, True, True]
        assert type(client) is redis.Redis
        assert len(client.connection_pool._available_connections) == 1  # noqa: SLF001 - redis-py shows its pool nowhere else
        with client.client() as single:
            assert single.xlen("s") == 1
        with redis.Redis(connection_pool=client.connection_pool) as other:
            assert other.xlen("s") == 1
        assert lent == [False, *[True] * 5]


def test_every_kind_of_reply_and_word() -> None:
    """Each reply and each error is the same as for a client that holds its connection."""
    calls: list[tuple[object, ...]] = [
        ("SET", "k", "v"), ("GET", "k"), ("GET", "none"), ("get", b"k"), ("HSET", "h", "a", 1, "b", 2.5),
        ("HGETALL", "h"), ("SADD", "set", "a"), ("SMEMBERS", "set"), ("XLEN", "none"), ("EVAL", "return {1, false}", 0),
        ("EVAL", "return {}", 0), ("XADD", "s", "1-1", "a", bytearray(b"x")),
        ("XADD", "s", "2-1", "a", memoryview(b"y")),
        ("XRANGE", "s", "-", "+"), ("CONFIG GET", "maxmemory"), ("NOSUCH",), ("GET", "s"), ("GET",), ("HIMPORT", "SET"),
        ("SET", "k", None), ("SET", "k", object()), ("XADD", "s", "1-1", "a", "b"), (b"PING",), ("PING", "\xe9"),
        ("ECHO", "x" * 300_000), ("EVAL", "return redis.error_reply('LOADING it is')", 0), ("GET", "k"),
    ]  # fmt: skip

    def answers(client: redis.Redis) -> list[object]:
        found: list[object] = []
        for words in calls:
            try:
                found.append(client.execute_command(*words))
            except redis.RedisError as error:
                found.append((type(error), str(error)))
        return found

    with millstream.connect() as lent, millstream.connect() as store, store.client() as held:
        assert answers(lent) == answers(held)


@pytest.mark.parametrize(
    "options", [{"retry": Retry(NoBackoff(), 3)}, {"retry_on_error": [redis.ResponseError]}, {"retry_on_timeout": True}]
)
def test_what_is_asked_of_redis_py_it_does(options: dict[str, Any], lent: list[bool]) -> None:
    """With redis-py's options for retries, commands take redis-py's own way."""
    with millstream.connect(**options) as client:
        client.set("k", "v")
        assert [client.get("k"), client.get("k")] == [b"v", b"v"]
        assert True not in lent


def test_a_retry_set_later_holds(lent: list[bool]) -> None:
    """After ``set_retry``, commands take redis-py's own way."""
    with millstream.connect("memory://later") as client, millstream.connect("memory://later") as other:
        number = client.client_id()
        client.set_retry(Retry(NoBackoff(), 1))
        assert other.client_kill_filter(_id=number) == 1
        lent.clear()
        assert client.ping()
        assert lent == [False]


def test_closed_and_lost_connections(lent: list[bool]) -> None:
    """A connection that ended while idle is replaced. One that ends during a command is an error."""
    with millstream.connect("memory://lost") as client, millstream.connect("memory://lost") as other:
        number = client.client_id()
        assert other.client_kill_filter(_id=number) == 1
        assert client.client_id() > number
        with pytest.raises(redis.ConnectionError):
            client.execute_command("SHUTDOWN")
        assert client.ping()


def test_no_more_connections_than_allowed() -> None:
    """``max_connections`` counts lent connections, which are returned after errors."""
    with millstream.connect(max_connections=1) as client:
        for _ in range(3):
            with pytest.raises(redis.ResponseError):
                client.execute_command("NOSUCH")
        held = client.connection_pool.get_connection()
        with pytest.raises(redis.exceptions.MaxConnectionsError):
            client.ping()
        client.connection_pool.release(held)
        assert client.ping()


def test_threads_share_a_client() -> None:
    """Threads that share a client have separate connections, also while others close the pool's."""
    wrong: list[object] = []

    def work(client: redis.Redis, number: int) -> None:
        for turn in range(200):
            if client.echo(f"{number} {turn}") != b"%d %d" % (number, turn):
                wrong.append((number, turn))
            if turn % 50 == 0:
                client.connection_pool.disconnect(inuse_connections=False)

    with millstream.connect("memory://many") as client:
        threads = [threading.Thread(target=work, args=(client, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pool = client.connection_pool
        assert not pool._in_use_connections  # noqa: SLF001 - redis-py shows its pool nowhere else
        assert len(pool._available_connections) == pool._created_connections  # noqa: SLF001 - redis-py shows its pool nowhere else
    assert wrong == []


async def test_no_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection within the process does no name lookup."""
    asked: list[object] = []

    def looked_up(*names: object, **_: object) -> list[object]:
        asked.append(names)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    with millstream.connect("memory://quiet") as client:
        assert client.ping()
    async with redis.asyncio.Redis.from_pool(async_pool(parse_place("memory://quiet"))) as aclient:
        assert await aclient.ping()
    assert asked == []


def test_messages_are_no_replies() -> None:
    """Push messages, as by CLIENT TRACKING or RESP3 subscriptions, are not taken for replies."""
    with millstream.connect("memory://news", protocol=3) as client, millstream.connect("memory://news") as other:
        client.ping()
        connection = client.connection_pool.get_connection()
        connection.send_command("SUBSCRIBE", "news")
        assert connection.read_response(push_request=True)[0] == b"subscribe"
        other.publish("news", "today")
        client.connection_pool.release(connection)
        assert client.echo("x") == b"x"


def test_forked_child_is_told() -> None:
    """A forked child gets an error for its parent's client, and the parent continues."""
    with millstream.connect("memory://parent") as client:
        client.set("k", "v")
        child = os.fork()
        if not child:
            try:
                client.get("k")
            except (redis.RedisError, UsageError) as error:
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get("k") == b"v"
