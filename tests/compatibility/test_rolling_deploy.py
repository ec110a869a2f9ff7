"""Workers of the version before jobs and partitions run beside present ones, and a deploy can be taken back."""

import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App
from millstream.client.partitions.layout import parse_layout
from millstream.errors import UsageError
from support import needs
from support.servers import ServerProcess, redis_server
from support.waiting import aeventually, eventually
from worker.conftest import Tasks

BEFORE = "9982364e"  # The commit before delayed publishes, schedules, limits, results and partitions
ROOT = Path(__file__).parents[2]
APP = """
import os, time
import redis
from millstream import App, Message, Nack, Retry, StreamSub

app = App(reap_after=None)
seen = redis.Redis.from_url(os.environ["MILLSTREAM_URL"])

@app.subscriber(StreamSub("jobs", group="g", min_idle_time="1s"), retry=Retry(max_deliveries=0, base=0.05))
async def handle(fields: dict[str, str], msg: Message) -> str:
    name = fields["name"]
    seen.rpush("seen:" + name, os.environ["VERSION"])
    if fields.get("do") == "wait" and msg.delivery_count == 1:
        raise Nack(delay=3)
    seen.hset("fields", name, " ".join(sorted(fields)))
    seen.rpush("done:" + fields.get("customer", ""), name)
    return name
"""

pytestmark = [pytest.mark.long, pytest.mark.realserver]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source of the version before, from git."""
    found = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        needs.lacking(f"no commit {BEFORE}: the tests need the whole history")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Deploy:
    """Workers of both versions on one server."""

    def __init__(self, server: ServerProcess, tasks: Tasks, before: Path) -> None:
        self.server, self.tasks, self.before = server, tasks, before
        self.target = tasks.app(APP)
        self.client: Any = server.client(decode_responses=True)
        self.app = App(server.url, registry=False)

    def old(self) -> "subprocess.Popen[str]":
        """Start a worker of the version before."""
        sources = {"PYTHONPATH": str(self.before), "MILLSTREAM_CORE": "python"}
        return self.tasks.worker(self.target, self.server.url, VERSION="old", **sources)

    def new(self) -> "subprocess.Popen[str]":
        """Start a worker of the present version."""
        return self.tasks.worker(self.target, self.server.url, VERSION="new")

    @staticmethod
    def stop(worker: "subprocess.Popen[str]") -> None:
        """Stop a worker in an orderly way."""
        worker.terminate()
        assert worker.wait(timeout=60) == 0

    def runs(self, name: str) -> list[str]:
        """Return the versions that ran an entry."""
        found: list[str] = self.client.lrange(f"seen:{name}", 0, -1)
        return found

    def now(self) -> float:
        """Return the server's time."""
        seconds, micros = self.client.time()
        return float(seconds) + float(micros) / 1e6

    def pending(self, stream: str = "jobs") -> int:
        """Return the number of pending entries."""
        return int(self.client.xpending(stream, "g")["pending"])


@pytest.fixture
def deploy(tmp_path: Path, before: Path) -> Iterator[Deploy]:
    """Return the two versions over an empty redis-server."""
    tasks = Tasks(tmp_path, tmp_path / "out.txt")
    with redis_server(tmp_path / "server") as server:
        found = Deploy(server, tasks, before)
        yield found
        tasks.end()
        found.client.close()


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")], ids=["deploy", "taken back"])
async def test_a_delay_holds_across_versions(deploy: Deploy, order: tuple[str, str]) -> None:
    """An entry that one version delayed is run by the other, and not before it is due."""
    start = {"old": deploy.old, "new": deploy.new}
    first = start[order[0]]()
    names = [f"n{at}" for at in range(10)]
    await deploy.app.publish_batch("jobs", [{"name": name, "do": "wait"} for name in names])
    await aeventually(lambda: all(deploy.runs(name) for name in names))
    last = deploy.now()
    deploy.stop(first)
    begun = deploy.now()
    assert all(deploy.runs(name) == [order[0]] for name in names) or begun - last > 2
    start[order[1]]()
    await aeventually(lambda: deploy.client.llen("done:") == len(names))
    # The first entry may have been delayed a moment before the last one was seen
    assert deploy.now() - last > 2.5
    assert all(deploy.runs(name) == list(order) for name in names)
    await aeventually(lambda: deploy.pending() == 0)
    await deploy.app.close()


