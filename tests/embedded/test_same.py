"""The same behaviour over a socket and in process: redis-py's clients of memory, a data directory and a server."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

import millstream
from support.waiting import aeventually, eventually

Call = Callable[..., Awaitable[Any]]

protocols = pytest.mark.parametrize("protocol", [2, 3])


@asynccontextmanager
async def calls(url: str, kind: str, protocol: int) -> AsyncIterator[Call]:
    """Yield ``call("xadd", ...)`` on a sync or an asyncio client, so that one journey serves both."""
    options = {"protocol": protocol, "decode_responses": True}
    if kind == "sync":
        with millstream.connect(url, **options) as client:

            async def call(name: str, *words: Any, **named: Any) -> Any:
                return getattr(client, name)(*words, **named)

            yield call
    else:
        async with millstream.connect_async(url, **options) as client:

            async def call(name: str, *words: Any, **named: Any) -> Any:
                return await getattr(client, name)(*words, **named)

            yield call


def rows(reply: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the entries of the one stream in a read's reply, in RESP2 or RESP3."""
    if not reply:
        return []
    ((_, entries),) = reply.items() if isinstance(reply, dict) else reply
    while entries and isinstance(entries[0], list) and entries[0] and not isinstance(entries[0][0], str):
        (entries,) = entries
    return [(entry[0], entry[1]) for entry in entries]


async def state(call: Call) -> dict[str, Any]:
    """Return all that a client can see of the stream and its group, except times."""
    pending = await call("xpending_range", "orders", "billing", "-", "+", 10)
    return {
        "entries": await call("xrange", "orders"),
        "owners": {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in pending},
        "summary": await call("xpending", "orders", "billing"),
        "groups": await call("xinfo_groups", "orders"),
        "last": (await call("xinfo_stream", "orders"))["last-generated-id"],
    }


@protocols
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
async def test_journey(millstream_any_url: str, kind: str, protocol: int) -> None:
    """Clients produce, read as a group, claim, release and acknowledge. A second client sees the result."""
    async with calls(millstream_any_url, kind, protocol) as call:
        ids = [await call("xadd", "orders", {"item": f"tea {number}"}) for number in range(4)]
        assert await call("xgroup_create", "orders", "billing", id="0") is True
        got = rows(await call("xreadgroup", "billing", "anna", {"orders": ">"}, count=3))
        assert got == [(entry, {"item": f"tea {number}"}) for number, entry in enumerate(ids[:3])]
        assert await call("xack", "orders", "billing", ids[0]) == 1
        assert rows([("", await call("xclaim", "orders", "billing", "bert", 0, [ids[1]]))]) == got[1:2]
        cursor, taken, deleted = await call("xautoclaim", "orders", "billing", "carl", 0, start_id=ids[2])
        assert (cursor, rows([("", taken)]), deleted) == ("0-0", got[2:3], [])
        assert await call("xnack", "orders", "billing", "FAIL", ids[2]) == 1
        before = await state(call)
        assert before["owners"] == {ids[1]: ("bert", 2), ids[2]: ("", 2)}
        assert before["groups"][0]["lag"] == 1
    async with calls(millstream_any_url, kind, protocol) as call:
        assert await state(call) == before
        assert rows(await call("xreadgroup", "billing", "anna", {"orders": ">"})) == [(ids[3], {"item": "tea 3"})]


@protocols
async def test_blocked_task_is_woken_by_another(millstream_any_url: str, protocol: int) -> None:
    """A blocked reader in a task does not block other tasks, and gets the entry that one of them adds."""
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": True}
    async with (
        millstream.connect_async(millstream_any_url, **options) as reader,
        millstream.connect_async(millstream_any_url, **options) as other,
    ):
        waiting = asyncio.create_task(reader.xread({"orders": "$"}, block=20_000))

        async def is_blocked() -> bool:
            return bool((await other.info("clients"))["blocked_clients"] == 1)

        await aeventually(is_blocked, what="the reader waits")
        entry = await other.xadd("orders", {"item": "tea"})
        assert rows(await waiting) == [(entry, {"item": "tea"})]


