"""The reference of Python names: their arguments, from signatures and docstrings."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from scripts.reference.markdown import code, items, prose, sections, table

import millstream

#: The methods of an app in the order in which a program needs them; the others follow.
FIRST = ("subscriber", "publish", "publish_sync", "publish_batch", "publisher", "pipeline", "run", "running")

#: Classes that a program gets and never makes: their members are what it needs.
GIVEN = ("Fire", "Job", "Message")

#: ``name.argument`` -> where a page says more.
MORE = {
    "subscriber.ack": "[what a crash repeats](../worker/explanation.md#repetition-after-a-crash)",
    "subscriber.batch": "[batches](../worker/how-to.md#handle-entries-in-batches)",
    "subscriber.key": "[order by key](../worker/how-to.md#keep-the-order-of-a-key)",
    "subscriber.on_ack": "[remove handled entries](../worker/how-to.md#delete-entries-that-all-groups-have-handled)",
    "publish.idempotent": "[publish once](../worker/how-to.md#publish-so-that-a-repetition-adds-nothing)",
}


def public() -> dict[str, Any]:
    """Return the functions and classes that ``from millstream import ...`` provides, without errors."""
    found = {name: getattr(millstream, name) for name in dir(millstream) if not name.startswith("_")}
    return {
        name: each
        for name, each in found.items()
        if not (isinstance(each, type) and issubclass(each, Exception)) and callable(each)
    }


def reference() -> str:
    """Return a section for each name, those of an app as its methods."""
    found = sorted(public().items(), key=lambda pair: pair[0].lower())
    return "\n" + "\n".join(app() if name == "App" else section(name, each) for name, each in found) + "\n"


def app() -> str:
    """Return the section of the app, and one for each of its methods with arguments."""
    methods = {name: each for name, each in inspect.getmembers(millstream.App, inspect.isfunction) if name[0] != "_"}
    larger = [name for name, each in methods.items() if len(inspect.signature(each).parameters) > 2]
    ordered = sorted(larger, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    others = {name: each for name, each in inspect.getmembers(millstream.App) if name[0] != "_" and name not in larger}
    rows = "\n" + table(["member", "meaning"], members(others))
    return "\n".join(
        [section("App", millstream.App) + rows, *(section(f"App.{name}", methods[name], level=3) for name in ordered)]
    )


def section(name: str, each: Any, *, level: int = 2) -> str:
    """Return the section of one name: its signature, its text, its arguments, its errors.

    Args:
        name: Name as users write it.
        each: Class or function.
        level: Level of its heading.
    """
    doc = sections(inspect.getdoc(each) or "")
    text = f"{'#' * level} {name}\n\n{paragraphs(doc[''])}\n"
    if name in GIVEN:
        fields = [(code(field), prose(meaning)) for field, meaning in items(doc.get("Attributes", "")).items()]
        return text + "\n" + table(["member", "meaning"], [*fields, *members(vars(each))])
    if rows := arguments(name, each):
        text += "\n" + table(["argument", "default", "meaning"], rows)
    if errors := items(doc.get("Raises", "")):
        text += "\nRaises:\n\n" + "".join(f"- {code(error)}: {prose(why)}\n" for error, why in errors.items())
    return text


def arguments(name: str, each: Any) -> list[tuple[str, str, str]]:
    """Return a table row for each argument with its default and its text in the docstring.

    Raises:
        ValueError: The docstring leaves an argument out.
    """
    doc = sections(inspect.getdoc(each) or "")
    described = items(doc.get("Args") or doc.get("Attributes") or "")
    rows = []
    for argument in inspect.signature(each).parameters.values():
        if argument.name in {"self", "call_next"} or argument.name.startswith("_"):
            continue
        if argument.name not in described:
            raise ValueError(f"{name}: the docstring says nothing of {argument.name!r}")
        more = MORE.get(f"{name.rpartition('.')[2]}.{argument.name}")
        says = prose(described[argument.name])
        rows.append(
            (
                code(str(argument.replace(default=argument.empty, annotation=argument.empty))),
                code(_default(argument)),
                f"{says.rstrip('.')}; {more}" if more else says,
            )
        )
    return rows


def members(named: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return public properties and methods, each with the first paragraph of its docstring."""
    found = []
    for name, member in named.items():
        if name.startswith("_") or not (isinstance(member, property) or inspect.isfunction(member)):
            continue
        doc = sections(inspect.getdoc(member) or "")[""].partition("\n\n")[0]
        found.append((code(name if isinstance(member, property) else _call(name, member)), prose(doc)))
    return found


def _call(name: str, method: Callable[..., Any]) -> str:
    """Return a method's call without types."""
    signature = inspect.signature(method)
    plain = [each.replace(annotation=each.empty) for each in list(signature.parameters.values())[1:]]
    return f"{name}({', '.join(map(str, plain))})"


def _default(argument: inspect.Parameter) -> str:
    value = argument.default
    if value is argument.empty or value is dataclasses.MISSING:
        return ""
    if repr(value) == "<factory>":  # Of a dataclass; all of ours make an empty mapping
        return "{}"
    return f"{type(value).__name__}()" if re.search(r"<.*(factory|object).*>", repr(value)) else repr(value)


def paragraphs(text: str) -> str:
    """Return the prose of a docstring; indented text is code."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.startswith("    "):
            found.append(f"```python\n{textwrap.dedent(paragraph)}\n```")
        elif paragraph.endswith("::"):
            found.append(prose(paragraph[:-1]))
        else:
            found.append(prose(paragraph))
    return "\n\n".join(found)


BLOCKS: dict[str, Callable[[], str]] = {"python": reference}
