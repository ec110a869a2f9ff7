"""What ``make test-fast`` runs starts no process: found by what a test names, and watched while it runs."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import fast, servers
from support.servers import ServerProcess, redis_server
from support.waiting import eventually

pytest_plugins = ["pytester"]


def by_hand() -> None:
    subprocess.run(["true"], check=True)


def through_a_helper() -> None:
    by_hand()


def through_a_module(folder: Path) -> ServerProcess:
    return servers.redis_server(folder)


def inside(folder: Path) -> Callable[[], ServerProcess]:
    return lambda: redis_server(folder)


def on_request(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue("server")


class Holder:
    def begin(self) -> None:
        by_hand()


def through_a_class() -> Holder:
    return Holder()


def around_itself(count: int) -> Iterator[int]:
    yield from around_itself(count - 1)


def in_this_process(server: ServerProcess) -> None:
    eventually(lambda: server is not None)


@pytest.mark.parametrize(
    "function",
    [by_hand, through_a_helper, through_a_module, inside, on_request, through_a_class],
    ids=lambda function: function.__name__,
)
def test_what_starts_a_process_is_found(function: Callable[..., object]) -> None:
    """By its own code, by that of a helper, and where a fixture is asked for that nobody knows before."""
    assert fast.starts_processes(function)


@pytest.mark.parametrize("function", [around_itself, in_this_process], ids=lambda function: function.__name__)
def test_what_starts_none_is_fast(function: Callable[..., object]) -> None:
    """A type in a signature is not a process, and functions that call themselves come to an end."""
    assert not fast.starts_processes(function)


CONFTEST = """
import pytest
from support import fast

def pytest_configure(config):
    config.addinivalue_line("markers", "fast: set by itself")
    config.addinivalue_line("markers", "process: starts a process")
    fast.watch()

def pytest_itemcollected(item):
    fast.mark([item])

def pytest_runtest_setup(item):
    fast.begin(item)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    try:
        return (yield)
    finally:
        fast.end()
"""

HIDDEN = """
import importlib
import pytest

def start():
    importlib.import_module("subprocess").run(["true"], check=True)

def test_unmarked():
    start()

@pytest.mark.process
def test_marked():
    start()
"""


@pytest.mark.process
def test_a_fast_test_that_starts_a_process_fails(pytester: pytest.Pytester) -> None:
    """A list that somebody forgets to keep would let slow tests in; this one keeps itself."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(HIDDEN)
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\npythonpath = ['{fast.TESTS}']")
    found = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:cacheprovider")
    found.assert_outcomes(passed=2, errors=1)
    assert "a fast test started a process" in found.stdout.str()
    assert "mark it with pytest.mark.process" in found.stdout.str()
