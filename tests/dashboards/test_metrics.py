"""Each metric of a panel or an alert is exported by a worker, by pipelines or by redis_exporter."""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import yaml
from prometheus_client.parser import text_string_to_metric_families

from millstream import App, Retry, StreamSub
from millstream.dashboards.boards import BOARDS
from millstream.dashboards.catalogue import find, write_all
from millstream.pipelines.health import PipelineHealth
from millstream.server.thread import ServerThread
from millstream.worker.monitoring.health import serving
from support.needs import lacking, program
from support.ports import free_port
from support.promql import metrics_of
from support.servers import ServerProcess, millstream_server
from support.source import ROOT
from support.waiting import aeventually, eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a Millstream server with its data on disk, whose INFO shows the log."""
    with millstream_server(tmp_path) as found:
        yield found


def asked() -> set[str]:
    """Return every metric in panels, variables and rules, except those that recording rules create."""
    queries = [query for board in BOARDS for panel in board.panels for query, _ in panel.queries]
    queries += [variable.metric for board in BOARDS for variable in board.variables]
    for name in ("recording", "alerts"):
        queries += [rule["expr"] for group in yaml.safe_load(find(name).text())["groups"] for rule in group["rules"]]
    return {name for query in queries for name in metrics_of(query) if ":" not in name}


def shown(text: str) -> set[str]:
    """Return the names of the samples."""
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


@contextlib.contextmanager
def running(*words: str, log: Path) -> Iterator[None]:
    """Run a program within a ``with`` block."""
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def worker(url: str, stuck: asyncio.Event) -> AsyncIterator[int]:
    """Yield the port of a worker that handles one entry, dead-letters another, and hangs in a third."""
    app = App(url)

    @app.subscriber(StreamSub("orders", group="billing"), retry=Retry(max_deliveries=1))
    async def bill(kind: str) -> None:
        if kind == "bad":
            raise ValueError(kind)
        if kind == "endless":
            await stuck.wait()

    async with serving(app, "127.0.0.1", 0) as port, app.running(grace=1):
        await app.publish_batch("orders", [{"kind": kind} for kind in ("good", "bad", "endless")])
        await app.publish("orders", {"kind": "good"}, delay="1h")
        yield port
        stuck.set()


async def partitioned(url: str) -> str:
    """Return the metrics of an app that reads a partitioned stream."""
    app = App(url, registry=False)

    @app.subscriber(StreamSub("invoices", group="billing"))
    async def send(kind: str) -> None: ...

    await app.partition("invoices", 2, by="customer")
    async with app.running(grace=1):
        return (await app.metrics())[0].decode()


def pipelines() -> PipelineHealth:
    """Return the driver's metrics for a query that has had a batch."""
    facts = {"lag": 1, "rows": 2, "batch_ms": 3, "rows_per_second": 4.0, "total_rows": 5, "at_ms": 6}
    runner: Any = SimpleNamespace(pipeline=SimpleNamespace(name="revenue"), state="running", restarts=0)
    return PipelineHealth([runner], lambda: {"revenue": facts}, lambda: False)


def exporter() -> str:
    """Return the path of redis_exporter, which has another name in Debian."""
    found = shutil.which("redis_exporter") or shutil.which("prometheus-redis-exporter")
    return found or lacking("no redis_exporter on PATH (package prometheus-redis-exporter)")


def exported(url: str, folder: Path) -> set[str]:
    """Return the names of redis_exporter's samples for a server."""
    return shown(exposition(url, folder))


def exposition(url: str, folder: Path, *more: str) -> str:
    """Return redis_exporter's metrics for a server."""
    port = free_port()
    words = (exporter(), "-redis.addr", url, "-web.listen-address", f"127.0.0.1:{port}", *more)
    with running(*words, log=folder / f"exporter-{port}.log"):
        return eventually(lambda: fetched(f"http://127.0.0.1:{port}/metrics"), what="redis_exporter answers")


async def test_what_workers_and_pipelines_are_asked_for_is_shown(server: ServerProcess) -> None:
    """Every worker and pipeline series in a panel or a rule is exported by a worker or by pipelines."""
    async with worker(server.url, asyncio.Event()) as port:
        address = f"http://127.0.0.1:{port}/metrics"

        async def found() -> set[str]:
            text = shown(await asyncio.to_thread(fetched, address))
            wanted = {"millstream_dead_letters_total", "millstream_dead_letters_waiting", "millstream_later_waiting"}
            return text if wanted <= text else set()

        theirs = await aeventually(found)
    theirs |= shown((await pipelines().metrics())[0].decode()) | shown(await partitioned(server.url))
    ours = {name for name in asked() if name.startswith(("millstream_", "redis_stream_"))}
    assert ours - theirs == set()
    assert len(ours) > 30


