"""A handler may raise or return odd values: its entry may become a dead letter, but its worker continues."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import redis

from millstream import App, BatchError, Message, Nack, Reject, Retry, StreamSub, once
from support.groups import all_done, pending
from support.servers import ServerProcess
from support.waiting import aeventually

QUICK = Retry(max_deliveries=2, base=0.01, jitter=False)


class Mute(Exception):  # noqa: N818 - its name does not matter
    """An error that raises when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Limited(Nack):
    """A subclass that does not call its base's constructor."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Moody(Nack):
    """A Nack that raises when its delay is read."""

    @property
    def delay(self) -> float:
        raise RuntimeError("not now")

    @delay.setter
    def delay(self, value: float | None) -> None:
        """Accept any value."""


class Untraced(Exception):  # noqa: N818 - its name does not matter
    """An error that raises when its traceback is read."""

    @property
    def __traceback__(self) -> None:  # type: ignore[override] # as users do
        raise Mute


class Truthless(Exception):  # noqa: N818 - its name does not matter
    """An object that raises when tested for truth, as arrays do."""

    def __bool__(self) -> bool:
        raise RuntimeError("ambiguous")


class Chopped(str):
    """A text that raises when it is sliced."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("whole or not at all")

    __len__ = __getitem__  # type: ignore[assignment] # the tested mistake


class OwnText(Exception):  # noqa: N818 - its name does not matter
    """An error that returns a user-defined subclass of str as its text."""

    def __str__(self) -> str:
        return Chopped("text")


def after_a_truthless() -> None:
    try:
        odd_error(Truthless)()
    except Truthless as error:
        raise Nack("later") from error


def in_its_chain() -> None:
    raise ValueError("for another that cannot be shown") from Untraced()


def changed_nack() -> BaseException:
    error = Nack("later", delay=1)
    error.delay = "bad"  # type: ignore[assignment] # the tested mistake
    return error


def odd_nack(delay: Any) -> Callable[[], None]:
    def say() -> None:
        raise Nack("later", delay=delay)

    return say


def odd_error(error: Callable[[], BaseException]) -> Callable[[], None]:
    def say() -> None:
        raise error()

    return say


ODD = {
    "nack-timedelta": odd_nack(timedelta(seconds=1)),
    "nack-text": odd_nack("5"),
    "nack-nan": odd_nack(float("nan")),
    "nack-infinite": odd_nack(float("inf")),
    "surrogate": odd_error(lambda: ValueError(f"unknown {json.loads(chr(34) + chr(92) + 'ud800' + chr(34))}")),
    "reject-surrogate": odd_error(lambda: Reject("\ud800")),
    "mute": odd_error(Mute),
    "nack-without-its-base": odd_error(lambda: Limited(3)),
    "nack-unreadable": odd_error(Moody),
    "nack-changed": odd_error(changed_nack),
    "untraced-in-its-chain": in_its_chain,
    "untraced-in-a-group": odd_error(lambda: ExceptionGroup("many", [Untraced()])),
    "truthless": odd_error(Truthless),
    "nack-after-a-truthless": after_a_truthless,
    "own-text": odd_error(OwnText),
    "exit": lambda: sys.exit(0),
    "exit-text": lambda: sys.exit("bad"),
}


class Strict(logging.Handler):
    """A log handler that reads each error's text, as JSON formatters do, and does not catch errors."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.exc_info and record.exc_info[1] is not None:
                str(record.exc_info[1])
        except BaseException as error:
            self.failed.append(error)
            raise


@pytest.fixture(autouse=True)
def strict_log() -> Iterator[None]:
    handler = Strict()
    logging.getLogger("millstream").addHandler(handler)
    yield
    logging.getLogger("millstream").removeHandler(handler)
    assert not handler.failed


class Broken(logging.Handler):
    """A log handler that raises for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.levelname)


