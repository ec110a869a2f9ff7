"""A handler has run before its entry is acknowledged, and no handler ends its lane."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal

import pytest
import redis

from millstream import App, Depends, Message, Nack, Reject, Retry, StreamSub
from millstream.client.dead_letter.letter import unpack
from millstream.errors import ConfigError
from support.groups import all_done
from support.servers import ServerProcess
from support.waiting import aeventually

SERVERS = ["millstream"]
ONCE = Retry(max_deliveries=1)
Handler = Callable[..., Any]


class Promise:
    """An object that is awaitable and nothing more."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.value


def plain(word: str) -> str:
    return word.upper()


async def coroutine(word: str) -> str:
    await asyncio.sleep(0)
    return word.upper()


class Plain:
    def __call__(self, word: str) -> str:
        return word.upper()

    def method(self, word: str) -> str:
        return word.upper()


class Async:
    async def __call__(self, word: str) -> str:
        return word.upper()

    async def method(self, word: str) -> str:
        return word.upper()


def async_over(function: Handler) -> Handler:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def plain_over(function: Handler) -> Handler:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def run_over(function: Handler) -> Handler:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


def promise_over(function: Handler) -> Handler:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return Promise(function(*args, **kwargs))

    return wrapper


def pool_over(function: Handler) -> Handler:
    pool = ThreadPoolExecutor(1)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> "Future[Any]":
        return pool.submit(function, *args, **kwargs)

    return wrapper


def task_over(function: Handler) -> Handler:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.ensure_future(function(*args, **kwargs))

    return wrapper


HANDLERS = {
    "plain": plain,
    "async": coroutine,
    "plain object": Plain(),
    "async object": Async(),
    "plain method": Plain().method,
    "async method": Async().method,
    "partial": functools.partial(plain),
    "async partial": functools.partial(coroutine),
    "async over plain": async_over(plain),
    "async over async": async_over(coroutine),
    "plain over async": plain_over(coroutine),
    "plain over plain": plain_over(plain),
    "async over plain over async": async_over(plain_over(coroutine)),
    "plain over async over plain": plain_over(async_over(plain)),
    "asyncio.run over async": run_over(coroutine),
    "async over asyncio.run over async": plain_over(run_over(coroutine)),
    "awaitable": promise_over(plain),
    "awaitable of a coroutine": promise_over(coroutine),
    "future of a pool": pool_over(plain),
    "task": task_over(coroutine),
    "partial over async over plain": functools.partial(async_over(plain)),
}


@pytest.mark.parametrize("form", HANDLERS)
@pytest.mark.parametrize("around", [False, True])
async def test_a_handler_has_run_before_its_entry_is_acked(
    server: ServerProcess, client: redis.Redis, form: str, around: bool
) -> None:
    """A handler of any form has finished before its entry is acknowledged. The awaited result is published."""

    async def passes_on(call_next: Any, msg: Message) -> Any:
        return call_next(msg)  # without await

    app = App(server.url, registry=False, middlewares=[passes_on] if around else [])
    handler = HANDLERS[form]
    app.publisher("results")(handler)
    app.subscriber(StreamSub("words", group="g"), retry=ONCE)(handler)
    for number in range(3):
        client.xadd("words", {"word": f"w{number}"})
    async with app.running():
        await aeventually(lambda: client.xlen("results") + client.xlen("words:dead") == 3)
        await aeventually(lambda: client.xpending("words", "g")["pending"] == 0)
    assert sorted(fields["data"] for _, fields in client.xrange("results")) == ["W0", "W1", "W2"]


def generator(word: str) -> Generator[str, None, None]:
    yield word


async def async_generator(word: str) -> AsyncIterator[str]:
    yield word


@pytest.mark.parametrize("handler", [generator, async_generator, functools.partial(generator)])
def test_a_generator_function_is_no_handler(handler: Handler) -> None:
    """A generator function is refused as a handler at import, by name, since calling it would run nothing."""
    with pytest.raises(ConfigError, match="generator is a generator function"):
        App().subscriber("words")(handler)


@pytest.mark.parametrize("handler", [plain_over(generator), async_over(generator), async_over(async_generator)])
async def test_a_generator_that_comes_back_is_a_failure(
    server: ServerProcess, client: redis.Redis, handler: Handler
) -> None:
    """An entry fails if its handler returns a generator, since none of the generator's code ran."""
    app = App(server.url, registry=False)
    app.subscriber(StreamSub("words", group="g"), retry=ONCE)(handler)
    client.xadd("words", {"word": "x"})
    async with app.running():
        await aeventually(lambda: client.xlen("words:dead") == 1)
    ((_, fields),) = client.xrange("words:dead")
    assert "returned a generator" in fields["_dead.error"]


