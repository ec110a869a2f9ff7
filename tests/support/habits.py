"""Habits of CONTRIBUTING.md that a program can check, as functions that list the violations."""

import ast
import re
from collections.abc import Iterable

from support.source import Module, functions

MAX_LINES = 800
MAX_LINES_SRC = 650
# Spelt in halves, so that this file does not break its own rule.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
# The one helper that may sleep: it polls other processes, with a deadline.
MAY_SLEEP = "tests/support/waiting.py"
SLEEPS = frozenset({"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"})

# A directive to the linter or the type checker; what is left of the comment after it must hold a word or more.
DIRECTIVE = re.compile(
    r"#\s*(?:noqa(?P<noqa>:\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*)?|type:\s*ignore(?P<type>\[[\w, -]+\])?)(?P<rest>.*)$"
)


def too_long(modules: Iterable[Module]) -> list[str]:
    """List modules over 650 lines in ``src``, or over 800 elsewhere."""
    return [
        f"{module.place}: {count} lines"
        for module in modules
        if (count := module.text.count("\n")) > (MAX_LINES_SRC if str(module.place).startswith("src/") else MAX_LINES)
    ]


def unfinished(modules: Iterable[Module]) -> list[str]:
    """List TODO notes, and stubs that raise NotImplementedError."""
    broken = []
    for module in modules:
        if UNFINISHED.search(module.text):  # few have such a word; to take all apart takes seconds
            broken += [f"{module.place}:{line} {text}" for line, text in module.comments if UNFINISHED.search(text)]
        for node in module.nodes if "NotImplemented" in module.text else ():
            if isinstance(node, ast.Raise) and "NotImplemented" in ast.dump(node):
                broken.append(f"{module.place}:{node.lineno} raises NotImplementedError")
    return broken


def undocumented_tests(modules: Iterable[Module]) -> list[str]:
    """List tests without a docstring."""
    return [
        f"{module.place}:{function.lineno} {function.name}"
        for module in modules
        for function in functions(module)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ]


def unreasoned(modules: Iterable[Module]) -> list[str]:
    """List linter and type exceptions without a code, or without a reason in the same line."""
    broken = []
    for module in modules:
        for line, text in module.comments if re.search(r"noqa|type:\s*ignore", module.text) else ():
            found = DIRECTIVE.match(text)
            if found is None:
                continue
            named = found["noqa"] or found["type"]
            if not named or not re.search(r"[a-z]{3}", found["rest"]):
                broken.append(f"{module.place}:{line} {text}")
    return broken


def sleeping(modules: Iterable[Module]) -> list[str]:
    """List sleeps in tests; ``asyncio.sleep(0)`` only lets other tasks run and is allowed."""
    broken = []
    for module in modules:
        if module.place == MAY_SLEEP:
            continue
        for name, call in module.calls:
            first = call.args[0] if call.args else None
            yields = isinstance(first, ast.Constant) and first.value == 0 and name != "time.sleep"
            if name in SLEEPS and not yields:
                broken.append(f"{module.place}:{call.lineno} calls {name}")
    return broken


def stopped_clocks(modules: Iterable[Module]) -> list[str]:
    """List functions of ``time`` replaced for the whole process; ``support/clock.py`` replaces them for one module."""
    broken = []
    for module in modules:
        for name, call in module.calls:
            where = call.args[0] if call.args else None
            text = where.value if isinstance(where, ast.Constant) else ast.unparse(where) if where else ""
            if name.endswith(".setattr") and "time" in str(text).split("."):
                broken.append(f"{module.place}:{call.lineno} replaces {text}")
    return broken


def given_away(modules: Iterable[Module]) -> list[str]:
    """List sockets bound to port 0 to find a number for another server, which a client may then be given."""
    broken = []
    for module in modules:
        for name, call in module.calls:
            where = call.args[0] if call.args and name.endswith(".bind") else None
            if isinstance(where, ast.Tuple) and len(where.elts) == 2 and ast.unparse(where.elts[1]) == "0":
                broken.append(f"{module.place}:{call.lineno} binds port 0")
    return broken


def unexplained_options(modules: Iterable[Module]) -> list[str]:
    """List options without ``help``, and commands whose help does not mention each argument."""
    broken = []
    for module in modules:
        for name, call in module.calls:
            if name == "click.option" and not any(keyword.arg == "help" for keyword in call.keywords):
                broken.append(f"{module.place}:{call.lineno} {ast.unparse(call.args[0])} has no help")
        for function in functions(module):
            if _is_command(function):
                text = ast.get_docstring(function) or ""
                missing = [name for name in _shown_arguments(function) if not re.search(rf"\b{name}\b", text)]
                broken += [f"{module.place}:{function.lineno} {function.name} does not explain {n}" for n in missing]
    return broken


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if a function is a click command or group."""
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in {"command", "group"}
        for each in function.decorator_list
    )


def _shown_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterable[str]:
    """Return the names of a command's arguments as its usage line shows them."""
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "click.argument":
            named = {
                keyword.arg: ast.literal_eval(keyword.value) for keyword in each.keywords if keyword.arg == "metavar"
            }
            yield from re.findall(r"[A-Z:]+", named.get("metavar", ast.literal_eval(each.args[0]).upper()))


def classes(module: Module) -> list[ast.ClassDef]:
    """Return every class of a module, including those inside functions."""
    return [node for node in module.nodes if isinstance(node, ast.ClassDef)]


def classes_of_one_name(modules: Iterable[Module]) -> list[str]:
    """List class names that several modules define, which makes a traceback ambiguous."""
    places: dict[str, list[str]] = {}
    for module in modules:
        for node in classes(module):
            places.setdefault(node.name, []).append(module.place)
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def error_tree(modules: Iterable[Module], root: str) -> set[tuple[str, str]]:
    """Return name and base of every class that descends from an error, wherever it is defined."""
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for module in modules
        for node in classes(module)
    }
    found: set[tuple[str, str]] = set()
    ahead = [root]
    while ahead:
        parent = ahead.pop()
        children = {(name, parent) for name, all_of_them in bases.items() if parent in all_of_them}
        ahead += [name for name, _ in children - found]
        found |= children
    return found


def drawn_tree(text: str) -> set[tuple[str, str]]:
    """Return name and parent of each entry of a tree drawn with ``├──``."""
    found: set[tuple[str, str]] = set()
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = re.match(r"([ │]*(?:[├└]── )?)(\w+)(?=\s|$)", line)
        if match is None or not (line.startswith("    ") and ("──" in match[1] or not above)):
            continue
        depth, name = len(match[1]), match[2]
        above = [each for each in above if each[0] < depth]
        if above:
            found.add((name, above[-1][1]))
        above.append((depth, name))
    return found