@protocols
def test_blocked_thread_is_woken_by_another(millstream_any_url: str, protocol: int) -> None:
    """A blocked reader in a thread gets the entry that another thread adds."""
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": True}
    found: list[Any] = []
    with millstream.connect(millstream_any_url, **options) as client:
        reader = threading.Thread(target=lambda: found.append(client.xread({"orders": "$"}, block=20_000)))
        reader.start()
        eventually(lambda: client.info("clients")["blocked_clients"] == 1, what="the reader waits")
        entry = client.xadd("orders", {"item": "tea"})
        reader.join()
    assert [rows(each) for each in found] == [[(entry, {"item": "tea"})]]


async def test_task_and_thread_meet(millstream_any_url: str) -> None:
    """An asyncio client and a blocking one of the same store wake each other."""
    with millstream.connect(millstream_any_url) as thread_side:
        async with millstream.connect_async(millstream_any_url) as task_side:
            waiting = asyncio.create_task(task_side.xread({"there": "$"}, block=20_000))
            back = asyncio.create_task(asyncio.to_thread(thread_side.xread, {"back": "$"}, block=20_000))

            async def are_blocked() -> bool:
                return bool((await task_side.info("clients"))["blocked_clients"] == 2)

            await aeventually(are_blocked, what="both wait")
            there = await asyncio.to_thread(thread_side.xadd, "there", {"a": "b"})
            assert str(there.decode()) in str(await waiting)
            answer = await task_side.xadd("back", {"a": "b"})
            assert answer.decode() in str(await back)


@protocols
def test_block_times_out(millstream_any_url: str, protocol: int) -> None:
    """A blocked read without entries returns redis-py's empty reply after its timeout."""
    with millstream.connect(millstream_any_url, protocol=protocol) as client:
        assert not client.xread({"orders": "$"}, block=10)


@protocols
def test_pipelines_and_transactions(millstream_any_url: str, protocol: int) -> None:
    """Pipelined commands reply in order, with or without MULTI, and an error does not affect others."""
    with millstream.connect(millstream_any_url, protocol=protocol, decode_responses=True) as client:
        for transaction in (False, True):
            pipe = client.pipeline(transaction=transaction)
            pipe.xadd("s", {"a": "1"}, id="1-1").xadd("s", {"a": "0"}, id="0-1").xlen("s").xtrim("s", maxlen=0)
            first, error, length, trimmed = pipe.execute(raise_on_error=False)
            assert first == "1-1"
            assert isinstance(error, redis.ResponseError)
            assert (length, trimmed) == (1, 1)
            client.delete("s")


@protocols
def test_watch_breaks_when_another_writes(millstream_any_url: str, protocol: int) -> None:
    """A WATCH is broken by another connection's write."""
    with millstream.connect(millstream_any_url, protocol=protocol) as client, client.pipeline() as pipe:
        pipe.watch("s")
        client.xadd("s", {"a": "b"})
        pipe.multi()
        pipe.xlen("s")
        with pytest.raises(redis.WatchError):
            pipe.execute()


@protocols
def test_errors_are_exceptions_of_redis_py(millstream_any_url: str, protocol: int) -> None:
    """NOGROUP, BUSYGROUP and WRONGTYPE are redis-py's exceptions."""
    with millstream.connect(millstream_any_url, protocol=protocol) as client:
        with pytest.raises(redis.ResponseError, match=r"^NOGROUP No such key 'orders' or consumer group 'billing'"):
            client.xreadgroup("billing", "anna", {"orders": ">"})
        client.xgroup_create("orders", "billing", mkstream=True)
        with pytest.raises(redis.ResponseError, match=r"^BUSYGROUP Consumer Group name already exists"):
            client.xgroup_create("orders", "billing", mkstream=True)
        with pytest.raises(redis.ResponseError, match="unknown command 'NOSUCH'"):
            client.execute_command("NOSUCH", "word")


@protocols
def test_messages_are_published(millstream_any_url: str, protocol: int) -> None:
    """A subscriber gets messages in order and one by one."""
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": True}
    with millstream.connect(millstream_any_url, **options) as client, client.pubsub() as listener:
        listener.subscribe("news", "weather")
        assert [listener.get_message(timeout=1)["channel"] for _ in range(2)] == ["news", "weather"]
        pipe = client.pipeline(transaction=False)
        pipe.publish("news", "one").publish("news", "two")
        assert pipe.execute() == [1, 1]
        assert [listener.get_message(timeout=20)["data"] for _ in range(2)] == ["one", "two"]
        assert listener.get_message(timeout=0.01) is None


