"""Wrong use of a subscriber is refused at import. The error names the handler and gives the correct form."""

import asyncio
import copy
import dataclasses
import functools
import logging
import math
import pickle
import types
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, NamedTuple, Optional, TypedDict

import pytest
from redis.asyncio import Redis

from millstream import App, BatchError, Limit, Message, Nack, Retry, Router, StreamSub, Timeout
from millstream.errors import ConfigError, UsageError
from support.servers import ServerProcess


def two_messages(first: Message, other: Message) -> None: ...


def lifespan() -> Generator[None, None, None]:
    yield


@dataclasses.dataclass
class Node:
    """A class that contains itself."""

    value: int
    children: "list[Node]"


class Branch(TypedDict):
    """A TypedDict that contains itself."""

    next: "Branch"


class Link(NamedTuple):
    """A named tuple that contains itself."""

    next: "Link | None"


def take(order: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("declared", [lambda app: app.subscriber(), lambda app: app.subscriber("", retry=Retry())])
def test_a_subscriber_without_a_stream_is_named(declared: Any) -> None:
    """A subscriber without a stream is refused with the handler's name and the line to write."""
    app = App("memory://")
    with pytest.raises(ConfigError, match=r'^take: @app.subscriber needs a stream. Write @app.subscriber\("stream"\)'):
        declared(app)(take)
    assert app.subscriptions == ()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"unknown": 1},
            r"StreamSub\((stream=)?'s', unknown=...\) is invalid: there is no option 'unknown'. Write one of stream,",
        ),
        ({"grup": "g"}, r"there is no option 'grup'. Write group=...\.$"),
        ({"max_record": 5}, r"Write max_records=...\.$"),
        (
            {"retry": Retry()},
            r"retry belongs to the subscriber. Write @app.subscriber\(StreamSub\((stream=)?'s'\), retry=...\)",
        ),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_an_option_that_a_stream_does_not_have_is_refused(options: dict[str, Any], told: str, *, named: bool) -> None:
    """An unknown option of StreamSub is refused.

    The error suggests the right spelling, or names the subscriber for it.
    """
    with pytest.raises(ConfigError, match=told):
        StreamSub(**{"stream": "s", **options}) if named else StreamSub("s", **options)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Retry(max_delivery=3), r"^Retry\(max_delivery=...\) is invalid.*Write max_deliveries=...\.$"),
        (lambda: Retry(5, wait="1s"), r"^Retry\(5, wait=...\) is invalid.*'wait'. Write one of max_deliveries,"),
        (lambda: Limit("1/s", bursts=2), r"^Limit\('1/s', bursts=...\) is invalid.*Write burst=...\.$"),
    ],
)
def test_an_option_that_a_policy_does_not_have_is_refused(made: Any, told: str) -> None:
    """An unknown option of a retry policy is refused. The error suggests the right spelling or place."""
    with pytest.raises(ConfigError, match=told):
        made()


def test_a_stream_can_be_copied_and_pickled() -> None:
    """A StreamSub can be copied and pickled."""
    one = StreamSub("s", group="g", min_idle_time="10s")
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == dataclasses.replace(one) == one


@pytest.mark.parametrize("of_router", [False, True])
async def test_a_publisher_of_a_function_without_a_subscriber_is_refused_at_the_start(*, of_router: bool) -> None:
    """A publisher on a function without a subscriber is refused when the app starts, also through a router."""
    app, router = App("memory://publishers"), Router(prefix="shop.")
    place = router if of_router else app

    @place.publisher("out")
    @place.subscriber("in")
    @place.publisher("more")
    async def handled(order: dict[str, Any]) -> None: ...

    def outer(order: dict[str, Any]) -> None: ...

    place.subscriber("in2")(functools.wraps(place.publisher("out")(take))(outer))
    if of_router:
        app.include(router)
    await app.start()
    await app.stop()

    late = Router() if of_router else app
    late.publisher("lost")(two_messages)
    if of_router:
        app.include(late)
    with pytest.raises(ConfigError, match=r'^two_messages: @app.publisher\("lost"\) is invalid: the function has no'):
        await app.start()


def test_a_publisher_without_a_stream_is_refused() -> None:
    """A publisher without a stream is refused, with the correct form."""
    for place in (App("memory://"), Router()):
        with pytest.raises(ConfigError, match=r'Write publisher\("stream"\)'):
            place.publisher()


class Orders:
    """A class with methods that may be handlers."""

    def handle(self, order: dict[str, Any]) -> None:
        """Take an order as a method."""

    @classmethod
    def make(cls, order: dict[str, Any]) -> None:
        """Take an order as a class method."""

    @staticmethod
    def plain(order: dict[str, Any]) -> None:
        """Take an order as a static method."""

    def __call__(self, order: dict[str, Any]) -> None:
        """Take an order as a callable object."""


