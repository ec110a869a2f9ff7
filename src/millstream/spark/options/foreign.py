"""Equivalents of the options of Kafka's source and sink and of spark-redis, for users who migrate a job.

A name of another program is refused like any unknown one, and the error names the equivalent, or the reason why it is
not needed. Names are in lower case, as Spark passes them on.
"""

import json
from collections.abc import Collection
from functools import cache
from typing import NamedTuple

from millstream.paths import packaged


class Hint(NamedTuple):
    """The equivalent of an option of another program."""

    whose: str  # Program that uses the name
    ours: str | None  # Name of the option in Millstream; None if none is needed
    note: str = ""  # Remark: how its value differs, or why there is no such option


@cache
def _hints() -> dict[str, Hint]:
    """Return the hints by name; a name that ends in a star is a prefix."""
    rows = json.loads(packaged("millstream.spark.options", "foreign.json"))
    return {name: Hint(row["whose"], row.get("ours"), row.get("note", "")) for row in rows for name in row["names"]}


def hint(name: str) -> Hint | None:
    """Return the equivalent of a name of Kafka's or of spark-redis; None for any other name."""
    hints = _hints()
    found = next((each for each in hints if each.endswith("*") and name.startswith(each[:-1])), "")
    return hints.get(name) or hints.get(found)


def refusal(name: str, options: Collection[str], call: str) -> str | None:
    """Return the error for a name of Kafka's or of spark-redis; None for any other name."""
    found = hint(name)
    if found is None:
        return None
    whose = f"a name of {found.whose}'s"
    if found.ours in options:
        note = f"; {found.note}" if found.note else ""
        return f"unknown option {name!r}: did you mean {found.ours!r}? It is {whose}{note}"
    if found.ours is not None:
        return f"unknown option {name!r}: leave it out. It is {whose}, here {found.ours!r}, which {call} does not take"
    return f"unknown option {name!r}: leave it out. It is {whose}; {found.note}"
