"""One vocabulary: the field's terms in names, comments, messages and documents, each rule with a violation it finds."""

from pathlib import Path

import pytest

from support import vocabulary
from support.source import ROOT, modules

# Words in which the rule itself is written, and those that are not a metaphor there.
PAGES_STAY = {
    "CONTRIBUTING.md": frozenset(vocabulary.PHRASES) | {"picture"},
    "docs/reference/command-line.md": frozenset({"verdict"}),  # an option of `recover`, as its help says it
    "docs/decisions/0034-the-demo-is-an-example.md": frozenset({"mail"}),
}


def allowed() -> dict[str, frozenset[str]]:
    """Allowed words by place: names that are stored, sent, or written by users."""
    return {place: words for place, (words, _) in vocabulary.STAYS.items()}


def test_source_speaks_the_fields_words() -> None:
    """Names, comments, docstrings and messages of the source contain no discouraged word."""
    assert vocabulary.of_source(modules(ROOT / "src"), allowed()) == []


def test_documents_speak_the_fields_words() -> None:
    """Documents contain no discouraged word."""
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    assert vocabulary.of_pages(pages, ROOT, PAGES_STAY) == []


PLANTED = [
    ("class LetterJudge: ...", 1),
    ("def told(): ...", 1),
    ("x = 1  # buried alive", 1),
    ("raise ValueError('a URL that cannot be meant')", 1),
    ("print(f'the {number}. record')", 0),  # not one text: the parts of it are looked at
    ("TEXT = 'the 5. record is invalid'", 1),
    ("TEXT = b'no verdict'", 1),
    ("x.settle(judge=1)", 1),
    ("def courteous(mailbox): ...", 0),
    ('def decide(): "What was told to the server."', 0),
]


@pytest.mark.parametrize(("text", "count"), PLANTED)
def test_rule_sees_a_planted_word(tmp_path: Path, text: str, count: int) -> None:
    """A discouraged word is found inside a name, and as a whole word in a text. ``told`` is a fault in names only."""
    (tmp_path / "src/millstream").mkdir(parents=True)
    (tmp_path / "src/millstream/x.py").write_text(f"{text}\n")
    assert len(vocabulary.of_source(modules(tmp_path / "src"), {})) == count


def test_what_stays_is_left_alone(tmp_path: Path) -> None:
    """A stored name is allowed only in its listed place."""
    (tmp_path / "src/millstream").mkdir(parents=True)
    (tmp_path / "src/millstream/x.py").write_text("def recover(verdict): ...\n")
    source = modules(tmp_path / "src")
    assert vocabulary.of_source(source, {"src/millstream/x": frozenset({"verdict"})}) == []
    assert vocabulary.of_source(source, {"src/millstream/y": frozenset({"verdict"})}) == [
        "src/millstream/x.py: verdict"
    ]


def test_names_in_documents_are_not_prose(tmp_path: Path) -> None:
    """A discouraged word is allowed in backticks and code of a document, but not in its sentences."""
    page = tmp_path / "page.md"
    page.write_text("`verdict` is an option.\n```\nverdict: dead\n```\nThe verdict is final.\n")
    assert vocabulary.of_pages([page], tmp_path, {}) == ["page.md: verdict"]
