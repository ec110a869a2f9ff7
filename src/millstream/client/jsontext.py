"""JSON that others wrote. Pure.

``json.loads`` has two ways to refuse a text: ValueError, and RecursionError where it is nested more deeply than
Python's stack allows. Whoever guards against the first is ended by the second, so here both are ValueErrors.
"""

import json
from typing import Any


class TooDeepError(ValueError):
    """It may be JSON, and is nested too deeply to be read."""


def parse(text: str | bytes) -> Any:
    """What this JSON says.

    Raises:
        ValueError: it is not JSON.
        TooDeepError: it is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise TooDeepError("JSON that is nested too deeply") from None
