"""Sentinel URLs: each connection asks for the current master, so workers survive a failover."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from redis.exceptions import ResponseError
from redis.sentinel import MasterNotFoundError

from millstream import App, StreamSub
from millstream.cli.main import main
from millstream.client.connect import async_client, sync_client
from millstream.client.discovery.sentinel import parse_service
from millstream.client.line import Disconnected
from millstream.client.url import check_remote
from millstream.errors import ConfigError
from support.ports import free_port
from support.sentinels import Watched
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import aeventually

pytestmark = pytest.mark.realserver


@pytest.fixture(params=[redis_server, millstream_server], ids=["redis", "millstream"])
def watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path, request.param) as found:
        yield found


async def test_workers_go_on_with_the_new_master(watched: Watched) -> None:
    """If the master dies with entries unhandled, workers continue on the promoted replica and handle all."""
    app, seen, refusals = App(watched.url), set(), []

    @app.subscriber(StreamSub("s", group="g", min_idle_time=1_000))
    async def handle(x: int) -> None:
        seen.add(x)

    async with app.running():
        await app.publish_batch("s", [{"x": x} for x in range(20)])
        await aeventually(lambda: len(seen) == 20)
        with watched.master.client() as client:
            client.wait(1, 5_000)
        watched.master.kill()

        async def published() -> bool:
            try:
                await app.publish_batch("s", [{"x": x} for x in range(20, 40)])
            except (Disconnected, ResponseError) as error:  # until there is a master
                refusals.append(str(error))
                return False
            return True

        await aeventually(published, 60, what="a new master takes entries")
        await aeventually(lambda: len(seen) == 40, what="the worker reads from the new master")
        with watched.replica.client() as client:
            await aeventually(lambda: client.xpending("s", "g")["pending"] == 0)
    assert refusals  # the gap was there
    with sync_client(watched.url) as client:

        def leads() -> bool:
            try:
                return bool(client.info("replication")["role"] == "master")
            except MasterNotFoundError:  # it was slow to answer just now, so the Sentinels hold it to be down
                return False

        await aeventually(leads, what="the URL leads to the new master")
        assert client.get_connection_kwargs()["db"] == 0
    assert app.stats()["handle"]["reconnects"] >= 1


def test_replicas_of_a_service(watched: Watched) -> None:
    """`millstream replicas` shows a Sentinel service's primary by its address, with its replica."""
    done = CliRunner().invoke(main, ["replicas", watched.url, "-o", "json"])
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    places = [f"127.0.0.1:{one.port}" for one in (watched.master, watched.replica)]
    assert [(one["server"], one["role"]) for one in found] == list(zip(places, ["primary", "replica"], strict=True))


async def test_nobody_answers() -> None:
    """If no Sentinel answers, the client raises an ordinary connection error."""
    url = f"redis+sentinel://127.0.0.1:{free_port()}/orders"
    with sync_client(url) as client, pytest.raises(redis.ConnectionError, match="no Sentinel of 'orders' answers"):
        client.ping()
    waiting = async_client(url)
    with pytest.raises(redis.ConnectionError, match=r"none of 1 Sentinels knows a master of 'orders' that is up$"):
        await waiting.ping()
    await waiting.aclose()


def test_what_a_url_says() -> None:
    """A Sentinel URL has addresses with and without ports, account, database and the Sentinels' own account."""
    found = parse_service("redis+sentinel://u:p%40@a:1,[::1]:2,c/my%20service/3?sentinel_password=q")
    assert found.sentinels == (("a", 1), ("::1", 2), ("c", 26379))
    assert (found.name, found.options) == ("my service", {"username": "u", "password": "p@", "db": 3})
    assert found.sentinel_options == {"password": "q"}
    assert check_remote("redis+sentinel://a/s") == "redis+sentinel://a/s"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:1",
        "redis+sentinel:///s",
        "redis+sentinel://a/s/x",
        "redis+sentinel://a:b/s",
        "redis+sentinel://a/s?x=1",
    ],
)
def test_what_is_no_such_url(url: str) -> None:
    """An invalid Sentinel URL is refused with the correct form."""
    with pytest.raises(ConfigError, match="host:port"):
        parse_service(url)


HINDRANCES = {
    "READONLY": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "NOREPLICAS": (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
}


@pytest.mark.parametrize("code", HINDRANCES)
async def test_a_master_that_takes_no_writes_for_a_while_is_waited_for(real_redis: ServerProcess, code: str) -> None:
    """A worker waits while its master refuses writes, as a replica or without replicas, also over a reconnection."""
    app, seen = App(real_redis.url), []
    hinder, end = HINDRANCES[code]

    @app.subscriber(StreamSub("s", group="g", polling_interval=50))
    async def handle(x: int) -> None:
        seen.append(x)

    with real_redis.client() as client:
        client.config_resetstat()
        async with app.running():
            await app.publish("s", {"x": 1})
            await aeventually(lambda: seen == [1])
            client.execute_command(*hinder)
            try:
                await aeventually(lambda: refusals(client, code) >= 4)  # told so again and again
                client.client_kill_filter(_type="normal", skipme=True)
                await aeventually(lambda: refusals(client, code) >= 8)  # the group is asked for, too
            finally:
                client.execute_command(*end)
            await app.publish("s", {"x": 2})
            await aeventually(lambda: seen == [1, 2])
            assert [one.alive for one in app.progress()] == [True]


def refusals(client: redis.Redis, code: str) -> int:
    """Return the number of refusals of this kind by the server."""
    told: Any = client.info("errorstats")
    return int(told.get(f"errorstat_{code}", {"count": 0})["count"])
