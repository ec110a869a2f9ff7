"""tests/seeds/README.md: every test it names exists, and every test of this folder is in it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = Path(__file__).with_name("README.md")


def functions_of(path: Path) -> set[str]:
    """Names of the test functions of one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


def named() -> set[tuple[str, str]]:
    """Every ``path::test`` of the map."""
    return set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", MAP.read_text(encoding="utf-8")))


def test_every_row_names_a_test_that_exists() -> None:
    """No behaviour of the documents is claimed without a test behind it."""
    rows = named()
    assert len(rows) > 80
    assert {row for row in rows if row[1] not in functions_of(ROOT / row[0])} == set()


def test_every_test_of_a_document_has_its_row() -> None:
    """And nothing is tested here that the map does not tell."""
    rows = named()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path != Path(__file__):
            name = path.relative_to(ROOT).as_posix()
            assert {(name, test) for test in functions_of(path)} <= rows


def test_the_differences_name_tests_too() -> None:
    """Where a document and Redis disagree, the test that decides is one of the rows."""
    told = MAP.read_text(encoding="utf-8").partition("## Where a document and Redis disagree")[2]
    names = set(re.findall(r"`(test_\w+)`", told))
    assert len(names) >= 6
    assert names <= {test for _, test in named()}
