"""The Spark pipeline: it reads flights, and writes hourly delays to Parquet and the busiest routes to a stream.

It runs as a separate process: ``python -m flights.pipeline --stream ... --routes ... --work ... --parquet ...``, with
the server's URL in ``MILLSTREAM_URL``. It reports its progress in lines of JSON on standard output. After the line
``finish`` on standard input, it processes every event in the stream and ends.

Each figure counts each event exactly once, for three reasons. The source reads a batch by a range of ids, so a batch
that runs again (after a crash, with the same checkpoint) has the same rows. The sums of a batch go to a folder or file
with the number of the batch, so a second run overwrites them. The entries of the routes have ids made of batch and
rank, which the server refuses to add a second time.
"""

import argparse
import json
import os
import sys
import threading
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from flights import rules
from flights.producer import as_pair, last_id
from millstream.client.connect import sync_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "time_hour timestamp, origin string, carrier string, dest string, dep_delay int"
"""The fields that the pipeline reads, with their types; a missing field is null."""

TABLES = {"hourly_by_airport": "origin", "hourly_by_carrier": "carrier"}
"""Parquet tables, with the columns that each groups by in addition to the hour."""

PER_BATCH = 60_000
RESTARTS = 5
AWAY = 60.0
"""Seconds to wait for an unreachable server."""


def say(event: str, **details: Any) -> None:
    """Send a line to the parent process."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


class FlightPipeline:
    """The query, and the work on each batch."""

    def __init__(self, spark: "SparkSession", args: argparse.Namespace) -> None:
        self._spark = spark
        self._url = os.environ["MILLSTREAM_URL"]
        self._stream: str = args.stream
        self._routes: str = args.routes
        self._per_batch: int = args.per_batch
        self._work = Path(args.work)
        self._parquet = Path(args.parquet)
        (self._work / "routes").mkdir(parents=True, exist_ok=True)

    def start(self) -> "StreamingQuery":
        """Start or continue the query from its checkpoint."""
        flights = (
            self._spark.readStream.format("millstream")
            .option("url", self._url)
            .option("stream", self._stream)
            .option("startingOffsets", "earliest")
            .option("maxEntriesPerTrigger", str(self._per_batch))
            .schema(SCHEMA)
            .load()
        )
        return (
            flights.writeStream.queryName("flights")
            .foreachBatch(self.process)
            .option("checkpointLocation", str(self._work / "checkpoint"))
            .trigger(processingTime="1 second")
            .start()
        )

    def process(self, batch: "DataFrame", batch_id: int) -> None:
        """Write the hourly sums of one micro-batch, and the table of routes up to it."""
        batch.persist()
        try:
            by_route = [row.asDict() for row in sums(batch, "origin", "dest").collect()]
            rows = sum(row["flights"] for row in by_route)
            if rows:
                for table, key in TABLES.items():
                    target = self._work / table / f"batch={batch_id:06d}"
                    sums(batch, "time_hour", key).coalesce(1).write.mode("overwrite").parquet(str(target))
            write_whole(self._work / "routes" / f"{batch_id:06d}.json", json.dumps(by_route))
            if rows:
                self.publish_routes(batch_id)
            say("batch", batch=batch_id, rows=rows, total=self._total(batch_id))
        finally:
            batch.unpersist()

    def _so_far(self, batch_id: int) -> dict[tuple[str, str], dict[str, int]]:
        """Return the sums by route over all batches up to this one."""
        totals: dict[tuple[str, str], dict[str, int]] = {}
        for path in sorted((self._work / "routes").glob("*.json")):
            if int(path.stem) > batch_id:
                continue
            for row in json.loads(path.read_text()):
                total = totals.setdefault((row["origin"], row["dest"]), {"flights": 0, "departed": 0, "delay": 0})
                for name in total:
                    total[name] += row[name] or 0
        return totals

    def _total(self, batch_id: int) -> int:
        return sum(total["flights"] for total in self._so_far(batch_id).values())

    def publish_routes(self, batch_id: int) -> None:
        """Add the table of routes after this batch, as entries ``<batch + 1>-<rank>``; existing ones stay."""
        client = sync_client(self._url)
        there = as_pair(last_id(client, self._routes))
        pipe = client.pipeline(transaction=False)
        for rank, fields in enumerate(top(self._so_far(batch_id)), 1):
            if (batch_id + 1, rank) > there:
                pipe.xadd(self._routes, {"rank": str(rank)} | fields, id=f"{batch_id + 1}-{rank}")
        pipe.execute()
        client.close()

    def finish(self) -> None:
        """Add the sums of the batches up to the final tables."""
        from pyspark.sql import functions as f  # noqa: PLC0415 - Spark is imported only where it runs

        for table, key in TABLES.items():
            partial = self._spark.read.parquet(str(self._work / table))
            whole = partial.groupBy("time_hour", key).agg(
                f.sum("flights").alias("flights"), f.sum("departed").alias("departed"), f.sum("delay").alias("delay")
            )
            whole = whole.withColumn("mean", f.try_divide("delay", "departed")).orderBy("time_hour", key)
            whole.coalesce(1).write.mode("overwrite").parquet(str(self._parquet / table))


def sums(frame: "DataFrame", *keys: str) -> "DataFrame":
    """Sum flights, departures and minutes of delay by ``keys``: whole numbers, which add up in any order."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - Spark is imported only where it runs

    return frame.groupBy(*keys).agg(
        f.count(f.lit(1)).alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("delay"),
    )


