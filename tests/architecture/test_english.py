"""Plain English in the source, the tests and the documents: the faults that a pattern finds only become fewer."""

from collections import Counter

import pytest

from support import english
from support.source import ROOT, modules

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LEFT = {"src": {}, "tests": {}, "docs": {}}
"""Faults that are left of each kind. A change may lower a number and never raises one."""


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_docstrings_and_comments_become_plainer(folder: str) -> None:
    """Openers with a relative clause, "is no" and long sentences are at most as many as are listed."""
    assert english.of_source(modules(ROOT / folder)) <= Counter(LEFT[folder])


def test_documents_become_plainer() -> None:
    """The same for pages."""
    assert english.of_pages(PAGES) <= Counter(LEFT["docs"])


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("What is kept.", ["opener"]),
        ("Whether it runs", ["opener"]),
        ("Return the entry. Who reads it is not known.", ["opener"]),
        ("What to do?", []),
        ("Whatever comes\n\nis kept", ["opener"]),
        ("An archive is no stream.", ["is no"]),
        ("There is no stream, and it is no longer needed.", []),
        ("It `is no` fault in code.", []),
        ("word " * 31, ["long"]),
        ("word " * 30, []),
    ],
)
def test_rule_sees_a_planted_fault(text: str, faults: list[str]) -> None:
    """Each kind is found, and code is not prose."""
    assert list(english.faults_of(text)) == faults
