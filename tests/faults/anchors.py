"""The places of faults in the source, found by file, function and the form of the statement, not by its text.

A fault's ``old`` is Python code, and matches a statement of the same form with any names and strings. Each name of the
pattern stands for one name of the source, and ``new`` is planted with the names found there. So a rename breaks no
fault,
nor does another layout of the lines. ``...`` matches any body or expression, and in ``new`` stands for the matched
part.
If several statements have one form, the one with exactly these names is chosen. If a rename has removed those,
``which`` gives the number, as long as there are as many as before. A file that has moved is found by its name, and a
function whose file is gone is searched in all of the package.

Lua is not parsed. In a ``.lua`` file, or in a string that a Python name is assigned, ``old`` is text that occurs
once in that function or string. White space does not count.
"""

import ast
import builtins
import copy
import difflib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from textwrap import dedent
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
FIXED = frozenset(dir(builtins)) | {"self", "cls"}
"""Names that match only themselves."""
TAILS = ("orelse", "finalbody")
"""Parts that a pattern with the body ``...`` may omit."""


class Misplaced(LookupError):  # noqa: N818 - says where to look
    """Error for a fault that does not match the source; the message shows the source."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A change of the source, and its place.

    Attributes:
        file: Path below the package; another folder is accepted when the name is the same.
        place: ``Class.method``, ``function``, a name that is assigned at the top of the file, or "" for all that is
            outside of functions.
        old: The statements or the expression, with names as they were when the fault was written.
        new: The replacement; "" deletes.
        which: ``2 of 5``, if the place has five statements of this form.
    """

    file: str
    place: str
    old: str
    new: str
    which: str = ""


@dataclass(slots=True)
class Match:
    """One statement or expression that matches a pattern, and the source's names for the pattern's names."""

    parent: Any
    at: slice | str | int
    names: dict[tuple[str, Any], Any] = field(default_factory=dict)
    holes: list[Any] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Return True if the names are exactly those of the pattern."""
        return all(name == found for (_, name), found in self.names.items())


def is_hole(node: Any) -> bool:
    """Return True for ``...``, as an expression or as a statement."""
    node = node.value if isinstance(node, ast.Expr) else node
    return isinstance(node, ast.Constant) and node.value is ...


def is_open(node: Any) -> bool:
    """Return True for a compound statement whose body the pattern leaves open."""
    body = getattr(node, "body", None)
    return isinstance(body, list) and len(body) == 1 and is_hole(body[0])


def stands_for(match: Match, kind: str, name: Any, found: Any) -> bool:
    """Map a name of the pattern to one of the source; return False if either is mapped to another."""
    if kind == "name" and (name in FIXED or found in FIXED):
        return name == found
    taken = match.names.setdefault((kind, name), found)
    return taken == found and sum(k == kind and one == found for (k, _), one in match.names.items()) == 1


def kind_of(node: ast.AST, name: str) -> str:
    """Return the kind of a name: attribute, keyword or other, which are renamed separately."""
    return "attribute" if name == "attr" else "keyword" if isinstance(node, ast.keyword) else "name"


def fits(pattern: Any, node: Any, match: Match) -> bool:
    """Return True if a part of the source matches a part of the pattern; record names and the parts for ``...``."""
    if isinstance(pattern, list):
        return (
            isinstance(node, list) and len(pattern) == len(node) and all(map(fits, pattern, node, [match] * len(node)))
        )
    if is_hole(pattern):
        match.holes.append(node)
        return isinstance(node, ast.expr | ast.stmt)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str | bytes):
        return type(pattern.value) is type(node.value) and stands_for(match, "text", pattern.value, node.value)
    if not isinstance(pattern, ast.AST):
        return bool(pattern == node)
    for name, value in ast.iter_fields(pattern):
        found = getattr(node, name)
        if name == "ctx" or (name in TAILS and not value and is_open(pattern)):
            continue
        if name == "body" and is_open(pattern):
            match.holes.append(
                (found, {tail: getattr(node, tail) for tail in TAILS if getattr(pattern, tail, 1) == []})
            )
        elif isinstance(value, str) and isinstance(found, str):
            if not stands_for(match, kind_of(pattern, name), value, found):
                return False
        elif not fits(value, found, match):
            return False
    return True


def fill(node: Any, match: Match, holes: Iterator[Any]) -> Any:
    """Return the replacement with the names of the source and the parts for ``...``."""
    if isinstance(node, list):
        filled = [fill(one, match, holes) for one in node]
        return [one for part in filled for one in (part if isinstance(part, list) else [part])]
    if is_hole(node):
        hole = next(holes)
        return hole[0] if isinstance(hole, tuple) else hole
    if not isinstance(node, ast.AST):
        return node
    made: Any = copy.copy(node)
    if isinstance(node, ast.Constant):
        made.value = match.names.get(("text", node.value), node.value)
        return made
    for name, value in ast.iter_fields(node):
        if name == "body" and is_open(node):
            made.body, tails = next(holes)
            vars(made).update({tail: found for tail, found in tails.items() if getattr(node, tail, 1) == []})
        elif isinstance(value, str):
            setattr(made, name, match.names.get((kind_of(node, name), value), value))
        elif not (name in TAILS and not value and is_open(node)):
            setattr(made, name, fill(value, match, holes))
    return made


def parts(parent: ast.AST, deep: bool) -> Iterator[tuple[Any, str | int, Any]]:
    """Yield every part of a node with its parent and place, including whole lists of statements."""
    for name, value in ast.iter_fields(parent):
        if isinstance(value, list):
            yield parent, name, value
        for at, one in enumerate(value) if isinstance(value, list) else [(name, value)]:
            if isinstance(one, ast.AST):
                yield value if isinstance(value, list) else parent, at, one
                if deep or not isinstance(one, DEFINITIONS):
                    yield from parts(one, deep)


def matches(scope: ast.AST, old: list[ast.stmt], whole: bool) -> list[Match]:
    """Return all matches in a scope: consecutive statements, or expressions if the pattern is one and not ``whole``."""
    expression = old[0].value if len(old) == 1 and isinstance(old[0], ast.Expr) and not whole else None
    found = []
    for parent, at, part in parts(scope, isinstance(scope, FUNCTIONS)):
        if expression is not None:
            if fits(expression, part, match := Match(parent, at)):
                found.append(match)
        elif isinstance(part, list) and part and isinstance(part[0], ast.stmt):
            for start in range(len(part) - len(old) + 1):
                match = Match(part, slice(start, start + len(old)))
                if fits(old, part[start : start + len(old)], match):
                    found.append(match)
    return found


def definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield functions, classes and top-level assignments by their qualified names, including those in functions."""
    for node in body:
        if isinstance(node, DEFINITIONS):
            yield prefix + node.name, node
            yield from definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not prefix:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((one.id, node) for one in targets if isinstance(one, ast.Name))


