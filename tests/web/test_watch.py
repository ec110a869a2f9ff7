"""The console reads a server once for all viewers, at a bounded rate, and not at all without viewers."""

import asyncio
from typing import Any

import pytest
import redis

from millstream.client.line import Line
from millstream.errors import Disconnected, MillstreamError
from millstream.ops.watching import watch as watching
from millstream.ops.watching.servers import ConsoleServer
from millstream.ops.watching.watch import ServerWatch
from millstream.server.thread import ServerThread
from support.clock import own_clock
from support.console import ConsoleThread
from support.ports import free_port
from support.waiting import eventually


def calls(client: redis.Redis, command: str) -> int:
    """Return the number of times that the server ran a command."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze the console's clock, so that no time passes between two readings."""
    own_clock(monkeypatch, watching.__name__, monotonic=lambda: 100.0)


@pytest.mark.usefixtures("at_once")
async def test_one_reading_is_for_all_who_look(data: ServerThread) -> None:
    """Viewers who come during a reading wait for it, and those soon after share its result."""
    watch = ServerWatch(ConsoleServer(data.url))
    asked: list[int] = []

    async def work(line: Line) -> bytes:
        asked.append(1)
        await asyncio.sleep(0)
        return bytes(await line.call("PING"))

    readings = await asyncio.gather(*(watch.read("ping", work) for _ in range(50)))
    assert [one.value for one in readings] == [b"PONG"] * 50
    await watch.read("ping", work)
    assert (len(asked), readings[0].commands, readings[0].sent) == (1, (("PING",),), 1)
    watch.changed()
    await watch.read("ping", work)
    assert len(asked) == 2
    await watch.close()


