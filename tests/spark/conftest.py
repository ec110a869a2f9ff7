"""One Spark session for all tests of this folder, since a start takes seconds, and streams to read."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from support.objects import Door, door_port
from support.servers import ServerProcess, millstream_server, redis_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Yield a session from ``millstream.spark.session`` with the fast compiler."""
    from millstream.spark import session

    tables = str(tmp_path_factory.mktemp("warehouse"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in Door(door_port()).environment.items():  # workers that plan reads have the session's alone
            patch.setenv(name, value)
        made = session("tests", quick=True, spark__log__level="ERROR", spark__sql__warehouse__dir=tables)
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # PySpark leaves its gateway's sockets to the collector
        made.stop()


@pytest.fixture(scope="package", params=["redis", "millstream"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield a real Redis, then Millstream's server."""
    folder = tmp_path_factory.mktemp("both")
    with redis_server(folder) if request.param == "redis" else millstream_server(folder, "--memory") as server:
        yield server


@pytest.fixture
def both_client(both: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of either server, emptied."""
    with both.as_new().client(decode_responses=True) as made:
        yield made


@pytest.fixture
def client(real_redis: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of the emptied real server."""
    with real_redis.client(decode_responses=True) as made:
        yield made


@pytest.fixture
def reading(spark: "SparkSession") -> Callable[..., "DataFrame"]:
    """``reading(url, stream="a", ...)``: return a batch DataFrame."""

    def read(url: str, schema: str | None = None, **options: str) -> "DataFrame":
        reader = spark.read.format("millstream").option("url", url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return read


@pytest.fixture
def run_to_end(spark: "SparkSession", tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """``run_to_end(url, stream="a", ...)``: run AvailableNow to Parquet in ``tmp_path/out`` and return its progress."""

    def run(url: str, **options: str) -> list[dict[str, Any]]:
        source = spark.readStream.format("millstream").option("url", url).options(**options).load()
        query = (
            source.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    return run


@pytest.fixture
def written(spark: "SparkSession", tmp_path: Path) -> Callable[[], list[str]]:
    """Return the ids in the Parquet sink of :func:`run_to_end` in stream order, including duplicates."""

    def read() -> list[str]:
        rows = spark.read.parquet(str(tmp_path / "out")).select("id").collect()
        return sorted((row.id for row in rows), key=lambda ident: tuple(map(int, ident.split("-"))))

    return read
