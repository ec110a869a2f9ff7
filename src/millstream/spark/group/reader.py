"""A task of group mode: it reads the claimed entries, and checks that all of them exist.

XRANGE changes nothing. Reading the pending list again would count each attempt of a task as a delivery, at five times
the cost.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import attrgetter

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream import failpoints
from millstream.spark.arrow.columns import Layout
from millstream.spark.arrow.decode import decode
from millstream.spark.arrow.page import Page
from millstream.spark.connection.bulk_reader import BulkReader
from millstream.spark.connection.connection import Command
from millstream.spark.group.model import ClaimPartition
from millstream.spark.model.claims import Run
from millstream.spark.model.offsets import DataLossError
from millstream.spark.model.packing import portions
from millstream.spark.options import names
from millstream.spark.options.read import Options

logger = logging.getLogger("millstream.spark")

_TOGETHER = 500
"""Entries of small runs that are requested together."""


def _asked_for(key: str, runs: Sequence[Run]) -> list[Command]:
    return [("XRANGE", key, str(run.first), str(run.last)) for run in runs]


def read_claim(options: Options, layout: Layout, part: ClaimPartition) -> Iterator[pa.RecordBatch]:
    """Yield the claimed entries of a partition as record batches.

    The next portion is requested before the present one is decoded, so that the server works meanwhile.
    """
    asked = list(portions(part.runs, attrgetter("n"), _TOGETHER))
    with closing(BulkReader(options.url, part.key)) as source:
        source.send(_asked_for(part.key, asked[0]))
        for at, runs in enumerate(asked):
            raw = source.receive()
            if at + 1 < len(asked):
                source.send(_asked_for(part.key, asked[at + 1]))
            page, _ = decode(raw, layout.want)
            _check(options, part, runs, page)
            if page is not None:
                yield layout.batch(part.key, page)
            failpoints.reach("replaying")


def _check(options: Options, part: ClaimPartition, runs: Sequence[Run], page: Page | None) -> None:
    claimed, there = sum(run.n for run in runs), len(page.ids) if page is not None else 0
    if claimed == there:
        return
    text = (
        f"stream {part.key!r}: {claimed - there} of the {claimed} entries from {runs[0].first} to {runs[-1].last} that "
        f"{part.consumer} has claimed were deleted or trimmed before they were read"
    )
    if options.fail_on_loss:
        raise DataLossError(f"{text}. Set option 'failOnDataLoss' to 'false' to go on without them, and trim later")
    logger.warning("%s; reading goes on", text)


def with_deliveries(
    batches: Iterator[pa.RecordBatch], part: ClaimPartition, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the delivery count of each entry, if the schema has that column."""
    target = to_arrow_schema(schema, timezone="UTC")
    counts = {str(run.first): count for run, count in zip(part.runs, part.deliveries, strict=True)}
    for batch in batches:
        ids = batch.column("id").to_pylist()
        known = pa.array([counts[ident] for ident in ids], pa.int64())
        arrays = [known if name == names.DELIVERIES else batch.column(name) for name in target.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)
