"""The testing kit: the real worker over an in-process server, on a clock set by hand."""

import asyncio
import gc

import pytest

from millstream import App, BatchError, Message, Nack, Reject, Retry, StreamSub
from millstream.client.connect import sync_client
from millstream.client.manual import StoreClock, manual_store
from millstream.client.payloads import envelope
from millstream.testing import WorkerUnderTest
from millstream.worker import testing
from millstream.worker.settlement.consumer import Held

SLOW = Retry(max_deliveries=3, base=60, backoff="constant", jitter=False)


async def test_everything_published_is_handled_when_it_is_idle() -> None:
    """``run_until_idle`` handles all published entries and those that their handlers publish."""
    app, seen = App("redis://127.0.0.1:1"), []

    @app.publisher("bills")
    @app.subscriber(StreamSub("orders", group="g"))
    async def bill(n: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"n": n}

    @app.subscriber(StreamSub("bills", group="g"), ack="each")
    def send(n: int) -> None:
        seen.append(n)

    async with testing.run(app) as broker:
        for n in range(200):
            await broker.publish("orders", {"n": n})
        await broker.run_until_idle()
        assert sorted(seen) == list(range(200))
        assert broker.client.xpending("orders", "g")["pending"] == 0
        assert broker.client.xpending("bills", "g")["pending"] == 0
    assert app.url == "redis://127.0.0.1:1"
    assert app.middlewares == ()


async def test_a_retry_comes_when_its_time_has_come_and_not_before() -> None:
    """A retry delayed by a minute runs at the sixtieth second of the test clock, not before."""
    app, runs = App(), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=10_000), retry=SLOW)
    async def handle(msg: Message) -> None:
        runs.append(msg.delivery_count)
        raise ValueError("again")

    async with testing.run(app, raise_errors=False) as broker:
        await broker.publish("s", {"x": 1})
        await broker.run_until_idle()
        assert runs == [1]
        await broker.advance(59)
        assert runs == [1]
        await broker.advance(2)
        assert runs == [1, 2]
        await broker.advance(61)
        assert runs == [1, 2, 3]
        assert broker.client.xlen("s:dead") == 1
        assert [str(error) for error in broker.errors] == ["again"] * 3


async def test_a_delay_outlives_the_app_that_made_it() -> None:
    """A delay keeps its time after its app ended or crashed, and the next app runs the second delivery."""
    runs: list[tuple[str, int]] = []

    def app(name: str) -> App:
        made = App()

        @made.subscriber(StreamSub("t", group="g", min_idle_time=10_000))
        async def handle(msg: Message) -> None:
            runs.append((name, msg.delivery_count))
            if msg.delivery_count == 1:
                raise Nack(delay="1h")

        return made

    clock = StoreClock()
    with manual_store(clock) as url, sync_client(url, decode_responses=True) as client:
        async with testing.run(app("first"), url=url, clock=clock) as broker:
            await broker.publish("t", {"x": 1})
            await broker.run_until_idle()
        clock.advance(600_000)
        async with testing.run(app("second"), url=url, clock=clock) as broker:
            await broker.advance("49m")
            assert runs == [("first", 1)]
        client.xclaim("t", "g", "(retry)", 0, [client.xrange("t")[0][0]], idle=60_000, justid=True)
        async with testing.run(app("third"), url=url, clock=clock) as broker:
            await broker.run_until_idle()
            assert runs == [("first", 1)]
            await broker.advance("2m")
            assert runs == [("first", 1), ("third", 2)]
            assert client.keys("millstream:{t}:*") == []


async def test_what_a_crashed_worker_left_is_claimed_after_min_idle_time() -> None:
    """Entries of a crashed consumer are claimed after min_idle_time on the test clock, not before."""
    other, seen = App(), []

    @other.subscriber(StreamSub("t", group="g", min_idle_time=30_000))
    async def rest(x: int, msg: Message) -> None:
        seen.append((x, msg.delivery_count))

    clock = StoreClock()
    with manual_store(clock) as url, sync_client(url, decode_responses=True) as client:
        client.xgroup_create("t", "g", "0", mkstream=True)
        client.xadd("t", {"x": 1})
        client.xreadgroup("g", "ghost", {"t": ">"})
        async with testing.run(other, url=url, clock=clock) as broker:
            await broker.advance(29)
            assert seen == []
            await broker.advance(2)
    assert seen == [(1, 2)]


async def test_what_a_handler_raises_is_raised_in_the_test() -> None:
    """The kit raises a handler's exception in the test, with a note about others. Nack and Reject raise nothing."""
    app = App()

    @app.subscriber(StreamSub("s", group="g"), retry=SLOW)
    async def handle(do: str) -> None:
        if do == "nack":
            raise Nack(delay=5)
        if do == "reject":
            raise Reject
        raise ValueError(do)

    @app.subscriber(StreamSub("b", group="g"), batch=True)
    def batch(xs: list[int]) -> None:
        raise BatchError({0: KeyError("x")})

    async with testing.run(app) as broker:
        await broker.publish("s", {"do": "nack"})
        await broker.publish("s", {"do": "reject"})
        await broker.run_until_idle()
        await broker.publish("s", {"do": "one"})
        await broker.publish("s", {"do": "two"})
        with pytest.raises(ValueError, match="one") as caught:
            await broker.run_until_idle()
        assert "1 more runs failed" in caught.value.__notes__[0]
        await broker.run_until_idle()  # reported once
        await broker.publish("b", {"x": 1})
        with pytest.raises(BatchError):
            await broker.run_until_idle()