class Itself:
    """An object that awaits to itself, like a client or pipeline of redis-py or a pool of asyncpg."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self
        yield


class Endless:
    """An awaitable that yields another awaitable each time."""

    def __await__(self) -> Generator[Any, None, Any]:
        return Endless()
        yield


@contextlib.contextmanager
def managed() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def managed_later() -> AsyncIterator[None]:
    yield


def exhausted() -> "Future[str]":
    future: Future[str] = Future()
    future.set_exception(StopIteration())
    return future


UNSETTLING: dict[str, tuple[Callable[[], Any], str]] = {
    "itself": (Itself, ""),
    "endless": (Endless, "100 more in turn"),
    "coroutines": (lambda: [coroutine("x"), coroutine("y")], "a list with awaitables"),
    "coroutines by name": (lambda: {"x": coroutine("x")}, "a dict with awaitables"),
    "future": (lambda: (Future(),), "a tuple with awaitables"),
    "map": (lambda: map(str, [1]), "returned a map"),
    "filter": (lambda: filter(str, [1]), "returned a filter"),
    "context manager": (managed, "returned a context manager"),
    "async context manager": (managed_later, "returned a context manager"),
    "Nack": (Nack, "returned Nack as its result: raise it"),
    "Reject": (lambda: Reject("bad"), "returned Reject as its result: raise it"),
    "the class": (lambda: Nack, "returned Nack as its result: raise it"),
    "another exception": (ValueError, ""),
    "StopIteration of a thread": (exhausted, "StopIteration"),
}


@pytest.mark.parametrize("what", UNSETTLING)
@pytest.mark.parametrize("batch", [False, True])
async def test_no_awaitable_blocks_the_loop_or_is_left(
    server: ServerProcess, client: redis.Redis, what: str, batch: bool
) -> None:
    """An awaitable that returns itself counts as a result. An entry whose awaitable has not finished fails."""
    app = App(server.url, registry=False)
    make, text = UNSETTLING[what]

    async def handler(words: list[dict[str, str]] if batch else Any) -> Any:  # type: ignore[valid-type] # two in one
        return make()

    app.subscriber(StreamSub("words", group="g"), retry=ONCE, batch=batch)(handler)
    client.xadd("words", {"word": "x"})
    async with app.running():
        await aeventually(all_done(client, "words", "g"))
    assert [text in fields["_dead.error"] for _, fields in client.xrange("words:dead")] == ([True] if text else [])


class Stop(BaseException):
    """An exception that is not an Exception, like PanicException of pyo3 and Timeout of gevent."""


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise Stop


class TracelessError(Exception):
    @property
    def __traceback__(self) -> TracebackType | None:  # type: ignore[override] # as users do
        raise Stop


class CauselessError(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override] # as users do
        raise ValueError


class NotesError(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override] # as users do
        raise LookupError


class UnreadableNotes(list[str]):
    def __iter__(self) -> Iterator[str]:
        raise LookupError


class UnreadableNotesError(Exception):
    __notes__ = UnreadableNotes(["x"])


class ClasslessError(Exception):
    @property  # type: ignore[misc] # as users do
    def __class__(self) -> type:  # type: ignore[override] # as users do
        raise Stop


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": ValueError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "CancelledError": asyncio.CancelledError,
    "Stop": Stop,
    "group": lambda: BaseExceptionGroup("x", [Stop("y"), ValueError("z")]),
    "speechless": SpeechlessError,
    "traceless": TracelessError,
    "notes that raise": NotesError,
    "notes that cannot be read": UnreadableNotesError,
    "causeless": CauselessError,
    "classless": ClasslessError,
}
CANCELS = ["cancel and return", "cancel and wait", "cancel and raise", "cancel twice and catch"]
"""Ways in which a handler cancels its own task. The first and the last end without an error."""


def made(how: str) -> BaseException:
    return ERRORS[how]()


async def fail(how: str) -> None:
    if how in ERRORS:
        raise made(how)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if how == "cancel and wait":
        await asyncio.Event().wait()
    elif how == "cancel and raise":
        raise ValueError(how)
    elif how == "cancel twice and catch":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()


class Crew:
    """An app with one handler, which fails for each entry with the word "bad".

    Args:
        url: URL of the server.
        place: code in which it fails.
        how: kind of the failure.
    """

    def __init__(self, url: str, place: str, how: str) -> None:
        self.how = how
        self.seen: list[str] = []
        self.app = App(url, registry=False, middlewares=[self.around] if place == "middleware" else [])
        options: dict[str, Any] = {"concurrency": 2, "retry": ONCE}
        options |= {"key": {"key": self.key}, "each": {"ack": "each"}, "batch": {"batch": True}}.get(place, {})
        handler = {"plain": self.plain, "batch": self.batch}.get(
            place, self.handle if place in HANDLED else self.passes
        )
        if place in {"clean-up", "dependency"}:
            wanted = self.clean_up if place == "clean-up" else self.dependency

            async def depends(word: str, made: None = Depends(wanted)) -> None:
                await self.passes(word)

            handler = depends
        self.app.subscriber(StreamSub("s", group="g", max_records=1 if place == "batch" else None), **options)(handler)

    async def act(self, word: str) -> None:
        if word == "bad":
            await fail(self.how)

    async def passes(self, word: str) -> None:
        self.seen += [word] if word == "good" else []

    async def handle(self, word: str) -> None:
        await self.act(word)
        await self.passes(word)

    def plain(self, word: str) -> None:
        if word == "bad":
            raise made(self.how)
        self.seen.append(word)

    async def batch(self, words: list[dict[str, str]]) -> None:
        await self.handle(words[0]["word"])

    async def clean_up(self, word: str) -> AsyncIterator[None]:
        yield
        await self.act(word)

    async def dependency(self, word: str) -> None:
        await self.act(word)

    async def around(self, call_next: Any, msg: Message) -> Any:
        result = await call_next(msg)
        await self.act(msg.fields["word"].decode())
        return result

    def key(self, msg: Message) -> bytes:
        if msg.fields["word"] == b"bad":
            raise made(self.how)
        return b"k"


HANDLED = ("async", "each")
FAILS = [
    *(
        (place, how)
        for place in (*HANDLED, "batch", "clean-up", "dependency", "middleware")
        for how in (*ERRORS, *CANCELS)
    ),
    *((place, how) for place in ("plain", "key") for how in ERRORS),
]


@pytest.mark.parametrize(("place", "how"), FAILS)
async def test_no_exception_ends_a_lane(server: ServerProcess, client: redis.Redis, place: str, how: str) -> None:
    """No exception ends a lane: the failed entry becomes a dead letter, and the lane handles the next ones."""
    crew = Crew(server.url, place, how)
    for word in ("bad", "bad", "bad", "good", "bad", "good", "good"):
        client.xadd("s", {"word": word})
    letters = 0 if how in (CANCELS[0], CANCELS[-1]) else 4
    async with crew.app.running():
        await aeventually(lambda: len(crew.seen) == 3 and client.xlen("s:dead") == letters)
        await aeventually(lambda: client.xpending("s", "g")["pending"] == 0)
        assert crew.app.loops[0].progress().doing in {"reading", "full"}
    for _, fields in client.xrange("s:dead"):
        letter = unpack([part.encode() for pair in fields.items() for part in pair])
        assert letter.reason in {"error", "invalid"}
        assert letter.error


POOL = ThreadPoolExecutor(2)
IN_A_THREAD: dict[str, Callable[[Any], Awaitable[str]]] = {
    "to_thread": lambda words: asyncio.to_thread(next, words),
    "default": lambda words: asyncio.get_running_loop().run_in_executor(None, next, words),
    "own": lambda words: asyncio.get_running_loop().run_in_executor(POOL, next, words),
    "wrapped": lambda words: asyncio.wrap_future(POOL.submit(next, words)),
    "gathered": lambda words: asyncio.wait_for(asyncio.shield(asyncio.wrap_future(POOL.submit(next, words))), 60),
}


@pytest.mark.either_server
@pytest.mark.parametrize("way", IN_A_THREAD)
async def test_an_iterator_that_ends_in_a_thread_blocks_no_lane(
    server: ServerProcess, client: redis.Redis, way: str
) -> None:
    """A handler in a thread that raises StopIteration fails like any other, and its lane continues."""
    app, seen = App(server.url, registry=False), []

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE, concurrency=1)
    async def handle(word: str) -> None:
        seen.append(await IN_A_THREAD[way](iter([] if word == "bad" else [word])))

    for word in ("bad", "good"):
        client.xadd("s", {"word": word})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    ((_, letter),) = client.xrange("s:dead")
    assert (seen, "StopIteration" in letter["_dead.error"]) == (["good"], True)


class Touchy:
    """A key that raises when it is compared."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise LookupError("not comparable")


