"""A plugin for the runs of :mod:`faults.planting`: how the tests ended, by the names of the exceptions, as JSON.

It also sees to it that what is tested is the copy: a run that imported another Millstream would prove nothing.
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
    """The copy, and nothing else, is under test."""
    assert Path(millstream.__file__).is_relative_to(os.environ["PLANTED_SOURCE"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note each failure, and each test whose body passed."""
    global passed  # noqa: PLW0603 - a plugin is a module
    report = yield
    if report.failed:
        assert call.excinfo is not None
        failures.append(("" if call.when == "call" else f"{call.when} ") + name_of(call.excinfo.value))
    elif report.passed and call.when == "call":
        passed += 1
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A test file that cannot be read is a failure of its own."""
    if report.failed:
        failures.append("collection")


def pytest_sessionfinish() -> None:
    """Write what was noted."""
    Path(os.environ["PLANTED_REPORT"]).write_text(json.dumps({"passed": passed, "failures": failures}))


def name_of(error: BaseException) -> str:
    """The exception's name; that of what it holds if all in a group are of one kind; timeouts are told apart."""
    if isinstance(error, BaseExceptionGroup):
        names = {name_of(one) for one in error.exceptions}
        return names.pop() if len(names) == 1 else type(error).__name__
    if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout"):
        return "Timeout"
    return type(error).__name__