async def test_a_schedule_waits_for_a_present_worker(deploy: Deploy) -> None:
    """Old workers leave due entries alone. A present worker adds each once, and workers of both versions run them."""
    old = deploy.old()
    for at in range(20):
        await deploy.app.publish("jobs", {"name": f"n{at}"}, delay=0.1)
    await deploy.app.publish("jobs", {"name": "plain"})
    await aeventually(lambda: deploy.runs("plain") == ["old"])
    begun = deploy.now()
    await aeventually(lambda: deploy.now() > begun + 2)
    assert len([one async for one in deploy.app.later.list("jobs")]) == 20
    new = deploy.new()
    await aeventually(lambda: deploy.client.llen("done:") == 21)
    assert all(len(deploy.runs(f"n{at}")) == 1 for at in range(20))
    # The deploy is taken back: what waits is kept, and the next present worker adds it
    await deploy.app.publish("jobs", {"name": "kept"}, delay=1, id="kept")
    deploy.stop(new)
    await deploy.app.publish("jobs", {"name": "back"})
    await aeventually(lambda: deploy.runs("back") == ["old"])
    deploy.stop(old)
    deploy.new()
    await aeventually(lambda: deploy.runs("kept") == ["new"])
    assert [one async for one in deploy.app.later.list("jobs")] == []
    await deploy.app.close()


async def test_an_old_worker_passes_on_the_field_of_a_job(deploy: Deploy) -> None:
    """An old worker shows its handler ``_job`` and keeps no result; a present one hides it and keeps the result."""
    old = deploy.old()
    job = await deploy.app.publish("jobs", {"name": "first"}, result="1h")
    await aeventually(lambda: deploy.client.hget("fields", "first") == "_job name")
    await aeventually(lambda: deploy.pending() == 0)
    with pytest.raises(UsageError, match="has no result"):
        await job.result(timeout="60s")
    deploy.stop(old)
    deploy.new()
    job = await deploy.app.publish("jobs", {"name": "second"}, result="1h")
    assert await job.result(timeout="30s") == "second"
    assert deploy.client.hget("fields", "second") == "name"
    await deploy.app.close()


async def test_an_old_worker_drains_the_plain_stream(deploy: Deploy) -> None:
    """While a stream is divided, an old worker handles what it holds, and nothing of the partitions is lost."""
    old = deploy.old()

    async def publish(begin: int, end: int) -> None:
        for at in range(begin, end):
            await deploy.app.publish("jobs", {"name": f"n{at}", "customer": f"c{at % 5}"})

    await publish(0, 50)
    await aeventually(lambda: deploy.runs("n0") == ["old"])
    await deploy.app.repartition("jobs", 4, by="customer")
    with pytest.raises(redis.ResponseError, match="exhausted"):
        deploy.client.xadd("jobs", {"name": "foreign"})
    await publish(50, 100)
    new = deploy.new()
    await aeventually(lambda: all(deploy.runs(f"n{at}") for at in range(100)))
    assert all("new" in deploy.runs(f"n{at}") for at in range(50, 100))
    for customer in range(5):
        done = [int(name[1:]) for name in deploy.client.lrange(f"done:c{customer}", 0, -1)]
        assert [at for at in done if at >= 50] == list(range(50 + customer, 100, 5))
    # The deploy is taken back: entries wait in their partitions until a present worker is there
    deploy.stop(new)
    await publish(100, 110)
    begun = deploy.now()
    await aeventually(lambda: deploy.now() > begun + 2)
    assert not any(deploy.runs(f"n{at}") for at in range(100, 110))
    assert old.poll() is None
    deploy.new()
    await aeventually(lambda: all(deploy.runs(f"n{at}") == ["new"] for at in range(100, 110)))
    layout = parse_layout("jobs", deploy.client.get("millstream:{jobs}:partitions").encode())
    assert layout is not None
    eventually(lambda: not any(deploy.pending(key) for key in ("jobs", *layout.keys)), what="nothing is pending")
    await deploy.app.close()
