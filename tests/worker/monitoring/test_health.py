"""The health endpoint and the metrics report whether the worker's loop progresses, and only known facts."""

import asyncio
import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from millstream import App, Message, Nack, Reject, Retry, StreamSub
from millstream.client.delays.due import key
from millstream.worker.monitoring.health import HealthError, serving
from millstream.worker.registry import protocol
from support.clock import Ahead
from support.groups import all_done, pending, worker_ids
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import aeventually, eventually, pace


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    """Return status and body."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers), timeout=10
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def aget(port: int, path: str, **headers: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, port, path, **headers)


@asynccontextmanager
async def watched(app: App) -> AsyncIterator[int]:
    """The app at work, with its endpoint."""
    async with serving(app, "127.0.0.1", 0) as port, app.running(grace=1):
        yield port


def samples(text: str) -> dict[tuple[str, str], float]:
    """Return a mapping from name and label values to the figure, summed over duplicates."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for value in set(sample.labels.values()):  # a plain stream has its name in two labels
                found[sample.name, value] = found.get((sample.name, value), 0) + sample.value
    return found


async def test_a_worker_is_ready_while_it_reads_and_alive_while_it_tries(own_server: ServerProcess) -> None:
    """A worker is ready while it reads, and alive while it tries to connect.

    Without its server it is alive but not ready.
    """
    clock = Ahead()
    app = App(own_server.url, clock=clock)

    @app.subscriber(StreamSub("jobs", group="g", polling_interval=50))
    async def work(x: int) -> None:
        """Do nothing."""

    async with serving(app, "127.0.0.1", 0) as port:
        assert (await aget(port, "/readyz"))[0] == 503
        assert (await aget(port, "/healthz"))[0] == 200
        async with app.running():
            await aeventually(lambda: _is(port, "/readyz", 200))
            await asyncio.to_thread(own_server.kill)
            clock.ms += 11_000
            _, body = await aeventually(lambda: _is(port, "/readyz", 503))
            assert json.loads(body)["subscribers"][0]["doing"] == "unreachable"
            assert (await aget(port, "/healthz"))[0] == 200
            await asyncio.to_thread(own_server.start)
            await aeventually(lambda: _is(port, "/readyz", 200))
        assert (await aget(port, "/readyz"))[0] == 503


async def _is(port: int, path: str, status: int) -> tuple[int, str] | None:
    found = await aget(port, path)
    return found if found[0] == status else None


async def test_a_loop_that_does_not_move_on_is_unhealthy(server: ServerProcess) -> None:
    """A reader that has ended or hangs makes the worker unhealthy at once, although the server still answers PING."""
    clock = Ahead()
    app = App(server.url, clock=clock)

    @app.subscriber(StreamSub("jobs", group="g", polling_interval=50))
    async def work(x: int) -> None:
        """Do nothing."""

    async with watched(app) as port:
        await aeventually(lambda: _is(port, "/healthz", 200))
        (loop,) = app.loops
        with pytest.MonkeyPatch.context() as patch:
            hang, hangs = asyncio.Event(), asyncio.Event()

            async def read(room: int) -> list[Any]:
                hangs.set()
                await hang.wait()
                return []

            patch.setattr(loop.fetcher, "read", read)
            await hangs.wait()
            clock.ms += 76_000
            _, body = await aeventually(lambda: _is(port, "/healthz", 503))
            assert json.loads(body)["subscribers"][0]["doing"] == "stuck"
        hang.set()
        await aeventually(lambda: _is(port, "/healthz", 200))
        renewal = type(loop.common.leases).run.__qualname__
        next(task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == renewal).cancel()
        _, body = await aeventually(lambda: _is(port, "/healthz", 503))
        assert json.loads(body)["subscribers"][0]["doing"] == "failed"


