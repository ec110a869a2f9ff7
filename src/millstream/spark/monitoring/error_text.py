"""The text of a Spark error for a person: the line with the cause, without stack frames of Java or Python."""

import re

_FRAME = re.compile(r"^\s*(at |File \"|\.\.\. \d+ more|=== |---|~|\^|\"\"\"|JVM stacktrace)")
_OURS = re.compile(r"^(?:[\w.]+\.)?((?:\w+Error|DataLossError)): (.+)$")
_ENDED = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")


def last_words(error: object) -> str:
    """Return the line of an error that names its cause.

    An error of Python code at the end of a chain is in a line ``SomeError: what happened``; the last of these is
    the cause. Otherwise it is Spark's own first line.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [_STATE.sub("", line) for line in lines if line and not _FRAME.match(line)]
    for line in reversed(lines):
        found = _OURS.match(line)
        if found is not None:
            return f"{found[1]}: {found[2]}"
    return _ENDED.sub("", lines[0]) if lines else type(error).__name__
