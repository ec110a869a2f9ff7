"""Routers: their declarations belong to each app that includes them, under its prefixes."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis

from millstream import App, Depends, Fire, Message, Router, StreamSub
from millstream.errors import ConfigError, UsageError
from support.servers import ServerProcess
from support.waiting import aeventually


def shop(seen: list[Any], **options: Any) -> Router:
    """A router with a subscriber that publishes, and one that takes an object of the app."""
    router = Router(prefix="shop.", **options)

    @router.publisher("bills", headers={"kind": "bill"})
    @router.subscriber("orders")
    async def bill(order: int, msg: Message) -> dict[str, int]:
        seen.append((msg.stream, order))
        return {"order": order}

    @router.subscriber(StreamSub("bills", group="post"))
    async def post(order: int, app: App, log: logging.Logger) -> None:
        seen.append((app.url, order, log.name))

    return router


async def test_two_apps_include_the_same_router(server: ServerProcess, client: redis.Redis) -> None:
    """Two apps that include one router run copies of its subscribers under their own prefix and context."""
    seen: list[Any] = []
    router, first, second = shop(seen), App(server.url), App(server.url)
    first.include(router)
    second.include(router, prefix="eu.")
    names = [(one.sub.stream, one.group, one.dead) for one in second.subscriptions]
    assert names == [("eu.shop.orders", "bill", "eu.shop.orders:dead"), ("eu.shop.bills", "post", "eu.shop.bills:dead")]
    async with first.running(), second.running():
        await first.publish("shop.orders", {"order": 1})
        await second.publish("eu.shop.orders", {"order": 2})
        await aeventually(lambda: len(seen) == 4)
    assert set(seen) == {
        ("shop.orders", 1),
        ("eu.shop.orders", 2),
        (server.url, 1, __name__),
        (server.url, 2, __name__),
    }
    assert client.xlen("shop.bills") == client.xlen("eu.shop.bills") == 1


async def test_middlewares_and_hooks_come_along(server: ServerProcess) -> None:
    """An outer router's middlewares wrap those of the inner one. Its hooks run with the app's."""
    seen: list[str] = []

    def around(name: str) -> Callable[..., Any]:
        async def middleware(call_next: Callable[..., Any], msg: Message) -> Any:
            seen.append(name)
            return await call_next(msg)

        return middleware

    inner, outer, app = Router("in.", [around("inner")]), Router("out.", [around("outer")]), App(server.url)

    @inner.subscriber("s", middlewares=[around("own")], dead="letters")
    async def handle(value: int, double: int = Depends(lambda value: int(value) * 2)) -> None:
        seen.append(f"{value} {double}")

    untyped(inner).on_startup(lambda: seen.append("begin"))
    outer.include(inner, "x.")
    app.include(outer)
    assert [(one.sub.stream, one.dead) for one in app.subscriptions] == [("out.x.in.s", "out.x.in.letters")]
    async with app.running():
        await app.publish("out.x.in.s", {"value": 1})
        await aeventually(lambda: len(seen) == 5)
    assert seen == ["begin", "outer", "inner", "own", "1 2"]


async def test_schedules_of_a_router(server: ServerProcess, client: redis.Redis) -> None:
    """A prefix applies to a schedule's name and stream, so that two tenants' schedules coexist."""
    seen: list[Fire] = []
    router, app = Router("a."), App(server.url)

    @router.schedule(every=1)
    async def tick(fire: Fire) -> None:
        seen.append(fire)

    router.schedule(every=3600, stream="hours", content={"kind": "hour"})
    app.include(router, "t.")
    async with app.running():
        await aeventually(lambda: seen, 60)
        known = {one.name: one.stream for one in await app.schedules.list()}
    assert seen[0].name == "t.a.tick"
    assert known == {"t.a.tick": "schedule:t.a.tick", "t.a.hours": "t.a.hours"}
    assert [group["name"] for group in client.xinfo_groups("schedule:t.a.tick")] == ["tick"]


def included() -> tuple[App, Router]:
    """An app and its router."""
    app, router = App(), Router()
    app.include(router)
    return app, router


def untyped(one: Any) -> Any:
    """Drop a value's type, as a user without a type checker does."""
    return one


ROUTED, ALONE = included(), Router()


async def _handler(value: int) -> None:
    """Any handler."""


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "twice": (lambda: ROUTED[0].include(ROUTED[1]), "included already"),
    "itself": (lambda: ALONE.include(ALONE), "included already"),
    "an app": (lambda: untyped(App()).include(App()), "it takes a Router"),
    "its name": (lambda: untyped(App()).include("shop"), "it takes a Router"),
    "prefix of a number": (lambda: untyped(Router)(7), "it must be a text"),
    "include with a number": (lambda: untyped(App()).include(Router(), 7), "it must be a text"),
    "late subscriber": (lambda: included()[1].subscriber("s")(_handler), "comes too late"),
    "late publisher": (lambda: included()[1].publisher("s"), "comes too late"),
    "late schedule": (lambda: included()[1].schedule(every=1)(_handler), "comes too late"),
    "late hook": (lambda: untyped(included()[1]).on_startup(lambda: None), "comes too late"),
    "late router": (lambda: included()[1].include(Router()), "comes too late"),
    "a pipeline": (lambda: Router().pipeline("s"), "belongs to an app"),
    "dependencies": (lambda: Router().dependencies, "app.dependencies"),
    "no stream": (lambda: untyped(Router()).subscriber(_handler), "needs a stream"),
    "no times": (lambda: untyped(Router()).schedule(_handler), "needs times"),
    "no stream to publish to": (lambda: untyped(Router()).publisher(_handler), "needs a stream"),
    "an empty stream": (lambda: Router("p").publisher(""), "name of a stream"),
    "a middleware that is none": (lambda: untyped(Router)(middlewares=[7]), "7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_refused_by_name(case: str) -> None:
    """Wrong use of a router is an error at its line, with the correct form."""
    call, text = WRONG[case]
    with pytest.raises((ConfigError, UsageError), match=text):
        call()


async def test_two_routers_with_one_schedule_name() -> None:
    """A second router with the same schedule name is refused."""
    routers = Router(), Router()
    for one in routers:
        one.schedule(every=60, stream="s", name="same", content={"a": 1})
    app = App()
    app.include(routers[0])
    with pytest.raises(ConfigError, match="declared twice"):
        app.include(routers[1])


async def test_a_router_publishes_nothing_itself() -> None:
    """Publishing through a router is an error that names ``app.publish``."""
    with pytest.raises(UsageError, match=r"app\.publish"):
        await Router("p.").publisher("s").publish({"a": 1})


async def test_an_app_that_runs_takes_no_router(server: ServerProcess) -> None:
    """A running app refuses to include a router."""
    app = App(server.url)
    async with app.running():
        with pytest.raises(UsageError, match="runs already"):
            app.include(Router())
