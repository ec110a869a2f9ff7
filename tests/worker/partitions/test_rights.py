"""The access rights that docs/worker/partitions.md lists are enough, on every server."""

import asyncio
import re

import pytest
import redis
from click.testing import CliRunner

from millstream import App, Message, Nack, StreamSub, once
from millstream.cli.main import main
from support import needs
from support.accounts import user
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import aeventually

SERVERS = ["redis", "millstream", *needs.OTHERS]
BASE = "+@connection +info +command"


def rights(who: str) -> list[str]:
    """Return the access rules in a row of the page."""
    page = (ROOT / "docs/worker/partitions.md").read_text()
    row = re.search(rf"^\| {who}[^|]*\| (.*) \|$", page, re.MULTILINE)
    assert row is not None
    return re.findall(r"[~+][^ `]+", row[1])


@pytest.mark.parametrize("who", ["publishes by key", "partitions a stream", "owns partitions", "removes"])
async def test_the_rights_of_the_page_are_enough(
    server: ServerProcess, client: redis.Redis, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A user with a row's rights can do what the row names, and the server refuses no command."""
    whole = App(server.url, registry=False)
    if who != "partitions a stream":
        await whole.partition("orders", 4, by="key")
    await whole.close()
    client.acl_log_reset()
    with user(client, *BASE.split(), *rights(who)) as name:
        app = App(server.url.replace("redis://", f"redis://{name}"))
        if who == "partitions a stream":
            await app.partition("orders", 4, by="key")
        if who == "publishes by key":
            await app.publish("orders", {"key": "a"})
            await app.publish("orders", {"n": 1}, key="a")
        if who == "owns partitions":
            await own(app, client)
        if who == "removes":
            client.xgroup_create("orders{1}", "g", mkstream=True)
            client.xadd("orders{1}", {"n": 1})
            for _ in range(2):
                words = ["stream", "rm", "orders", "--yes", "--url", app.url]
                done = await asyncio.to_thread(CliRunner().invoke, main, words)
                assert done.exit_code == 0, done.output
        await app.close()
    refused = [f"{one['object']} {one['reason']}" for one in client.acl_log()]
    # A command of changes first looks which rights the user has
    assert who == "removes" or refused == []
    assert [one for one in caplog.records if "permission" in one.getMessage()] == []


async def own(app: App, client: redis.Redis) -> None:
    """Handle, fail, delay, retry and dead-letter entries of partitions."""
    seen: list[int] = []

    @app.subscriber(StreamSub("orders", group="g", min_idle_time=1_000), hold=True)
    async def handle(n: int, msg: Message) -> None:
        seen.append(n)
        await once(msg, ("PING",))
        if n == 1 and msg.delivery_count == 1:
            raise Nack("again", delay=0.1)
        if n == 2:
            await msg.reject("bad")

    for n in range(8):
        client.xadd(f"orders{{{n % 4}}}", {"key": f"k{n % 4}", "n": n})
    async with app.running():
        await aeventually(lambda: len(seen) == 9)
        await aeventually(lambda: client.xlen("orders{2}:dead") == 1)
