"""Which PySpark is too old, in one sentence.

Imported wherever Spark looks for any Python source, so it imports nothing.
"""

OLDEST = (4, 2)
"""The first that tells a Python source where a batch begins and how large it may be: ``latestOffset(start, limit)``."""


def spark_problem(version: str) -> str | None:
    """The problem with this PySpark; None if it is new enough."""
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST:
        return None
    return (
        f"format('millstream') needs Spark {OLDEST[0]}.{OLDEST[1]} or newer and this is {version}, which does not pass "
        "the beginning of a batch to a source in Python: install a newer pyspark, or take a platform that has one"
    )
