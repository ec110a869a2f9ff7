"""Spark queries continue from checkpoints recorded by earlier versions in tests/fixtures/VERSION."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compatibility import content
from support.servers import millstream_server
from support.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures").iterdir())


@pytest.mark.parametrize("recorded", FIXTURES, ids=lambda path: path.name)
def test_a_query_goes_on_from_a_recorded_checkpoint(recorded: Path, tmp_path: Path, spark: "SparkSession") -> None:
    """With the present version, a query that was killed before Spark's commit adds each entry once."""
    for part in ("data", "checkpoint"):
        shutil.copytree(recorded / part, tmp_path / part)
    assert not (tmp_path / "checkpoint/commits/2").exists()
    with millstream_server(tmp_path) as server, Wire(server.url) as wire:
        before = [fields[1] for _, fields in wire.ask("XRANGE", content.COPY, "-", "+")]
        for number in (1, 2):
            wire.ask("XADD", content.STREAM, content.entry_id(content.ENTRIES + number), *content.entry(number))
        content.copying(spark, server.url, tmp_path / "checkpoint").awaitTermination()
        after = [fields[1] for _, fields in wire.ask("XRANGE", content.COPY, "-", "+")]
        there = [ident for ident, _ in wire.ask("XRANGE", content.STREAM, "-", "+")]
    assert (len(before), len(after)) == (53, 55)
    assert sorted(after) == there
