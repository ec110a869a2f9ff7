"""Cost of the archive's files in each form, beside pyarrow writing the same table: processor time, in turns.

    python bench/archive.py --entries 200000 --rounds 5

No server and no Spark: this is the work of a job's task with its entries, of the driver to publish them as a table, and
of a merge. "pyarrow" writes the finished table of the form above it, with the same compression, in one call: the
difference is the cost of making columns and of durable files.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pairs import at_least_one, middle, private_server, ratio, table
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType
from spark_read import fill

from millstream.spark.archiving.files import merge, write_files
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.shape import Wanted
from millstream.spark.model.offsets import Position, parse_id
from millstream.spark.source import MillstreamSource

if TYPE_CHECKING:
    from millstream.spark.archiving.manifest import DataFile

FORMS = {
    "parquet, raw": Wanted(raw=True),
    "parquet": Wanted(format="parquet"),
    "delta": Wanted(format="delta"),
    "iceberg": Wanted(format="iceberg"),
}


def entries_of(url: str) -> list[pa.RecordBatch]:
    """Return the entries as a task of the job gets them."""
    pair = StructType([StructField("name", BinaryType()), StructField("value", BinaryType())])
    schema = StructType(
        [StructField("stream", StringType()), StructField("id", StringType()), StructField("fields", ArrayType(pair))]
    )
    reader = MillstreamSource({"url": url, "stream": "big", "minPartitions": "1"}).reader(schema)
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def timed(work: Callable[[], object], entries: int) -> float:
    """Return the microseconds of this process for each entry."""
    begun = time.process_time()
    work()
    return (time.process_time() - begun) / entries * 1e6


def once(batches: list[pa.RecordBatch], wanted: Wanted) -> dict[str, float]:
    """Return the microseconds per entry of each step, for one form."""
    entries = sum(batch.num_rows for batch in batches)
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "archive")
        store = ArchiveStore(ArchiveSettings("redis://127.0.0.1:1/0", ("big",), to, wanted=wanted, trim=False))
        made: list[DataFile] = []
        with store.open():
            plan = store._plan()  # noqa: SLF001 - as the job has it
            took["writing"] = timed(lambda: made.extend(write_files(plan, "bench", batches)), entries)
            last = parse_id(batches[-1].column("id")[-1].as_py())
            start = Position.at(parse_id("0-0"), 0)
            took["publishing"] = timed(
                lambda: store.take("bench", {"big": start.advanced(last, entries)}, lambda *_: made), entries
            )
            plan = store._plan()  # noqa: SLF001 - as above
            took["merging"] = timed(lambda: merge(plan, made, "merged"), entries)
        tables = pa.concat_tables([pq.read_table(to / file.path, partitioning=None) for file in made])
        target = str(Path(folder, "alone.parquet"))
        took["pyarrow"] = timed(
            lambda: pq.write_table(tables, target, compression="zstd", row_group_size=50_000), entries
        )
    return took


def main() -> None:
    """Measure all forms in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=at_least_one, default=200_000, help="of five fields (default: %(default)s)")
    parser.add_argument("--rounds", type=at_least_one, default=3, help="of every form, after one that warms up")
    args = parser.parse_args()
    with private_server() as url:
        fill(url, args.entries)
        batches = entries_of(url)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in FORMS}
    for turn in range(args.rounds + 1):
        for name, wanted in FORMS.items():
            took = once(batches, wanted)
            if turn:
                found[name].append(took)
    steps = ("writing", "publishing", "merging", "pyarrow")
    table(
        ["us of processor an entry", *steps, "writing to pyarrow"],
        [
            [
                name,
                *(middle([one[step] for one in rounds], ".2f") for step in steps),
                ratio([one["writing"] for one in rounds], [one["pyarrow"] for one in rounds]),
            ]
            for name, rounds in found.items()
        ],
    )


if __name__ == "__main__":
    main()