async def test_a_slow_server_is_not_taken_for_a_silent_one(data: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a late reply the next reading has its full time again, as does a change's preview."""
    watch = ServerWatch(ConsoleServer(data.url))
    go_on, went_on = asyncio.Event(), asyncio.Event()

    async def late(_: Line) -> None:
        await go_on.wait()
        went_on.set()

    monkeypatch.setattr(watching, "_AGAIN", 0)
    monkeypatch.setattr(watching, "LONGEST", 0.01)
    with pytest.raises(Disconnected):
        await watch.read("late", late)
    monkeypatch.setattr(watching, "LONGEST", 60)
    go_on.set()
    await went_on.wait()
    assert await watch.answered(watch.line.call("PING")) == b"PONG"
    await watch.close()


@pytest.mark.usefixtures("at_once")
async def test_a_reading_that_a_change_overtook_is_made_anew(data: ServerThread) -> None:
    """A reading that began before a change is made again."""
    watch = ServerWatch(ConsoleServer(data.url))
    asked: list[int] = []

    async def work(_: Line) -> int:
        asked.append(1)
        if len(asked) == 1:
            watch.changed()
        await asyncio.sleep(0)
        return len(asked)

    assert [(await watch.read("n", work)).value for _ in range(3)] == [1, 2, 2]
    await watch.close()


async def test_somebody_who_goes_away_takes_the_reading_from_nobody(data: ServerThread) -> None:
    """If the viewer who caused a reading closes the page, the other viewers still get it."""
    watch = ServerWatch(ConsoleServer(data.url))
    go_on = asyncio.Event()

    async def work(line: Line) -> int:
        await go_on.wait()
        return 7

    first = asyncio.create_task(watch.read("n", work))
    second = asyncio.create_task(watch.read("n", work))
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    assert (await second).value == 7
    await watch.close()


async def test_an_answer_of_another_shape_is_said_so(data: ServerThread) -> None:
    """A reply of an unexpected form is an error on the page, and the next reading tries again."""
    watch = ServerWatch(ConsoleServer(data.url))

    async def work(line: Line) -> object:
        return (await line.call("PING"))["name"]

    for _ in range(2):
        with pytest.raises(
            MillstreamError, match=r"cannot be read \(TypeError in test_watch.py:[0-9]+: .*neither Redis nor Millstream"
        ):
            await watch.read("n", work)
    assert (await watch.read("m", lambda line: line.call("PING"))).value == b"PONG"
    await watch.close()


async def test_readings_take_no_more_than_their_share(data: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """All readings together take a bounded share of time: the longer they take, the rarer they are."""
    watch = ServerWatch(ConsoleServer(data.url))
    clock = [100.0]
    own_clock(monkeypatch, watching.__name__, monotonic=lambda: clock[0])

    async def work(line: Line) -> None:
        clock[0] += 0.03

    assert watch.every() == watching.FRESH
    for _ in range(3):  # the first ones connect, so their duration is not representative
        watch.changed()
        await watch.read("a", work)
    assert watch.every() == pytest.approx(0.03 / watching.SHARE)
    for _ in range(3):
        watch.changed()
        await watch.read("b", work)
    assert watch.every() == pytest.approx(0.06 / watching.SHARE)
    watch.leave()
    await watch.read("b", work)
    assert watch.every() == pytest.approx(0.03 / watching.SHARE)
    clock[0] += 60
    assert watch.every() == watching.FRESH
    for number in range(200):
        await watch.read(number, work)
    assert watch.every() == watching.STALEST
    assert watch.size <= watching.KEPT + 1
    await watch.close()


async def test_what_was_read_before_stays_with_its_age(data: ServerThread) -> None:
    """If the server is gone, the last reading is shown with its age and the reason. Without one it is an error."""
    port = free_port()
    watch = ServerWatch(ConsoleServer(f"redis://:s3cret@127.0.0.1:{port}/0"))

    async def work(line: Line) -> bytes:
        return bytes(await line.call("PING"))

    with pytest.raises(Disconnected, match=f"127.0.0.1:{port}.*does not answer.*Start it") as caught:
        await watch.read("ping", work)
    assert "s3cret" not in str(caught.value)
    answered = ServerWatch(ConsoleServer(data.url))
    fine = await answered.read("ping", work)

    async def broken(line: Line) -> bytes:
        raise Disconnected("gone")

    answered.changed()
    stale = await answered.read("ping", broken)
    assert (stale.value, stale.at_ms, fine.trouble, "gone" in stale.trouble) == (b"PONG", fine.at_ms, "", True)

    async def refused(line: Line) -> bytes:
        raise MillstreamError("no such stream")

    answered.changed()
    with pytest.raises(MillstreamError, match="no such stream"):
        await answered.read("ping", refused)
    await asyncio.gather(watch.close(), answered.close())


async def test_readings_at_once_share_their_time(data: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings that run at once count with the time of all together, so that pages stay live."""
    watch = ServerWatch(ConsoleServer(data.url))
    clock = [100.0]
    own_clock(monkeypatch, watching.__name__, monotonic=lambda: clock[0])
    ends = asyncio.Event()

    async def one(_: Line) -> None:
        await ends.wait()

    async def other(_: Line) -> None:
        clock[0] += 0.06
        ends.set()

    for _ in range(3):
        watch.changed()
        ends.clear()
        await asyncio.gather(watch.read("one", one), watch.read("other", other))
    assert watch.every() == pytest.approx(0.06 / watching.SHARE)
    await watch.close()


def test_nothing_is_asked_while_nobody_looks(console: ConsoleThread, client: redis.Redis) -> None:
    """Open pages cause about one reading a second in total, and none once they are closed."""
    client.xadd("quiet", {"n": 1})
    began: Any = client.time()
    before = calls(client, "scan")
    with console.events("/") as one, console.events("/") as other:
        for _ in range(2):
            assert one.next()[0] in {"page", "same"}
            assert other.next()[0] in {"page", "same"}
    scans = calls(client, "scan") - before
    ended: Any = client.time()
    assert 0 < scans <= 3 + ended[0] - began[0]  # on a busy machine the four readings take longer
    eventually(lambda: not console.process.server_state.tasks, what="the pages that were closed are left")
    seen = calls(client, "scan")
    assert calls(client, "scan") == seen


def test_a_live_page_is_sent_as_it_changes(console: ConsoleThread, client: redis.Redis) -> None:
    """A live page receives its escaped main part with the time, and then each change."""
    client.xadd("tail", {"n": "<b>one"})
    with console.events("/stream?key=tail") as events:
        kind, facts = events.next()
        assert (kind, facts["trouble"], facts["title"]) == ("page", "", "tail")
        assert "&lt;b&gt;one" in facts["html"]
        assert "<main" not in facts["html"]
        client.xadd("tail", {"n": "two"})
        eventually(lambda: "two" in events.next()[1].get("html", ""), what="the new entry is sent")


def test_a_server_that_comes_back_is_shown_again(data: ServerThread, tmp_path) -> None:
    """An open page reports that the server is gone, and shows new data when it is back."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    with ConsoleThread(url) as console, console.events("/") as events:
        kind, facts = events.next()
        assert (kind, "does not answer" in facts["html"]) == ("page", True)
        with ServerThread(port=port):
            eventually(lambda: "Streams and groups" in events.next()[1].get("html", ""), what="the server is shown")
        eventually(lambda: "does not answer" in events.next()[1]["trouble"], what="it is said that it is gone")


async def test_a_rate_is_there_again_after_a_page_was_left(data: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page opened again within ten minutes has a rate at once, since its previous reading is kept."""
    watch = ServerWatch(ConsoleServer(data.url))
    clock = [100.0]
    own_clock(monkeypatch, watching.__name__, monotonic=lambda: clock[0])
    monkeypatch.setattr(watch.line, "wall_time", lambda: int(clock[0] * 1000))

    async def work(_: Line) -> str:
        return "seen"

    assert (await watch.read("a", work)).before is None
    for away, over in ((120, 120_000), (590, 590_000), (601, 0)):
        clock[0] += away
        await watch.read("b", work)  # which drops readings without viewers
        assert (await watch.read("a", work)).over_ms == over
    await watch.close()