def top(totals: dict[tuple[str, str], dict[str, int]]) -> list[dict[str, Any]]:
    """Return the busiest routes; equal ones are in order of their names."""
    ranked = sorted(totals.items(), key=lambda item: (-item[1]["flights"], item[0]))
    return [
        {"origin": origin, "dest": dest, **total, "mean": total["delay"] / max(total["departed"], 1)}
        for (origin, dest), total in ranked[: rules.TOP_ROUTES]
    ]


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step, so that no reader sees a part of it."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text)
    scratch.replace(path)


def await_server(url: str) -> None:
    """Wait until the server replies.

    Raises:
        redis.ConnectionError: It did not reply for ``AWAY`` seconds.
    """
    deadline = time.monotonic() + AWAY
    client = sync_client(url)
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # between attempts to reach a server that is starting again
        else:
            client.close()
            return


def drive(pipeline: FlightPipeline, url: str, finish: threading.Event) -> None:
    """Run the query until ``finish`` is set and all events are read; after the loss of its server it starts again."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - Spark is imported only where it runs

    restarts = 0
    query = pipeline.start()
    say("streaming")
    while True:
        try:
            while not finish.is_set():
                query.awaitTermination(0.2)  # type: ignore[arg-type] # seconds; fractions work, the stub says int
            query.processAllAvailable()
            query.stop()
        except StreamingQueryException as error:
            restarts += 1
            if restarts > RESTARTS:
                raise
            say("restart", reason=str(error).splitlines()[0][:200])
            await_server(url)
            query = pipeline.start()
        else:
            return


def read_orders(finish: threading.Event) -> None:
    """Wait for the line ``finish``; end if the parent process has gone."""
    for line in sys.stdin:
        if line.strip() == "finish":
            finish.set()
            return
    os._exit(1)


def main() -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--stream", "--routes", "--work", "--parquet"):
        parser.add_argument(name, required=True)
    parser.add_argument("--per-batch", type=int, default=PER_BATCH, help="events in a micro-batch, at most")
    parser.add_argument("--quick", action="store_true", help="start fast rather than run fast: for few events")
    args = parser.parse_args()
    finish = threading.Event()
    threading.Thread(target=read_orders, args=(finish,), name="orders", daemon=True).start()

    import millstream.spark  # noqa: PLC0415 - Spark is imported only where it runs

    # Spark's default for Parquet is the old INT96, which has no time zone: readers could not see that it is UTC.
    zoned = {"spark__sql__parquet__outputTimestampType": "TIMESTAMP_MICROS"}
    spark = millstream.spark.session("millstream demo", quick=args.quick, quiet=False, **zoned)
    say("session")
    url = os.environ["MILLSTREAM_URL"]
    reports = bool(os.environ.get("MILLSTREAM_DEMO_REPORTS"))
    with closing(millstream.spark.watch(spark, url)) if reports else nullcontext():
        pipeline = FlightPipeline(spark, args)
        drive(pipeline, url, finish)
        pipeline.finish()
    say("done")
    spark.stop()


if __name__ == "__main__":
    main()
