"""A group's name defaults to the handler's name, so a renamed handler causes a warning."""

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest
import redis

from millstream import App, StreamSub
from millstream.client.delays.due import key
from millstream.errors import ConfigError
from support.accounts import user
from support.between import Between
from support.groups import all_done
from support.servers import ServerProcess
from support.waiting import aeventually, eventually


async def started(server: ServerProcess, name: str, sub: StreamSub | str, client: redis.Redis) -> None:
    """Run a handler with the given name until it has handled everything."""
    app = App(server.url, registry=False)

    async def handle(n: int) -> None: ...

    handle.__name__ = name
    app.subscriber(sub)(handle)
    async with app.running():
        await aeventually(all_done(client, "orders", app.subscriptions[0].group))


async def test_a_renamed_handler_is_warned_of(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A renamed handler runs the whole stream again. The log warns of that with the line to write."""
    caplog.set_level(logging.WARNING, "millstream.worker")
    await started(server, "bill", "orders", client)
    assert caplog.text == "", "a stream that begins with its first handler is nobody's past"
    for number in range(3):
        client.xadd("orders", {"n": number})
    await started(server, "bill", "orders", client)
    assert caplog.text == "", "the group is there"
    await started(server, "bill_order", "orders", client)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "MADE A NEW GROUP named 'bill_order'" in said
    assert "runs the whole stream of 3 entries" in said
    assert "StreamSub('orders', group='bill')" in said
    assert "StreamSub('orders', group='bill_order')" in said


async def test_a_group_that_is_named_is_meant(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A named group causes no warning. A first handler without one that finds a backlog does."""
    caplog.set_level(logging.WARNING, "millstream.worker")
    client.xadd("orders", {"n": 1})
    await started(server, "bill", StreamSub("orders", group="g"), client)
    assert caplog.text == ""
    client.delete("orders")
    client.xadd("orders", {"n": 1})
    await started(server, "bill", "orders", client)
    assert "runs the whole stream of 1 entry; it has no other group" in caplog.text


async def test_handlers_of_one_app_are_not_taken_for_each_other(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Two handlers of one stream in an app, each with its own group, cause no warning about a renaming."""
    caplog.set_level(logging.WARNING, "millstream.worker")
    app = App(server.url, registry=False)

    @app.subscriber("orders")
    async def bill(n: int) -> None: ...

    @app.subscriber("orders")
    async def ship(n: int) -> None: ...

    async with app.running():
        pass
    assert caplog.text == ""
    client.delete("orders")
    client.xadd("orders", {"n": 1})
    async with app.running():
        await aeventually(all_done(client, "orders", "ship"))
    assert "was called" not in caplog.text


class Sibling(Between):
    """A proxy that runs an action between the request to create a group and its reply."""

    def __init__(self, target: int, act: Callable[[], bool]) -> None:
        self.act, self.acted = act, False
        super().__init__(target)

    def _up(self, pair: tuple[socket.socket, socket.socket]) -> None:
        near, far = pair
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                if b"CREATE" in data and not self.acted:
                    self.stop()
                    far.sendall(data)
                    eventually(self.act)
                    self.acted = True
                    self.go_on()
                else:
                    far.sendall(data)
        self._end(pair)


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no-scripts"])
async def test_a_delay_of_a_sibling_is_kept(server: ServerProcess, client: redis.Redis, *, scripts: bool) -> None:
    """Due times of a deleted group are removed as the new group is created, and later ones are kept."""
    due = key("s", "g")
    entry: Any = client.xadd("s", {"n": 1})
    client.zadd(due, {entry: 8e12})

    def delay() -> bool:
        if not client.xinfo_groups("s") and scripts:
            return False
        assert client.exists(due) == (not scripts)
        with contextlib.suppress(redis.ResponseError):  # the scripted request was refused and created no group
            client.xgroup_create("s", "g", "0")
        client.xreadgroup("g", "sibling", {"s": ">"})
        client.xclaim("s", "g", "(retry)", 0, [entry], justid=True)
        client.zadd(due, {entry: 4e12})
        return True

    with user(client, "+@all", "~*", *(() if scripts else ("-@scripting",))) as name, Sibling(server.port, delay) as by:
        app = App(f"redis://{name}127.0.0.1:{by.port}", registry=False)
        app.subscriber(StreamSub("s", group="g"))(lambda: None)
        async with app.running():
            assert by.acted
            assert client.zscore(due, entry) == 4e12


@pytest.mark.parametrize("name", ["group", "consumer"])
def test_an_empty_name_is_refused(name: str) -> None:
    """An empty group name, as from an unset environment variable, is refused."""
    with pytest.raises(ConfigError, match=rf"StreamSub\({name}=''\) is invalid: it is empty"):
        StreamSub("s", **{name: ""})  # type: ignore[arg-type] # names of texts only
