"""Parsing of JSON from other programs, which raises nothing but ValueError. Pure.

``json.loads`` has two ways to refuse a text: ValueError, and RecursionError if it is nested more deeply than Python's
stack allows. A caller that handles only ValueError would be ended by the other, so here both are ValueErrors.
"""

import json
from typing import Any

#: Largest nesting of lists and objects that is read in a record; Millstream's own records have four levels.
DEEPEST = 50


class TooDeepError(ValueError):
    """The text may be JSON, but is nested too deeply to be read."""


def parse(text: str | bytes, **hooks: Any) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise TooDeepError("it is nested too deeply") from None


def parse_record(text: str | bytes) -> Any:
    """Return the value of a record's JSON, which this project writes and any client may overwrite.

    A thousand nested lists can be parsed, but crash any code that walks through them. So the depth is limited.
    """
    found = parse(text)
    level = [found]
    for _ in range(DEEPEST + 1):
        level = [child for each in level for child in _children(each)]
        if not level:
            return found
    raise TooDeepError(f"it is nested more than {DEEPEST} levels deep")


def fault(reason: Exception) -> str:
    """Return the fault of JSON that could not be read as intended, in plain words."""
    if isinstance(reason, json.JSONDecodeError):
        if not reason.doc[reason.pos :].strip() or reason.msg.startswith("Unterminated string"):
            return "it ends too early"
        return f"it is not JSON from line {reason.lineno}, column {reason.colno} on"
    if isinstance(reason, UnicodeError):
        return "it is not UTF-8"
    if isinstance(reason, KeyError):
        return f"it has no {reason.args[0]!r}"
    if isinstance(reason, ValueError):
        return str(reason)
    return "a value in it is of another kind than belongs there"


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
