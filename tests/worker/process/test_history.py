"""A worker of ``millstream run`` writes the history of its server, unless it is told not to."""

from typing import Any

import pytest
import redis

from millstream.ops.history.model import LEASE, TEN, named, opened
from support.servers import ServerProcess
from support.waiting import eventually

pytestmark = pytest.mark.realserver

APP = """
from millstream import App, StreamSub

app = App({registry})


@app.subscriber(StreamSub("jobs", group="g"))
async def work(x: int) -> None:
    pass
"""


def test_a_worker_writes_the_history(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """A worker writes its handler's figures, and gives the lease back when it ends."""
    process = tasks.run(tasks.app(APP.format(registry="")), server.url)
    eventually(lambda: client.xlen(TEN))
    raw = redis.Redis.from_url(server.url)
    (_, fields), *_ = raw.xrange(TEN)
    lines = opened([word for pair in fields.items() for word in pair])
    raw.close()
    assert lines is not None
    assert {subject[1:] for subject in named(lines, "handler")} == {("work", "jobs", "g")}
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert not client.exists(LEASE)


@pytest.mark.parametrize(("registry", "options"), [("", ["--no-history"]), ("registry=False", [])])
def test_a_worker_writes_no_history(
    server: ServerProcess, client: redis.Redis, tasks: Any, registry: str, options: list[str]
) -> None:
    """With the option, or outside of the registry, a worker does not touch the history."""
    client.xadd("jobs", {"x": 1})
    process = tasks.run(tasks.app(APP.format(registry=registry)), server.url, *options)
    eventually(lambda: [one["last-delivered-id"] for one in client.xinfo_groups("jobs")] not in ([], ["0-0"]))
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert not client.exists(TEN)
