"""The output of a run: dots, failures, and one summary; nothing that is the same in every run."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from support import campaign


def begin(config: pytest.Config) -> None:
    """Campaigns say how far they are where somebody watches them: in ``make test-long``, and with ``-v``."""
    campaign.watched = config.option.markexpr == "long" or config.option.verbose > 0
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        campaign.uncaptured = capture.global_and_fixture_disabled


def keep_format(config: pytest.Config) -> None:
    """``caplog`` is given to every logger that does not propagate, and PySpark's would make it write JSON for good.

    pytest hands one handler to all tests of a process, from 9.2 on also to such loggers. After the first failed query
    of Spark all later tests, of any part, would read lines of another form.
    """
    plugin: Any = config.pluginmanager.getplugin("logging-plugin")
    if plugin is not None:
        for handler in (plugin.caplog_handler, plugin.report_handler):
            handler.setFormatter = lambda _: None


def reasons(reports: Iterable[pytest.TestReport]) -> str:
    """Why tests were skipped, in one line: each reason with its number, the most frequent first; empty for none."""
    counts = Counter(re.sub(r"^Skipped: ", "", why(report)) for report in reports)
    listed = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    return f"{counts.total()} skipped: {listed}" if counts else ""


def why(report: pytest.TestReport) -> str:
    """The reason that a skipped test gave; pytest has file, line and reason in the place of a traceback."""
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
