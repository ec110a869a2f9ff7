"""The words of CONTRIBUTING.md: discouraged words with their replacements, and stored or sent names that stay.

Names in the code are split at capitals and underscores, so that ``_LetterJudge`` contains "judge". In prose (comments,
docstrings, messages, documents) whole words count.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.source import Module

# The word, each of its forms -> what the field says.
INSTEAD: dict[str, str] = {
    "attendance attendances": "heartbeat",
    "graveyard graveyards grave graves burial burials bury buries buried corpse corpses": "dead letter",
    "solitude suspect suspects innocent innocents guilty pardon pardons pardoned": "poison-message isolation",
    "verdict verdicts court courts judge judges judged judging": "decision, or settle",
    "mail mails": "send window",
    "survey surveys surveyed": "stream info",
    "picture pictures": "frozen view",
    "keeper keepers": "lease renewal",
    "ledger ledgers": "pending acks, or commit record",
    "upkeep": "maintenance",
    "transfer transfers transferred": "migrate",
    "nursery nurseries": "fork server",
}
# Plain words in a sentence, and metaphors as names.
NAMES_ONLY: dict[str, str] = {"told": "the name of what was said", "twice": "commit record"}
PHRASES: dict[str, str] = {
    r"cannot be meant": "is invalid",
    r"\bthe (?:\d+|%d|\{\w+\})\. (?:record|entry|row|column)": "record 5",
    r"\bkill.point": "failpoint",
}
# Places of words that are stored, sent, or names of an option that users write: path -> words.
STAYS: dict[str, tuple[frozenset[str], str]] = {
    "src/millstream/worker/": (frozenset({"suspect", "suspects"}), "a counter of app.stats(), of heartbeats, a metric"),
    "src/millstream/dashboards/": (frozenset({"suspect"}), "the same metric, in a panel"),
    "src/millstream/spark/recovery/": (frozenset({"verdict", "verdicts"}), "an option of recover(), a column"),
    "src/millstream/cli/spark/": (frozenset({"verdict"}), "the same option on the command line"),
    "src/millstream/web/serving/guard.py": (frozenset({"Transfer", "transfer"}), "a header of HTTP"),
}

WORDS = {form: instead for forms, instead in INSTEAD.items() for form in forms.split()}
_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PROSE = re.compile(r"[A-Za-z]+")

_NAMED: dict[type[ast.AST], str] = {
    ast.ClassDef: "name",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.keyword: "arg",
}
"""Nodes that define a name -> the field with the name."""


def forbidden_names(module: Module) -> Iterator[tuple[str, str]]:
    """Yield forbidden words in names that a module defines: classes, functions, arguments, variables, attributes."""
    for name in {*_named(module), *module.name.split(".")}:
        for word in _NAME.findall(name):
            if word.lower() in WORDS or word.lower() in NAMES_ONLY:
                yield word.lower(), f"{module.place}: {name}"


def _named(module: Module) -> Iterator[str]:
    for node in module.nodes:
        field = _NAMED.get(type(node))
        name = field and getattr(node, field)
        if name:
            yield name


def forbidden_prose(place: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield forbidden words and phrases in a text for people."""
    for word in _PROSE.findall(text):
        if word.lower() in WORDS:
            yield word.lower(), f"{place}: {word}"
    for phrase in PHRASES:
        for found in re.findall(phrase, text):
            yield phrase, f"{place}: {found}"


def texts(module: Module) -> Iterator[str]:
    """Yield the texts of a module for people: its comments, docstrings and string constants."""
    if any(forbidden_prose(module.place, module.text)):  # few have such a word; to take all apart takes seconds
        for _, comment in module.comments:
            yield comment
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def of_source(modules: Iterable[Module], stays: dict[str, frozenset[str]]) -> list[str]:
    """List forbidden words of modules, except those allowed in their place.

    Args:
        modules: Modules to check.
        stays: Words that are allowed, by the beginning of a path.
    """
    broken = []
    for module in modules:
        found = set(forbidden_names(module))
        for text in texts(module):
            found |= set(forbidden_prose(module.place, text))
        broken += [line for word, line in sorted(found) if word not in _allowed(module.place, stays)]
    return broken


def of_pages(pages: Iterable[Path], root: Path, stays: dict[str, frozenset[str]]) -> list[str]:
    """List forbidden words of documents, outside backticks, in which names are quoted.

    Args:
        pages: Markdown files.
        root: Base of their relative paths.
        stays: Words that are allowed, by the beginning of a path.
    """
    broken = []
    for page in pages:
        place = page.relative_to(root).as_posix()
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        found = set(forbidden_prose(place, prose))
        broken += [line for word, line in sorted(found) if word not in _allowed(place, stays)]
    return broken


def _allowed(place: str, stays: dict[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*(words for start, words in stays.items() if place.startswith(start)))
