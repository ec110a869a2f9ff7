"""Middlewares, dependencies and injected objects of the app in handlers, on every server."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
import redis
import uvloop
from redis.asyncio import Redis

from millstream import App, BatchError, Depends, Message, Middleware, Nack, Retry, StreamSub, Timeout
from millstream.errors import ConfigError, UsageError
from millstream.worker.handlers.middleware import HandlerTimeoutError, Publication, Publish, Run
from millstream.worker.middlewares.logging import OUTSIDE, EntryFilter, LogContext, entry_context
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually

QUICK = Retry(max_deliveries=2, base=0.02, jitter=False)


class Named(Middleware):
    """A middleware that records when it was entered and left."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    async def run(self, call_next: Run, msg: Message) -> Any:
        self.notes.append(f"{self.name}+")
        try:
            return await call_next(msg)
        finally:
            self.notes.append(f"{self.name}-")


async def test_middlewares_stand_around_the_run_the_apps_outermost(server: ServerProcess, client: redis.Redis) -> None:
    """Middlewares wrap the run in the order of their lists, the app's outermost. A plain function is a middleware."""
    notes: list[str] = []

    async def function(call_next: Run, msg: Message) -> Any:
        notes.append(f"f{msg.delivery_count}")
        return {"x": (await call_next(msg))["x"] + 1}

    app = App(server.url, middlewares=[Named("a", notes), Named("b", notes)])

    @app.publisher("out")
    @app.subscriber(StreamSub("s", group="g"), middlewares=[function])
    async def handle(x: int) -> dict[str, int]:
        notes.append("h")
        return {"x": x}

    async with app.running():
        client.xadd("s", {"x": 1})
        await aeventually(lambda: client.exists("out"))
        await aeventually(all_done(client, "s", "g"))
    assert notes == ["a+", "b+", "f1", "h", "b-", "a-"]
    rows: Any = client.xrange("out")
    assert rows[0][1] == {"x": "2"}


async def test_what_a_middleware_raises_is_a_failure_and_what_it_swallows_a_success(
    server: ServerProcess, client: redis.Redis
) -> None:
    """An exception raised by a middleware fails the entry, and a swallowed one makes it a success.

    Entries that do not fit the handler pass through the middlewares too.
    """

    class Rejecting(Middleware):
        async def run(self, call_next: Run, msg: Message) -> Any:
            if msg.fields["do"] == b"refuse":
                raise Nack
            try:
                return await call_next(msg)
            except KeyError:
                return None

    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), middlewares=[Rejecting()], retry=QUICK)
    async def handle(do: str, n: int) -> None:
        runs.append(do)
        raise KeyError(do)

    async with app.running():
        client.xadd("s", {"do": "swallow", "n": 1})
        client.xadd("s", {"do": "refuse", "n": 1})
        client.xadd("s", {"do": "unfit", "n": "x"})
        await aeventually(lambda: client.xlen("s:dead") == 2)
        await aeventually(all_done(client, "s", "g"))
    assert runs == ["swallow"]
    rows: Any = client.xrange("s:dead")
    assert {fields["do"]: fields["_dead.reason"] for _, fields in rows} == {"refuse": "nack", "unfit": "invalid"}


async def test_publish_hooks_see_and_change_every_publish(server: ServerProcess, client: redis.Redis) -> None:
    """A publish hook sees and may change every publish: single, in a batch, and of a handler's result."""

    class Stamp(Middleware):
        async def publish(self, call_next: Publish, publication: Publication) -> str:
            publication.content = {**publication.content, "stamped": 1}
            return await call_next(publication)

    app = App(server.url, middlewares=[Stamp()])

    @app.publisher("out")
    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int) -> dict[str, int]:
        return {"x": x}

    async with app.running():
        await app.publish("s", {"x": 1})
        ids = await app.publish_batch("s", [{"x": 2}, {"x": 3}])
        await aeventually(lambda: client.xlen("out") == 3)
    assert ids == sorted(ids)
    rows: Any = [*client.xrange("s"), *client.xrange("out")]
    assert [fields["stamped"] for _, fields in rows] == ["1"] * 6


