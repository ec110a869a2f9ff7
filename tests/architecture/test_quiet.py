"""The output of a test run: dots, failures, and one summary."""

import logging
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger

from support import campaign, quiet


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture the output of campaigns, and remove the setting of a single piece."""
    monkeypatch.setattr(campaign, "uncaptured", nullcontext)
    monkeypatch.delenv("MILLSTREAM_SEED", raising=False)


def skipped(reason: str) -> pytest.TestReport:
    """Build pytest's report of a skipped test."""
    return pytest.TestReport(
        "test_a.py::test_a", ("test_a.py", 1, "test_a"), {}, "skipped", ("test_a.py", 1, f"Skipped: {reason}"), "setup"
    )


def test_skips_are_one_line_by_reason() -> None:
    """Skipped tests are summarized in one line with their number by reason."""
    reports = [skipped("no valkey-server"), skipped("no Java"), skipped("no valkey-server")]
    assert quiet.reasons(reports) == "3 skipped: no valkey-server 2, no Java 1"
    assert quiet.reasons([]) == ""


def test_a_campaign_speaks_only_to_who_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A campaign prints its progress only in a watched run."""
    monkeypatch.setattr(campaign, "watched", False)
    campaign.run("x", str, [1], folder=tmp_path)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(campaign, "watched", True)
    campaign.run("x", str, [1], folder=tmp_path)
    assert "campaign x: 1 of 1 pieces" in capfd.readouterr().err


def test_a_campaign_that_fails_says_how_to_repeat_it_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failed campaign prints how to repeat it, watched or not."""
    monkeypatch.setattr(campaign, "watched", False)
    with pytest.raises(ValueError, match="nine"):
        campaign.run("x", lambda seed: int("nine"), [7], folder=tmp_path)
    assert "MILLSTREAM_SEED=7" in capfd.readouterr().err


def test_a_failed_query_of_spark_leaves_the_log_of_other_tests_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """A failed Spark query does not change the log format of other tests."""
    PySparkLogger("query").addHandler(caplog.handler)
    logging.getLogger("millstream").warning("one line", exc_info=ValueError("bad"))
    assert "one line\nValueError: bad" in caplog.text
