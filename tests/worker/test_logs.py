"""Foreign texts in the logs of servers and workers."""

import io
import logging

import pytest

from millstream.logs import logger


def huge() -> Exception:
    """Build an error with megabytes in each of its texts."""
    error = ValueError("x" * 3_000_000)
    error.__cause__ = KeyError("y" * 3_000_000)
    for _ in range(1000):
        error.add_note("z" * 1000)
    return error


@pytest.mark.parametrize("form", ["message", "error", "group"])
def test_a_record_is_bounded(form: str) -> None:
    """Megabytes of text in a log record, or in its error, cause or notes, are cut, with the original length."""
    log, written = logger("millstream.test_logs"), io.StringIO()
    handler = logging.StreamHandler(written)
    log.addHandler(handler)
    try:
        if form == "message":
            log.warning("failed: %s", "x" * 3_000_000)
        else:
            error = huge()
            log.warning("failed", exc_info=error if form == "error" else ExceptionGroup("g" * 3_000_000, [error]))
    finally:
        log.removeHandler(handler)
    text = written.getvalue()
    assert len(text) < 100_000
    assert "characters)" in text


class Broken(logging.Handler):
    """A log handler that raises instead of calling handleError."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("broken")


def refuse(record: logging.LogRecord) -> bool:
    raise RuntimeError("broken")


@pytest.mark.parametrize("part", ["handler", "filter"])
def test_a_program_whose_logging_raises_goes_on(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A program with a raising log handler continues, and standard error shows the reason."""
    log, handler = logger("millstream.test_logs"), Broken()
    if part == "handler":
        log.addHandler(handler)
    else:
        log.addFilter(refuse)
    try:
        log.warning("failed")
    finally:
        log.removeHandler(handler)
        log.removeFilter(refuse)
    assert "RuntimeError: broken" in capsys.readouterr().err
