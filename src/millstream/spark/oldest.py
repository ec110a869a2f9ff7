"""The check of PySpark's version, with an error of one sentence.

Imported wherever Spark looks for any Python source, so it imports nothing.
"""

OLDEST = (4, 2)
"""First version that passes the start and the limit of a batch to a Python source: ``latestOffset(start, limit)``."""


def spark_problem(version: str) -> str | None:
    """Return the problem with this PySpark; None if it is new enough."""
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST:
        return None
    return (
        f"format('millstream') needs Spark {OLDEST[0]}.{OLDEST[1]} or newer and this is {version}, which does not pass "
        "the beginning of a batch to a source in Python: install a newer pyspark, or take a platform that has one"
    )
