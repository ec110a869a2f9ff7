"""The reference of errors: each class, when it is raised, and what to do.

Read from the source and not from what is imported, since some classes stand in modules that need Spark.
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
        name: of the class.
        parent: the class above it.
        module: where it is imported from.
        docstring: as it stands.
        exit_code: its own, or None where it has its parent's.
    """

    name: str
    parent: str
    module: str
    docstring: str
    exit_code: int | None

    @property
    def when(self) -> str:
        """The docstring without the advice and the attributes."""
        return re.split(r"\n\s*\n(?:What to do:|Attributes:|Args:)", self.docstring)[0]

    @property
    def advice(self) -> str:
        """What to do; empty where the docstring does not say it."""
        _, _, rest = self.docstring.partition(f"{ADVICE} ")
        return rest.partition("\n\n")[0]


@cache
def classes() -> dict[str, ErrorClass]:
    """All classes of the tree, by name."""
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
    """A section for each class, those below another behind it.

    Raises:
        ValueError: a docstring does not say what to do.
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
    """One class."""
    facts = [f"`from {each.module} import {each.name}`"]
    if each.parent in every:
        facts.append(f"a [{each.parent}](#{each.parent.lower()})")
    facts.append(f"exit code {exit_code(each, every)}")
    return f"## {each.name}\n\n{'; '.join(facts)}\n\n{prose(each.when)}\n\n**{ADVICE}** {prose(each.advice)}\n"


def exit_code(each: ErrorClass, every: dict[str, ErrorClass]) -> int:
    """What a command ends with."""
    while each.exit_code is None and each.parent in every:
        each = every[each.parent]
    return 1 if each.exit_code is None else each.exit_code