async def test_long_jobs_and_pauses_are_no_illness(
    server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with all lanes busy or a paused group is alive and ready. A worker set to quiet is not ready."""
    monkeypatch.setattr(protocol, "BEAT", 0.05)
    clock, go = Ahead(), asyncio.Event()
    app = App(server.url, clock=clock)

    @app.subscriber(StreamSub("jobs", group="g", max_records=2, polling_interval=50), concurrency=1)
    async def work(x: int) -> None:
        await go.wait()

    async with watched(app) as port:
        await app.publish_batch("jobs", [{"x": x} for x in range(4)])
        await aeventually(lambda: _doing(app, "full", 0))
        clock.ms += 80_000
        assert _doing(app, "full", 79_000)
        assert [(await aget(port, path))[0] for path in ("/healthz", "/readyz")] == [200, 200]
        client.hset(protocol.CONTROL, protocol.pause_field("jobs", "g"), '{"reason":"r","by":"b","at_ms":1}')
        await aeventually(lambda: _doing(app, "paused", 0))
        clock.ms += 80_000
        assert _doing(app, "paused", 79_000)
        assert [(await aget(port, path))[0] for path in ("/healthz", "/readyz")] == [200, 200]
        client.hset(protocol.CONTROL, protocol.order_field(worker_ids(client)[0]), "quiet")
        await aeventually(lambda: app.state == "quiet")
        assert [(await aget(port, path))[0] for path in ("/healthz", "/readyz")] == [200, 503]
        go.set()


def _doing(app: App, doing: str, idle_ms: int) -> bool:
    (progress,) = app.progress()
    return progress.doing == doing and progress.idle_ms > idle_ms


async def test_what_is_delayed_is_counted_and_makes_no_age(server: ServerProcess, client: redis.Redis) -> None:
    """A delayed retry counts as pending and as delayed, but not in the age of the oldest pending entry."""
    app = App(server.url)

    @app.subscriber(StreamSub("jobs", group="g"), retry=Retry(base="1h"))
    async def work() -> None:
        raise ValueError("later")

    client.xadd("jobs", {"x": 1}, id="1700000000000-0")
    async with watched(app) as port:
        await aeventually(lambda: client.exists(key("jobs", "g")))
        found = samples((await aget(port, "/metrics"))[1])
        assert found["redis_stream_group_messages_pending", "g"] == 1
        assert found["millstream_stream_group_delayed_messages", "g"] == 1
        assert found["millstream_stream_group_oldest_pending_age_seconds", "g"] == 0
        client.delete(key("jobs", "g"))
        found = samples((await aget(port, "/metrics"))[1])
        assert found["millstream_stream_group_delayed_messages", "g"] == 0
        assert found["millstream_stream_group_oldest_pending_age_seconds", "g"] > 0


async def test_metrics_count_what_happened_and_leave_out_what_is_not_known(
    server: ServerProcess, client: redis.Redis
) -> None:
    """Metrics count events of the process and give the group's state.

    A lag that the server cannot give is absent, not 0.
    """
    app, go = App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("jobs", group="g"), retry=Retry(max_deliveries=1), concurrency=2)
    async def work(x: int) -> None:
        if x == 13:
            raise Reject("unlucky")
        if x == 99:
            await go.wait()

    @app.subscriber(StreamSub("far", group="h"))
    async def far(x: int) -> None:
        """Do nothing, as this group is paused to keep its lag."""

    for x in (1, 2, 3):
        client.xadd("far", {"x": x}, id=f"{x}-0")
    client.xdel("far", "2-0")  # a gap ahead of the group: how many are left cannot be told from the counters
    client.xgroup_create("far", "h", "1-0")
    client.hset(protocol.CONTROL, protocol.pause_field("far", "h"), "{}")
    async with watched(app) as port:
        await app.publish_batch("jobs", [{"x": x} for x in (1, 2, 13)])
        await aeventually(all_done(client, "jobs", "g"))
        found = samples((await aget(port, "/metrics"))[1])
        assert found["millstream_deliveries_total", "acked"] == 2
        assert found["millstream_deliveries_total", "dead"] == 1
        assert found["millstream_dead_letters_total", "reject"] == 1
        assert found["millstream_handler_runs_total", "ok"] == 2
        assert found["millstream_entries_received_total", "new"] == 3
        assert found["redis_stream_length", "jobs"] == 3
        assert found["millstream_dead_letters_waiting", "jobs:dead"] == 1
        assert found["redis_stream_group_lag", "g"] == 0
        assert found["millstream_stream_group_lag_known", "g"] == 1
        assert ("redis_stream_group_lag", "h") not in found
        assert found["millstream_stream_group_lag_known", "h"] == 0
        assert found["redis_stream_group_messages_pending", "g"] == 0
        assert found["millstream_stream_group_oldest_pending_age_seconds", "g"] == 0
        await app.publish("jobs", {"x": 99})
        await aeventually(lambda: len(pending(client, "jobs", "g")) == 1)
        found = samples((await aget(port, "/metrics"))[1])
        assert found["redis_stream_group_messages_pending", "g"] == 1
        assert found["millstream_stream_group_oldest_pending_age_seconds", "g"] > 0
        assert found["millstream_worker_in_hand", "g"] == 1
        status, text = await aget(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert status == 200
        assert text.endswith("# EOF\n")
        assert 'millstream_build_info{version="' in text
        go.set()


SINCE = 10**12
"""Base of the entry ids below, in milliseconds, so that they are times."""


@pytest.fixture
def behind(client: redis.Redis) -> int:
    """A stream ``far`` with a paused group ``h`` that lags; returns the number of pending entries without an owner."""
    for ms in range(SINCE + 1000, SINCE + 5000, 1000):
        client.xadd("far", {"x": ms}, id=f"{ms}-1")
    client.xgroup_create("far", "h", "0")
    client.xreadgroup("h", "elsewhere", {"far": ">"}, count=2)
    client.xgroup_createconsumer("far", "h", b"\xff")
    client.xdel(
        "far", f"{SINCE + 3000}-1"
    )  # a gap ahead of the group: how many are left cannot be told from the counters
    client.hset(protocol.CONTROL, protocol.pause_field("far", "h"), "{}")
    try:
        return int(client.execute_command("XNACK", "far", "h", "FAIL", "IDS", 1, f"{SINCE + 1000}-1"))
    except redis.ResponseError:
        return 0  # a server without XNACK: every pending entry has an owner


async def test_metrics_have_redis_exporters_names(server: ServerProcess, behind: int) -> None:
    """Stream, group and consumer metrics have the names that redis_exporter uses.

    Ids are given by their milliseconds.
    """
    app = App(server.url)

    @app.subscriber(StreamSub("far", group="h"))
    async def far(x: int) -> None:
        """Do nothing, as the group is paused."""

    async with watched(app) as port:
        found = samples((await aget(port, "/metrics"))[1])
        assert {name: found[f"redis_stream_{name}", "far"] for name in _STREAM} == _STREAM
        assert found["redis_stream_radix_tree_keys", "far"] >= 1
        assert found["redis_stream_radix_tree_nodes", "far"] >= 1
        assert found["redis_stream_group_last_delivered_id", "h"] == SINCE + 2000
        assert found["redis_stream_group_entries_read", "h"] == 2
        assert found["redis_stream_group_messages_pending", "h"] == 2
        assert found["millstream_stream_group_unowned_messages", "h"] == behind
        assert found["redis_stream_group_consumer_messages_pending", "elsewhere"] == 2 - behind
        assert found["redis_stream_group_consumer_messages_pending", r"\xff"] == 0
        assert found["redis_stream_group_consumer_idle_seconds", "elsewhere"] >= 0
        assert ("redis_stream_group_lag", "h") not in found
        pending, undelivered = (
            found[f"millstream_stream_group_oldest_{name}_age_seconds", "h"] for name in ("pending", "undelivered")
        )
        assert 2.9 < pending - undelivered < 3.1  # the first and the fourth; the third is gone
        _, text = await aget(port, "/metrics?consumers=off")
        assert "redis_stream_group_consumers{" in text
        assert "redis_stream_group_consumer_" not in text
        status, text = await aget(port, "/metrics?consumers=no")
        assert status == 400
        assert "on (series for each consumer, the default) or off" in text


async def test_entries_whose_ids_are_no_times_have_no_age(server: ServerProcess, client: redis.Redis) -> None:
    """Entry ids that are not times give no age metric."""
    for number in range(1, 4):
        client.xadd("far", {"x": number}, id=f"{number}-0")
    client.xgroup_create("far", "h", "0")
    client.xreadgroup("h", "elsewhere", {"far": ">"}, count=2)
    app = App(server.url)

    @app.subscriber(StreamSub("far", group="h", min_idle_time=3_600_000))
    async def far(x: int) -> None:
        """Do nothing with new entries."""

    client.hset(protocol.CONTROL, protocol.pause_field("far", "h"), "{}")
    async with watched(app) as port:
        found = samples((await aget(port, "/metrics"))[1])
    assert found["redis_stream_group_messages_pending", "h"] == 2
    assert not [name for name, _ in found if "_age_seconds" in name]


_STREAM = {
    "length": 3,
    "entries_added_total": 4,
    "groups": 1,
    "first_entry_id": SINCE + 1000,
    "last_entry_id": SINCE + 4000,
    "last_generated_id": SINCE + 4000,
    "max_deleted_entry_id": SINCE + 3000,
}


async def test_what_the_server_does_not_tell_is_absent(server: ServerProcess, client: redis.Redis, behind: int) -> None:
    """A metric without a value is absent, such as the first entry of an empty stream or an age that may not be read."""
    client.acl_setuser("blind", enabled=True, passwords=["+p"], keys=["*"], commands=["+@all", "-xrange"])
    app = App(server.url.replace("://", "://blind:p@"))

    @app.subscriber(StreamSub("far", group="h"))
    async def far(x: int) -> None:
        """Do nothing, as the group is paused."""

    @app.subscriber(StreamSub("empty", group="h"))
    async def empty(x: int) -> None:
        """Do nothing, as no entry arrives."""

    try:
        async with watched(app) as port:
            _, text = await aget(port, "/metrics")
            age = "millstream_stream_group_oldest_undelivered_age_seconds"
            assert f'{age}{{db="db0",group="h",stream="far"}}' not in text
            assert f'{age}{{db="db0",group="h",logical="empty",stream="empty"}} 0.0' in text
            found = samples(text)
            assert found["redis_stream_length", "empty"] == 0
            assert found["redis_stream_last_generated_id", "empty"] == 0
            assert ("redis_stream_first_entry_id", "empty") not in found
            assert ("redis_stream_last_entry_id", "empty") not in found
            client.delete("empty")
            client.set("empty", "no stream")
            found = samples((await aget(port, "/metrics"))[1])
            assert ("redis_stream_length", "empty") not in found
            assert found["redis_stream_length", "far"] == 3
    finally:
        client.acl_deluser("blind")


async def test_groups_of_one_stream_give_its_series_once(server: ServerProcess, client: redis.Redis) -> None:
    """A scrape has each series once, also if subscribers share a stream or a dead letter stream."""
    app = App(server.url)

    for stream, group in (("jobs", "g"), ("jobs", "h"), ("more", "g")):

        @app.subscriber(StreamSub(stream, group=group), dead="dead")
        async def work(x: int) -> None:
            """Do nothing."""

    async with watched(app) as port:
        _, text = await aget(port, "/metrics")
        series = [line.rpartition(" ")[0] for line in text.splitlines() if line.startswith(("redis_", "millstream_"))]
        assert len(series) > 50
        assert sorted(set(series)) == sorted(series)


@pytest.mark.parametrize("batch", [False, True])
async def test_runs_are_measured_from_the_first_scrape_on(
    server: ServerProcess, client: redis.Redis, batch: bool
) -> None:
    """Outside the registry, successful and failed runs are counted in their buckets from the first scrape on.

    A batch is one run.
    """
    app = App(server.url, registry=False)

    async def work(x: Any) -> None:
        if 13 in (x if batch else [x]):
            raise Reject("unlucky")
        await pace(0.03)  # stands for work

    app.subscriber(StreamSub("jobs", group="g"), batch=batch, concurrency=1)(_listed(work) if batch else _single(work))
    async with watched(app) as port:
        await app.publish("jobs", {"x": 1})
        await aeventually(all_done(client, "jobs", "g"))
        name = "millstream_handler_duration_seconds"
        assert samples((await aget(port, "/metrics"))[1])[f"{name}_count", "g"] == 0
        await app.publish("jobs", {"x": 1})
        await aeventually(all_done(client, "jobs", "g"))
        await app.publish("jobs", {"x": 13})
        await aeventually(all_done(client, "jobs", "g"))
        found = samples((await aget(port, "/metrics"))[1])
        assert found[f"{name}_count", "g"] == 2
        assert found[f"{name}_sum", "g"] >= 0.03
        assert found[f"{name}_bucket", "0.025"] <= 1
        assert found[f"{name}_bucket", "+Inf"] == 2


def _single(work: Any) -> Any:
    async def run(x: int) -> None:
        await work(x)

    return run


def _listed(work: Any) -> Any:
    async def run(x: list[int]) -> None:
        await work(x)

    return run


async def test_a_run_is_as_old_as_the_first_scrape_that_saw_it(server: ServerProcess, client: redis.Redis) -> None:
    """The longest-run metric counts from the first scrape that saw the run until it ends. A redelivery is a new run."""
    clock, first, second = Ahead(), asyncio.Event(), asyncio.Event()
    app, begun = App(server.url, clock=clock), []

    @app.subscriber(StreamSub("jobs", group="g"), retry=Retry(base=0))
    async def work(msg: Message) -> None:
        begun.append(msg.delivery_count)
        if msg.delivery_count == 1:
            await first.wait()
            raise Nack
        await second.wait()

    async def longest(port: int) -> float:
        return samples((await aget(port, "/metrics"))[1])["millstream_worker_longest_run_seconds", "g"]

    async with watched(app) as port:
        assert await longest(port) == 0
        await app.publish("jobs", {"x": 1})
        await aeventually(lambda: begun == [1])
        await longest(port)
        clock.ms += 1_000_000
        assert await longest(port) >= 1_000
        first.set()
        await aeventually(lambda: begun == [1, 2])
        assert await longest(port) < 1_000
        second.set()
        await aeventually(all_done(client, "jobs", "g"))
        assert await longest(port) == 0


async def test_the_endpoint_answers_only_what_it_knows(server: ServerProcess, monkeypatch: Any) -> None:
    """The health endpoint refuses other paths and methods.

    Without prometheus-client, /metrics names the package to install.
    """
    app = App(server.url)
    async with serving(app, "127.0.0.1", 0) as port:
        assert (await aget(port, "/"))[0] == 404
        assert (await aget(port, "/healthz?x=1"))[0] == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /healthz HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 405 ")
        writer.close()
        await writer.wait_closed()
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        status, text = await aget(port, "/metrics")
        assert status == 501
        assert "millstream[metrics]" in text
        with pytest.raises(HealthError, match="cannot answer at"):
            async with serving(app, "127.0.0.1", port):
                pass


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST.:9100", 200),
        ("app.localhost", 200),
        ("127.0.0.1:9100", 200),
        ("[::1]:9100", 200),
        ("10.1.2.3", 200),
        (socket.gethostname(), 200),
        ("worker.jobs.svc:9100", 200),
        ("", 200),
        ("evil.example", 403),
        ("evil.example:9100", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("[evil.example]", 403),
    ],
)
async def test_the_endpoint_answers_only_requests_for_itself(
    server: ServerProcess, host: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The health endpoint refuses requests with a foreign Host header, as in DNS rebinding."""
    app = App(server.url)
    async with serving(app, "127.0.0.1", 0, ["worker.jobs.svc"]) as port:
        for path in ("/healthz", "/readyz", "/metrics", "/"):
            found, body = await aget(port, path, Host=host)
            assert (found == 403) is (status == 403), (path, found)
        if status == 403:
            assert "--health-allow" in body
            assert "subscribers" not in body
    # logged once, as a scraper with another host name sees no data
    assert [f"asked as {host!r}" in record.getMessage() for record in caplog.records] == [True] * (status == 403)


@pytest.mark.either_server
def test_allowed_names_reach_the_workers_of_run(server: ServerProcess, tasks: Any) -> None:
    """``millstream run --health-allow`` applies to its worker processes."""
    target = tasks.app(
        "from millstream import App\napp = App()\n@app.subscriber('jobs')\nasync def work(x: int): ...\n"
    )
    port = free_port()
    tasks.run(target, server.url, "--health-port", str(port), "--health-allow", "worker.jobs.svc")
    eventually(lambda: get(port, "/readyz", Host="worker.jobs.svc")[0] == 200)
    assert get(port, "/readyz", Host="evil.example")[0] == 403


@pytest.mark.either_server
def test_each_worker_of_run_has_its_own_port(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """Two workers of ``millstream run`` have two health ports. A port that is in use ends it with code 78."""
    target = tasks.app(
        "from millstream import App\napp = App()\n@app.subscriber('jobs')\nasync def work(x: int) -> None: ...\n"
    )
    port = free_port(2)
    running = tasks.run(target, server.url, "--workers", "2", "--health-port", str(port))
    eventually(lambda: get(port, "/readyz")[0] == 200 and get(port + 1, "/readyz")[0] == 200)
    taken = tasks.run(target, server.url, "--health-port", str(port))
    out, _ = taken.communicate(timeout=60)
    assert taken.returncode == 78, out
    assert "--health-port" in out
    running.terminate()
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