@pytest.mark.parametrize("kind", ["millstream", "redis"])
def test_what_the_server_is_asked_for_redis_exporter_shows(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every server series in a panel or a rule is exported by redis_exporter, for Millstream and for Redis."""
    server: ServerProcess = request.getfixturevalue("server" if kind == "millstream" else "logging_redis")
    with server.client() as client, ServerThread() as replica, redis.Redis.from_url(replica.url) as follower:
        follower.replicaof("127.0.0.1", server.port)
        eventually(lambda: "online" in str(client.info("replication").get("slave0")), what="it has a replica")
        client.config_set("min-replicas-to-write", 2)
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            client.set("k", "v")
        found = exported(server.url, tmp_path) | exported(replica.url, tmp_path)
    theirs = {name for name in asked() if name.startswith("redis_") and not name.startswith("redis_stream_")}
    assert theirs - found == {"redis_script_values"}  # which a script makes, see below
    assert len(theirs) >= 15


def test_writes_refused_by_sync_replicas_are_counted_as_the_alert_asks(server: ServerProcess, tmp_path: Path) -> None:
    """Writes refused for lack of sync replicas are counted in the metric that the alert uses."""
    with server.client() as client:
        client.config_set("sync-replicas", 1)
        for _ in range(3):
            with pytest.raises(redis.ResponseError, match="Fewer replicas confirm writes than sync-replicas requires"):
                client.xadd("orders", {"n": 1})
    assert 'redis_errors_total{err="NOREPLICAS"} 3' in exposition(server.url, tmp_path).splitlines()


def test_a_script_shows_every_figure_of_packs(server: ServerProcess, tmp_path: Path) -> None:
    """redis_exporter has each number of INFO's section tier by the script; the page names each, and alerts no other."""
    write_all(tmp_path / "monitoring", force=False)
    script = tmp_path / "monitoring" / "prometheus" / "tier.lua"
    found = exposition(server.url, tmp_path, "-script", str(script))
    there = set(re.findall(r'^redis_script_values{[^}]*key="([a-z_0-9]+)"', found, re.MULTILINE))
    page = (ROOT / "docs" / "monitoring.md").read_text()
    with server.client() as client:
        figures = client.info("tier")
    numbers = {name for name, value in figures.items() if isinstance(value, int)}
    more = {"tier_miss_usec_p50", "tier_miss_usec_p99", "tier_spilling_fails"}
    others = {"retention_removed_entries", "retention_removed_unread", "disk_free"}
    assert numbers | more | others == there
    assert [name for name in (*figures, *others) if f"`{name}`" not in page] == []
    assert set(re.findall(r'redis_script_values{key="([a-z_0-9]+)"}', find("alerts").text())) <= there


@pytest.fixture
def logging_redis(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a redis-server that keeps a log."""
    from support.servers import redis_server

    with redis_server(tmp_path / "redis", "--appendonly", "yes") as found:
        yield found


async def test_prometheus_calls_a_stuck_handler_by_its_name(server: ServerProcess, tmp_path: Path) -> None:
    """Prometheus with the written files fires the alert for a stuck handler with its name, at a lowered limit."""
    prometheus, port = program("prometheus"), free_port()
    write_all(tmp_path, force=False)
    folder, stuck = tmp_path / "prometheus", asyncio.Event()
    alerts = (folder / "alerts.yml").read_text()
    assert "longest_run_seconds) > 900" in alerts
    (folder / "alerts.yml").write_text(alerts.replace("longest_run_seconds) > 900", "longest_run_seconds) > 0.1"))
    async with worker(server.url, stuck) as scraped:
        text = (folder / "scrape.yml").read_text().replace("localhost:9100", f"127.0.0.1:{scraped}")
        (folder / "scrape.yml").write_text(text.replace("interval: 15s", "interval: 250ms"))
        words = (f"--config.file={folder}/scrape.yml", f"--storage.tsdb.path={tmp_path}/tsdb")
        log = tmp_path / "prometheus.log"
        address = f"http://127.0.0.1:{port}/api/v1"
        with running(prometheus, *words, f"--web.listen-address=127.0.0.1:{port}", log=log):
            alert = await aeventually(lambda: _firing(address, "MillstreamHandlerStuck"), what="the alert fires")
            recorded = await aeventually(lambda: _value(address, "millstream:group_pending:entries"))
    assert {name: alert["labels"][name] for name in ("stream", "group", "severity")} == {
        "stream": "orders",
        "group": "billing",
        "severity": "warning",
    }
    assert alert["labels"]["handler"].endswith("bill")
    assert "does not come to an end" in alert["annotations"]["summary"]
    assert recorded == [{"db": "db0", "stream": "orders", "group": "billing"}, "1"]


async def _firing(address: str, name: str) -> dict[str, Any] | None:
    told = json.loads(await asyncio.to_thread(fetched, f"{address}/alerts"))
    found = [one for one in told["data"]["alerts"] if one["labels"]["alertname"] == name and one["state"] == "firing"]
    return found[0] if found else None


async def _value(address: str, query: str) -> list[Any] | None:
    """Return labels and value of the one series that exists."""
    told = json.loads(await asyncio.to_thread(fetched, f"{address}/query?query={query}"))
    for one in told["data"]["result"]:
        labels = {name: value for name, value in one["metric"].items() if name != "__name__"}
        return [labels, one["value"][1]] if one["value"][1] == "1" else None
    return None