async def test_a_log_that_raises_stops_no_lane(server: ServerProcess, client: redis.Redis) -> None:
    """A logging handler that raises for each of the worker's records stops no lane. All entries are handled or dead."""
    app, seen, broken = App(server.url, registry=False), [], Broken()

    @app.subscriber(StreamSub("s", group="g"), retry=QUICK, concurrency=1)
    async def handle(word: str) -> None:
        if word == "bad":
            raise ValueError(word)
        seen.append(word)

    for word in ("bad", "good", "bad", "good"):
        client.xadd("s", {"word": word})
    logging.getLogger("millstream").addHandler(broken)
    try:
        async with app.running():
            await aeventually(all_done(client, "s", "g"))
            assert app.progress()[0].alive
    finally:
        logging.getLogger("millstream").removeHandler(broken)
    assert (seen, client.xlen("s:dead")) == (["good", "good"], 2)


@pytest.mark.parametrize("way", ["async", "thread", "batch"])
async def test_whatever_a_handler_says_its_entry_dies_and_the_worker_lives(
    server: ServerProcess, client: redis.Redis, way: str
) -> None:
    """An entry with an oddly failing handler becomes a readable dead letter. Other entries are handled."""
    app, seen = App(server.url, registry=False), []

    def one(word: str) -> None:
        if word in ODD:
            ODD[word]()
        seen.append(word)

    sub = StreamSub("s", group="g", min_idle_time=500)
    if way == "async":

        @app.subscriber(sub, retry=QUICK)
        async def handle(word: str) -> None:
            one(word)
    elif way == "thread":
        app.subscriber(sub, retry=QUICK)(one)
    else:

        @app.subscriber(sub, retry=QUICK, batch=True)
        async def batch(word: list[str]) -> None:
            for each in word:
                one(each)

    for word in (*ODD, "plain"):
        client.xadd("s", {"word": word})
    async with app.running():
        watch = asyncio.ensure_future(app.wait())
        await aeventually(lambda: watch.done() or all_done(client, "s", "g")())
        assert not watch.done(), watch.exception()
        watch.cancel()
    assert "plain" in seen
    letters: Any = client.xrange("s:dead")
    assert sorted(fields["word"] for _, fields in letters) == sorted(ODD)


async def leave() -> None:
    raise GeneratorExit


def leave_thread() -> None:
    raise GeneratorExit


LEAVING: dict[str, Callable[[], Awaitable[None]]] = {
    "task": lambda: asyncio.create_task(leave()),
    "thread": lambda: asyncio.to_thread(leave_thread),
    "group": lambda: asyncio.gather(leave(), asyncio.sleep(0)),
}


@pytest.mark.parametrize("way", ["one", "key", "batch"])
async def test_generator_exit_of_a_task_or_a_thread_ends_no_lane(
    server: ServerProcess, client: redis.Redis, way: str
) -> None:
    """GeneratorExit from a task or thread ends no lane. The entry becomes a dead letter at its delivery limit."""
    app, seen = App(server.url, registry=False), []

    async def one(word: str) -> None:
        if word in LEAVING:
            await LEAVING[word]()
        seen.append(word)

    async def many(word: list[str]) -> None:
        for each in word:
            await one(each)

    options: dict[str, Any] = {"key": {"key": "k"}, "batch": {"batch": True}}.get(way, {})
    handler = many if way == "batch" else one
    app.subscriber(StreamSub("s", group="g", min_idle_time=500), retry=QUICK, concurrency=1, **options)(handler)
    for word in (*LEAVING, "plain"):
        client.xadd("s", {"word": word, "k": "same"})
    async with app.running():
        watch = asyncio.ensure_future(app.wait())
        await aeventually(lambda: watch.done() or all_done(client, "s", "g")())
        assert not watch.done(), watch.exception()
        watch.cancel()
    assert "plain" in seen
    letters: Any = client.xrange("s:dead")
    assert sorted(fields["word"] for _, fields in letters) == sorted(LEAVING)