async def test_a_run_beyond_its_timeout_has_failed(server: ServerProcess, client: redis.Redis) -> None:
    """A run over its timeout is cancelled and retried. A handler's own TimeoutError stays an ordinary error."""
    app, ended = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), middlewares=[Timeout(0.05)], retry=QUICK)
    async def handle(own: int) -> None:
        if own:
            raise TimeoutError("mine")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with app.running():
        client.xadd("s", {"own": 0})
        client.xadd("s", {"own": 1})
        await aeventually(lambda: client.xlen("s:dead") == 2)
    assert len(ended) == 2
    rows: Any = client.xrange("s:dead")
    errors = {fields["own"]: fields["_dead.error"] for _, fields in rows}
    assert errors["0"].endswith("HandlerTimeoutError: the handler took longer than 0.05 s")
    assert errors["1"] == "TimeoutError: mine"
    assert issubclass(HandlerTimeoutError, Exception)


async def test_a_thread_that_goes_on_after_its_timeout_keeps_no_other_entry_from_running(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A thread that continues after its timeout does not block later entries."""
    app, gate, seen = App(server.url, registry=False), threading.Event(), []

    @app.subscriber(StreamSub("s", group="g"), retry=QUICK, concurrency=1, middlewares=[Timeout(0.2)])
    def handle(word: str) -> None:
        if word == "bad":
            gate.wait()
        seen.append(word)

    for word in ("bad", "good", "bad", "good"):
        client.xadd("s", {"word": word})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        assert seen == ["good", "good"]
        gate.set()
    assert [fields["word"] for _, fields in client.xrange("s:dead")] == ["bad", "bad"]


async def test_log_lines_know_their_entry_in_tasks_and_threads(server: ServerProcess, client: redis.Redis) -> None:
    """Log lines carry the entry of their own handler, also in threads. Outside a handler they carry none."""
    app, seen = App(server.url, middlewares=[LogContext()]), {}

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen[record.getMessage()] = (record.__dict__["stream"], record.__dict__["entry_id"])

    log, keep = logging.getLogger("test.around"), Keep()
    keep.addFilter(EntryFilter())
    log.addHandler(keep)
    log.setLevel(logging.INFO)
    meet = threading.Barrier(2, timeout=20)

    @app.subscriber(StreamSub("a", group="g"))
    async def in_task(msg: Message) -> None:
        await asyncio.to_thread(meet.wait)
        log.info("task")

    @app.subscriber(StreamSub("b", group="g"))
    def in_thread(msg: Message) -> None:
        meet.wait()
        log.info("thread")

    try:
        async with app.running():
            ids = [client.xadd(stream, {"x": 1}) for stream in ("a", "b")]
            await aeventually(lambda: len(seen) == 2)
        log.info("outside")
    finally:
        log.removeHandler(keep)
    assert seen == {"task": ("a", ids[0]), "thread": ("b", ids[1]), "outside": ("-", "-")}
    assert entry_context() is OUTSIDE


def test_what_is_no_middleware_is_refused() -> None:
    """An object that is not a middleware, such as a class in place of its instance, is refused."""
    with pytest.raises(ConfigError, match="Give a Middleware"):
        App(middlewares=[Timeout])
    with pytest.raises(ConfigError, match="more than 0"):
        Timeout(0)


def one_too_few(msg: Message) -> None: ...


async def yields(call_next: Run, msg: Message) -> AsyncIterator[Any]:
    yield await call_next(msg)


def yields_plainly(call_next: Run, msg: Message) -> Iterator[Any]:
    yield call_next(msg)


class Deaf(Middleware):
    """A middleware with a hook that is not async."""

    async def received(self, msgs: Any, began_ns: int) -> None:  # type: ignore[override] # the tested mistake
        """Do nothing, as it is never called."""


class Yields(Middleware):
    """A middleware with a generator as its hook."""

    async def run(self, call_next: Run, msg: Message) -> AsyncIterator[Any]:  # type: ignore[override] # the tested mistake
        yield await call_next(msg)


@pytest.mark.parametrize(
    ("middleware", "text"),
    [
        (one_too_few, "middleware one_too_few is invalid.*Write .call_next, msg"),
        (yields, "middleware yields is a generator function"),
        (yields_plainly, "middleware yields_plainly is a generator function"),
        (Yields(), "middleware Yields.run is a generator function"),
        (Deaf(), "Deaf.received is invalid.*Write def received.self, msgs, began_ns"),
    ],
)
def test_a_middleware_that_could_not_be_called_is_refused_by_name(middleware: Any, text: str) -> None:
    """A middleware with a hook that cannot be called or awaited is refused by name."""
    with pytest.raises(ConfigError, match=text):
        App(middlewares=[middleware])


async def forgets_await(call_next: Run, msg: Message) -> None:
    call_next(msg)  # type: ignore[unused-coroutine] # the tested mistake


async def leaves_a_task(call_next: Run, msg: Message) -> None:
    asyncio.ensure_future(call_next(msg))  # noqa: RUF006 - that is the mistake


def returns_nothing(call_next: Run, msg: Message) -> None:
    call_next(msg)  # type: ignore[unused-coroutine] # the tested mistake


class Forgets(Middleware):
    """A middleware that forgets to await ``call_next``."""

    async def run_batch(self, call_next: Any, msgs: Any) -> None:
        call_next(msgs)

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        call_next(publication)  # type: ignore[unused-coroutine] # the tested mistake
        return "0-0"


@pytest.mark.parametrize("place", ["app", "handler"])
@pytest.mark.parametrize("middleware", [forgets_await, leaves_a_task, returns_nothing, Forgets()])
async def test_an_entry_is_not_acked_before_the_rest_of_the_chain_has_ended(
    server: ServerProcess, client: redis.Redis, middleware: Any, place: str
) -> None:
    """An entry is not acknowledged if a middleware did not await ``call_next``. The error names the middleware."""
    ours, gate = [Named("right", []), middleware], asyncio.Event()
    app = App(server.url, registry=False, middlewares=ours if place == "app" else [])

    async def handle(word: Any) -> None:
        await gate.wait()

    batch = isinstance(middleware, Forgets)
    app.subscriber(
        StreamSub("s", group="g"),
        retry=Retry(max_deliveries=1),
        middlewares=ours if place == "handler" else [],
        batch=batch,
    )(handle)
    client.xadd("s", {"word": "x"})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        gate.set()
    ((_, letter),) = client.xrange("s:dead")
    assert "middleware " + ("Forgets.run_batch" if batch else middleware.__name__) in letter["_dead.error"]


async def test_a_publish_that_a_middleware_forgets_is_an_error(server: ServerProcess) -> None:
    """A publish hook that does not await ``call_next`` makes the publish raise an error with its name."""
    async with App(server.url, middlewares=[Forgets()]) as app:
        with pytest.raises(UsageError, match=r"middleware Forgets.publish has not awaited call_next"):
            await app.publish("s", {"a": 1})


# -- dependencies -----------------------------------------------------------------------------------------------------


async def test_dependencies_are_made_once_a_delivery_and_closed_before_the_ack(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A dependency is created once per delivery and closed before the entry is acknowledged."""
    app = App(server.url)
    notes: list[str] = []

    async def session(msg: Message) -> AsyncIterator[str]:
        notes.append("open")
        yield f"session of {msg.id}"
        notes.append(f"close, pending {len(pending(client, 's', 'g'))}")

    def user(x: int, db: Annotated[str, Depends(session)]) -> Iterator[str]:
        yield f"user {x} by {db}"
        notes.append("close user")

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(
        x: int, who: Annotated[str, Depends(user)], db: Annotated[str, Depends(session)], here: App, conn: Redis
    ) -> None:
        assert here is app
        assert await conn.ping()
        notes.append(f"run {who}; {db}")

    async with app.running():
        entry = client.xadd("s", {"x": 7})
        await aeventually(all_done(client, "s", "g"))
    assert notes == ["open", f"run user 7 by session of {entry}; session of {entry}", "close user", "close, pending 1"]


async def test_a_dependency_that_fails_at_closing_fails_the_delivery(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A dependency that fails while closing fails the delivery. A generator dependency sees the handler's exception."""
    app, thrown = App(server.url), []

    async def session() -> AsyncIterator[int]:
        try:
            yield 1
        except ZeroDivisionError as error:
            thrown.append(type(error))
            raise
        raise ConnectionError("commit failed")

    def swallow() -> Iterator[int]:
        with contextlib.suppress(LookupError):
            yield 1

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), retry=QUICK)
    def handle(x: int, db: int = Depends(session)) -> None:
        return None if x else 1 // 0

    @app.subscriber(StreamSub("t", group="g", min_idle_time=60_000), retry=QUICK)
    async def hidden(x: int, db: int = Depends(swallow)) -> None:
        raise LookupError(x)

    async with app.running():
        for x in (0, 1):
            client.xadd("s", {"x": x})
        client.xadd("t", {"x": 1})
        await aeventually(lambda: client.xlen("s:dead") == 2 and client.xlen("t:dead") == 1)
    rows: Any = client.xrange("s:dead")
    assert {fields["x"]: fields["_dead.error"].partition(":")[0] for _, fields in rows} == {
        "0": "ZeroDivisionError",
        "1": "ConnectionError",
    }
    assert thrown == [ZeroDivisionError] * 2
    other: Any = client.xrange("t:dead")
    assert "did not raise it again" in other[0][1]["_dead.error"]


