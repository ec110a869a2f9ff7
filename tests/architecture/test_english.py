"""Plain English in source, tests and documents: the number of faults that patterns find only decreases."""

from collections import Counter
from pathlib import Path

import pytest

from support import english
from support.source import ROOT, Module, modules

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LEFT = {"src": {}, "tests": {}, "docs": {}}
"""The number of remaining faults by kind. A change may lower it and never raises it."""


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_docstrings_and_comments_become_plainer(folder: str) -> None:
    """Docstrings and comments have at most the listed numbers of relative openers, "is no" and long sentences."""
    assert english.of_source(modules(ROOT / folder)) <= Counter(LEFT[folder])


def test_documents_become_plainer() -> None:
    """Documents have at most the listed numbers of faults."""
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
    """The check of English finds each kind of fault, and ignores code."""
    assert list(english.faults_of(text)) == faults


def test_rule_sees_every_text_of_a_module(tmp_path: Path) -> None:
    """Docstrings of modules and attributes count, and comments."""
    path = tmp_path / "planted.py"
    path.write_text('"""What it is."""\n\nLIMIT = 1\n"""What it limits."""\n# What it is for\n')
    assert english.of_source([Module(path, tmp_path)]) == Counter(opener=3)