async def test_a_handler_that_never_ends_is_named() -> None:
    """The kit names a handler that never ends, and the test fails instead of hanging."""
    app = App()

    @app.subscriber(StreamSub("s", group="g"))
    async def stuck(x: int) -> None:
        await asyncio.Event().wait()

    async with testing.run(app) as broker:
        await broker.publish("s", {"x": 1})
        with pytest.raises(testing.StillBusyError, match=r"stuck: .*running"):
            await broker.run_until_idle(patience=0.1)


async def test_manual_acks_that_are_left_out_come_again() -> None:
    """With ack="manual" an entry without an outcome can be claimed again after min_idle_time."""
    app, counts = App(), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=10_000), ack="manual")
    async def handle(msg: Message) -> None:
        counts.append(msg.delivery_count)
        if msg.delivery_count == 2:
            await msg.ack()

    async with testing.run(app) as broker:
        await broker.publish("s", {"x": 1})
        await broker.run_until_idle()
        assert counts == [1]
        await broker.advance(11)
        assert counts == [1, 2]
        assert broker.client.xpending("s", "g")["pending"] == 0


def in_memory() -> int:
    """Return the number of entries that the process holds, over all apps."""
    gc.collect()
    # by its type: what a lazy object of another package says of its class may be an error
    return sum(issubclass(type(one), Held) for one in gc.get_objects())


@pytest.mark.parametrize("read", ["both", "new"])
async def test_manual_acks_that_others_have_by_then_are_not_kept(read: str) -> None:
    """A worker does not keep forgotten manual entries in memory that others have claimed or acknowledged.

    It does not keep its own earlier deliveries either.
    """
    app, before = App(), in_memory()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=10_000), ack="manual", read=read, retry=Retry(100))
    async def handle(x: int) -> None:
        """Forget the acknowledgement."""

    async with testing.run(app) as broker:
        client = broker.client
        ids = [await broker.publish("s", {"x": x}) for x in range(20)]
        await broker.run_until_idle()
        await broker.advance(9)  # recorded as failures by now
        assert in_memory() - before == 20
        client.xclaim("s", "g", "other", 0, ids[:10])
        client.xack("s", "g", *ids[:5])
        for _ in range(6):
            await broker.advance(11)
        still_ours = ids[5:] if read == "both" else ids[10:]  # the five unsettled by the other are claimed back
        assert app.loops[0].left() == set(still_ours)
        assert in_memory() - before <= 2 * 20, "theirs, and the last that lanes and reader had"


async def test_the_fixture_runs_an_app_on_the_tests_own_store(
    millstream_worker: WorkerUnderTest, millstream_url: str
) -> None:
    """The fixture ``millstream_worker(app)`` runs on the test's ``millstream_url`` and ``millstream_clock``."""
    app, seen = App(), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> None:
        seen.append(x)

    async with millstream_worker(app) as broker:
        assert broker.url == millstream_url
        await broker.publish("s", {"x": 1})
        await broker.run_until_idle()
    assert seen == [1]


class Counting(StoreClock):
    """A clock that counts its changes."""

    turns = 0

    def advance(self, ms: int) -> None:
        self.turns += 1
        super().advance(ms)


@pytest.mark.parametrize(("publish", "most"), [(False, 1), (True, 700)], ids=["nothing waits", "retries wait"])
async def test_time_goes_in_steps_only_as_small_as_what_waits(publish: bool, most: int) -> None:
    """With nothing pending, ten minutes are one step of the clock.

    With waiting retries, each ``min_idle_time`` is one.
    """
    app, runs = App(), []

    @app.subscriber(
        StreamSub("s", group="g", min_idle_time=1_000),
        retry=Retry(max_deliveries=3, base=250, backoff="constant", jitter=False),
    )
    async def handle(msg: Message) -> None:
        runs.append(msg.delivery_count)
        raise ValueError("again")

    clock = Counting()
    with manual_store(clock) as url:
        async with testing.run(app, raise_errors=False, url=url, clock=clock) as broker:
            if publish:
                await broker.publish("s", {"x": 1})
            await broker.run_until_idle()
            await broker.advance(249)
            assert runs == [1] * publish
            await broker.advance(351)
    assert runs == [1, 2, 3] * publish
    assert clock.turns <= 2 * most


async def test_the_client_reads_envelopes_and_any_other_bytes() -> None:
    """The kit's client returns bytes that are not text unchanged, and sees the store's idle times."""
    app = App()
    async with testing.run(app) as broker:
        await broker.publish("s", {"id": 7}, headers={"a": "b"})
        await broker.publish("s", {"raw": b"\xff\x00"})
        await broker.run_until_idle()
        (_, first), (_, second) = broker.client.xrange("s")
        body = envelope.parse(first["__data__"].encode("utf-8", "surrogateescape"))
        assert (body.headers["a"], body.body) == ("b", b'{"id":7}')
        assert second["raw"].encode("utf-8", "surrogateescape") == b"\xff\x00"
