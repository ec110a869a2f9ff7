"""The output of a run: dots, failures, and one summary, without the constant lines."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from support import campaign


def begin(config: pytest.Config) -> None:
    """Let campaigns show their progress in a watched run: ``make test-long`` or ``-v``."""
    campaign.watched = config.option.markexpr == "long" or config.option.verbose > 0
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        campaign.uncaptured = capture.global_and_fixture_disabled


def keep_format(config: pytest.Config) -> None:
    """Keep the format of ``caplog``, which PySpark's logger would turn into JSON.

    pytest gives one handler to all tests of a process, from 9.2 on also to loggers that do not propagate. After the
    first
    failed query of Spark all later tests would read lines of another format.
    """
    plugin: Any = config.pluginmanager.getplugin("logging-plugin")
    if plugin is not None:
        for handler in (plugin.caplog_handler, plugin.report_handler):
            handler.setFormatter = lambda _: None


def reasons(reports: Iterable[pytest.TestReport]) -> str:
    """Summarize the reasons of skipped tests in one line, with numbers, the most frequent first; empty for none."""
    counts = Counter(re.sub(r"^Skipped: ", "", why(report)) for report in reports)
    listed = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return f"{counts.total()} skipped: {listed}" if counts else ""


def why(report: pytest.TestReport) -> str:
    """Return the reason of a skipped test; pytest has file, line and reason in place of a traceback."""
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
