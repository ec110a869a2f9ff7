"""A group's name defaults to the handler's: renaming the handler must not pass unseen."""

import logging

import pytest
import redis

from millstream import App, StreamSub
from millstream.errors import ConfigError
from support.groups import all_done
from support.servers import ServerProcess
from support.waiting import aeventually


async def started(server: ServerProcess, name: str, sub: StreamSub | str, client: redis.Redis) -> None:
    """Run a handler of that name until it has handled everything."""
    app = App(server.url, registry=False)

    async def handle(n: int) -> None: ...

    handle.__name__ = name
    app.subscriber(sub)(handle)
    async with app.running():
        await aeventually(all_done(client, "orders", app.subscriptions[0].group))


async def test_a_renamed_handler_is_warned_of(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs the whole stream again, and the log says so, and what to write instead."""
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
    assert "runs all 3 entries" in said
    assert "StreamSub('orders', group='bill')" in said
    assert "StreamSub('orders', group='bill_order')" in said


async def test_a_group_that_is_named_is_meant(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """No word where the group is given; one where a backlog meets the first handler of a stream."""
    caplog.set_level(logging.WARNING, "millstream.worker")
    client.xadd("orders", {"n": 1})
    await started(server, "bill", StreamSub("orders", group="g"), client)
    assert caplog.text == ""
    client.delete("orders")
    client.xadd("orders", {"n": 1})
    await started(server, "bill", "orders", client)
    assert "it has no other group" in caplog.text


async def test_handlers_of_one_app_are_not_taken_for_each_other(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Two handlers of one stream, each with its own group, are no renaming."""
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


@pytest.mark.parametrize("name", ["group", "consumer"])
def test_an_empty_name_is_refused(name: str) -> None:
    """From an environment variable that is not set, say: the handler's name would be taken, and the stream run anew."""
    with pytest.raises(ConfigError, match=rf"StreamSub\({name}=''\): give it a name"):
        StreamSub("s", **{name: ""})  # type: ignore[arg-type] # names of texts only
