"""Which tests are fast: those that start no process and no Spark, and are not marked ``thorough``.

Nobody keeps a list. A test is fast unless it is marked otherwise or its code, that of its fixtures, or that of a helper
which they name, names something that starts a process. What starts one deeper down, inside the package, is not found
so: such a test fails, since a fast test is watched while it runs, and is then marked ``process`` by hand.
"""

import functools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]

SLOW_MARKS = frozenset({"long", "thorough", "spark", "realserver", "process"})
STARTERS = (subprocess, multiprocessing, ProcessPoolExecutor, os.fork, subprocess.Popen, subprocess.run)
"""What nobody names who does not start a process."""

STARTING_NAMES = frozenset({"getfixturevalue", "fork", "posix_spawn", "create_subprocess_exec"})
"""The same for names of attributes; a fixture that is asked for while the test runs may be any."""

EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
"""What Python announces when a process starts."""

heard: list[list[str]] = []
"""What the fast test that runs has started, in a list of its own; empty while none runs."""


harmless: dict[int, object] = {}
"""What was looked through without a find, by id; kept here, so that no other object gets its id."""


def mark(items: list[pytest.Item]) -> None:
    """Mark the fast ones ``fast``."""
    for item in items:
        if isinstance(item, pytest.Function) and SLOW_MARKS.isdisjoint(one.name for one in item.iter_markers()):
            fixtures = [one.func for found in item._fixtureinfo.name2fixturedefs.values() for one in found[-1:]]
            if not any(starts_processes(function) for function in (item.function, *fixtures)):
                item.add_marker("fast")


@functools.cache
def starts_processes(function: object) -> bool:
    """Whether a function of the tests, or one of the tests' that it names, names what starts a process."""
    seen: dict[int, object] = {}
    found = _starts(function, seen)
    if not found:
        harmless.update(seen)
    return found


def _starts(found: object, seen: dict[int, object]) -> bool:
    """The same for what a name stands for.

    Args:
        found: a function, a class or anything else.
        seen: by their ids, the objects that this search has looked at; it grows. When the search ends without a find,
            none of them leads to a start.
    """
    if any(found is starter for starter in STARTERS):
        return True
    found = getattr(found, "__func__", found)
    if isinstance(found, functools.partial):
        found = found.func
    if id(found) in seen or id(found) in harmless or not _is_ours(found):
        return False
    seen[id(found)] = found
    if isinstance(found, type):
        return any(_starts(one, seen) for one in vars(found).values())
    if not isinstance(found, FunctionType):
        inner = getattr(found, "__wrapped__", None)
        return inner is not None and _starts(inner, seen)
    names = set(_names(found.__code__))
    if names & STARTING_NAMES:
        return True
    cells = [cell.cell_contents for cell in found.__closure__ or () if _is_filled(cell)]
    wrapped = getattr(found, "__wrapped__", None)
    used = [found.__globals__[name] for name in names if name in found.__globals__]
    members = [vars(one)[name] for one in used if _is_our_module(one) for name in names if name in vars(one)]
    return any(_starts(one, seen) for one in (*used, *members, *cells, wrapped))


def _names(code: CodeType) -> Iterator[str]:
    """Every name that a piece of code uses, that of functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_ours(found: object) -> bool:
    """Whether a function or class is written in the tests."""
    return callable(found) and _is_our_module(sys.modules.get(str(getattr(found, "__module__", None))))


def _is_our_module(found: object) -> bool:
    """Whether a module is one of the tests'."""
    return isinstance(found, ModuleType) and str(getattr(found, "__file__", None)).startswith(str(TESTS))


def _is_filled(cell: Any) -> bool:
    """A cell of a name that was never bound has no content."""
    try:
        cell.cell_contents  # noqa: B018 - asking is the question
    except ValueError:
        return False
    return True


def watch() -> None:
    """Begin to hear of every process that is started; there is no way to end it, so once for each run."""

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if heard and event in EVENTS:
            heard[0].append(f"{event}: {arguments[:2]}")

    sys.addaudithook(hear)


def begin(item: pytest.Item) -> None:
    """A test begins; if it is a fast one, what it starts is heard from here on."""
    heard[:] = [[]] if item.get_closest_marker("fast") else []


def end() -> None:
    """The test is over, its fixtures too: a fast one that started a process fails."""
    started = heard.pop() if heard else []
    if started:
        pytest.fail(f"a fast test started a process ({started[0]}): mark it with pytest.mark.process", pytrace=False)
