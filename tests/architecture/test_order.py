"""The order of test files in four processes, so that no long file runs alone at the end."""

from support import order
from support.source import ROOT


def test_java_and_slow_files_are_begun_first() -> None:
    """Files with Java and slow files start first, then those with the most tests."""
    first = [order.SPARK, order.JAVA, *order.SLOW]
    counts = [("tests/a.py", 1), ("tests/b.py", 9), *((unit, 2) for unit in reversed(first))]
    assert order.in_order(counts) == [*first, "tests/b.py", "tests/a.py"]


def test_files_with_java_are_two_units() -> None:
    """Spark's files share one session, files that start programs form a second unit, and each other file is alone."""
    assert (
        order.work_unit("tests/spark/test_spark.py")
        == order.work_unit("tests/spark/views/test_views.py")
        == order.SPARK
    )
    assert (
        order.work_unit("tests/examples/flights/test_run.py")
        == order.work_unit("tests/pipelines/test_run.py")
        == order.JAVA
    )
    assert order.work_unit("tests/spark/test_kills.py") == order.work_unit("tests/examples/flights/test_run.py")
    assert order.work_unit("tests/examples/flights/test_page.py") == "tests/examples/flights/test_page.py"


def test_slow_files_are_files() -> None:
    """The listed slow files exist."""
    assert {order.work_unit(file) for file in order.PROGRAMS} == {order.JAVA}
    assert [file for file in order.SLOW if order.work_unit(file) != file or not (ROOT / file).is_file()] == []
