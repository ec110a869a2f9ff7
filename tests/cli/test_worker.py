"""``millstream worker`` with foreign records in the registry and with wrong names."""

import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.worker.registry import protocol
from support.servers import ServerProcess

FACTS: dict[str, Any] = {
    "id": "web-1", "host": "web", "pid": 1, "version": "0.1.0", "state": "running",
    "started_ms": 1_763_721_600_000, "beat_ms": 1_763_721_605_000,
    "subscribers": [
        {
            "handler": "bill", "stream": "orders", "group": "billing", "consumer": "c1", "slots": 10, "running": 1,
            "buffered": 2, "handled": 3, "failed": 1, "dead": 0, "paused": None,
            "jobs": [{"id": "1-0", "since_ms": 1_763_721_601_000, "deliveries": 1}],
        }
    ],
    "last_error": {"at_ms": 1_763_721_602_000, "handler": "bill", "entry": "1-0", "error": "ValueError: no"},
}  # fmt: skip


def run(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream worker`` in this process."""
    command, *rest = words
    return CliRunner().invoke(main, ["worker", command, *rest, "--url", server.url])


def enrol(client: redis.Redis, worker: str, record: bytes | str) -> None:
    client.zadd(protocol.INDEX, {worker: 1})
    client.set(protocol.worker_key(worker), record)


STRANGE: list[Any] = [
    "{", "[]", "null", "7", "[" * 1500, "[" * 100_000, "{}", '{"id": "web-2"}',
    json.dumps(FACTS), json.dumps({**FACTS, "id": "web-2", "subscribers": [1]}),
    json.dumps({**FACTS, "id": "web-2", "last_error": "x"}), json.dumps({**FACTS, "id": "web-2", "beat_ms": 1e400}),
    '{"id": "web-2", "beat_ms": NaN}', b"\xff\xfe\x00", b"\x80",
]  # fmt: skip
ABSURD: list[dict[str, Any]] = [
    {"beat_ms": 10**400, "blocked": {"since_ms": 0, "where": "x"}},
    {"started_ms": -(2**63) - 1},
    {"subscribers": [{**FACTS["subscribers"][0], "consumer": "\ud800"}]},
]
STRANGE += [json.dumps({**FACTS, "id": "web-2", **absurd}) for absurd in ABSURD]


def test_a_record_that_no_worker_wrote_is_named_and_passed_over(server: ServerProcess, client: redis.Redis) -> None:
    """A record that no worker wrote is named and skipped. The real worker is shown and takes orders."""
    enrol(client, "web-1", json.dumps(FACTS))
    for record in STRANGE:
        enrol(client, "web-2", record)
        done = run(server, "ls", "-o", "json")
        assert done.exit_code == 0, (record[:40], done.exception)
        assert [worker["id"] for worker in json.loads(done.stdout)["workers"]] == ["web-1"], record[:40]
        assert done.stderr.startswith("millstream:worker:web-2 is not a record of a worker"), record[:40]
        assert run(server, "show", "web-2").exit_code == 4
    client.delete(protocol.worker_key("web-2"))
    client.lpush(protocol.worker_key("web-2"), "a list")
    client.zadd(protocol.INDEX, {b"\xff\x1b": 1})
    client.set(b"millstream:worker:\xff\x1b", "{}")
    done = run(server, "ls")
    assert (done.exit_code, done.stderr.count("not a record of a worker"), "\x1b" in done.output) == (0, 2, False)
    assert run(server, "show", "web-1").exit_code == 0
    assert run(server, "quiet", "--all").exit_code == 0
    assert client.hgetall(protocol.CONTROL) == {b"worker:web-1": b"quiet"}


def test_an_order_that_is_not_seen_says_so(server: ServerProcess, client: redis.Redis) -> None:
    """An order to a worker with a blocked event loop is sent with a warning."""
    blocked = {"since_ms": 1_763_721_602_000, "where": "bill.py:7 in bill"}
    enrol(client, "web-1", json.dumps({**FACTS, "state": "blocked", "blocked": blocked}))
    enrol(client, "web-2", json.dumps({**FACTS, "id": "web-2"}))
    shown = json.loads(run(server, "drain", "--all", "--dry-run", "-o", "json").stdout)
    (note,) = [each for each in shown["notes"] if "web-" in each]
    assert note.startswith("web-1 is blocked at bill.py:7 in bill, and sees the order only when it runs again")
    assert note.endswith("only a kill ends it: process 1 on web.")
    done = run(server, "drain", "--all")
    assert "Except web-1: the event loop is blocked" in done.stderr
    assert "stands still" not in run(server, "resume", "web-1").stderr


def test_dead_consumers_go_whoever_the_registry_says_is_alive(server: ServerProcess, client: redis.Redis) -> None:
    """``worker reap`` removes dead consumers although a live worker's record has an unencodable name."""
    subscriber = {**FACTS["subscribers"][0], "consumer": "\ud800"}
    enrol(client, "web-2", json.dumps({**FACTS, "id": "web-2", "subscribers": [subscriber]}))
    client.xgroup_create("jobs", "g", "0", mkstream=True)
    client.xgroup_createconsumer("jobs", "g", "gone")
    done = run(server, "reap", "jobs", "--idle", "0s", "-o", "json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, [{"group": "g", "consumer": "gone"}])


def test_a_pause_that_nobody_can_read_is_still_no_traceback(server: ServerProcess, client: redis.Redis) -> None:
    """Pause fields that name no handler are skipped. A handler's pause counts with any value."""
    for field in (
        "pause:",
        "pause:[",
        "pause:[1,2]",
        'pause:["a"]',
        "pause:" + "[" * 1500,
        "pause:null",
        b"pause:\xff",
    ):
        client.hset(protocol.CONTROL, field, "{}")
    values = ["{}", "[" * 1500, "null", '{"reason":1,"by":[[]],"at_ms":1e400}', "\x1b[2J", b"\xff", '{"at_ms":"x"}']
    for number, value in enumerate(values):
        client.hset(protocol.CONTROL, protocol.pause_field("orders", str(number)), value)
    done = run(server, "ls", "-o", "json")
    assert done.exit_code == 0, done.exception
    assert [pause["group"] for pause in json.loads(done.stdout)["pauses"]] == [*map(str, range(len(values)))]
    assert "\x1b" not in run(server, "ls").output


def test_a_pause_names_what_is_there(server: ServerProcess, client: redis.Redis) -> None:
    """``worker pause`` refuses a missing stream or group with the existing names. --ahead allows a future one."""
    words = ("--reason", "r")
    done = run(server, "pause", "orders", "billing", *words)
    assert (done.exit_code, client.exists(protocol.CONTROL)) == (4, 0)
    assert "there is no stream 'orders'" in done.stderr
    client.xgroup_create("orders", "billing", mkstream=True)
    done = run(server, "pause", "orders", "nogroup", *words)
    assert (done.exit_code, client.exists(protocol.CONTROL)) == (4, 0)
    assert "'orders' has no group 'nogroup'; its groups are: billing" in done.stderr
    client.set("text", 1)
    assert "holds no stream" in run(server, "pause", "text", "billing", *words).stderr
    for given in (("orders", "billing", *words), ("later", "billing", *words, "--ahead")):
        assert run(server, "pause", *given).exit_code == 0
    assert client.hlen(protocol.CONTROL) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("show", "nobody"), ("quiet", "nobody"), ("drain", "nobody"), ("stop", "nobody"), ("resume", "nobody"),
        ("resume", "orders", "billing"), ("reap", "orders"), ("reap", "there", "nogroup"), ("quiet",),
    ],
)  # fmt: skip
def test_a_name_that_nothing_has_is_an_error(
    server: ServerProcess, client: redis.Redis, words: tuple[str, ...]
) -> None:
    """A missing name is one line and a non-zero exit code."""
    client.xadd("there", {"n": 1})
    done = run(server, *words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2 if len(words) == 1 else 4, "", 1)
    if len(words) > 1:
        assert words[-1] in done.stderr