class Restless:
    """A key with a different hash at each call."""

    made = 0

    def __hash__(self) -> int:
        Restless.made += 1
        return Restless.made


@pytest.mark.parametrize(("make", "dead"), [(Touchy, 5), (Restless, 0)])
async def test_no_key_of_the_users_own_type_ends_a_lane(
    server: ServerProcess, client: redis.Redis, make: Callable[[], Any], dead: int
) -> None:
    """An entry with an incomparable key becomes a dead letter with the reason. A key's hash is computed only once."""
    app, seen, gate = App(server.url, registry=False), [], asyncio.Event()

    @app.subscriber(StreamSub("s", group="g"), key=lambda msg: make(), retry=ONCE, concurrency=3)
    async def handle(word: str) -> None:
        await gate.wait()
        seen.append(word)

    for _ in range(6):
        client.xadd("s", {"word": "x"})
    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == dead)
        gate.set()
        await aeventually(all_done(client, "s", "g"))
        assert app.progress()[0].alive
    letters: Any = client.xrange("s:dead")
    assert (len(seen), len(letters)) == (6 - dead, dead)
    assert all("not comparable" in fields["_dead.error"] for _, fields in letters)


async def test_a_context_variable_ends_with_its_delivery(server: ServerProcess, client: redis.Redis) -> None:
    """A context variable set by a handler ends with its delivery.

    Variables set by the app are visible to each delivery.
    """
    own, whole = ContextVar("own", default="none"), ContextVar[str]("whole")
    whole.set("app")
    seen: list[tuple[str, str]] = []
    app = App(server.url, registry=False)

    def look(word: str) -> None:
        seen.append((own.get(), whole.get()))
        own.set(word)
        whole.set(word)

    @app.subscriber(StreamSub("s", group="a"), concurrency=1)
    async def handle(word: str) -> None:
        look(word)

    @app.subscriber(StreamSub("s", group="t"), concurrency=1)
    def blocking(word: str) -> None:
        look(word)

    @app.subscriber(StreamSub("s", group="k"), concurrency=1, key="word")
    async def keyed(word: str) -> None:
        look(word)

    @app.subscriber(StreamSub("s", group="b", max_records=1), batch=True, concurrency=1)
    async def batch(word: list[str]) -> None:
        look(word[0])

    for _ in range(3):
        client.xadd("s", {"word": "w"})
    async with app.running():
        await aeventually(lambda: len(seen) == 12)
    assert set(seen) == {("none", "app")}


