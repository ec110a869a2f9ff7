"""``docs/object-storage.md``: every line and block on the page runs, against an S3-compatible server.

The run, with Spark tasks that write to a bucket, belongs to ``make test-long``. ``make test`` runs the commands in
Spark with directories (``test_lake_page.py``), and buckets without Spark (``test_objects.py``).
"""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.spark.archiving.objects.storage import ObjectStorage
from support.lake import connected
from support.objects import KEY, SECRET, Door
from support.readme import blocks
from support.servers import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/object-storage.md"

FRAMES = ("delta", "delta_arrow", "plain", "plain_arrow", "ice_arrow")


def test_every_block_can_be_written_down() -> None:
    """Each command on the page has valid options, and each program on it is valid Python."""
    (lines,) = blocks("sh", page=PAGE)
    commands = [line for line in lines.splitlines() if line.startswith("millstream")]
    assert len(commands) == 4
    for line in commands:
        name, *words = shlex.split(line)[1:]
        command = main.get_command(click.Context(main), name)
        assert command is not None, line
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= options, line
    assert len(blocks("sql", page=PAGE)) == 1
    tools, union = blocks("python", page=PAGE)
    assert set(FRAMES) <= set(compile(tools, PAGE, "exec").co_names)
    assert "table" in compile(union, PAGE, "exec").co_names


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.realserver
@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_everything_on_the_page_runs(
    real_redis: ServerProcess, client: redis.Redis, spark: "SparkSession", place: str, door: Door, tmp_path: Path
) -> None:
    """Spark's tasks write to the bucket, and other tools and Spark read all entries of the stream."""
    for number in range(40):
        client.xadd("orders", {"item": f"tea{number % 3}", "qty": number}, id=f"{1_700_000_000_000 + number}-0")
    below = place.removeprefix("s3://")

    def here(text: str) -> str:
        text = text.replace("s3://lake/", f"{place}/").replace('"lake/', f'"{below}/')
        return text.replace("/data", str(tmp_path)).replace("redis://127.0.0.1:6400/0", real_redis.url)

    (lines,) = blocks("sh", page=PAGE)
    commands = [line for line in lines.splitlines() if line.startswith("millstream")]
    assert len(commands) == 4
    for line in commands:
        done = CliRunner().invoke(main, shlex.split(here(line))[1:])
        assert done.exit_code == 0, done.output
        assert not [word for word in (KEY, SECRET) if word in done.output]
    assert (client.xlen("orders"), client.xlen("orders:again")) == (0, 40)
    assert set(re.findall(r"export (\w+)=", lines)) <= set(door.environment)

    expected = (40, sum(range(40)))
    (statements,) = blocks("sql", page=PAGE)
    for statement in here(statements).strip().splitlines():
        assert connected(door).sql(statement).fetchone() == expected, statement
    client.xadd("orders", {"item": "live", "qty": 1000}, id=f"{1_700_000_000_100}-0")
    tools, union = blocks("python", page=PAGE)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(here(tools), PAGE, "exec"), names)
    for name in FRAMES:
        values = names[name]["qty"]
        rows = values.to_list() if hasattr(values, "to_list") else values.to_pylist()
        assert (len(rows), sum(rows)) == expected, name
    exec(compile(here(union), PAGE, "exec"), names)
    assert sorted(int(row.fields["qty"]) for row in names["table"].collect()) == [*range(40), 1000]
    assert ObjectStorage(f"{place}/orders").top() == {"_manifest.json", "_lock", "orders"}