@protocols
async def test_messages_are_published_to_tasks(millstream_any_url: str, protocol: int) -> None:
    """A waiting asyncio subscriber gets a published message."""
    async with millstream.connect_async(millstream_any_url, protocol=protocol) as client, client.pubsub() as listener:
        await listener.subscribe("news")
        assert (await listener.get_message(timeout=20))["type"] == "subscribe"
        waiting = asyncio.create_task(listener.get_message(timeout=20))
        await client.publish("news", "one")
        assert (await waiting)["data"] == b"one"


def test_socket_timeout_is_redis_pys(millstream_any_url: str) -> None:
    """A read that exceeds the client's socket timeout raises redis-py's error, and the client continues."""
    with millstream.connect(millstream_any_url, socket_timeout=0.05) as client:
        with pytest.raises(redis.TimeoutError):
            client.xread({"orders": "$"}, block=20_000)
        eventually(lambda: client.info("clients")["blocked_clients"] == 0, what="the abandoned read is forgotten")


async def test_cancelled_read_is_forgotten(millstream_any_url: str) -> None:
    """A cancelled blocked read leaves no waiting client."""
    async with millstream.connect_async(millstream_any_url) as client:
        waiting = asyncio.create_task(client.xread({"orders": "$"}, block=20_000))

        async def blocked() -> int:
            return int((await client.info("clients"))["blocked_clients"])

        async def is_blocked() -> bool:
            return await blocked() == 1

        async def is_free() -> bool:
            return await blocked() == 0

        await aeventually(is_blocked, what="the reader waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await aeventually(is_free, what="the cancelled read is forgotten")


def test_killed_connection_is_replaced(millstream_any_url: str) -> None:
    """CLIENT KILL ends a connection, and its client connects again."""

    def answers() -> bool:
        try:
            return bool(victim.ping())
        except redis.ConnectionError:  # the end of the old connection is seen when it is used
            return False

    with millstream.connect(millstream_any_url) as victim, millstream.connect(millstream_any_url) as other:
        number = victim.client_id()
        assert other.client_kill_filter(_id=number) == 1
        assert eventually(answers, what="a new connection")
        assert victim.client_id() != number


def test_other_database(millstream_any_url: str) -> None:
    """``?db=`` in the URL or redis-py's option selects the database."""
    with millstream.connect(f"{millstream_any_url}?db=3") as third, millstream.connect(millstream_any_url) as first:
        third.set("word", "x")
        assert first.get("word") is None
        with millstream.connect(millstream_any_url, db=3) as also_third:
            assert also_third.get("word") == b"x"


def test_twenty_threads_with_pipelines(millstream_any_url: str) -> None:
    """With twenty threads and pipelines, each acknowledged entry is stored once, in its thread's order."""
    acknowledged: list[list[bytes]] = [[] for _ in range(20)]

    def write(writer: int) -> None:
        for batch in range(5):
            pipe = client.pipeline(transaction=batch % 2 == 0)
            for number in range(10):
                pipe.xadd("s", {"writer": writer, "number": batch * 10 + number})
            acknowledged[writer] += pipe.execute()

    with millstream.connect(millstream_any_url) as client:
        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = client.xrange("s")
    assert sorted(entry for writer in acknowledged for entry in writer) == sorted(entry for entry, _ in stored)
    for writer in range(20):
        own = [int(fields[b"number"]) for _, fields in stored if int(fields[b"writer"]) == writer]
        assert own == list(range(50))


@protocols
def test_a_long_pipeline_answers_as_one_by_one(millstream_any_url: str, protocol: int) -> None:
    """In a long pipeline of plain and other commands, all replies come in order."""
    with millstream.connect(millstream_any_url, protocol=protocol) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(1500):
            pipe.xadd("s", {"number": number, "word": "x" * (number % 90)})
            pipe.set("k", number)
            if number % 100 == 0:
                pipe.xadd("s", {"number": number}, id="0-1").append("k", "th").get("k")
        replies = pipe.execute(raise_on_error=False)
        added = [reply for reply in replies if isinstance(reply, bytes) and b"-" in reply]
        assert added == [entry for entry, _ in client.xrange("s")]
        assert sum(isinstance(reply, redis.ResponseError) for reply in replies) == 15
        assert [reply for reply in replies if isinstance(reply, bytes) and b"th" in reply] == [
            b"%dth" % number for number in range(0, 1500, 100)
        ]
        assert len(replies) == 3045