async def test_a_dependency_is_exchanged_for_a_test(server: ServerProcess, client: redis.Redis) -> None:
    """``app.dependencies``, the provider of fast-depends, replaces a dependency in tests."""
    app, seen = App(server.url), []

    def price() -> int:
        raise AssertionError("the real one")

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(x: int, cost: Annotated[int, Depends(price)]) -> None:
        seen.append((x, cost))

    with app.dependencies.scope(price, lambda: 5):
        async with app.running():
            client.xadd("s", {"x": 1})
            await aeventually(lambda: seen)
    assert seen == [(1, 5)]


def test_dependencies_that_contradict_each_other_are_refused_at_registration() -> None:
    """Contradicting dependencies are refused at registration, such as one parameter name with two types."""
    app = App()

    def first(x: int) -> int:
        return x

    def second(x: str) -> str:
        return x

    with pytest.raises(ConfigError, match="'x' of different types"):

        @app.subscriber("s")
        async def handle(a: Annotated[int, Depends(first)], b: Annotated[str, Depends(second)]) -> None: ...

    with pytest.raises(ConfigError, match="of a batch handler"):

        @app.subscriber("s", batch=True)
        async def batch(rows: list[dict[str, str]], a: Annotated[int, Depends(first)]) -> None: ...


def test_handlers_without_dependencies_and_middlewares_take_the_shortest_way() -> None:
    """A handler without dependencies has no fast-depends provider and no extra work."""
    app = App()

    @app.subscriber("s")
    async def handle(x: int) -> None: ...

    assert app.subscriptions[0].depends == frozenset()
    assert app.subscriptions[0].provider is None


