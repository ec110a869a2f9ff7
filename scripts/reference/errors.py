"""The reference of errors: each class, its cause, and its remedy.

It is read from the source and not from imported modules, since some of them need Spark.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.reference.markdown import prose

SOURCE = Path(__file__).parents[2] / "src"
ROOT = "MillstreamError"
ADVICE = "What to do:"


@dataclass
class ErrorClass:
    """One class of errors.

    Attributes:
        name: Name of the class.
        parent: Class above it.
        module: Module to import it from.
        docstring: Its docstring.
        exit_code: Its own exit code, or None for its parent's.
    """

    name: str
    parent: str
    module: str
    docstring: str
    exit_code: int | None

    @property
    def when(self) -> str:
        """Return the docstring without the advice and the attributes."""
        return re.split(r"\n\s*\n(?:What to do:|Attributes:|Args:)", self.docstring)[0]

    @property
    def advice(self) -> str:
        """Return the advice; empty if the docstring has none."""
        _, _, rest = self.docstring.partition(f"{ADVICE} ")
        return rest.partition("\n\n")[0]


@cache
def classes() -> dict[str, ErrorClass]:
    """Return all classes of the tree by name."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    every: dict[str, ErrorClass] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.bases:
                every[node.name] = _class(node, ".".join(path.relative_to(SOURCE).with_suffix("").parts))
    return {name: each for name, each in every.items() if _is_ours(each, every)}


def _class(node: ast.ClassDef, module: str) -> ErrorClass:
    own = [
        each.value.value
        for each in node.body
        if isinstance(each, ast.AnnAssign | ast.Assign)
        and "exit_code" in ast.unparse(each)
        and isinstance(each.value, ast.Constant)
    ]
    docstring = ast.get_docstring(node) or ""
    return ErrorClass(node.name, ast.unparse(node.bases[0]), module, docstring, own[0] if own else None)


def _is_ours(each: ErrorClass, every: dict[str, ErrorClass]) -> bool:
    while each.parent in every:
        each = every[each.parent]
    return ROOT in {each.parent, each.name}


def reference() -> str:
    """Return a section for each class, each followed by its subclasses.

    Raises:
        ValueError: A docstring has no advice.
    """
    every = classes()
    missing = [each.name for each in every.values() if not each.advice]
    if missing:
        raise ValueError(f"docstrings without a paragraph {ADVICE!r}: {', '.join(missing)}")
    return "\n" + "\n".join(section(each, every) for each in _ordered(ROOT, every)) + "\n"


def _ordered(name: str, every: dict[str, ErrorClass]) -> Iterator[ErrorClass]:
    yield every[name]
    for each in sorted(every.values(), key=lambda each: (each.module != "millstream.errors", each.name)):
        if each.parent == name:
            yield from _ordered(each.name, every)


def section(each: ErrorClass, every: dict[str, ErrorClass]) -> str:
    """Return the section of one class."""
    facts = [f"`from {each.module} import {each.name}`"]
    if each.parent in every:
        facts.append(f"a [{each.parent}](#{each.parent.lower()})")
    facts.append(f"exit code {exit_code(each, every)}")
    return f"## {each.name}\n\n{'; '.join(facts)}\n\n{prose(each.when)}\n\n**{ADVICE}** {prose(each.advice)}\n"


def exit_code(each: ErrorClass, every: dict[str, ErrorClass]) -> int:
    """Return the exit code of a command with this error."""
    while each.exit_code is None and each.parent in every:
        each = every[each.parent]
    return 1 if each.exit_code is None else each.exit_code