def scopes(tree: ast.Module, place: str, *, strict: bool) -> list[ast.AST]:
    """Return the nodes that a place names, several for a property; by its last name if its class was renamed."""
    if not place:
        return [tree]
    named = list(definitions(tree.body))
    exact: list[ast.AST] = [node for name, node in named if name == place]
    last = {name: node for name, node in named if name.rpartition(".")[2] == place.rpartition(".")[2]}
    return exact or (list(last.values()) if len(last) == 1 and "." in place and not strict else [])


def choose(anchor: Anchor, found: list[Match]) -> Match:
    """Return the intended match among those of one form.

    Raises:
        Misplaced: The match is ambiguous.
    """
    exact = [match for match in found if match.exact]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    number, _, count = anchor.which.partition(" of ")
    if anchor.which and int(count) == len(found):
        return found[int(number) - 1]
    had = f"there were {count}" if anchor.which else "`which` does not say which"
    raise Misplaced(f"{len(found)} statements there have the shape of\n{anchor.old}\nand {had}")


def closest(scope: ast.AST, old: str) -> str:
    """Return the line of a scope that is most similar to the first of a pattern."""
    lines = {
        ast.unparse(node).partition("\n")[0]: node.lineno for node in ast.walk(scope) if isinstance(node, ast.stmt)
    }
    near = difflib.get_close_matches(old.partition("\n")[0], lines, 1, 0)
    return f"line {lines[near[0]]}: {near[0]}" if near else "nothing"


def change_text(text: str, anchor: Anchor) -> str:
    """Replace text that occurs once, with any white space between its words."""
    pattern = r"\s+".join(map(re.escape, anchor.old.split()))
    if (count := len(re.findall(pattern, text))) != 1:
        raise Misplaced(f"{anchor.old!r} is {count} times there, not once")
    return re.sub(pattern, lambda _: anchor.new, text)


