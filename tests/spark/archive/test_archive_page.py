"""``docs/archive.md``: every block on the page runs in order."""

import os
import re
import shlex
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.spark.archiving.directory import Folder
from support.archives import held
from support.partitioned import partition
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

MARCH = 1_772_359_200_000
"""2026-03-01 10:00."""


def run(line: str) -> None:
    """Run a command of the page and require exit code 0."""
    done = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
    assert done.exit_code == 0, (line, done.output)


def run_until_trimmed(line: str, client: redis.Redis) -> None:
    """Run the command until the streams are empty, then end it with SIGTERM."""

    def end() -> None:
        eventually(lambda: client.xlen("orders") == client.xlen("refunds") == 0, 300, what="the streams are trimmed")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    run(line)
    thread.join()


@pytest.mark.timeout(600)
def test_everything_on_the_page_runs(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", tmp_path: Path
) -> None:
    """The page's commands archive once or until SIGTERM, also from Python, read the stream and replay in three ways."""
    text = (ROOT / "docs/archive.md").read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "", "sh", "sh"], "one of these is not run here"
    texts = {"/data": str(tmp_path), "redis://127.0.0.1:6400/0": real_redis.url}
    texts["redis://test:6379/0"] = real_redis.url.replace("/0", "/1")

    def here(block: str) -> str:
        for printed, own in texts.items():
            block = block.replace(printed, own)
        return block

    def add(stream: str, count: int, first: int) -> None:
        for number in range(first, first + count):
            client.xadd(stream, {"item": ("tea", "jam")[number % 2], "n": number}, id=f"{MARCH + 10 * number}-0")

    add("orders", 20, 0)
    add("refunds", 10, 0)
    until_asked, once, dry = here(blocks[0][1]).splitlines()
    run(dry)
    assert (list(tmp_path.iterdir()), client.xlen("orders")) == ([], 20)
    run(once)
    assert len(held(tmp_path / "archive", "orders")) == 20
    run_until_trimmed(until_asked, client)
    assert len(held(tmp_path / "archive", "refunds")) == 10
    (from_python,) = re.findall(r"`(millstream\.spark\.archive\([^`]*\))`", text)
    add("orders", 5, 20)
    names: dict[str, Any] = {"spark": spark}
    exec(f"import millstream.spark\n{here(from_python)}", names)
    assert (len(held(tmp_path / "archive", "orders")), client.xlen("orders")) == (25, 0)
    add("orders", 5, 25)
    exec(here(blocks[1][1]), names)
    assert names["orders"].count() == 30
    paths = re.findall(r"^/data/archive/(\S+)", blocks[2][1], re.MULTILINE)
    assert paths[0] == "_manifest.json"
    shape = re.compile(
        re.sub(r"[0-9a-f]{8}-\d{6}-[0-9a-f]{16}", r"[0-9a-f]{8}-\\d{6}(-merged)?-[0-9a-f]{16}", paths[1])
    )
    files = [file for file in Folder(tmp_path / "archive").read().files if file.stream == "orders"]
    assert all(shape.fullmatch(file.path) for file in files), files
    partition(real_redis.url, "clicks", 2)
    add("clicks{1}", 3, 0)
    run(here(blocks[3][1]))
    assert len(held(tmp_path / "archive", "clicks{1}")) == 3
    again, since, fast = here(blocks[4][1]).splitlines()
    other = redis.Redis.from_url(texts["redis://test:6379/0"], decode_responses=True)
    with other:
        for line, where, stream, count in ((again, client, "orders:again", 25), (since, other, "orders", 25)):
            run(line)
            assert where.xlen(stream) == count
        other.flushdb()
        run(fast)
        assert [fields["item"] for _, fields in other.xrange("orders")] == ["tea"] * 2
