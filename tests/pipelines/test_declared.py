"""Accepted and refused arguments of ``@app.pipeline``, and apps with pipelines, all without Spark."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream import App, Sink, Source
from millstream.errors import ConfigError
from millstream.pipelines.driver import check
from support.servers import ServerProcess
from support.waiting import eventually

PARQUET = Sink("parquet", path="out")


def declare(app: App, *sources: Any, **options: Any) -> Any:
    """Declare a pipeline of a function that takes one DataFrame."""
    return app.pipeline(*sources, **options)(lambda frame: frame)


@pytest.mark.parametrize(
    ("sources", "options", "told"),
    [
        ((), {"sink": PARQUET, "checkpoint": "c"}, "reads nothing. Name its stream"),
        (("a", "b"), {"sink": PARQUET, "checkpoint": "c"}, "has 2 sources, so its function must take 2 DataFrames"),
        (("a",), {"sink": PARQUET}, "has no checkpoint"),
        (("a",), {"checkpoint": "c"}, "has no sink: checkpoint, trigger and output_mode are its function's to set"),
        (("a",), {"sink": PARQUET, "checkpoint": "c", "output_mode": "apend"}, "Write one of append, complete, update"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(
    sources: tuple[Any, ...], options: dict[str, Any], told: str
) -> None:
    """An invalid pipeline is refused when its module loads, with its name."""
    with pytest.raises(ConfigError, match=told) as caught:
        declare(App(), *sources, **options)
    assert "pipeline '<lambda>'" in str(caught.value)


def test_names_are_given_once() -> None:
    """Two pipelines of one name are refused."""
    app = App()
    declare(app, "a", sink=PARQUET, checkpoint="c", name="same")
    with pytest.raises(ConfigError, match="two pipelines are named 'same'"):
        declare(app, "b", sink=PARQUET, checkpoint="d", name="same")
    assert [pipeline.name for pipeline in app.pipelines] == ["same"]


def test_a_checkpoint_is_of_one_pipeline() -> None:
    """Two pipelines with one checkpoint are refused, also by different paths."""
    app = App()
    declare(app, "a", sink=PARQUET, checkpoint="c", name="one")
    with pytest.raises(ConfigError, match="pipelines 'one' and 'two' have the same checkpoint"):
        declare(app, "b", sink=PARQUET, checkpoint="./c/", name="two")
    assert [pipeline.name for pipeline in app.pipelines] == ["one"]


def test_a_sink_is_a_format_or_a_function() -> None:
    """A sink with both a format and a function, or neither, is refused."""
    for wrong in ({}, {"format": "parquet", "batch": lambda frame, number: None}):
        with pytest.raises(ConfigError, match="Give one of the two"):
            Sink(**wrong)


def test_the_decorated_function_can_be_called() -> None:
    """A pipeline's function can be called in a test. Options become text as Spark takes them, with the app's URL."""
    app = App("redis://127.0.0.1:7000/0")
    source = Source("a", options={"failOnDataLoss": False, "maxEntriesPerTrigger": 10, "group": None})
    pipeline = declare(app, source, sink=PARQUET, checkpoint="c")
    assert pipeline("rows") == "rows"
    expected = {"url": app.url, "stream": "a", "failOnDataLoss": "false", "maxEntriesPerTrigger": "10"}
    assert pipeline.options() == [("millstream", expected)]


@pytest.mark.spark
def test_a_wrong_option_is_found_before_spark_starts() -> None:
    """A wrong option of a pipeline is named with a suggestion before Spark starts."""
    app = App()
    declare(app, Source("a", options={"maxEntriesPerTriger": 5}), sink=PARQUET, checkpoint="c", name="late")
    told = "pipeline 'late': unknown option 'maxentriespertriger': did you mean 'maxEntriesPerTrigger'?"
    with pytest.raises(ConfigError) as caught:
        check(app)
    assert str(caught.value) == told
    app = App()
    sink = Sink("millstream", options={"stream": "b", "maxlength": 5})
    declare(app, "a", sink=sink, checkpoint="c", name="late")
    with pytest.raises(ConfigError, match="pipeline 'late': unknown option 'maxlength': did you mean 'maxLen'"):
        check(app)
    app = App()
    sink = Sink("millstream", options={"stream": "b"})
    declare(app, "a", sink=sink, checkpoint="c", name="late", output_mode="update")
    with pytest.raises(ConfigError, match=r"pipeline 'late': output_mode is 'update'.*Sink\(batch=...\)"):
        check(app)


APP = """
from millstream import App, Sink, StreamSub

app = App()


@app.subscriber(StreamSub("jobs", group="g"))
async def work(x: int) -> None:
    await app.publish("effects", {"x": x})


@app.pipeline("jobs", sink=Sink("parquet", path="out"), checkpoint="check")
def copy(jobs):
    return jobs
"""


@pytest.fixture
def without_spark(tmp_path: Path, real_redis: ServerProcess) -> dict[str, str]:
    """Return an environment in which PySpark cannot be imported."""
    blocked = tmp_path / "blocked" / "sitecustomize.py"
    blocked.parent.mkdir()
    blocked.write_text(
        "import sys\n\nclass Absent:\n    def find_spec(self, name, *_):\n        if name == 'pyspark':\n"
        "            raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    path = os.pathsep.join([str(blocked.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "MILLSTREAM_URL": real_redis.url}


@pytest.mark.realserver
def test_subscribers_run_where_there_is_no_spark(
    tmp_path: Path, real_redis: ServerProcess, without_spark: dict[str, str]
) -> None:
    """Without Spark, an app's subscribers run, the error states what to install, and the exit code is nonzero."""
    (tmp_path / "jobs.py").write_text(APP)
    run = [str(Path(sys.executable).with_name("millstream")), "run", "jobs:app"]
    with real_redis.client(decode_responses=True) as client, (tmp_path / "log").open("w") as log:
        client.xadd("jobs", {"x": "1"})
        process = subprocess.Popen(run, cwd=tmp_path, env=without_spark, stdout=log, stderr=log)
        try:
            gone_on = "the subscribers continue without the pipelines"
            eventually(lambda: gone_on in (tmp_path / "log").read_text(), 60, what="the pipelines are given up")
            eventually(lambda: client.xlen("effects") == 1, what="the subscriber works")
            client.xadd("jobs", {"x": "2"})
            eventually(lambda: client.xlen("effects") == 2, what="the subscriber still works")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 78
        finally:
            process.kill()
            process.wait()
    assert "pipelines need pyspark. Run pip install 'millstream[spark]'" in (tmp_path / "log").read_text()


@pytest.mark.realserver
def test_an_app_of_pipelines_alone_ends_with_their_process(
    tmp_path: Path, real_redis: ServerProcess, without_spark: dict[str, str]
) -> None:
    """Without Spark, an app that has only pipelines ends with exit code 78, after which no restart helps."""
    lines = APP.split("\n\n\n")
    (tmp_path / "jobs.py").write_text("\n\n\n".join([lines[0], *lines[2:]]))
    run = [str(Path(sys.executable).with_name("millstream")), "run", "jobs:app"]
    done = subprocess.run(run, cwd=tmp_path, env=without_spark, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78
    assert "pipelines need pyspark" in done.stderr
    assert "giving up" in done.stderr
