"""The overview of a server costs few round trips: its readings run at once, and their requests travel together."""

import json
from pathlib import Path

import pytest
import redis

from millstream.client.delays import due
from millstream.clock import SystemClock
from millstream.server.thread import ServerThread
from millstream.worker.registry import protocol
from support.clusters import Three
from support.console import ConsoleThread

MOST = 8
"""Largest number of round trips of the page."""


def fill(client: "redis.Redis | redis.RedisCluster", count: int) -> None:
    """Add streams of five entries, with three groups that are behind and have two entries pending."""
    for number in range(count):
        key = f"orders-{number}"
        with client.pipeline(transaction=False) as pipe:
            for entry in range(5):
                pipe.xadd(key, {"n": entry})
            for name in ("billing", "mail", "audit"):
                pipe.xgroup_create(key, name, id="0")
                pipe.xreadgroup(name, "c1", {key: ">"}, count=2)
            pipe.execute()


def delay(client: redis.Redis, stream: str, group: str) -> None:
    """Give the oldest pending entry of a group a due time in an hour."""
    oldest = client.xpending(stream, group)["min"]
    client.zadd(due.key(stream, group), {oldest: SystemClock().wall_time() + 3_600_000})


def opened(console: ConsoleThread) -> tuple[int, dict[str, dict[str, object]]]:
    """Return the number of round trips of one opening of the overview, and its groups by stream and name."""
    line = console.process.watches[0].line
    before = line.trips
    facts = console.ask("/overview.json").facts
    groups = {f"{one['key']} {group['group']}": group for one in facts["streams"] for group in one["groups"]}
    return line.trips - before, groups


@pytest.mark.parametrize("count", [3, 100])
def test_the_overview_takes_few_round_trips(console: ConsoleThread, client: redis.Redis, count: int) -> None:
    """All readings of the page are in at most eight round trips, for few streams and for many."""
    fill(client, count)
    trips, groups = opened(console)
    assert (len(groups), trips <= MOST) == (3 * count, True), trips


def test_delayed_entries_and_workers_cost_few_round_trips(console: ConsoleThread, client: redis.Redis) -> None:
    """Groups with delayed entries are read at once, beside the workers: they do not add round trips each."""
    fill(client, 30)
    for number in range(30):
        delay(client, f"orders-{number}", "mail")
        client.zadd(protocol.INDEX, {f"w{number}": 2**42})
        client.set(protocol.worker_key(f"w{number}"), json.dumps({"not": "a record"}))
    trips, groups = opened(console)
    assert trips <= MOST
    assert {name.partition(" ")[2]: group["delayed"] for name, group in groups.items()} == {
        "billing": 0,
        "audit": 0,
        "mail": 1,
    }


def test_missing_rights_take_few_round_trips(data: ServerThread, client: redis.Redis) -> None:
    """A user with few rights gets the same figures as one with all, in as few round trips, but for what is refused."""
    fill(client, 100)
    delay(client, "orders-1", "mail")
    rules = ("reset", "on", ">x", "~*", "+scan", "+xinfo", "+xpending", "+zrange")
    client.execute_command("ACL", "SETUSER", "looker", *rules)
    try:
        with ConsoleThread(data.url.replace("//", "//looker:x@")) as console:
            trips, groups = opened(console)
    finally:
        client.acl_deluser("looker")
    assert trips <= MOST
    assert groups["orders-1 mail"]["delayed"] == 1  # EXISTS is refused, so each group was asked
    assert groups["orders-2 mail"]["delayed"] == 0
    assert groups["orders-2 mail"]["undelivered_age_ms"] is None  # XRANGE is refused


@pytest.mark.realserver
def test_the_overview_of_a_cluster_takes_few_round_trips(tmp_path: Path) -> None:
    """On a cluster, no connection to a node has more round trips than that of one server."""
    with Three(tmp_path) as cluster, redis.RedisCluster(port=cluster.nodes[0].port, host="127.0.0.1") as client:
        fill(client, 30)
        with ConsoleThread(cluster.url) as console:
            trips, groups = opened(console)
    assert (len(groups), trips <= MOST) == (90, True), trips
