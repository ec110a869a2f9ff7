"""``docs/lake.md``: every line and block on the page runs, and the tools read exactly the stream's entries."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from support.lake import connected
from support.readme import blocks
from support.servers import ServerProcess
from support.source import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

PAGE = "docs/lake.md"


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_everything_on_the_page_runs(
    real_redis: ServerProcess,
    client: redis.Redis,
    spark: "SparkSession",
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After the page's commands archive in Spark, DuckDB, Polars, pandas, pyarrow and Spark return the same totals."""
    for number in range(40):
        client.xadd("orders", {"item": f"tea{number % 3}", "qty": number}, id=f"{1_700_000_000_000 + number}-0")

    def here(text: str) -> str:
        return text.replace("/data", str(tmp_path)).replace("redis://127.0.0.1:6400/0", real_redis.url)

    languages = re.findall(r"^```(\w+)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert sorted(languages) == ["python", "python", "python", "sh", "sql"], "one of these is not run here"
    expected = (40, sum(range(40)))
    commands = [
        line for text in blocks("sh", page=PAGE) for line in text.splitlines() if line.startswith("millstream archive")
    ]
    assert len(commands) == 3
    for line in commands:
        done = CliRunner().invoke(main, shlex.split(here(line))[1:])
        assert done.exit_code == 0, done.output
    assert client.xlen("orders") == 0
    (statements,) = blocks("sql", page=PAGE)
    for statement in here(statements).strip().splitlines():
        assert connected().sql(statement).fetchone() == expected, statement
    names: dict[str, Any] = {}
    for text in blocks("python", page=PAGE):
        exec(compile(here(text), PAGE, "exec"), names)
        for name in ("plain", "plain_arrow", "delta", "delta_arrow", "ice", "ice_polars"):
            if (frame := names.pop(name, None)) is not None:
                rows = frame["qty"].to_list() if hasattr(frame["qty"], "to_list") else frame["qty"].to_pylist()
                assert (len(rows), sum(rows)) == expected, name
    assert names["ice_arrow"].num_rows == 35
    for root in ("plain", "delta", "ice"):
        one = spark.read.format("millstream").option("url", real_redis.url).option("stream", "orders")
        table = one.option("archive", str(tmp_path / root)).option("fields", "qty").load()
        assert sorted(int(row.qty) for row in table.collect()) == list(range(40))
        done = CliRunner().invoke(
            main, ["replay", str(tmp_path / root), "orders", "--to", real_redis.url, "--as", root]
        )
        assert (done.exit_code, client.xlen(root)) == (0, 40), done.output
        assert client.xrange(root, count=1)[0][1] == {"item": "tea0", "qty": "0"}
    (from_python,) = re.findall(r"`(millstream\.spark\.archive\([^`]*\))`", (ROOT / PAGE).read_text())
    client.xadd("orders", {"item": "tea0", "note": "a field that comes later"})
    with caplog.at_level("INFO", "millstream.spark"):
        exec(f"import millstream.spark\n{here(from_python)}", {"url": real_redis.url})
    assert "stream 'orders': new column note (string) for field 'note'" in caplog.messages
    assert client.xlen("orders") == 0