def handle(order: dict[str, Any]) -> None:
    """Take an order."""


def unreadable(order: dict[str, Any]) -> None:
    """Carry a signature that cannot be read."""


unreadable.__signature__ = "order"  # type: ignore[attr-defined] - wrong on purpose


@types.coroutine
def of_generator(order: dict[str, Any]) -> Generator[None, None, None]:
    """Take an order as an old generator-based coroutine."""
    yield


async def later(msg: Message) -> str:
    """Compute a key asynchronously, which is refused."""
    return msg.id


class LaterKey:
    """An object with an async ``__call__`` as key function."""

    async def __call__(self, msg: Message) -> str:
        return msg.id


def of(**options: Any) -> Callable[[App], object]:
    return lambda app: app.subscriber("a", **options)(handle)


def taking(annotation: Any) -> Callable[[App], object]:
    def typed(part: Any) -> None: ...

    typed.__annotations__["part"] = annotation
    return lambda app: app.subscriber("a")(typed)


def registering(handler: Any) -> Callable[[App], object]:
    return lambda app: app.subscriber("a")(handler)


@pytest.mark.parametrize(
    ("use", "texts"),
    [
        (of(key=("a", "b")), ("handle", 'key="field"')),
        (of(key=5), ("handle", 'key="field"')),
        (of(key=""), ("handle", 'key="field"')),
        (of(key=later), ("handle", "plain function")),
        (of(key=functools.partial(later)), ("handle", "plain function")),
        (of(key=LaterKey()), ("handle", "plain function")),
        (lambda app: app.subscriber(handle), ("handle", '@app.subscriber("stream")')),
        (lambda app: app.subscriber(Orders), ("Orders", '@app.subscriber("stream")')),
        (lambda app: app.subscriber(["a", "b"]), ("['a', 'b']", "one @app.subscriber for each stream")),
        (of(group="g"), ("handle", 'StreamSub("a", group=...)')),
        (of(min_idle_time=5, consumer="c"), ("handle", "min_idle_time=..., consumer=...")),
        (of(concurency=5), ("handle", "'concurency'")),
        (of(concurrency="5"), ("handle", "concurrency='5'")),
        (of(retry=5), ("handle", "Retry(max_deliveries=5)")),
        (of(dead=5), ("handle", "dead=5")),
        (of(dead="a"), ("handle", "dead='a'", "its own dead letters")),
        (of(key=lambda: 1), ("handle", "lambda msg")),
        (of(key=lambda one, two: 1), ("handle", "lambda msg")),
        (of(key=dict), ("handle", "key=dict", "lambda msg")),
        (of(key=str.upper), ("handle", "key=upper", "lambda msg")),
        (of(middlewares=handle), ("middlewares=[...]",)),
        (of(middlewares=Timeout(5)), ("middlewares=[...]",)),
        (lambda app: app.subscriber("a", "b"), ("('a', 'b')", "one @app.subscriber")),
        (lambda app: app.publisher(handle), ("handle", '@app.publisher("stream")')),
        (lambda app: app.publisher(5), ("publisher(5)", "name of a stream")),
        (lambda app: app.publisher(""), ("publisher('')", "name of a stream")),
        (lambda app: app.on_startup(5), ("on_startup(int)", "without arguments")),
        (lambda app: app.on_shutdown(handle), ("on_shutdown(handle)", "without arguments")),
        (lambda app: app.after_startup(lambda app: None), ("after_startup", "without arguments")),
        (lambda _: App(5), ("App(5)", "URL")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: App(middlewares=5), ("middlewares=5",)),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: App(grace=-1), ("App(grace=-1)", "between 0 and")),
        (lambda _: App(blocked_after=math.nan), ("App(blocked_after=nan)", "between 0 and")),
        (lambda _: Timeout(math.nan), ("Timeout(nan)", "between 0 and")),
        (lambda _: Timeout(None), ("Timeout(None)", "number of seconds")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: Retry(base=math.nan), ("Retry(base=nan)", "between 0 and")),
        (lambda _: Retry(max_delay=-1), ("Retry(max_delay=-1)", "between 0 and")),
        (lambda _: Retry(max_deliveries="5"), ("max_deliveries='5'", "whole number")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: Retry(max_deliveries=2.5), ("max_deliveries=2.5", "whole number")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", min_idle_time=10**30), ("min_idle_time=1000", "between 0 and")),
        (lambda _: StreamSub("a", min_idle_time=math.inf), ("min_idle_time=inf", "between 0 and")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", min_idle_time=0.5), ("min_idle_time=0.5", "milliseconds", '"0.5s"')),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", polling_interval=0.25), ("polling_interval=0.25", '"0.25s"')),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", min_idle_time=0), ("min_idle_time=0", "shorter than a millisecond")),
        (lambda _: StreamSub("a", min_idle_time="0s"), ("min_idle_time='0s'", "shorter than a millisecond")),
        (lambda _: StreamSub("a", maxlen=1.5), ("maxlen=1.5", "whole number")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("\ud800"), ("stream='\\ud800'", "not UTF-8")),
        (lambda _: StreamSub(["a", "b"]), ("['a', 'b']", "one @app.subscriber")),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", group=5), ("group=5", 'group="..."')),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", start=0), ("start=0", 'start="..."')),  # type: ignore[arg-type] - wrong on purpose
        (lambda _: StreamSub("a", max_records="5"), ("max_records='5'", "whole number")),  # type: ignore[arg-type] - wrong on purpose
        (registering(Orders), ("Orders", "class")),
        (registering(functools.partial(Orders)), ("Orders", "class")),
        (registering(Orders.handle), ("handle", "Orders(...).handle")),
        (registering(functools.partialmethod(Orders.handle)), ("handle", "cannot be called")),
        (registering(classmethod(Orders.make.__func__)), ("make", "cannot be called")),  # type: ignore[attr-defined] - wrong on purpose
        (registering(5), ("int", "cannot be called")),
        (registering(staticmethod(lifespan)), ("lifespan", "generator", "`yield`")),
        (registering(functools.partial(staticmethod(lifespan))), ("lifespan", "generator", "`yield`")),
        (registering(print), ("print", "*args", "`order: dict`")),
        (registering(unreadable), ("unreadable", "cannot be read")),
        (registering(iter), ("iter", "cannot be read")),
        (taking(Node), ("typed", "part", "Node holds itself")),
        (taking(list[Node]), ("typed", "part", "holds itself")),
        (taking(Branch), ("typed", "part", "Branch holds itself")),
        (taking(Link), ("typed", "part", "Link holds itself")),
        (taking(Message | None), ("typed", "part", "Write Message without")),
        (taking(Optional[Message]), ("typed", "part", "Write Message without")),  # noqa: UP045 - the older spelling
        (taking(App | None), ("typed", "part", "Write App without")),
        (taking(Redis | None), ("typed", "part", "Write Redis without")),
        (taking(logging.Logger | None), ("typed", "part", "Write Logger without")),
        (taking(list[Message]), ("typed", "part", "Write Message without")),
        (lambda app: app.subscriber("s")(two_messages), ("two_messages", "other", "first is the message")),
        (lambda app: app.on_startup(lifespan), ("on_startup", "lifespan", "generator", "on_shutdown")),  # type: ignore[arg-type] - wrong on purpose
        (lambda app: app.pipeline(lifespan), ("lifespan", '@app.pipeline("stream")')),  # type: ignore[arg-type] - wrong on purpose
        (lambda app: app.publisher("s", maxlen=-1), ("'s'", "maxlen=-1", "whole number")),
        (lambda app: app.publisher("s", maxlen="5"), ("'s'", "maxlen='5'")),  # type: ignore[arg-type] - wrong on purpose
        (lambda app: app.publisher("s", headers=[5]), ("'s'", "headers=[5]", "mapping")),  # type: ignore[arg-type] - wrong on purpose
        (lambda app: app.publisher("s", headers={"a": 5}), ("'s'", "headers={'a': 5}")),  # type: ignore[dict-item] - wrong on purpose
        (lambda app: app.publisher("s")(5), ("int", "cannot be called")),  # type: ignore[type-var] - wrong on purpose
        (lambda app: app.publisher("s")(Orders), ("Orders", "class")),
    ],
)
def test_wrong_use_is_refused_with_the_handlers_name_and_what_to_write(
    use: Callable[[App], object], texts: tuple[str, ...]
) -> None:
    """Wrong declarations are errors at import with the handler's name and the correct form. Nothing is registered."""
    app = App()
    with pytest.raises(ConfigError) as caught:
        use(app)
    for text in texts:
        assert text in str(caught.value)
    assert not app.subscriptions


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Nack(60), "Nack(delay=60)"),  # type: ignore[arg-type] - wrong on purpose
        (lambda: Nack(0.5), "Nack(delay=0.5)"),  # type: ignore[arg-type] - wrong on purpose
        (lambda: Nack(timedelta(seconds=1)), "reason is a text"),  # type: ignore[arg-type] - wrong on purpose
        (lambda: Nack(delay=-5), "between 0 and a hundred years"),
        (lambda: Nack(delay=b"5"), "Nack(delay=b'5')"),  # type: ignore[arg-type] - wrong on purpose
        (lambda: Nack(delay=1e30), "Nack(delay=1e+30)"),
        (lambda: BatchError([ValueError()]), "it must be a mapping"),  # type: ignore[arg-type,return-value] - wrong on purpose
        (lambda: Nack(delay=float("-inf")), "Nack(delay=-inf)"),
    ],
)
def test_a_nack_refuses_numbers_that_would_be_lost(make: Callable[[], Nack], text: str) -> None:
    """A Nack with a negative delay, or with a number as its reason, is refused."""
    with pytest.raises(UsageError) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "handler",
    [
        handle,
        functools.partial(handle),
        functools.partial(Orders.handle, Orders()),
        Orders(),
        Orders().handle,
        Orders.make,
        Orders.plain,
        staticmethod(handle),
        lambda self: None,
        functools.cache(handle),
        functools.singledispatch(handle),
        of_generator,
    ],
)
def test_every_callable_that_can_take_an_entry_is_a_handler(handler: Any) -> None:
    """Partials, callable objects and bound methods are handlers like functions."""
    app = App()
    app.subscriber("a", key=lambda msg: msg.id)(handler)
    assert len(app.subscriptions) == 1