# -- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_handler_gets_typed_lists_and_acks_all(server: ServerProcess, client: redis.Redis) -> None:
    """A batch handler receives parallel typed lists of at most max_records.

    An entry that does not fit is dead-lettered.
    """
    for number in range(250):
        client.xadd("s", {"x": number})
    client.xadd("s", {"x": "none"})
    app, sizes, seen = App(server.url), [], []

    @app.subscriber(StreamSub("s", group="g"), batch=True, max_records=40)
    async def handle(xs: list[int], msgs: list[Message]) -> None:
        assert [int(msg.fields["x"]) for msg in msgs] == xs
        sizes.append(len(xs))
        seen.extend(xs)

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert sorted(seen) == list(range(250))
    assert max(sizes) <= 40
    assert len(sizes) < 100
    rows: Any = client.xrange("s:dead")
    assert [(fields["x"], fields["_dead.reason"]) for _, fields in rows] == [("none", "invalid")]
    assert app.stats()["handle"]["handled"] == 250


async def test_single_entries_of_a_batch_fail(server: ServerProcess, client: redis.Redis) -> None:
    """A BatchError retries each named entry alone with its own error, and the others are acknowledged."""
    for x in range(10):
        client.xadd("s", {"x": x})
    app, runs = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), batch=True, concurrency=1, retry=QUICK)
    def handle(xs: list[int]) -> None:
        runs.append(xs)
        raise BatchError({place: ValueError(f"bad {x}") for place, x in enumerate(xs) if x in (3, 7)})

    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 2)
        await aeventually(all_done(client, "s", "g"))
    assert runs[0] == list(range(10))
    assert sorted(runs[1:]) == [[3], [7]]
    rows: Any = client.xrange("s:dead")
    assert sorted(fields["_dead.error"] for _, fields in rows) == ["ValueError: bad 3", "ValueError: bad 7"]
    assert app.stats()["handle"]["handled"] == 8