async def test_a_batch_error_of_a_task_names_its_entries_and_acks_none(
    server: ServerProcess, client: redis.Redis
) -> None:
    """BatchErrors from a task group apply each named entry's own outcome. The unnamed entries run again."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), retry=Retry(max_deliveries=3, base=0.01), batch=True, max_records=4)
    async def handle(word: list[str]) -> None:
        async def say(failed: dict[int, BaseException]) -> None:
            raise BatchError(failed)

        if len(word) == 4:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(say({0: Nack(delay=1000), 1: Nack(delay=5)}))
                tasks.create_task(say({1: Nack(delay=2000), 2: Reject("bad")}))
        seen.extend(word)

    ids: Any = [client.xadd("s", {"word": word}) for word in "abcd"]
    async with app.running():
        await aeventually(lambda: seen == ["d"] and len(pending(client, "s", "g")) == 2)
        assert set(pending(client, "s", "g")) == set(ids[:2])
        due: Any = client.zrange("millstream:{s}:due:g", 0, -1, withscores=True)
    now = time.time() * 1000
    assert [(entry, round((ms - now) / 1e6)) for entry, ms in due] == [(ids[0], 1), (ids[1], 2)]
    ((_, letter),) = client.xrange("s:dead")  # type: ignore[misc] # redis-py's type
    assert (letter["word"], letter["_dead.error"]) == ("c", "bad")


@pytest.mark.parametrize("other", [ValueError("x"), Nack(delay=1000), asyncio.CancelledError()])
async def test_a_group_with_more_than_batch_errors_fails_the_batch(
    server: ServerProcess, client: redis.Redis, other: BaseException
) -> None:
    """A group of a BatchError and another error fails the whole batch, so that all its entries run again."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), retry=QUICK, batch=True, max_records=3)
    async def handle(word: list[str]) -> None:
        if len(word) == 3:
            raise BaseExceptionGroup("both", [BatchError({0: Reject("bad")}), other])
        seen.extend(word)

    for word in "abc":
        client.xadd("s", {"word": word})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert sorted(seen) == ["a", "b", "c"]


async def test_a_batch_error_without_exceptions_says_what_it_wants(server: ServerProcess, client: redis.Redis) -> None:
    """A BatchError that holds text in place of an exception fails the batch. The dead letter gives the correct form."""
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=500), retry=QUICK, batch=True)
    async def batch(x: list[int]) -> None:
        raise BatchError({0: "bad"})  # type: ignore[dict-item] # the tested mistake

    client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 1)
    ((_, fields),) = client.xrange("s:dead")
    assert "give the exception of each failed entry" in fields["_dead.error"]


class ForgetfulError(BatchError):
    """A subclass that does not call its base's constructor."""

    def __init__(self) -> None:
        self.when = "now"


def changed_batch_error() -> BatchError:
    error = BatchError({0: ValueError("x")})
    error.failed = {"a": ValueError("x"), 9: ValueError("y")}  # type: ignore[dict-item] # the tested mistake
    return error


@pytest.mark.parametrize(
    "error",
    [ForgetfulError, changed_batch_error, lambda: BatchError({0.0: ValueError("x")})],  # type: ignore[dict-item] # as above
    ids=["forgetful", "changed", "float"],
)
async def test_a_batch_error_without_places_fails_the_batch(
    server: ServerProcess, client: redis.Redis, error: Callable[[], BaseException]
) -> None:
    """A BatchError with invalid positions fails the whole batch.

    Its entries are retried, then dead, and the worker lives.
    """
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g", min_idle_time=500), retry=QUICK, batch=True)
    async def batch(x: list[int]) -> None:
        raise error()

    client.xadd("s", {"x": 1})
    client.xadd("s", {"x": 2})
    async with app.running():
        watch = asyncio.ensure_future(app.wait())
        await aeventually(lambda: watch.done() or client.xlen("s:dead") == 2)
        assert not watch.done(), watch.exception()
        watch.cancel()


