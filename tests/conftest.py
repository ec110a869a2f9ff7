"""Fixtures and rules for every test: what a marker demands of the machine, and real servers to talk to."""

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import bytecode, needs, quiet, tiers
from support.servers import ServerProcess, millstream_server, redis_server

WITH_DEBUG = ("--enable-debug-command", "local")  # Tests let time pass there by DEBUG SLEEP
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For every Java machine that a test starts: none lives long enough to earn back what its second compiler costs."""


def pytest_configure(config: pytest.Config) -> None:
    """The run says what is worth reading, Java starts fast rather than runs fast, and tests are compiled once."""
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", JAVA)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA)
    needs.present_core()
    # Drawing values takes as long as the machine is busy, and says nothing about a test
    slow = [*settings.default.suppress_health_check, HealthCheck.too_slow] if settings.default else []
    settings.register_profile("busy", deadline=None, suppress_health_check=slow)
    settings.load_profile("busy")
    quiet.begin(config)
    if bytecode.is_wanted(config):
        bytecode.prepare(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Logs that tests read stay as pytest writes them."""
    quiet.keep_format(session.config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The first tier imports no file of the second: each of five processes imports what it collects."""
    is_first = "not full" in config.option.markexpr
    return True if is_first and tiers.is_full(collection_path.relative_to(config.rootpath).as_posix()) else None


def pytest_itemcollected(item: pytest.Function) -> None:
    """The tier of a test is marked before ``-m`` selects."""
    if item.get_closest_marker("either_server") and "millstream" in item.callspec.params.values():
        item.add_marker(pytest.mark.long)
    tiers.mark(item)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes next to no garbage: looking for it meanwhile took a seventh of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze the objects of collection: looking through them for garbage took a tenth of the time.

    Objects of tests are looked through less often than Python would, which took another tenth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files are handed out so that few Java machines run at a time and nothing slow is begun last."""
    if config.getvalue("dist") != "loadfile":
        return None
    from support.order import Scheduling

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marked test runs only where its needs are met; elsewhere it skips at home and fails under CI."""
    if item.get_closest_marker("spark"):
        needs.java()
    if item.get_closest_marker("realserver"):
        needs.program("redis-server")
        needs.program("redis-cli")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test's output may not be UTF-8, on purpose; pytest-xdist ends the whole run at such a report."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _logs_as_new() -> None:
    """A test's log does not depend on the level that a program of an earlier test set."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def alone() -> Iterator[None]:
    """No other thread runs unless the test waits for something: what fails or is counted here is its own.

    Making allocations fail is for the whole process: for a thread that Spark's tests before this one left behind, and
    for whom the collector calls.
    """
    before, called = sys.getswitchinterval(), gc.callbacks[:]
    sys.setswitchinterval(10)
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(called)
    sys.setswitchinterval(before)


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One redis-server for the whole run; use ``real_redis`` unless the test stops it."""
    with redis_server(tmp_path_factory.mktemp("redis"), *WITH_DEBUG) as server:
        yield server


@pytest.fixture(scope="session")
def redis8_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same of Redis 8, where there is one."""
    with redis_server(tmp_path_factory.mktemp("redis8"), *WITH_DEBUG, path=needs.other("redis8")) as server:
        yield server


@pytest.fixture(scope="session")
def redis6_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The same of Redis 6.2, where there is one."""
    with redis_server(tmp_path_factory.mktemp("redis6"), path=needs.other("redis6")) as server:
        yield server


@pytest.fixture
def real_redis(redis_process: ServerProcess) -> ServerProcess:
    """A redis-server with nothing in it."""
    return redis_process.as_new()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Comparisons with a live Redis run with each that is found, the installed one and a newer one."""
    if "each_redis" in metafunc.fixturenames and needs.found("redis8"):
        metafunc.parametrize("each_redis", ["redis", "redis8"], indirect=True)


@pytest.fixture
def each_redis(request: pytest.FixtureRequest) -> ServerProcess:
    """A redis-server with nothing in it, for tests whose measure it is: in turn each that is found."""
    found: ServerProcess = request.getfixturevalue(f"{getattr(request, 'param', 'redis')}_process")
    return found.as_new()


@pytest.fixture
def our_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Our own server with a data directory of its own, fsync always."""
    with millstream_server(tmp_path) as server:
        yield server