async def test_a_whole_batch_fails_and_innocents_come_through_alone(server: ServerProcess, client: redis.Redis) -> None:
    """A failed batch is retried entry by entry, so that only the poisonous entry becomes a dead letter."""
    for x in range(10):
        client.xadd("s", {"x": x})
    app, done = App(server.url), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), batch=True, concurrency=1, retry=QUICK)
    async def handle(xs: list[int]) -> None:
        if 5 in xs:
            raise ValueError("poison")
        done.extend(xs)

    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 1)
        await aeventually(all_done(client, "s", "g"))
    assert sorted(done) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_a_batch_error_about_nobody_fails_the_batch(server: ServerProcess, client: redis.Redis) -> None:
    """A BatchError with an invalid position fails the whole batch."""
    client.xadd("s", {"x": 1})
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), batch=True, retry=QUICK)
    async def handle(xs: list[int]) -> None:
        raise BatchError({1: ValueError("counted from one")})

    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 1)
    assert app.stats()["handle"]["handled"] == 0


async def test_a_stop_hands_a_batch_back_uncharged(server: ServerProcess, client: redis.Redis) -> None:
    """A batch that still runs at the end of the stop's grace is handed back at once without a counted delivery."""
    for x in range(5):
        client.xadd("s", {"x": x})
    app, started = App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), batch=True)
    async def handle(xs: list[int]) -> None:
        started.set()
        await asyncio.Event().wait()

    async with app.running(grace=0.01):
        await started.wait()
    assert [count for _, count in pending(client, "s", "g").values()] in ([0] * 5, [1] * 5)
    other: Any = client.xautoclaim("s", "g", "other", 0)
    assert len(other[1]) == 5
    assert {count for _, count in pending(client, "s", "g").values()} == {1}


def test_batch_handlers_are_checked_at_registration() -> None:
    """Wrong batch handlers are refused at registration, such as one without a list or one with a key."""
    app = App()
    with pytest.raises(ConfigError, match="is a list"):

        @app.subscriber("s", batch=True)
        async def one(x: int) -> None: ...

    with pytest.raises(ConfigError, match="has no parameter for its entries"):

        @app.subscriber("s", batch=True)
        async def none() -> None: ...

    with pytest.raises(ConfigError, match="Leave one out"):

        @app.subscriber("s", batch=True, key="x")
        async def both(xs: list[int]) -> None: ...


# -- keys -------------------------------------------------------------------------------------------------------------


