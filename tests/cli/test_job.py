"""``millstream job``: one job in each group, and its cancellation."""

import asyncio
import json
import math
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream import App
from millstream.cli.main import main
from millstream.client.jobs import record
from millstream.client.later.schedule import INDEX, due_key
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver


def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream job`` in this process."""
    done = CliRunner().invoke(main, ["job", words[0], "--url", server.url, *words[1:]])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def published(server: ServerProcess, **options: Any) -> str:
    """Publish a job to ``orders`` and return its id."""

    async def work() -> str:
        async with App(server.url, registry=False) as app:
            return str(await app.publish("orders", {"n": 1}, **options))

    return asyncio.run(work())


def test_a_job_is_shown_and_cancelled(server: ServerProcess, client: redis.Redis) -> None:
    """``job show`` has the job's state in each group. ``job cancel`` marks it for workers, and refuses an ended job."""
    for group in ("billing", "audit"):
        client.xgroup_create("orders", group, mkstream=True)
    job = published(server, result="1h")
    end = record.record("done", 1_700_000_000_000, value={"bill": 7})
    client.hset(record.result_key("orders", job), mapping={"audit": end, "progress:billing": '{"at":1}'})
    seen = json.loads(run(server, "show", "orders", job, "-o", "json").stdout)
    assert (seen["id"], seen["keep_ms"]) == (job, 3_600_000)
    states = {row["group"]: (row["state"], row["value"], row["progress"]) for row in seen["groups"]}
    assert states == {"billing": ("queued", None, {"at": 1}), "audit": ("done", {"bill": 7}, None)}
    run(server, "cancel", "orders", "billing", job, "--dry-run")
    key = record.cancelled_key("orders", "billing")
    assert not client.exists(key)
    run(server, "cancel", "orders", "billing", job, "--yes")
    assert client.zscore(key, job) is not None
    assert 0 < client.pttl(key) <= record.CANCELLED_MS  # type: ignore[operator] # redis-py's types
    assert "queued" in run(server, "show", "orders", job).stdout
    assert "it is done" in run(server, "cancel", "orders", "audit", job, "--yes", code=5).stderr


def test_what_is_not_a_job_is_refused(server: ServerProcess, client: redis.Redis) -> None:
    """An entry without a result, a missing entry and a missing group are one error each."""
    client.xgroup_create("orders", "billing", mkstream=True)
    plain, job = published(server), published(server, result="1h")
    assert "without result=" in run(server, "show", "orders", plain, code=4).stderr
    assert "is gone" in run(server, "show", "orders", "5-1", code=4).stderr
    assert "has no group" in run(server, "cancel", "orders", "nobody", job, "--yes", code=4).stderr
    client.hset(record.result_key("orders", job), mapping={b"billing": b"\xff", b"progress:billing": b"[1"})
    client.set(record.cancelled_key("orders", "billing"), "x")
    seen = json.loads(run(server, "show", "orders", job, "-o", "json").stdout)
    assert (seen["groups"][0]["state"], seen["groups"][0]["progress"]) == ("queued", None)


@pytest.mark.parametrize("mark", ["inf", "-inf", "1e300", "-1"])
def test_times_that_no_program_of_ours_wrote_are_shown(server: ServerProcess, client: redis.Redis, mark: str) -> None:
    """A job's keys with impossible times are shown in a table and in JSON."""
    client.xgroup_create("orders", "billing", mkstream=True)
    client.xgroup_create("orders", "audit")
    job = published(server, result="1h")
    client.zadd(record.cancelled_key("orders", "billing"), {job: float(mark)})
    client.hset(record.result_key("orders", job), "audit", '{"state":"done","value":1,"at_ms":1%s}' % ("0" * 40))
    for form in ("table", "json"):
        assert "billing" in run(server, "show", "orders", job, "-o", form).stdout


def test_other_lists_survive_infinite_scores(server: ServerProcess, client: redis.Redis) -> None:
    """Infinite scores in the index of workers and in due times do not break the lists."""
    client.zadd("millstream:workers", {"ghost": math.inf})
    client.zadd(due_key("orders"), {"never": math.inf})
    client.sadd(INDEX, "orders")
    for words in (("worker", "ls"), ("later", "ls")):
        done = CliRunner().invoke(main, [*words, "--url", server.url])
        assert done.exit_code == 0, done.output
