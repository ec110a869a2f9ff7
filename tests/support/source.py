"""The source as a tree of modules with their imports, calls, comments and docstrings. Nothing is executed."""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Import:
    """One imported name.

    Attributes:
        name: Dotted name, as deep as it is written: ``from a.b import c`` is ``a.b.c``.
        line: Line number.
        is_type_only: True below ``if TYPE_CHECKING``.
    """

    name: str
    line: int
    is_type_only: bool = False

    @property
    def package(self) -> str:
        """Return the outermost package."""
        return self.name.partition(".")[0]


class Module:
    """One source file.

    Args:
        path: The file.
        base: Folder on Python's path (``src`` or ``tests``).
    """

    def __init__(self, path: Path, base: Path) -> None:
        self.path = path
        self.place = path.relative_to(base.parent).as_posix()
        words = path.relative_to(base).with_suffix("").parts
        self.is_package = words[-1] == "__init__"
        self.name = ".".join(words[:-1] if self.is_package else words)

    @cached_property
    def text(self) -> str:
        """Return the file's text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Return the syntax tree."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return every node of the tree, cached, since the rules walk them repeatedly."""
        return walked(self.tree)

    @property
    def part(self) -> str:
        """Return the part of millstream that it belongs to: ``engine``, ``errors``; empty for the package itself."""
        return part_of(self.name)

    @cached_property
    def imports(self) -> list[Import]:
        """Return all imports: at the top, inside functions, for type checking, by literal name."""
        found = []
        blocks = [node for node in self.nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        type_only = {id(inner) for block in blocks for each in block.body for inner in ast.walk(each)}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [Import(alias.name, node.lineno, id(node) in type_only) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                home = self._absolute(node)
                found += [Import(f"{home}.{alias.name}", node.lineno, id(node) in type_only) for alias in node.names]
            elif isinstance(node, ast.Call) and called(node).endswith(("import_module", "__import__")):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.append(Import(first.value, node.lineno))
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        home = self.name.split(".")
        if not self.is_package:
            home = home[:-1]
        home = home[: len(home) - node.level + 1]
        return ".".join([*home, *([node.module] if node.module else [])])

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Return every call with the dotted name of the called function."""
        return [(called(node), node) for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Return every comment with its line."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def walked(tree: ast.AST) -> list[ast.AST]:
    """Return every node of a tree as ``ast.walk`` does, in a third of its time, without contexts such as Load."""
    found = [tree]
    for node in found:  # grows meanwhile
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                found.append(value)
    return found


def called(node: ast.Call) -> str:
    """Return ``a.b.c`` of ``a.b.c(...)``, with an empty word for a part without a name (``f()()``)."""
    words: list[str] = []
    target: ast.expr = node.func
    while isinstance(target, ast.Attribute):
        words.append(target.attr)
        target = target.value
    words.append(target.id if isinstance(target, ast.Name) else "")
    return ".".join(reversed(words))


def part_of(name: str) -> str:
    """Return the part that a dotted name belongs to: ``engine`` of ``millstream.engine.ids``; empty for the package."""
    words = name.split(".")
    return words[1] if len(words) > 1 and words[0] == "millstream" else ""


def modules(base: Path) -> list[Module]:
    """Return every module under ``base``, in order of their paths."""
    return [Module(path, base) for path in sorted(base.rglob("*.py")) if "__pycache__" not in path.parts]


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
