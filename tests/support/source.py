"""Reading the source as a tree of modules: what each imports, calls, comments and documents. Nothing is executed."""

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
        name: dotted, as deep as it is written: ``from a.b import c`` is ``a.b.c``.
        line: where.
        is_type_only: it stands below ``if TYPE_CHECKING``.
    """

    name: str
    line: int
    is_type_only: bool = False

    @property
    def package(self) -> str:
        """The outermost package."""
        return self.name.partition(".")[0]


class Module:
    """One source file.

    Args:
        path: the file.
        base: the folder that is on Python's path (``src`` or ``tests``).
    """

    def __init__(self, path: Path, base: Path) -> None:
        self.path = path
        self.place = path.relative_to(base.parent).as_posix()
        words = path.relative_to(base).with_suffix("").parts
        self.is_package = words[-1] == "__init__"
        self.name = ".".join(words[:-1] if self.is_package else words)

    @cached_property
    def text(self) -> str:
        """The file as it stands."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree; the rules go over all of them again and again."""
        return walked(self.tree)

    @property
    def part(self) -> str:
        """Which part of millstream it belongs to: ``engine``, ``errors``; empty for the package itself."""
        return part_of(self.name)

    @cached_property
    def imports(self) -> list[Import]:
        """Everything imported anywhere in it: at the top, inside functions, for type checking, by literal name."""
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
        """Every call, with the dotted name of what is called."""
        return [(called(node), node) for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """Every comment with its line."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def walked(tree: ast.AST) -> list[ast.AST]:
    """Every node of a tree, as ``ast.walk`` yields them, in a third of its time; without contexts such as Load."""
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
    """``a.b.c`` of ``a.b.c(...)``; what cannot be named (``f()()``) is an empty word."""
    words: list[str] = []
    target: ast.expr = node.func
    while isinstance(target, ast.Attribute):
        words.append(target.attr)
        target = target.value
    words.append(target.id if isinstance(target, ast.Name) else "")
    return ".".join(reversed(words))


def part_of(name: str) -> str:
    """The part a dotted name belongs to: ``engine`` of ``millstream.engine.ids``; empty for the package itself."""
    words = name.split(".")
    return words[1] if len(words) > 1 and words[0] == "millstream" else ""


def modules(base: Path) -> list[Module]:
    """Every module under ``base``, in order of their paths."""
    return [Module(path, base) for path in sorted(base.rglob("*.py")) if "__pycache__" not in path.parts]


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
