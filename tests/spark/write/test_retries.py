"""Retried tasks, and tasks with two copies at once: each row is in the sink once.

Plain ``local[2]`` has neither. In ``local[2,4]`` and on clusters a task is retried. Only on clusters does Spark start
a second copy of a slow task (speculation), and only on another host: hence the two addresses of this machine.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import redis

from support.servers import ServerProcess, free_port
from support.streams import ODD, fill_shaped
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

DRIVER = Path(__file__).with_name("retried_driver.py")
COUNT = 12_000
LAST = 3
"""The partition that runs as two copies."""


def drive(server: ServerProcess, folder: Path, master: str, *kinds: str) -> None:
    """Run the driver to its end."""
    words = [sys.executable, str(DRIVER), server.url, str(folder), master, *kinds]
    log = folder / "driver.log"
    with log.open("wb") as out:
        driver = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            code = driver.wait(timeout=900)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    assert code == 0, log.read_text(errors="replace")[-3000:]


def attempts(folder: Path, kind: str, sink: str) -> dict[str, list[str]]:
    """Return the recorded events of the attempts, ``part-attempt-event``, with the rows by then, in order."""
    notes = folder / f"{kind}-{sink}" / "attempts"
    return {path.name: json.loads(path.read_text()) for path in notes.iterdir() if path.is_file()}


def each_once(client: redis.Redis, folder: Path, kind: str) -> None:
    """Assert that both sinks have every row once, and that nothing of failed attempts is left."""
    import pyarrow.parquet as pq

    out = folder / f"{kind}-parquet" / "out"
    names = [json.loads(line)["path"] for line in (out / "_spark_metadata" / "0").read_text().splitlines()[1:]]
    rows = [int(n) for name in names for n in pq.read_table(out / Path(name).name).column("n").to_pylist()]
    assert sorted(rows) == list(range(1, COUNT + 1))
    added = [int(fields["n"]) for _, fields in client.xrange(f"out-{kind}")]
    assert sorted(added) == list(range(1, COUNT + 1))
    assert client.keys("millstream:*staged*") == []


def was_tried_again(folder: Path) -> None:
    """Assert that in both queries a worker died amid its rows, and the second attempt began with the same rows."""
    for sink in ("parquet", "stream"):
        found = attempts(folder, "kill", sink)
        first, second = found["0-0-killed"], found["0-1-read"]
        assert 0 < len(first) < len(second)
        assert second[: len(first)] == first
        assert "0-0-read" not in found, "the worker lived on"


def was_run_twice(folder: Path) -> None:
    """Assert that in both queries two attempts of one task had all of its rows, and neither failed."""
    for sink in ("parquet", "stream"):
        found = attempts(folder, "copy", sink)
        assert found[f"{LAST}-0-read"]
        assert found[f"{LAST}-1-read"] == found[f"{LAST}-0-read"]


@pytest.mark.timeout(900)
def test_a_worker_that_dies_amid_its_rows(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """If a Python worker dies amid its rows, Spark retries its task, and each row is written once."""
    fill_shaped(client, "s", COUNT, ODD)
    drive(real_redis, tmp_path, "local[2,4]", "kill")
    was_tried_again(tmp_path)
    each_once(client, tmp_path, "kill")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_worker_of_a_cluster_dies_amid_its_rows(
    real_redis: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If a worker of a separate executor dies amid its rows, its task is retried and each row is written once."""
    fill_shaped(client, "s", COUNT, ODD)
    drive(real_redis, tmp_path, "local-cluster[2,1,1024]", "kill")
    was_tried_again(tmp_path)
    each_once(client, tmp_path, "kill")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_copies_of_a_task_at_once(real_redis: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """If two executors finish copies of one task at once, the rows of only one copy count."""
    fill_shaped(client, "s", COUNT, ODD)
    with cluster(tmp_path) as master:
        drive(real_redis, tmp_path, master, "copy")
    was_run_twice(tmp_path)
    each_once(client, tmp_path, "copy")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Yield the URL of a master with two one-core workers on 127.0.0.1 and 127.0.0.2."""
    import pyspark

    from millstream.spark.sessions.local import worker_python

    env = os.environ | {"PYSPARK_PYTHON": worker_python(), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    env["SPARK_WORKER_DIR"] = str(folder / "work")
    script = Path(pyspark.__file__).with_name("bin") / "spark-class"
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    own = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    commands = [["org.apache.spark.deploy.master.Master", *own]]
    for host in ("127.0.0.1", "127.0.0.2"):
        words = ["--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", url]
        commands.append(["org.apache.spark.deploy.worker.Worker", *words])
    log = folder / "cluster.log"
    running: list[subprocess.Popen[bytes]] = []
    with log.open("ab") as out:
        try:
            running += [_started([str(script), *words], out, env) for words in commands]
            eventually(lambda: log.read_text().count("Registering worker") == 2, 240, what="both workers are there")
            yield url
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=30)


def _started(words: list[str], out: IO[bytes], env: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)