def test_a_subscriber_registered_while_the_app_runs_is_refused(server: ServerProcess) -> None:
    """A subscriber registered while the app runs is refused, since nothing would read its stream."""
    app = App(server.url)

    async def both() -> None:
        async with app.running():
            with pytest.raises(UsageError, match="handle: the app runs already"):
                app.subscriber("late")(handle)
        app.subscriber("late")(handle)

    asyncio.run(both())
    assert [one.sub.stream for one in app.subscriptions] == ["late"]


def other(order: dict[str, Any]) -> None:
    """Take an order."""


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        (({"group": "g"}, {}), ({"group": "g"}, {}), True),
        (({"group": "g", "consumer": "a"}, {}), ({"group": "g"}, {}), True),
        (({"group": "g", "consumer": "a"}, {}), ({"group": "g", "consumer": "b"}, {}), False),
        (({"group": "g"}, {"read": "new"}), ({"group": "g"}, {"read": "claimed"}), False),
        (({"group": "g"}, {}), ({"group": "h"}, {}), False),
        (({}, {}), ({}, {}), False),
        (({"group": "other"}, {}), ({}, {}), True),
    ],
)
def test_two_handlers_of_one_stream_and_group_are_named_in_a_warning(
    first: Any, second: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Two handlers of one stream and group cause a warning, unless they have own consumers or one only claims."""
    app = App()
    app.subscriber(StreamSub("a", **first[0]), **first[1])(handle)
    app.subscriber(StreamSub("a", **second[0]), **second[1])(other)
    texts = [record.getMessage() for record in caplog.records]
    assert [("handle and other" in text) for text in texts] == [True] * warned


@pytest.mark.parametrize(
    ("idle", "warned"), [(5, True), (999, True), ("5ms", True), (1_000, False), ("5s", False), (None, False)]
)
def test_an_idle_time_below_one_second_is_named_in_a_warning(
    idle: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A ``min_idle_time`` below one second causes a warning that its unit is milliseconds."""
    App().subscriber(StreamSub("a", min_idle_time=idle))(handle)
    texts = [record.getMessage() for record in caplog.records]
    assert [("handle: StreamSub(min_idle_time=)" in text) for text in texts] == [True] * warned


@pytest.mark.parametrize("contents", ["abc", b"abc", {"a": 1}])
async def test_one_content_is_not_a_batch_of_its_parts(contents: Any) -> None:
    """``publish_batch`` refuses a single text or mapping, which would be split into an entry for each part."""
    async with App("memory://one", registry=False) as app:
        with pytest.raises(UsageError, match=r"publish_batch\('s'\) is invalid"):
            await app.publish_batch("s", contents)


@pytest.mark.parametrize("given", [5, b"x", ("a",)])
async def test_an_idempotent_id_that_is_not_text_is_refused(given: Any) -> None:
    """An idempotent id that is not text is refused, for one entry and for a batch."""
    async with App("memory://idempotent", registry=False) as app:
        with pytest.raises(UsageError, match=r"publish\(idempotent="):
            await app.publish("s", {"a": 1}, idempotent=given)
        with pytest.raises(UsageError, match=r"publish\(idempotent="):
            await app.publish_batch("s", [{"a": 1}], idempotent=lambda _: given)
