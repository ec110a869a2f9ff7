"""Changes of limits from outside the workers: the command line, the console, metrics, rights, and the test clock."""

import asyncio
import html
import itertools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from click.testing import CliRunner

from millstream import App, Limit, Message, StreamSub
from millstream.cli.main import main
from millstream.client import emulate
from millstream.client.limits.rate import RATES, keys
from millstream.client.open import open_line
from millstream.ops.limits.reading import LimitsSeen, read_limits
from millstream.worker import testing
from millstream.worker.limits.asking import FleetLimit
from millstream.worker.limits.limiter import Limiter
from support import needs
from support.accounts import user
from support.clusters import Three
from support.console import ConsoleThread
from support.servers import ServerProcess
from support.thief import Thief
from support.waiting import aeventually
from worker.later.test_rights import BASE, rights

SERVERS = ["redis", "millstream", *needs.OTHERS]
HOSTILE = "<script>alert(1)</script>\x1b[2J"


def app_of(url: str, limit: Any, seen: list[str], stream: str = "s") -> App:
    """An app with one limited handler."""
    app = App(url)

    @app.subscriber(StreamSub(stream, group="g"), limit=limit)
    async def work(k: str) -> None:
        seen.append(k)

    return app


def limiter_of(app: App) -> Limiter:
    """Return the limiter of the app's handler."""
    found = app.loops[0].limiter
    assert found is not None
    return found


async def beat(app: App) -> None:
    """Send a heartbeat now, instead of waiting for the next."""
    assert app._heartbeat is not None  # noqa: SLF001 - in place of waiting for it
    await app._heartbeat._beat()  # noqa: SLF001 - as above


async def run(server: ServerProcess, *words: str, code: int = 0) -> str:
    """Run ``millstream`` in another thread and return its output."""
    line = [*words[:2], "--url", server.url, *words[2:]]
    done = await asyncio.to_thread(CliRunner().invoke, main, line)
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.stdout + done.stderr


async def listed(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """Return the rows of ``millstream limit ls`` by name."""
    return {row["limit"]: row for row in json.loads(await run(server, "limit", "ls", "-o", "json"))}


async def test_a_rate_is_set_and_taken_back_by_the_shell(server: ServerProcess, client: redis.Redis) -> None:
    """``millstream limit ls`` shows the use by all workers.

    ``set`` takes effect at the next heartbeat, and ``rm`` undoes it.
    """
    seen: list[str] = []
    for _ in range(6):
        client.xadd("s", {"k": "a"})
    app = app_of(server.url, Limit("1/h", name="crm"), seen)
    async with app.running():
        await aeventually(lambda: len(seen) == 1)
        await aeventually(lambda: limiter_of(app).facts()[0]["refused"] > 0)
        await beat(app)
        row = (await listed(server))["crm"]
        assert (row["rate"], row["set"], row["granted"], row["workers"]) == ("1/h", False, 1, 1)
        assert row["refused"] > 0
        await run(server, "limit", "set", "crm", "1000/s", "--dry-run")
        assert not client.exists(RATES)
        await run(server, "limit", "set", "crm", "1000/s", "--yes")
        await beat(app)
        await aeventually(lambda: len(seen) == 6)
        row = (await listed(server))["crm"]
        assert (row["rate"], row["declared"], row["set"]) == ("1000/s", "1/h", True)
        assert "limit rm crm" in await run(server, "audit", "ls", "-o", "json")
        await run(server, "limit", "rm", "crm", "--yes")
        await beat(app)
        assert (await listed(server))["crm"]["rate"] == "1/h"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "crm", "fast"), 2, "30/m"),
        (("set", "crm", "0/s"), 2, "30/m"),
        (("set", "gone", "1/s"), 4, "--ahead"),
        (("set", "a:b", "1/s", "--ahead"), 2, "without : {"),
        (("set", "slots", "1/s"), 5, "no rate"),
        (("rm", "crm"), 4, "limit ls"),
        (("rm", "gone"), 4, "limit ls"),
    ],
)
async def test_a_wrong_change_is_one_error(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...], code: int, text: str
) -> None:
    """A wrong change of a limit is one error with the correct form, and nothing is written."""
    app = app_of(server.url, [Limit("1/h", name="crm"), Limit(running=2, name="slots")], [])
    async with app.running():
        found = await run(server, "limit", *words, *(() if "--ahead" in words else ("--yes",)), code=code)
    assert text in found
    assert not client.exists(RATES, "millstream:audit")


