"""One connection shared by many callers: order, errors in place, and loss of the connection."""

import asyncio
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from millstream.client.line import AccessDenied, Disconnected, Line
from support.ports import free_port
from support.servers import ServerProcess, redis_server
from support.waiting import DEADLINE


@pytest.fixture
async def line(real_redis: ServerProcess):  # type: ignore[no-untyped-def] # pytest's async generator
    """A line to a real server."""
    found = Line(real_redis.url)
    yield found
    await found.close()


async def test_callers_share_a_connection_and_get_their_own_replies(line: Line) -> None:
    """A hundred concurrent callers on one connection each get their own reply."""
    replies = await asyncio.gather(*(line.call("ECHO", number) for number in range(100)))
    assert replies == [str(number).encode() for number in range(100)]
    assert line.connects == 1


async def test_readers_at_once_share_the_round_trips_of_a_joint_line(real_redis: ServerProcess) -> None:
    """Readers whose requests follow from replies take as many round trips together as the one with the most."""
    line = Line(real_redis.url, joint=True)

    async def read(times: int, layers: int = 0) -> bytes:
        if layers:
            return await asyncio.create_task(read(times, layers - 1))
        reply = b""
        for number in range(times):
            reply = await line.call("ECHO", number)
        return reply

    assert await asyncio.gather(read(2), read(3, 5), read(1), read(3)) == [b"1", b"2", b"0", b"2"]
    assert line.trips == 3
    await line.close()


async def test_requests_of_a_shared_trip_have_the_whole_time_each(real_redis: ServerProcess) -> None:
    """Three slow requests share a trip that takes longer than the limit; each reply comes within it."""
    line = Line(real_redis.url, joint=True, timeout=2.5)
    assert await asyncio.gather(*(line.call("BLPOP", "nothing", 1) for _ in range(3))) == [None] * 3
    assert line.trips == 1
    await line.close()


async def test_requests_that_never_end_hold_back_no_reply_of_a_joint_line(real_redis: ServerProcess) -> None:
    """The line sends what it has, although new requests come in each pass of the event loop."""
    line = Line(real_redis.url, joint=True)
    asked = [asyncio.ensure_future(line.calls([("PING",)]))]
    for _ in range(20_000):
        if asked[0].done():
            break
        asked.append(asyncio.ensure_future(line.calls([("PING",)])))
        await asyncio.sleep(0)
    assert asked[0].done()
    await asyncio.gather(*asked)
    await line.close()


async def test_an_error_reply_stays_in_its_place(line: Line) -> None:
    """A refused command among many affects neither the others nor the connection."""
    first, error, last = await line.calls([("ECHO", "a"), ("XLEN",), ("ECHO", "b")])
    assert (first, last) == (b"a", b"b")
    assert isinstance(error, ResponseError)
    with pytest.raises(ResponseError):
        await line.call("NOSUCHCOMMAND")
    assert line.connects == 1


async def test_a_cancelled_caller_does_not_shift_the_replies_of_others(line: Line) -> None:
    """The reply for a cancelled caller is discarded, and others still get their own."""
    blocked = asyncio.create_task(line.call("BLPOP", "nothing", 0.2))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(line.call("ECHO", "mine"))
    await asyncio.sleep(0)
    blocked.cancel()
    assert await waiting == b"mine"


async def test_a_broken_connection_is_told_and_mended(tmp_path: Path) -> None:
    """A broken connection raises Disconnected in waiting callers.

    The next call reconnects, and nothing is sent twice.
    """
    with redis_server(tmp_path) as server:
        line = Line(server.url)
        assert await line.call("INCR", "n") == 1
        waiting = asyncio.create_task(line.call("BLPOP", "nothing", 0))
        await line.calls([])  # goes out together with the command that waits
        await asyncio.to_thread(server.kill)
        with pytest.raises(Disconnected):
            await waiting
        with pytest.raises(Disconnected):
            await line.call("PING")
        await asyncio.to_thread(server.start)
        assert await line.call("GET", "n") is None
        assert line.connects == 2
        await line.close()
        with pytest.raises(Disconnected):
            await line.call("PING")


async def test_an_answer_that_does_not_come_in_time_ends_the_connection(line: Line) -> None:
    """A reply over its time limit raises Disconnected, and the next call uses a new connection."""
    await line.call("PING")  # else the time might end while it connects
    with pytest.raises(Disconnected):
        await line.call("BLPOP", "nothing", 0, timeout=0.05)
    assert await line.call("PING") == b"PONG"
    assert line.connects == 2


async def test_nobody_there_and_wrong_password_are_different_errors(tmp_path: Path) -> None:
    """An unreachable server and a wrong password are different errors."""
    nobody = Line(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(Disconnected):
        await nobody.call("PING")
    await nobody.close()
    server = redis_server(tmp_path, "--requirepass", "right")
    server.url = server.url.replace("redis://", "redis://:right@")
    with server:
        wrong = Line(server.url.replace("right", "wrong"))
        with pytest.raises(AccessDenied):
            await wrong.call("PING")
        await wrong.close()
        fine = Line(server.url)
        assert await fine.call("PING") == b"PONG"
        await fine.close()


async def test_a_line_is_closed_whenever_that_is_asked(real_redis: ServerProcess) -> None:
    """A connection can be closed at any moment, also while redis-py does not accept a cancellation."""
    for turns in range(12):
        line = Line(real_redis.url + "?socket_timeout=20")
        await line.call("PING")
        line.calls([("BLPOP", "nothing", 10)])
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE):
            await line.close()
