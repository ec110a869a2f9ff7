"""``millstream run`` with pipelines on Spark: rows in the sink, restarted queries, and their reports."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.spark.monitoring import store
from millstream.spark.monitoring.progress import lag
from support.ports import free_port
from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

APP = """
from millstream import App, Sink, Source, StreamSub

app = App()
EARLIEST = {"startingOffsets": "earliest"}


@app.subscriber(StreamSub("jobs", group="g"))
async def work(x: int) -> None:
    await app.publish("effects", {"x": x})


@app.pipeline(
    Source("orders", schema="id string, kind string", options=EARLIEST),
    sink=Sink("parquet", path="odd"),
    checkpoint="odd-checkpoint",
    trigger="200 milliseconds",
)
def odd(orders):
    return orders.where("kind = 'odd'")


@app.pipeline(Source("later", options=EARLIEST))
def later(entries):
    writer = entries.writeStream.format("parquet").option("path", "later").queryName("later")
    writer.option("checkpointLocation", "later-checkpoint").start()
"""


def ids(folder: Path) -> list[str]:
    """Return the ids in the complete files of a Parquet sink, with duplicates."""
    batches = [path for path in (folder / "_spark_metadata").glob("*") if not path.name.startswith(".")]
    lines = [line for path in batches for line in path.read_text().splitlines()[1:]]
    files = sorted({json.loads(line)["path"].removeprefix("file://") for line in lines})
    found: list[str] = ds.dataset(files).to_table(columns=["id"])["id"].to_pylist() if files else []
    return sorted(found, key=lambda ident: int(ident.partition("-")[0]))


def listed(url: str) -> dict[str, dict[str, Any]]:
    """Return ``millstream spark ls -o json`` by name."""
    result = CliRunner().invoke(main, ["spark", "ls", "-o", "json", "--url", url])
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_an_app_with_subscribers_and_pipelines(real_redis: ServerProcess, tmp_path: Path) -> None:
    """An app restarts a failed pipeline while its subscribers and other pipelines run. SIGTERM loses nothing."""
    (tmp_path / "shop.py").write_text(APP)
    port, log = free_port(2), tmp_path / "log"
    words = [str(Path(sys.executable).with_name("millstream")), "run", "shop:app", "--health-port", str(port)]
    # A query without a trigger of its own is asked for news every 10 ms, which takes a good part of a processor.
    words += ["--conf", "spark.driver.memory=700m", "--conf", "spark.sql.streaming.pollingDelay=200ms"]
    with real_redis.client(decode_responses=True) as client, log.open("w") as out:
        odd = fill(client, "orders", 500)[::2]
        client.xadd("jobs", {"x": "1"})
        env = {**os.environ, "MILLSTREAM_URL": real_redis.url}
        process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            eventually(lambda: ids(tmp_path / "odd") == odd, 200, what="the first pipeline has written")
            assert client.xlen("effects") == 1
            # Its stream is not there: the query dies, and is there again when the stream is.
            eventually(lambda: listed(real_redis.url)["later"]["state"] == "failed", 60, what="the second has died")
            assert "option 'stream': 'later' does not exist on redis://" in listed(real_redis.url)["later"]["error"]
            assert "\tat " not in log.read_text()
            more = fill(client, "later", 10)
            eventually(lambda: ids(tmp_path / "later") == more, 100, what="the second has started again")
            eventually(lambda: listed(real_redis.url)["odd"]["total_rows"] == 500, what="progress is told")
            # The history does not contain by itself the first second of a query
            eventually(
                lambda: client.xadd("later", {"n": "0"}) and ("later", "progress") in history(client), 60, what="news"
            )
            found = listed(real_redis.url)["odd"]
            assert (found["state"], found["lag"]) == ("running", 0)
            told = urllib.request.urlopen(f"http://127.0.0.1:{_driver_port(port)}/metrics").read().decode()
            assert 'millstream_pipeline_up{pipeline="odd"} 1.0' in told
            assert 'millstream_pipeline_rows_total{pipeline="odd"} 500.0' in told
            assert 'millstream_pipeline_restarts_total{pipeline="later"} 0.0' not in told
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0, log.read_text()
        finally:
            _kill(process)
        assert {row["state"] for row in listed(real_redis.url).values()} == {"stopped"}
        assert ids(tmp_path / "odd") == odd
        assert history(client) == {
            (name, event) for name in ("odd", "later") for event in ("started", "progress", "terminated")
        }


def history(client: "redis.Redis") -> set[tuple[str, str]]:
    """Return the events of each query."""
    return {(fields["name"], fields["event"]) for _, fields in client.xrange(store.PROGRESS)}


def _driver_port(port: int) -> int:
    """Return the port of the pipelines' process, after that of the only worker."""
    return port + 1


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the command alone; the end of its pipe ends the workers and the driver in their sessions."""
    process.kill()
    process.wait()


def test_a_query_without_a_driver_is_gone(real_redis: ServerProcess) -> None:
    """A query whose driver was killed is shown as gone once the driver's key expires."""
    facts = store.NEW | {"id": "q", "name": "n", "driver": "d", "at_ms": 1_000}
    with real_redis.client() as client:
        store.write(client, facts, "progress")
        client.set(store.driver_key("d"), 1)
        assert listed(real_redis.url)["n"]["state"] == "running"
        client.delete(store.driver_key("d"))
        assert listed(real_redis.url)["n"]["state"] == "gone"
        result = CliRunner().invoke(main, ["spark", "ls", "--url", real_redis.url])
        assert "gone" in result.stdout
        store.forget(client, 1_000 + store.FORGET_MS)
        assert len(store.found(client)) == 1
        store.forget(client, 1_001 + store.FORGET_MS)
        assert store.found(client) == []


def test_a_server_that_cannot_be_asked(tmp_path: Path) -> None:
    """If the server is unreachable, ``spark ls`` ends with exit code 3 and one line."""
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    result = CliRunner().invoke(main, ["spark", "ls", "--url", nowhere])
    assert result.exit_code == 3
    assert result.stderr.startswith(f"millstream spark ls: cannot connect to {nowhere}: connection refused.")
    assert result.stderr.endswith(" Start the server, or give another URL with --url, MILLSTREAM_URL or REDIS_URL.\n")
    assert CliRunner().invoke(main, ["spark", "ls", "--json", "-o", "csv"]).exit_code == 2


def test_the_lag_of_a_query() -> None:
    """A query's lag counts the added entries outside finished batches, and is unknown for other kinds of sources."""

    class Told:
        def __init__(self, end: Any, latest: Any) -> None:
            self.endOffset, self.latestOffset = json.dumps(end), json.dumps(latest)

    assert lag([Told({"a": {"n": 3}, "b": {"n": 1}}, {"a": {"n": 10}, "b": {"n": 1}})]) == 7
    assert lag([Told({"a": {"n": 3}}, {"a": {"n": 3}}), Told(5, 9)]) is None
    assert lag([Told(None, None)]) is None