async def test_values_of_others_are_only_text(server: ServerProcess, client: redis.Redis) -> None:
    """A damaged rate is listed and can be removed. A foreign record is skipped."""
    client.hset(RATES, mapping={"crm": "\x00fast", HOSTILE: "1/s"})
    client.zadd("millstream:workers", {"w": 1})
    client.set("millstream:worker:w", json.dumps({"id": "w", "subscribers": [{"limits": 3}]}))
    rows = await listed(server)
    assert "damaged" in rows["crm"]["problem"]
    assert set(rows) == {"crm", HOSTILE}
    assert "\x1b" not in await run(server, "limit", "ls")
    await run(server, "limit", "rm", "--yes", "--", HOSTILE)
    await run(server, "limit", "rm", "crm", "--yes")
    assert not client.exists(RATES)
    client.set(RATES, "x")
    assert RATES in await run(server, "limit", "ls", code=4)


async def test_the_rights_of_the_page_are_enough(server: ServerProcess, client: redis.Redis) -> None:
    """The listed rights are enough to request permits, read changed rates and list limits."""
    with user(client, *BASE.split(), *rights("limited worker")) as name:
        line = open_line(server.url.replace("redis://", f"redis://{name}"))
        limit = FleetLimit(Limit("100/s", running=2, key="k"), "crm", line)
        permits = await limit.take(1, b"a")
        assert permits.granted == 1
        await limit.send(renew=True)
        limit.free(permits.slots, b"a")
        await limit.send(renew=False)
        await limit.give_back(1, permits.counts_us, b"a")
        assert await line.call("HMGET", RATES, "crm") == [None]
        assert not client.exists(*keys("crm", b"a"))
        client.lpush(keys("crm", b"b")[0], "x")
        client.set(keys("crm", b"b")[1], "x")
        assert (await limit.take(1, b"b")).granted == 1
        await line.close()
    with user(client, *BASE.split(), *rights("lists limits")) as name:
        line = open_line(server.url.replace("redis://", f"redis://{name}"))
        assert await read_limits(line) == LimitsSeen()
        await line.close()


async def test_slots_whose_reply_is_lost_are_given_back(server: ServerProcess, client: redis.Redis) -> None:
    """Slots that the server granted in a lost reply are free again after the next round, not after their lease."""
    async with Thief(server.port, b"EVALSHA") as thief:
        line, direct = open_line(f"redis://127.0.0.1:{thief.port}/0"), open_line(server.url)
        ours, other = (FleetLimit(Limit(running=2), "crm", one) for one in (line, direct))
        other.free((await other.take(1)).slots)  # leaves the script with the server
        await other.send(renew=False)
        assert not (await ours.take(2)).asked
        assert thief.stolen == 1
        assert (await other.take(2)).granted == 0
        await ours.send(renew=False)
        assert (await other.take(2)).granted == 2
        await line.close()
        await direct.close()


