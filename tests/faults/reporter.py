"""A pytest plugin for the runs of :mod:`faults.planting`: it reports results by the names of the exceptions, as JSON.

It also checks that the copy is under test: a run that imported another Millstream would not count.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

import millstream

passed = 0
failures: list[str] = []


def pytest_sessionstart() -> None:
    """Assert that the copy, and nothing else, is under test."""
    assert Path(millstream.__file__).is_relative_to(os.environ["PLANTED_SOURCE"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record each failure, and each test whose body passed."""
    global passed  # noqa: PLW0603 - a plugin is a module
    report = yield
    if report.failed:
        assert call.excinfo is not None
        failures.append(("" if call.when == "call" else f"{call.when} ") + name_of(call.excinfo.value))
    elif report.passed and call.when == "call":
        passed += 1
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a test file that cannot be read as a failure."""
    if report.failed:
        failures.append("collection")


def pytest_sessionfinish() -> None:
    """Write the recorded results."""
    Path(os.environ["PLANTED_REPORT"]).write_text(json.dumps({"passed": passed, "failures": failures}))


def name_of(error: BaseException) -> str:
    """Return the exception's name; of a group, the name its exceptions share. Timeouts have their own name."""
    if isinstance(error, BaseExceptionGroup):
        names = {name_of(one) for one in error.exceptions}
        return names.pop() if len(names) == 1 else type(error).__name__
    if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
        return "Timeout"
    return type(error).__name__