def change_lua(text: str, anchor: Anchor) -> str:
    """Change the text of one Lua function at the top of a file, or of the file if no function is named."""
    if not anchor.place:
        return change_text(text, anchor)
    found = re.search(rf"^(local )?function {re.escape(anchor.place)}\(.*?^end$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise Misplaced("no such function there")
    return text[: found.start()] + change_text(found[0], anchor) + text[found.end() :]


def change_string(scope: ast.AST, anchor: Anchor) -> None:
    """Change the one string of an assignment that contains the text."""
    strings: list[Any] = [
        node for node in ast.walk(scope) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    change_text(" ".join(node.value for node in strings), anchor)
    for node in strings:
        with suppress(Misplaced):
            node.value = change_text(node.value, anchor)


def change_tree(found: list[ast.AST], anchor: Anchor) -> Match:
    """Change the one intended statement or expression, in one of the scopes of a name."""
    old, new = (ast.parse(dedent(text).strip()).body for text in (anchor.old, anchor.new))
    expression = len(new) == 1 and isinstance(new[0], ast.Expr) and not is_hole(new[0])
    alike = [match for scope in found for match in matches(scope, old, whole=not expression)]
    if not alike:
        raise Misplaced(
            f"no statement there has the shape of\n{anchor.old}\nthe closest is {closest(found[0], anchor.old)}"
        )
    match = choose(anchor, alike)
    filled = fill(new, match, iter(match.holes))
    if isinstance(match.at, str):
        setattr(match.parent, match.at, filled[0].value)
    elif isinstance(match.at, int):
        match.parent[match.at] = filled[0].value
    else:
        match.parent[match.at] = filled or ([ast.Pass()] if len(match.parent) == len(old) else [])
    return match


def changed(text: str, anchor: Anchor, *, same_place: bool = False, same_names: bool = False) -> str | ast.Module:
    """Return a file with the fault in it: Lua as text, Python as a tree, so that only a written file is formatted.

    Args:
        text: Content of the file.
        anchor: The change.
        same_place: True to accept only a place of exactly this name.
        same_names: True to accept only a statement with exactly these names.

    Raises:
        Misplaced: The fault does not match; the message shows the source.
    """
    if anchor.file.endswith(".lua"):
        return change_lua(text, anchor)
    tree = ast.parse(text)
    found = scopes(tree, anchor.place, strict=same_place)
    if not found:
        raise Misplaced("no such function, class or name there")
    if isinstance(found[0], ast.Assign | ast.AnnAssign):
        change_string(found[0], anchor)
    elif not change_tree(found, anchor).exact and same_names:
        raise Misplaced("other names there")
    return tree


@lru_cache(maxsize=2)
def texts(package: Path, suffix: str) -> dict[Path, str]:
    """Return the text of all files of the package of one kind."""
    return {path: path.read_text() for path in sorted(package.rglob("*" + suffix))}


def attempts(some: dict[Path, str], anchor: Anchor, *, same_place: bool, same_names: bool) -> list[tuple[Path, Any]]:
    """Yield the files that define a fault's place and contain its names, each with the fault."""
    words = re.findall(r"\w+", anchor.old) if same_names else []
    last = re.escape(anchor.place.rpartition(".")[2])
    defined = re.compile(rf"(def|class|function) ([\w.]+\.)?{last}\b|^{last}\b", re.MULTILINE)
    found = []
    for path, text in some.items():
        if defined.search(text) and all(word in text for word in words):
            with suppress(Misplaced):
                found.append((path, changed(text, anchor, same_place=same_place, same_names=same_names)))
    return found


def locate(package: Path, anchor: Anchor) -> tuple[Path, str | ast.Module]:
    """Return the file to plant a fault in, and its content with the fault.

    If the file or its place is missing, files of the same name are tried, then files with that place. Files with a
    function of the name and the exact statement are tried last. So a module may be moved, renamed, divided or merged
    as long as its functions keep their names.

    Raises:
        Misplaced: The fault matches no file; the message has the place and the source.
    """
    path = package / anchor.file
    problem = "no such file"
    if path.exists():
        try:
            return path, changed(path.read_text(), anchor)
        except Misplaced as reason:
            problem = str(reason)
    others = {one: text for one, text in texts(package, path.suffix).items() if one != path}
    same = {one: text for one, text in others.items() if one.name == path.name}
    outside = not anchor.place
    for some, same_place, same_names in ((same, False, outside), (others, True, outside), (others, False, True)):
        found = attempts(some, anchor, same_place=same_place, same_names=same_names)
        if len(found) == 1:
            return found[0]
        if found:
            problem += "; it fits each of " + ", ".join(str(one.relative_to(package)) for one, _ in found)
            break
    raise Misplaced(f"{anchor.file}, {anchor.place or 'outside of functions'}: {problem}")


def laid_out(source: str | ast.Module) -> str:
    """Return the text of a file with a fault; Python without comments."""
    return source if isinstance(source, str) else ast.unparse(source)
