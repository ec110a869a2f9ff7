"""What tests know of the source that is nobody else's business: private names they read, limits they replace."""

import ast
import re
from collections.abc import Iterable, Iterator

from support.source import Module

PRIVATE = re.compile(r"_[^_]\w*$")
LIMIT = re.compile(r"[A-Z][A-Z_]*$")
NOT_OURS = frozenset({"_replace", "_corrupt"})
"""Named tuples have the one; the other is the column that a user names for what cannot be parsed, as Spark does."""


def private_names(source: Iterable[Module]) -> frozenset[str]:
    """Every private attribute, function, class and constant that the source defines, but for :data:`NOT_OURS`."""
    found = set()
    for module in source:
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(filter(PRIVATE.match, found)) - NOT_OURS


def reads(module: Module, names: frozenset[str]) -> list[str]:
    """Private names of the source that a module of the tests reads, replaces or imports, as "file: name".

    A class of the module's own may have a private attribute of the same name; what derives from a class of ours may
    use what it inherits.
    """
    own = {node.attr for node in module.nodes if isinstance(node, ast.Attribute) and _is_self(node.value)}
    found = set()
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and not _is_self(node.value) and node.attr not in own:
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millstream"):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Call):
            found.update(_replaced(node))
    return [f"{module.path.name}: {name}" for name in sorted(found & names)]


def replaced_limits(module: Module) -> list[str]:
    """Constants of other modules that a module of the tests replaces, as "file: NAME"."""
    found = set()
    for node in module.nodes:
        if isinstance(node, ast.Call):
            found.update(_replaced(node))
        elif isinstance(node, ast.Assign):
            found.update(target.attr for target in node.targets if isinstance(target, ast.Attribute))
    return [f"{module.path.name}: {name}" for name in sorted(filter(LIMIT.match, found))]


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func  # super()
    return isinstance(node, ast.Name) and node.id in {"self", "cls", "super"}


def _replaced(call: ast.Call) -> Iterator[str]:
    """What ``patch.setattr`` is given: ``(owner, "name", ...)`` or ``("dotted.name", ...)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in {"setattr", "delattr"}:
        for word in call.args[:2]:
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                yield word.value.rpartition(".")[2]
