"""Fixtures and hooks for every test: the requirements of markers, and real servers."""

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import bytecode, coldness, needs, quiet, tiers
from support.servers import ServerProcess, millstream_server, redis_server

WITH_DEBUG = ("--enable-debug-command", "local")  # Tests let time pass there by DEBUG SLEEP
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for every JVM that a test starts: none lives long enough to profit from its second compiler."""


def pytest_configure(config: pytest.Config) -> None:
    """Set up a run: quiet output, a JVM that starts fast, and tests compiled once."""
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JAVA)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA)
    needs.present_core()
    if coldness.IS_COLD:
        coldness.begin()
    # Drawing values takes as long as the machine is busy, and says nothing about a test
    slow = [*settings.default.suppress_health_check, HealthCheck.too_slow] if settings.default else []
    settings.register_profile("busy", deadline=None, suppress_health_check=slow)
    settings.load_profile("busy")
    quiet.begin(config)
    if bytecode.is_wanted(config):
        bytecode.prepare(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the log format for tests that read logs."""
    quiet.keep_format(session.config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the second tier's files in the first tier, since each of five processes imports all files it collects."""
    is_first = "not full" in config.option.markexpr
    return True if is_first and tiers.is_full(collection_path.relative_to(config.rootpath).as_posix()) else None


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tier of a test before ``-m`` selects."""
    if item.get_closest_marker("either_server") and "millstream" in item.callspec.params.values():
        item.add_marker(pytest.mark.long)
    tiers.mark(item)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during collection, where it took a seventh of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze the objects of collection, whose checks for garbage took a tenth of the time.

    The collector also runs less often than by default, which saves another tenth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule files so that few JVMs run at a time and nothing slow starts last."""
    if config.getvalue("dist") != "loadfile":
        return None
    from support.order import Scheduling

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test without its requirements, or fail it under CI."""
    if item.get_closest_marker("spark"):
        needs.java()
    if item.get_closest_marker("realserver"):
        needs.program("redis-server")
        needs.program("redis-cli")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape a test's output that is not UTF-8, which would end a run of pytest-xdist."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _logs_as_new() -> None:
    """Reset the log level that a program of an earlier test has set."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def alone() -> Iterator[None]:
    """Let no other thread run unless the test waits, so that failures and counts are its own.

    Allocation failures affect the whole process: threads that earlier Spark tests left, and callbacks of the collector.
    """
    before, called = sys.getswitchinterval(), gc.callbacks[:]
    sys.setswitchinterval(10)
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(called)
    sys.setswitchinterval(before)


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield one redis-server for the whole run; use ``real_redis`` unless the test stops it."""
    with redis_server(tmp_path_factory.mktemp("redis"), *WITH_DEBUG) as server:
        yield server


@pytest.fixture(scope="session")
def redis8_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield one Redis 8 server for the whole run, if installed."""
    with redis_server(tmp_path_factory.mktemp("redis8"), *WITH_DEBUG, path=needs.other("redis8")) as server:
        yield server


@pytest.fixture(scope="session")
def redis6_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield one Redis 6.2 server for the whole run, if installed."""
    with redis_server(tmp_path_factory.mktemp("redis6"), path=needs.other("redis6")) as server:
        yield server


@pytest.fixture
def real_redis(redis_process: ServerProcess) -> ServerProcess:
    """Return an empty redis-server."""
    return redis_process.as_new()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run comparisons with each installed Redis, an older and a newer one."""
    if "each_redis" in metafunc.fixturenames and needs.found("redis8"):
        metafunc.parametrize("each_redis", ["redis", "redis8"], indirect=True)


@pytest.fixture
def each_redis(request: pytest.FixtureRequest) -> ServerProcess:
    """Return an empty redis-server of each installed version in turn, for tests that compare with it."""
    found: ServerProcess = request.getfixturevalue(f"{getattr(request, 'param', 'redis')}_process")
    return found.as_new()


@pytest.fixture
def our_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a Millstream server with a data directory and fsync always."""
    with millstream_server(tmp_path) as server:
        yield server