async def test_nothing_runs_without_the_rights_to_a_limit(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the rights for a limit no handler runs.

    The log names the limit and rights, and the entry stays unread.
    """
    client.xadd("s", {"k": "a"})
    seen: list[str] = []
    with user(
        client, "+@all", "~s", "~s:dead", "~millstream:worker*", "~millstream:control", "~millstream:{s}:*"
    ) as name:
        app = app_of(server.url.replace("redis://", f"redis://{name}"), Limit("1/h"), seen)
        async with app.running():
            await aeventually(lambda: "nothing that it limits runs" in caplog.text)
            await beat(app)
    assert "'work'" in caplog.text
    assert not seen
    assert client.xinfo_groups("s")[0]["pending"] == 0


async def test_metrics_have_each_limit(server: ServerProcess, client: redis.Redis) -> None:
    """Metrics give each limit's permits, refusals, waiting entries and used slots."""
    for _ in range(3):
        client.xadd("s", {"k": "a"})
    seen: list[str] = []
    app = app_of(server.url, Limit("1/h", key="k", name="crm"), seen)
    async with app.running():
        await aeventually(lambda: app.loops[0].stats.limited == 2)
        page = (await app.metrics())[0].decode()
    labels = '{group="g",handler="work",limit="crm",stream="s"}'
    found = dict(re.findall(r"^millstream_limit_(\w+)" + re.escape(labels) + r" ([\d.]+)$", page, re.MULTILINE))
    assert {name: float(value) for name, value in found.items()} == {
        "granted_total": 1, "refused_total": 2, "waiting": 2, "in_use": 0,
    }  # fmt: skip


async def test_the_console_shows_and_changes_limits(server: ServerProcess, client: redis.Redis) -> None:
    """The console shows the limits and sets a rate. Foreign names are shown as plain text."""
    client.hset(RATES, HOSTILE, "1/s")
    app = app_of(server.url, Limit("1/h", name="crm"), [])
    with ConsoleThread(server.url, allow_changes=True) as changing:
        async with app.running():
            await beat(app)
            await asyncio.to_thread(change, changing)
    assert client.hget(RATES, "crm") == "30/m"


def change(console: ConsoleThread) -> None:
    """Open the page and its form, and confirm the form as shown."""
    page = console.ask("/workers")
    assert (page.status, "<h2>Limits</h2>" in page.text, "<script>alert" in page.text) == (200, True, False)
    page = console.ask(f"/change?{urlencode({'do': 'limit set', 'limit': 'crm', 'rate': '30/m'})}")
    inside = page.text.partition('<form class="confirm"')[2]
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', inside)
    body = urlencode({name: html.unescape(value) for name, value in found}).encode()
    console.ask("/change", method="POST", body=body, origin=console.address)


@pytest.mark.parametrize("limit", [Limit("1/h"), Limit("1/h", key="k"), Limit("1/h", running=1, key="k")], ids=str)
async def test_the_kit_turns_the_clock_of_limits(limit: Limit) -> None:
    """The testing kit's clock also drives limits: an hourly permit returns after an hour.

    The wait counts no delivery.
    """
    app, seen = App(), list[tuple[str, int]]()

    @app.subscriber(StreamSub("s", group="g"), limit=limit)
    async def work(k: str, msg: Message) -> None:
        seen.append((k, msg.delivery_count))

    async with testing.run(app) as broker:
        for _ in range(3):
            await broker.publish("s", {"k": "a"})
        for after, runs in (("59m", 1), ("2m", 2), ("1h", 3)):
            await broker.advance(after)
            assert seen == [("a", 1)] * runs


@pytest.mark.parametrize("running", [None, 1])
async def test_an_entry_that_comes_back_early_keeps_its_place(running: int | None) -> None:
    """An entry claimed a few milliseconds before its due time waits for these, not for a further interval."""
    app, seen = App(), list[str]()

    @app.subscriber(StreamSub("s", group="g"), limit=Limit("1/m", running=running, key="k"))
    async def work(k: str) -> None:
        seen.append(k)

    async with testing.run(app) as broker:
        for _ in range(4):
            await broker.publish("s", {"k": "a"})
        for after, runs in (("59s", 1), ("2s", 2), ("1m", 3), ("1m", 4)):
            await broker.advance(after)
            assert len(seen) == runs


async def test_a_refusal_just_before_costs_no_other_entry_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an entry is refused in the last second before a permit, the entry that is due then gets this permit."""
    app, seen = App(), list[str]()

    @app.subscriber(StreamSub("s", group="g"), limit=Limit("1/h", key="k"))
    async def work(k: str) -> None:
        seen.append(k)

    # The longest delay, of which one entry waits 0.92 at a time, and the other so that it comes back after 3599.5 s
    chances = itertools.cycle([0.92, 3599.5 / 3600])
    monkeypatch.setattr("random.uniform", lambda low, high: next(chances) if (low, high) == (0.5, 1.0) else low)
    async with testing.run(app) as broker:
        for _ in range(3):
            await broker.publish("s", {"k": "a"})
        for after, runs in (("59m", 1), ("2m", 2)):
            await broker.advance(after)
            assert len(seen) == runs


async def test_an_entry_that_is_claimed_too_soon_keeps_its_place() -> None:
    """An entry that a limit refused, claimed long before its due time, is put back until then."""
    app, seen = App(), list[str]()

    @app.subscriber(StreamSub("s", group="g"), limit=Limit("1/m", key="k"))
    async def work(k: str) -> None:
        seen.append(k)

    async with testing.run(app) as broker:
        entries = [await broker.publish("s", {"k": "a"}) for _ in range(2)]
        await broker.advance("20s")
        broker.client.xclaim("s", "g", emulate.WAITING, 0, entries[1:], idle=29_999, justid=True)
        for after, runs in (("39s", 1), ("2s", 2)):
            await broker.advance(after)
            assert len(seen) == runs


async def test_limits_hold_on_a_cluster_of_three_nodes(tmp_path: Path) -> None:
    """On a cluster of three nodes, each key's limit is on the node of its slot.

    A changed rate is read from another node.
    """
    with Three(tmp_path) as three:
        seen: list[str] = []
        limits = [Limit("1/h", key="k", name="each"), Limit("1/h", burst=2, name="all"), Limit(running=2, name="many")]
        app = app_of(three.url, limits, seen, "{s}")
        async with app.running():
            owners = {three.owner(keys("each", key)[0]).port for key in (b"a", b"b", b"c", b"d")}
            assert len(owners) > 1
            for key in "aabbccdd":
                await app.publish("{s}", {"k": key})
            await aeventually(lambda: len(seen) == 2)
            with redis.RedisCluster.from_url(three.url.split(",")[0].replace("redis+cluster", "redis")) as client:
                client.hset(RATES, "all", "1000/s")
            await beat(app)
            await aeventually(lambda: sorted(seen) == ["a", "b", "c", "d"])


def test_keys_of_one_limit_share_a_slot() -> None:
    """The keys of one limit share a cluster slot, whatever characters the limit's key contains."""
    for key in (b"", b"a", b"}{x", b"\xff" * 300):
        tags = {name[name.index("{") : name.index("}") + 1] for name in keys("crm", key)}
        assert len(tags) == 1
