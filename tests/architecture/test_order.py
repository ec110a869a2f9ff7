"""Two processes share the tests so that neither runs long alone at the end."""

from support import order
from support.source import ROOT


def test_java_and_slow_files_are_begun_first() -> None:
    """Then those with the most tests; pytest-xdist's own order would begin a long file of few tests last."""
    counts = [("tests/a.py", 1), ("tests/b.py", 9), *((unit, 2) for unit in reversed(order.SLOW)), (order.JAVA, 1)]
    assert order.in_order(counts) == [order.JAVA, *order.SLOW, "tests/b.py", "tests/a.py"]


def test_files_with_java_are_one_unit() -> None:
    """They run one after the other and share a session; each other file stands for itself."""
    assert order.work_unit("tests/demo/test_run.py") == order.work_unit("tests/spark/test_spark.py") == order.JAVA
    assert order.work_unit("tests/demo/test_page.py") == "tests/demo/test_page.py"


def test_slow_files_are_files() -> None:
    """One that was renamed would quietly be begun last again."""
    assert [file for file in order.SLOW if order.work_unit(file) != file or not (ROOT / file).is_file()] == []
