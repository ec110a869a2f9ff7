"""The check of English treats each item of a docstring's list as a separate text."""

import pytest

from support import english

LONG = "word " * 31
HALF = "word " * 16


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (f"Args:\n    url: {HALF}\n    key: {HALF}", []),
        (f"Examples:\n  {HALF}\n  {HALF}", []),
        (f"\\b\n{HALF}\n{HALF}", []),
        (f"=== ===\n{LONG}\n=== ===\n", []),
        (f"As here::\n\n    {HALF}\n    {LONG}", []),
        (f"Args:\n    url: {HALF}\n        {HALF}\n    key: none", ["long"]),
        (f"{HALF}\n{HALF}", ["long"]),
        (f"- {HALF}\n  {HALF}", ["long"]),
        (f"As here::\n\n    code\n\n{LONG}", ["long"]),
        (f"=== ===\na   b\n=== ===\n\n{LONG}", ["long"]),
        ("Raises:\n    KeyError: none.\n    What it is.", ["opener"]),
    ],
)
def test_each_item_is_measured_alone(text: str, faults: list[str]) -> None:
    """Each item of a list is measured alone, and a long item, paragraph or text after code is found."""
    assert [fault for piece in english.pieces(text) for fault in english.faults_of(piece)] == faults