async def test_a_lane_keeps_its_task_while_no_handler_leaves_a_trace(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A lane reuses one task for its entries while the handler leaves no trace in it."""
    tasks: set[asyncio.Task[Any] | None] = set()
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), concurrency=1)
    async def handle(word: str) -> None:
        tasks.add(asyncio.current_task())

    @app.subscriber(StreamSub("s", group="b", max_records=1), batch=True, concurrency=1)
    async def batch(word: list[str]) -> None:
        tasks.add(asyncio.current_task())

    for _ in range(20):
        client.xadd("s", {"word": "w"})
    async with app.running():
        await aeventually(lambda: sum(loop.stats.handled for loop in app.loops) == 40)
    assert len(tasks) == 2


async def test_a_publisher_is_the_apps_and_the_handlers_own(server: ServerProcess, client: redis.Redis) -> None:
    """A publisher belongs to one app and one handler.

    Another app, or the same method of another object, is unaffected.
    """
    first, second = App(server.url, registry=False), App(server.url, registry=False)
    one, two = Plain(), Plain()
    first.publisher("results")(plain)
    first.subscriber(StreamSub("s", group="a"))(plain)
    second.subscriber(StreamSub("s", group="b"))(plain)
    first.subscriber(StreamSub("s", group="c"))(one.method)
    first.publisher("results")(one.method)
    first.subscriber(StreamSub("s", group="d"))(two.method)
    wrapped, other = plain_over(plain), plain_over(plain)
    first.publisher("more")(wrapped)
    every = (*first.subscriptions, *second.subscriptions)
    published = {one.group: [each.stream for each in one.publishers] for one in every}
    assert published == {"a": ["results"], "b": [], "c": ["results"], "d": []}
    for form, streams in ((wrapped, ["results", "more"]), (other, ["results"])):
        first.subscriber(StreamSub("t", group="e"))(form)
        assert [each.stream for each in first.subscriptions[-1].publishers] == streams


@pytest.mark.parametrize("said", ["Reject", "error"])
async def test_a_letter_is_bounded_whatever_the_handler_says(
    server: ServerProcess, client: redis.Redis, said: str
) -> None:
    """A dead letter's error text is cut if it has megabytes, and then gives the original length."""
    app = App(server.url, registry=False)

    @app.subscriber(StreamSub("s", group="g"), retry=ONCE)
    async def handle(word: str) -> None:
        raise Reject("x" * 5_000_000) if said == "Reject" else ValueError("x" * 5_000_000)

    client.xadd("s", {"word": "x"})
    async with app.running():
        await aeventually(lambda: client.xlen("s:dead") == 1)
    assert client.memory_usage("s:dead") < 100_000
    ((_, fields),) = client.xrange("s:dead")
    assert fields["_dead.error"].endswith("(5000000 characters)")


async def test_every_hook_has_run_when_the_app_has_stopped(server: ServerProcess) -> None:
    """Every shutdown hook runs when the app stops, also after a hook that raises a BaseException."""
    ran: list[str] = []

    async def later() -> None:
        await asyncio.sleep(0)
        ran.append("later")

    def stops() -> None:
        raise Stop("first")

    app = App(server.url, registry=False)
    app.on_startup(lambda: ran.append("plain") or 5)
    app.on_startup(plain_over(later))
    app.on_shutdown(stops)
    app.on_shutdown(plain_over(later))
    with pytest.raises(Stop, match="first"):
        async with app.running():
            pass
    assert ran == ["plain", "later", "later"]


@pytest.mark.parametrize("ack", ["each", "auto"])
async def test_a_handler_that_cancels_its_own_task_stops_no_key(
    server: ServerProcess, client: redis.Redis, ack: Literal["each", "auto"]
) -> None:
    """A handler that cancels its own task does not block its key.

    Later entries of the key run, and all are acknowledged.
    """
    app, seen, queued = App(server.url, registry=False), [], asyncio.Event()

    @app.subscriber(StreamSub("s", group="g"), key="k", ack=ack, concurrency=4)
    async def handle(k: str, n: int) -> None:
        seen.append(n)
        if k == "b":
            queued.set()
        if n == 0:
            await queued.wait()
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    for n in range(4):
        client.xadd("s", {"k": "a", "n": n})
    client.xadd("s", {"k": "b", "n": 100})
    async with app.running():
        await aeventually(lambda: len(seen) == 5 and client.xpending("s", "g")["pending"] == 0)
    assert [n for n in seen if n < 100] == [0, 1, 2, 3]


CHOSEN: list[Any] = []


@functools.singledispatch
def chosen(order: Any, msg: Message) -> object:
    """Fail, unless a function is registered for the argument's type."""
    raise TypeError(type(order))


@chosen.register
def _(order: int, msg: Message) -> None:
    CHOSEN.append(("int", order, msg.stream))


@chosen.register(dict)
async def _(order: dict[str, Any], msg: Message) -> None:
    await asyncio.sleep(0)
    CHOSEN.append(("dict", order, msg.stream))


@functools.wraps(chosen)
def around(*words: Any, **named: Any) -> object:
    """A wrapper that copies the attributes of the wrapped function."""
    return chosen(*words, **named)


@functools.wraps(chosen)
async def awaited(*words: Any, **named: Any) -> object:
    return chosen(*words, **named)


@pytest.mark.either_server
@pytest.mark.parametrize("handler", [chosen, around, awaited])
async def test_a_function_that_dispatches_on_its_first_argument(
    server: ServerProcess, client: redis.Redis, handler: Callable[..., Any]
) -> None:
    """A functools.singledispatch handler receives its entry by position and dispatches on it.

    Async variants are awaited.
    """
    app = App(server.url, registry=False)
    CHOSEN.clear()
    app.subscriber(StreamSub("s", group="g"), retry=ONCE)(handler)
    client.xadd("s", {"data": "[1]"})
    client.xadd("s", {"data": '{"a": 1}'})
    async with app.running():
        await aeventually(all_done(client, "s", "g"))
    assert CHOSEN == [("dict", {"a": 1}, "s")]
    assert client.xlen("s:dead") == 1, "no function is registered for a list"