async def test_a_letter_has_no_secret_of_a_url(server: ServerProcess, client: redis.Redis) -> None:
    """A dead letter contains no password of a URL, neither in its error nor in its traceback."""
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), retry=Retry(max_deliveries=1))
    async def handle(x: int) -> None:
        raise ConnectionError("cannot reach redis://u:topsecret@h:6379/0")

    client.xadd("s", {"x": 1})
    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 1)
    ((_, fields),) = client.xrange("s:dead")
    assert "redis://u:***@h:6379/0" in fields["_dead.error"]
    assert "topsecret" not in fields["_dead.error"] + fields["_dead.traceback"]


async def test_what_a_batch_handler_returns_is_its_own_affair(server: ServerProcess, client: redis.Redis) -> None:
    """A batch handler without a publisher may return anything. With a publisher, an invalid result is a clear error."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), batch=True)
    async def store(x: list[int]) -> int:
        seen.extend(x)
        return len(x)

    @app.subscriber(StreamSub("t", group="g"), batch=True, retry=Retry(max_deliveries=1))
    @app.publisher("u")
    async def count(x: list[int]) -> int:
        return len(x)

    client.xadd("s", {"x": 1})
    client.xadd("t", {"x": 1})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
        await aeventually(lambda: client.xlen("t:dead") == 1)
    assert seen == [1]
    ((_, fields),) = client.xrange("t:dead")
    assert "returns the list" in fields["_dead.error"]


@pytest.mark.parametrize("content", [b"[" * 200_000, b"1"], ids=["deep", "picky"])
async def test_an_entry_that_cannot_be_made_into_an_argument_does_not_end_a_batch_worker(
    server: ServerProcess, client: redis.Redis, content: bytes
) -> None:
    """An entry that cannot be converted, such as JSON too deep for Python, fails alone. The batch worker continues."""
    app, seen = App(server.url, registry=False), []

    @dataclass
    class Item:
        data: str

        def __post_init__(self) -> None:
            if self.data == "1":
                raise KeyError("nothing fits")

    @app.subscriber(StreamSub("s", group="g", min_idle_time=500), retry=QUICK, batch=True)
    async def batch(items: list[Item]) -> None:
        seen.extend(items)

    client.xadd("s", {"data": content})
    client.xadd("s", {"data": "fine"})
    async with app.running():
        watch = asyncio.ensure_future(app.wait())
        await aeventually(lambda: watch.done() or all_done(client, "s", "g")())
        assert not watch.done(), watch.exception()
        watch.cancel()
    assert [item.data for item in seen] == ["fine"]
    assert client.xlen("s:dead") == 1


async def test_a_key_that_can_be_none_is_an_entry_that_does_not_fit(server: ServerProcess, client: redis.Redis) -> None:
    """An entry with an unhashable key, such as a list, becomes a dead letter with the reason invalid.

    The next is handled.
    """
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), key=lambda msg: [msg.id] if msg.fields["x"] == b"1" else "k")
    async def handle(x: int) -> None:
        seen.append(x)

    client.xadd("s", {"x": 1})
    client.xadd("s", {"x": 2})
    async with app.running():
        watch = asyncio.ensure_future(app.wait())
        await aeventually(lambda: watch.done() or all_done(client, "s", "g")())
        assert not watch.done(), watch.exception()
        watch.cancel()
    assert seen == [2]
    ((_, fields),) = client.xrange("s:dead")
    assert fields["_dead.reason"] == "invalid"


async def test_a_command_that_cannot_be_packed_hurts_nobody_else(server: ServerProcess, client: redis.Redis) -> None:
    """A command with an unsupported argument, such as a Decimal, fails for its caller alone."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=500), retry=QUICK)
    async def handle(x: int, msg: Message) -> None:
        if x == 1:
            await once(msg, ("INCRBYFLOAT", "sum", Decimal(1)))  # type: ignore[arg-type] # the tested mistake
        seen.append(x)

    client.xadd("s", {"x": 1})
    client.xadd("s", {"x": 2})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert seen == [2]
    ((_, fields),) = client.xrange("s:dead")
    assert "Decimal('1') is a Decimal" in fields["_dead.error"]
