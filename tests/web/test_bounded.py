"""Pages and their JSON have a bounded size, whatever data workers or others wrote."""

import json
from typing import Any

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.server.thread import ServerThread
from millstream.worker.registry import protocol
from support.console import ConsoleThread

LARGEST = 1 << 20

FACTS = {
    "host": "h", "pid": 1, "version": "1", "state": "running", "started_ms": 1_763_721_600_000,
    "beat_ms": 1_763_721_600_000, "last_error": None, "subscribers": [],
}  # fmt: skip


def subscriber(number: int, jobs: int = 0) -> dict[str, Any]:
    """Build a subscriber's record with a number of running entries."""
    counts = dict.fromkeys(("slots", "running", "buffered", "handled", "failed", "dead"), 1)
    in_hand = [{"id": f"{at}-0", "since_ms": 1, "deliveries": 1} for at in range(jobs)]
    names = {"handler": "h", "stream": f"s{number}", "group": "g", "consumer": "c"}
    return {**names, **counts, "paused": None, "jobs": in_hand}


def tell(client: redis.Redis, count: int, **facts: object) -> None:
    """Write records of a number of workers with these facts."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.zadd(protocol.INDEX, {f"w{number}": 1})
            pipe.set(protocol.worker_key(f"w{number}"), json.dumps({**FACTS, "id": f"w{number}", **facts}))
        pipe.execute()


FORGED = {
    "a text": (1, {"host": "h" * 400_000, "last_error": {"error": "e" * 400_000, "at_ms": 1, "entry": "1"}}),
    "entries": (1, {"subscribers": [subscriber(0, jobs=10_000)]}),
    "handlers": (1, {"subscribers": [subscriber(number) for number in range(5000)]}),
    "workers": (2000, {"subscribers": [subscriber(0, jobs=2)]}),
}


@pytest.mark.parametrize(("count", "facts"), FORGED.values(), ids=FORGED)
def test_workers_of_any_size(console: ConsoleThread, client: redis.Redis, count: int, facts: dict[str, Any]) -> None:
    """The page of workers shows the first ones and the total number."""
    tell(client, count, **facts)
    page, twin = console.ask("/workers"), console.ask("/workers.json")
    assert [len(each.body) < LARGEST for each in (page, twin)] == [True, True]
    assert twin.facts["found"]["workers"] == count
    assert twin.facts["workers"][0]["id"] == "w0"
    shown = len(twin.facts["workers"])
    for path in ("/handlers", "/handlers.json"):
        assert len(console.ask(path).body) < LARGEST
    assert (f"{count - shown:,} more, which this page has no room for" in page.text) == (shown < count)


def test_records_above_the_limit_of_bytes_are_left_out(console: ConsoleThread, client: redis.Redis) -> None:
    """A heartbeat above 1 MB is not parsed, and neither are those after 16 MB; the page has a sentence about them."""
    tell(client, 30, host="h" * 900_000)
    client.zadd(protocol.INDEX, {"huge": 1})
    many = [subscriber(number) for number in range(30_000)]
    client.set(protocol.worker_key("huge"), json.dumps({**FACTS, "id": "huge", "subscribers": many}))
    twin = console.ask("/workers.json").facts
    assert (twin["found"]["workers"], twin["found"]["strange"]) == (18, 13)
    assert "millstream:worker:huge" in twin["strange"]
    assert "13 records of workers</a>" in console.ask("/handlers").text
    assert "Left out: 13 records that no worker wrote, or that are larger than 1 MB" in console.ask("/workers").text


def test_long_records_are_not_sent_whole(console: ConsoleThread, client: redis.Redis) -> None:
    """The server sends at most a megabyte of a record, and finds short records beside long ones."""
    tell(client, 2)
    for number in range(4):
        client.zadd(protocol.INDEX, {f"huge{number}": 1})
        client.set(protocol.worker_key(f"huge{number}"), b"x" * 20_000_000)
    before = client.info("stats")["total_net_output_bytes"]
    twin = console.ask("/workers.json").facts
    assert (twin["found"]["workers"], twin["found"]["strange"]) == (2, 4)
    assert client.info("stats")["total_net_output_bytes"] - before < 40_000_000  # also if it reads again


def test_limits_are_shown_while_nothing_is_pending(console: ConsoleThread, client: redis.Redis) -> None:
    """The overview counts the limits of all workers, also if there is not a single group."""
    counts = dict.fromkeys(("in_use", "granted", "refused"), 0)
    limit = {"name": "smtp", "rate": None, "running": 3, "by_key": False, "waiting": 2, **counts}
    tell(client, 1, subscribers=[subscriber(0) | {"limits": [limit]}])
    beside = console.ask("/overview.json").facts["beside"]
    assert (beside["limits"], beside["limits_waiting"]) == (1, 2)


def test_a_user_without_getrange_reads_whole_records(data: ServerThread, client: redis.Redis) -> None:
    """A user with the rights of earlier versions still sees the workers."""
    tell(client, 2)
    client.acl_setuser("looker", enabled=True, passwords=["+x"], keys=["*"], categories=["+@all"],
                       commands=["-getrange"])  # fmt: skip
    try:
        with ConsoleThread(data.url.replace("//", "//looker:x@")) as console:
            assert console.ask("/workers.json").facts["found"]["workers"] == 2
    finally:
        client.acl_deluser("looker")


def test_vanished_workers_and_pauses_in_thousands(console: ConsoleThread, client: redis.Redis) -> None:
    """Vanished workers and pauses are shown up to a limit, with the total number."""
    client.zadd(protocol.INDEX, {f"w{number}": 1 for number in range(20_000)})
    pause = json.dumps({"reason": "r" * 5000, "by": "b", "at_ms": 1})
    client.hset(protocol.CONTROL, mapping={protocol.pause_field(f"s{number}", "g"): pause for number in range(1000)})
    page, twin = console.ask("/workers"), console.ask("/workers.json")
    assert [len(each.body) < LARGEST for each in (page, twin)] == [True, True]
    assert (twin.facts["found"]["vanished"], twin.facts["found"]["pauses"]) == (20_000, 1000)
    assert page.text.count("more, which this page has no room for") == 2


def test_dead_letters_with_an_error_each(console: ConsoleThread, client: redis.Redis) -> None:
    """A dead letter page shows the end of each long traceback, and the first of many error classes."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(200):
            letter = DeadLetter(
                (b"n", b"1"), "orders", "1-0", "g", "c", 1, "error", f"E{number}: " + "x" * 10_000,
                "T" * 10_000 + "the end", 1, 1_763_721_600_000,
            )  # fmt: skip
            pipe.execute_command("XADD", "orders:dead", f"{number + 1}-0", *pack(letter))
        pipe.execute()
    page, twin = console.ask("/dead?key=orders:dead"), console.ask("/dead.json?key=orders:dead")
    assert [len(each.body) < LARGEST for each in (page, twin)] == [True, True]
    assert (len(twin.facts["classes"]), twin.facts["classes_found"]) == (50, 200)
    assert "TTTthe end" in page.text
    assert "And 150 more" in page.text


def test_dead_letter_streams_in_thousands(console: ConsoleThread, client: redis.Redis) -> None:
    """The page of dead letters shows the first streams by key, and the total number."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(600):
            pipe.xadd(f"s{number:04}:dead", {"n": 1})
        pipe.execute()
    page, twin = console.ask("/dead"), console.ask("/dead.json")
    assert (len(twin.facts["streams"]), twin.facts["streams_found"]) == (500, 600)
    assert "And 100 more" in page.text