async def test_entries_of_one_key_run_in_order_and_keys_side_by_side(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Entries of one key run one at a time in stream order, and different keys run concurrently."""
    for number in range(200):
        client.xadd("s", {"customer": f"c{number % 4}", "n": number})
    app, order, running, most = App(server.url), [], set(), 0

    @app.subscriber(StreamSub("s", group="g"), key="customer", concurrency=8)
    async def handle(customer: str, n: int) -> None:
        nonlocal most
        assert customer not in running
        running.add(customer)
        most = max(most, len(running))
        await asyncio.sleep(0)  # other tasks run inside the handler
        order.append((customer, n))
        running.remove(customer)

    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert len(order) == 200
    for name in ("c0", "c1", "c2", "c3"):
        numbers = [n for customer, n in order if customer == name]
        assert numbers == sorted(numbers)
    assert most > 1
    assert app.stats()["handle"]["failed"] == 0


async def test_a_key_by_function_and_entries_without_one(server: ServerProcess, client: redis.Redis) -> None:
    """A key function may return None; the entry then waits for no other.

    If it raises, the entry becomes a dead letter.
    """
    app, together = App(server.url), asyncio.Barrier(2)

    def key(msg: Message) -> str | None:
        if msg.fields["k"] == b"bad":
            raise KeyError("no key")
        return None

    @app.subscriber(StreamSub("s", group="g"), key=key)
    async def handle(k: str) -> None:
        async with asyncio.timeout(20):
            await together.wait()

    async with app.running():
        for value in ("a", "a", "bad"):
            client.xadd("s", {"k": value})
        await aeventually(lambda: client.xlen("s:dead") == 1)
        await aeventually(all_done(client, "s", "g"))
    rows: Any = client.xrange("s:dead")
    assert "key: KeyError" in rows[0][1]["_dead.error"]
    assert app.stats()["handle"]["handled"] == 2


async def test_a_failed_entry_does_not_hold_back_its_key(server: ServerProcess, client: redis.Redis) -> None:
    """A failed entry that waits for its retry does not hold back later entries of its key, as documented."""
    app, order = App(server.url), []

    @app.subscriber(
        StreamSub("s", group="g", min_idle_time=60_000), key="k", retry=Retry(base=0.2, jitter=False, max_deliveries=3)
    )
    async def handle(n: int, msg: Message) -> None:
        order.append(n)
        if n == 0 and msg.delivery_count == 1:
            raise ValueError(n)

    async with app.running():
        for n in range(3):
            client.xadd("s", {"k": "a", "n": n})
        await aeventually(lambda: len(order) == 4)
    assert order == [0, 1, 2, 0]


async def test_a_stop_hands_back_what_waits_for_its_key(server: ServerProcess, client: redis.Redis) -> None:
    """A stop hands back entries that wait for their key without counting a delivery. Reading ahead stays bounded."""
    for n in range(500):
        client.xadd("s", {"k": "a", "n": n})
    app, started = App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("s", group="g", min_idle_time=60_000), key="k")
    async def handle(n: int) -> None:
        started.set()
        await asyncio.Event().wait()

    async with app.running(grace=0.01):
        await started.wait()
        await aeventually(lambda: len(pending(client, "s", "g")) >= 100)
        assert len(pending(client, "s", "g")) <= 260
    claimed: Any = client.xautoclaim("s", "g", "other", 0, count=600)
    assert len(claimed[1]) <= 260
    assert {count for _, count in pending(client, "s", "g").values()} == {1}
    assert app.stats()["handle"]["released"] == len(claimed[1])


# -- on_ack, publishing -----------------------------------------------------------------------------------------------


async def test_acked_entries_leave_the_stream_once_no_group_needs_them(
    server: ServerProcess, client: redis.Redis
) -> None:
    """With ``on_ack="delete"`` an entry leaves the stream once every group has acknowledged it."""
    client.xgroup_create("s", "late", "0", mkstream=True)
    app = App(server.url)

    @app.subscriber(StreamSub("s", group="g"), on_ack="delete")
    async def handle(x: int) -> None: ...

    async with app.running():
        for x in range(20):
            client.xadd("s", {"x": x})
        await aeventually(lambda: app.stats()["handle"]["acked"] == 20)
        assert client.xlen("s") == 20  # unread by the other group
        rows: Any = client.xreadgroup("late", "c", {"s": ">"}, count=10)
        ids = [entry for entry, _ in rows[0][1]]
        client.xadd("s", {"x": 20})
        await aeventually(lambda: app.stats()["handle"]["acked"] == 21)
        assert client.xlen("s") == 21  # pending there, or unread
    client.xack("s", "late", *ids)
    second = App(server.url)

    @second.subscriber(StreamSub("s", group="late"), on_ack="delete")
    async def rest(x: int) -> None: ...

    async with second.running():
        await aeventually(lambda: client.xlen("s") == 10)  # manually acknowledged entries stay
    assert second.stats()["rest"] | {"acked": 11, "lost": 0} == second.stats()["rest"]


async def test_a_publish_with_an_idempotent_id_is_added_once_or_refused_clearly(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Publishing twice with one idempotent id returns the first id. A server without XADD IDMP is a clear error."""
    from millstream.client import capabilities
    from millstream.client.line import Line
    from millstream.errors import UsageError

    line = Line(server.url)
    there = (await capabilities.find(line)).idmp
    await line.close()
    async with App(server.url) as app:
        if not there:
            with pytest.raises(UsageError, match="XADD IDMP"):
                await app.publish("s", {"x": 1}, idempotent="order-1")
            assert not client.exists("s")
            return
        first = await app.publish("s", {"x": 1}, idempotent="order-1")
        assert await app.publish("s", {"x": 1}, idempotent="order-1") == first
        ids = await app.publish_batch(
            "s", [{"x": 1}, {"x": 2}], idempotent=lambda content: f"order-{content['x']}", maxlen=100
        )
        assert ids[0] == first
        assert client.xlen("s") == 2


async def test_a_publish_trims_by_id_and_refuses_two_ways_at_once(server: ServerProcess, client: redis.Redis) -> None:
    """``minid`` trims older entries by whole nodes of the stream. Together with ``maxlen`` it is refused."""
    async with App(server.url) as app:
        ids = await app.publish_batch("s", [{"x": x} for x in range(1_000)])
        await app.publish("s", {"x": "last"}, minid=ids[-1])
        assert client.xlen("s") < 500
        with pytest.raises(ConfigError, match="by length or by id"):
            await app.publish("s", {"x": 1}, maxlen=1, minid="1")


async def test_an_entry_is_written_in_the_envelope_with_headers(server: ServerProcess, client: redis.Redis) -> None:
    """An entry published with headers uses the envelope, and content of every kind is read back unchanged."""
    app, seen = App(server.url), []

    @app.subscriber(StreamSub("s", group="g"))
    async def handle(body, msg: Message) -> None:  # no annotation: any value
        seen.append((body, msg.headers))

    async with app.running():
        await app.publish("s", {"a": [1, 2]}, headers={"tenant": "ü"})
        await app.publish("s", "text", headers={})
        await app.publish("s", b"\x00\xff", headers={})
        await aeventually(lambda: len(seen) == 3)
    assert sorted(seen, key=repr) == sorted(
        [
            ({"a": [1, 2]}, {"content-type": "application/json", "tenant": "ü"}),
            ("text", {"content-type": "text/plain"}),
            (b"\x00\xff", {"content-type": "application/octet-stream"}),
        ],
        key=repr,
    )


def test_all_of_it_runs_on_uvloop(server: ServerProcess, client: redis.Redis) -> None:
    """Claims, retries, threads, dead letters and a stop all work on uvloop."""
    crashed: Any = [client.xadd("a", {"x": x}) for x in range(5)]
    client.xgroup_create("a", "g", "0")
    client.xreadgroup("g", "ghost", {"a": ">"})
    client.xclaim("a", "g", "ghost", 0, crashed, idle=3_600_000, justid=True)

    async def main() -> tuple[list[int], list[int]]:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        app, seen, threads, begun = App(server.url), [], [], asyncio.Event()

        @app.subscriber(StreamSub("a", group="g", min_idle_time=60_000), retry=QUICK)
        async def handle(x: int) -> None:
            seen.append(x)
            if x == 7:
                raise ValueError("always")

        @app.subscriber(StreamSub("b", group="g"))
        def in_thread(x: int) -> None:
            threads.append(x)

        @app.subscriber(StreamSub("c", group="g", max_records=5), concurrency=1)
        async def for_ever(x: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with app.running(grace=0.05):
            for stream in "abc":
                await app.publish_batch(stream, [{"x": x} for x in range(5, 10)])
            await aeventually(all_done(client, "a", "g"))
            await aeventually(all_done(client, "b", "g"))
            await begun.wait()
        return seen, threads

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen, threads = runner.run(main())
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9]
    assert sorted(threads) == [5, 6, 7, 8, 9]
    assert client.xlen("a:dead") == 1
    assert set(pending(client, "c", "g").values()) == {("", 0)}
