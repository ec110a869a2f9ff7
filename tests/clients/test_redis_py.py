"""redis-py, unmodified, on a Millstream server: sync and asyncio, RESP2 and RESP3, also after a restart."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio

from support.servers import ServerProcess
from support.waiting import aeventually

Call = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def calls(server: ServerProcess, kind: str, protocol: int) -> AsyncIterator[Call]:
    """Return ``call("xadd", ...)`` for a sync or asyncio client, so that one test covers both."""
    options = {"protocol": protocol, "decode_responses": True}
    if kind == "sync":
        with server.client(**options) as client:

            async def call(name: str, *words: Any, **named: Any) -> Any:
                return getattr(client, name)(*words, **named)

            yield call
    else:
        async with redis.asyncio.Redis.from_url(server.url, **options) as client:

            async def call(name: str, *words: Any, **named: Any) -> Any:
                return await getattr(client, name)(*words, **named)

            yield call


def rows(reply: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the entries of a read's single stream, in RESP2 or RESP3 form."""
    if not reply:
        return []
    ((_, entries),) = reply.items() if isinstance(reply, dict) else reply
    while entries and isinstance(entries[0], list) and entries[0] and not isinstance(entries[0][0], str):
        (entries,) = entries
    return [(entry[0], entry[1]) for entry in entries]


@pytest.mark.parametrize(
    ("kind", "protocol", "restart"),
    [
        ("sync", 2, "stop"),
        ("sync", 3, "kill"),
        ("asyncio", 2, "kill"),
        ("asyncio", 3, "stop"),
        pytest.param("sync", 2, "kill", marks=pytest.mark.long),
        pytest.param("sync", 3, "stop", marks=pytest.mark.long),
        pytest.param("asyncio", 2, "stop", marks=pytest.mark.long),
        pytest.param("asyncio", 3, "kill", marks=pytest.mark.long),
    ],
)
async def test_journey(our_server: ServerProcess, kind: str, protocol: int, restart: str) -> None:
    """redis-py adds, reads in a group, claims, releases and acknowledges. After a restart the state is unchanged.

    The tests combine every two of the three kinds, and ``make test-long`` all of them. A server's end is the same for
    every client.
    """
    async with calls(our_server, kind, protocol) as call:
        ids = [await call("xadd", "orders", {"item": f"tea {number}"}) for number in range(4)]
        assert await call("xlen", "orders") == 4
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

    code = our_server.stop() if restart == "stop" else our_server.kill()
    assert code == (0 if restart == "stop" else -9)
    our_server.start()

    async with calls(our_server, kind, protocol) as call:
        assert await state(call) == before
        assert rows(await call("xreadgroup", "billing", "anna", {"orders": ">"})) == [(ids[3], {"item": "tea 3"})]
        assert await call("xadd", "orders", {"item": "tea 4"}) > ids[3]


async def state(call: Call) -> dict[str, Any]:
    """Return the visible state of the stream and its group, except times."""
    pending = await call("xpending_range", "orders", "billing", "-", "+", 10)
    return {
        "entries": await call("xrange", "orders"),
        "owners": {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in pending},
        "summary": await call("xpending", "orders", "billing"),
        "groups": await call("xinfo_groups", "orders"),
        "consumers": [(row["name"], row["pending"]) for row in await call("xinfo_consumers", "orders", "billing")],
        "last": (await call("xinfo_stream", "orders"))["last-generated-id"],
    }


@pytest.mark.parametrize("protocol", [2, 3])
async def test_blocked_read_gets_the_next_entry(our_server: ServerProcess, protocol: int) -> None:
    """A blocked read returns the next entry that another client adds."""
    async with (
        redis.asyncio.Redis.from_url(our_server.url, protocol=protocol, decode_responses=True) as reader,
        redis.asyncio.Redis.from_url(our_server.url, protocol=protocol, decode_responses=True) as other,
    ):
        waiting = asyncio.create_task(reader.xread({"orders": "$"}, block=20_000))

        async def is_blocked() -> bool:
            return (await other.info("clients"))["blocked_clients"] == 1

        await aeventually(is_blocked, what="the reader waits")
        entry = await other.xadd("orders", {"item": "tea"})
        assert rows(await waiting) == [(entry, {"item": "tea"})]


@pytest.mark.parametrize("protocol", [2, 3])
async def test_pipelines_and_transactions(our_server: ServerProcess, protocol: int) -> None:
    """Pipelined commands reply in order, with or without MULTI, and an error affects no other command."""
    async with redis.asyncio.Redis.from_url(our_server.url, protocol=protocol, decode_responses=True) as client:
        for transaction in (False, True):
            pipe = client.pipeline(transaction=transaction)
            pipe.xadd("s", {"a": "1"}, id="1-1").xadd("s", {"a": "0"}, id="0-1").xlen("s").xtrim("s", maxlen=0)
            first, error, length, trimmed = await pipe.execute(raise_on_error=False)
            assert first == "1-1"
            assert isinstance(error, redis.ResponseError)
            assert "equal or smaller than the target stream top item" in str(error)
            assert (length, trimmed) == (1, 1)
            await client.delete("s")


@pytest.mark.parametrize("protocol", [2, 3])
def test_errors_are_exceptions_of_redis_py(our_server: ServerProcess, protocol: int) -> None:
    """NOGROUP, BUSYGROUP and WRONGTYPE raise the exceptions that redis-py users handle."""
    with our_server.client(protocol=protocol) as client:
        with pytest.raises(redis.ResponseError, match=r"^NOGROUP No such key 'orders' or consumer group 'billing'"):
            client.xreadgroup("billing", "anna", {"orders": ">"})
        client.xgroup_create("orders", "billing", mkstream=True)
        with pytest.raises(redis.ResponseError, match=r"^BUSYGROUP Consumer Group name already exists"):
            client.xgroup_create("orders", "billing", mkstream=True)
        client.set("word", "x")
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE Operation against a key"):
            client.xadd("word", {"a": "b"})
        with pytest.raises(redis.ResponseError, match="unknown command 'NOSUCH'"):
            client.execute_command("NOSUCH", "word")
