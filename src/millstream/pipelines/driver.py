"""The driver of an app's pipelines under ``millstream run``: ``python -m millstream.pipelines.driver module:app``.

One driver runs all pipelines. A driver for each would need seconds to start and almost a gigabyte of memory, and they
share the cores anyway. The driver reports its queries' state to the server (``millstream spark ls``). It ends on
request, or when all queries have ended.

SIGTERM lets the running batches end within the app's grace time; a second one ends the process at once.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import millstream.spark
from millstream.ending import Ending
from millstream.errors import ConfigError
from millstream.logs import logger
from millstream.pipelines.health import PipelineHealth
from millstream.spark.options import read, write
from millstream.worker.app import App
from millstream.worker.child import prepared
from millstream.worker.monitoring.health import ALLOW_VARIABLE, HealthError, serving
from millstream.worker.pipelines import Pipeline
from millstream.worker.process.run import EXIT_CLEAN, EXIT_CONFIG, EXIT_DISMISSED

if TYPE_CHECKING:
    from millstream.pipelines.runner import PipelineRunner

log = logger("millstream.pipelines")

_LOOK = 0.2
"""Seconds between two checks of the queries."""


def main(target: str) -> int:
    """Import the app and run its pipelines; return the exit code."""
    app = prepared(target)
    if app is None:
        return EXIT_CONFIG
    try:
        check(app)
        return run(app, json.loads(os.environ.get("MILLSTREAM_SPARK", "{}")))
    except (ConfigError, HealthError) as error:
        log.error("%s", error)  # noqa: TRY400 - a mistake of the user, so no traceback
        return EXIT_CONFIG


def check(app: App) -> None:
    """Raise the errors of the configuration now, before Spark's start, which takes seconds."""
    try:
        problem = millstream.spark.java_problem()
    except ModuleNotFoundError as error:
        raise ConfigError(f"pipelines need {error.name}. Run pip install 'millstream[spark]'.") from None
    if problem is not None:
        raise ConfigError(problem)
    for pipeline in app.pipelines:
        try:
            for form, options in pipeline.options():
                if form == "millstream":
                    read.parse(options)
            _check_sink(app, pipeline)
        except ConfigError as error:
            raise ConfigError(f"pipeline {pipeline.name!r}: {error}") from None


def _check_sink(app: App, pipeline: Pipeline) -> None:
    if pipeline.sink is None or pipeline.sink.format != "millstream":
        return
    write.parse(pipeline.sink.chosen(app.url))
    if pipeline.output_mode != "append":
        raise ConfigError(
            f"output_mode is {pipeline.output_mode!r}, and streams are appended to. Leave it out, or give a "
            "Sink(batch=...) that writes by txnAppId and txnVersion."
        )


def run(app: App, confs: dict[str, str]) -> int:
    """Run every pipeline until the stop request, or until all have ended; return the exit code."""
    from millstream.pipelines.runner import PipelineRunner  # noqa: PLC0415 - needs PySpark

    _let_workers_import()
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at INFO it logs every call from Java
    # Spark's own log would hide this program's log, which reports the cause of a query's end in one line.
    spark = millstream.spark.session("millstream run", quick=False, quiet=False, **{"spark.log.level": "OFF"} | confs)
    runners = [PipelineRunner(pipeline, spark) for pipeline in app.pipelines]
    try:
        with closing(millstream.spark.watch(spark, app.url)) as watched:
            ended = _ended_by_signal()
            with _endpoint(PipelineHealth(runners, lambda: watched.facts, ended.is_set)):
                _look_after(runners, ended)
                _stop(runners, app.grace)
    finally:
        spark.stop()
    if any(runner.state == "failed" for runner in runners):
        return EXIT_CONFIG
    return EXIT_CLEAN if ended.is_set() else EXIT_DISMISSED


def _let_workers_import() -> None:
    """Let Spark's Python workers import the app's module, from the same directory as this process."""
    here = str(Path(os.environ.get("MILLSTREAM_APP_DIR") or "").resolve())
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{path}" if path else here


def _ended_by_signal() -> threading.Event:
    """Return an event that SIGTERM, Ctrl-C, or the end of the starting process sets.

    ``Ending`` ends the process at once after a repeated signal. Call this after Spark's start, which installs its own
    handler for Ctrl-C. Before that, a signal simply ends the process, since nothing is running.
    """
    ended, ending = threading.Event(), Ending()

    def end(number: int, _frame: object) -> None:
        if ending.at_once(number):
            os._exit(128 + number)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    lifeline = os.environ.get("MILLSTREAM_LIFELINE")
    if lifeline:

        def wait() -> None:
            os.read(int(lifeline), 1)  # nothing is ever written: it returns when the other end closes
            ended.set()

        threading.Thread(target=wait, name="lifeline", daemon=True).start()
    return ended


@contextlib.contextmanager
def _endpoint(board: PipelineHealth) -> Iterator[None]:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics`` in a thread, at the address from the environment, if any."""
    host, colon, port = os.environ.get("MILLSTREAM_HEALTH", "").rpartition(":")
    if not colon:
        yield
        return
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        endpoint = serving(board, host, int(port), os.environ.get(ALLOW_VARIABLE, "").split())
        loop.run_until_complete(endpoint.__aenter__())
        thread = threading.Thread(target=loop.run_forever, name="health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(endpoint.__aexit__(None, None, None))


def _look_after(runners: "Sequence[PipelineRunner]", ended: threading.Event) -> None:
    """Watch and restart the queries until the stop request, or until none is left."""
    while True:
        for runner in runners:
            runner.look(time.monotonic())
        if all(runner.state in ("done", "failed") for runner in runners) or ended.wait(_LOOK):
            return


def _stop(runners: "Sequence[PipelineRunner]", grace: float) -> None:
    """Stop all running queries within one grace time."""
    deadline = time.monotonic() + grace
    threads = [threading.Thread(target=runner.stop, args=(deadline,)) for runner in runners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
