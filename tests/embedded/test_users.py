"""Uses of the engine in process: tests with a manual clock, workers in one process, and unsupported uses."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

import millstream
from flights.run import preflight
from flights.settings import DemoSettings, Keys
from millstream import App, Message, Retry, StreamSub
from millstream.cli.main import main
from millstream.errors import ConfigError
from millstream.server.thread import ServerThread
from millstream.spark.options.read import parse as parse_spark
from millstream.testing import Clock
from support.waiting import aeventually, eventually


def test_turned_clock_ends_a_wait(millstream_memory: redis.Redis, millstream_clock: Clock) -> None:
    """A read that blocks for a minute ends when the manual clock has advanced by a minute."""
    replies: list[Any] = []
    thread = threading.Thread(target=lambda: replies.append(millstream_memory.xread({"s": "$"}, block=60_000)))
    thread.start()
    eventually(lambda: millstream_memory.info("clients")["blocked_clients"] == 1, what="the reader waits")
    millstream_clock.advance(59_999)
    assert millstream_memory.info("clients")["blocked_clients"] == 1
    millstream_clock.advance(1)
    thread.join(30)
    assert not replies[0]


def test_turned_clock_is_what_clients_see(millstream_memory: redis.Redis, millstream_clock: Clock) -> None:
    """Ids, idle times and expiry follow the manual clock."""
    client = millstream_memory
    entry = client.xadd("s", {"a": "b"})
    assert entry == f"{millstream_clock.wall}-0"
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "anna", {"s": ">"})
    client.set("word", "x", ex=60)
    millstream_clock.advance(60_000)
    (row,) = client.xpending_range("s", "g", "-", "+", 10)
    assert row["time_since_delivered"] == 60_000
    assert client.get("word") == "x", "as in Redis, a key dies when its time is over, not when it has come"
    millstream_clock.advance(1)
    assert client.get("word") is None
    millstream_clock.jump(-1000)
    assert client.time() == (millstream_clock.wall // 1000, millstream_clock.wall % 1000 * 1000)


async def test_all_kinds_of_client_meet_at_the_url(millstream_url: str, millstream_memory: redis.Redis) -> None:
    """All clients of the fixture's URL share its data."""
    async with millstream.connect_async(millstream_url, decode_responses=True) as client:
        entry = await client.xadd("s", {"a": "b"})
    assert millstream_memory.xrange("s") == [(entry, {"a": "b"})]


def test_what_is_not_bytes_is_refused_as_by_a_socket(millstream_memory: redis.Redis) -> None:
    """Packed commands that are not a list of bytes are refused and do not block the connection."""
    connection = millstream_memory.connection_pool.get_connection()
    with pytest.raises(TypeError):
        connection.send_packed_command(b"*1\r\n$4\r\nPING\r\n")


def test_server_fixture_serves(millstream_server: ServerThread) -> None:
    """The server fixture provides a server on a socket."""
    with redis.Redis.from_url(millstream_server.url) as client:
        assert client.ping()


@pytest.mark.parametrize("way", ["conftest", "-p"])
def test_plugin_serves_users_tests(tmp_path: Path, way: str) -> None:
    """The plugin serves users' tests by a line in conftest.py or by a pytest option.

    An exception of a handler fails the user's test, with the handler's line.
    """
    if way == "conftest":
        (tmp_path / "conftest.py").write_text('pytest_plugins = ["millstream.testing"]\n')
    (tmp_path / "test_it.py").write_text(
        "import asyncio, pytest, millstream\n"
        "def test_memory(millstream_memory, millstream_clock):\n"
        "    millstream_memory.set('word', 'x', px=5)\n"
        "    millstream_clock.advance(6)\n"
        "    assert millstream_memory.get('word') is None\n"
        "def test_any(millstream_any_url):\n"
        "    with millstream.connect(millstream_any_url) as client:\n"
        "        assert client.dbsize() == 0\n"
        "        client.set('word', 'x')\n"
        "def test_server(millstream_server):\n"
        "    with millstream.connect(millstream_server.url) as client:\n"
        "        assert client.ping()\n"
        "async def a_number(worker, x):\n"
        "    app = millstream.App()\n"
        "    @app.subscriber(millstream.StreamSub('jobs', group='g'))\n"
        "    async def halve(x: int) -> None:\n"
        "        assert x % 2 == 0, 'an odd number'\n"
        "    async with worker(app) as broker:\n"
        "        await broker.publish('jobs', {'x': x})\n"
        "        await broker.run_until_idle()\n"
        "        assert broker.client.xpending('jobs', 'g')['pending'] == 0\n"
        "@pytest.mark.parametrize('x', [6, 7])\n"
        "def test_worker(millstream_worker, x):\n"
        "    asyncio.run(a_number(millstream_worker, x))\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", str(tmp_path)]
    words += ["-p", "millstream.testing"] if way == "-p" else []
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "1 failed, 6 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "AssertionError: an odd number" in ended.stdout


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_worker_in_one_process(tmp_path: Path, kind: str) -> None:
    """An app reads, retries, dead-letters and publishes without a server, with clients of the same process."""
    url = "memory://jobs" if kind == "memory" else tmp_path.as_uri()
    app, seen = App(url), []

    @app.subscriber(
        StreamSub("jobs", group="g", min_idle_time=200), retry=Retry(max_deliveries=2, base=0.01, jitter=False)
    )
    async def work(x: int, msg: Message) -> None:
        seen.append((x, msg.delivery_count))
        await app.publish("effects", {"x": x})
        if x == 2:
            raise ValueError("unlucky")

    with millstream.connect(url, decode_responses=True) as client:
        async with app.running():
            for number in range(4):
                client.xadd("jobs", {"x": number})

            def all_done() -> bool:
                (group,) = client.xinfo_groups("jobs")
                return bool(group["pending"] == 0 and group["lag"] == 0)

            await aeventually(all_done, what="every job is done or dead")
        assert sorted(seen) == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1)]
        assert client.xlen("effects") == 5
        assert sum(client.xlen(key) for key in client.keys("*dead*")) == 1


def test_worker_needs_a_name() -> None:
    """An app refuses ``memory://`` without a name, since only one client would see its data."""
    with pytest.raises(ConfigError, match="Give it a name, as in memory://orders"):
        _ = App("memory://").url


@pytest.mark.parametrize("url", ["memory://jobs", "file:///tmp/jobs"])
def test_processes_of_their_own_are_refused(url: str, tmp_path: Path) -> None:
    """``millstream run`` refuses a store that lives in one process, before it starts anything."""
    ended = CliRunner().invoke(main, ["run", "jobs:app", "--url", url])
    assert ended.exit_code == 2
    assert "lives in one process, and this needs several. Run `millstream serve --dir" in ended.output
    (tmp_path / "jobs.py").write_text(f"from millstream import App\napp = App({url!r})\n")
    words = [sys.executable, "-m", "millstream.worker.child", "jobs:app"]
    child = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == 78
    assert "lives in one process" in child.stderr
    with pytest.raises(ConfigError, match="lives in one process"):
        parse_spark({"url": url, "stream": "s"})


@pytest.mark.spark
def test_demo_refuses_them_too(tmp_path: Path) -> None:
    """The demo refuses a store that lives in one process."""
    with pytest.raises(ConfigError, match="lives in one process"):
        preflight(DemoSettings(tmp_path, Keys.under("x:"), 1000, "memory://jobs", kill_server=False, keep=False))
