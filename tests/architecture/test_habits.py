"""The habits of CONTRIBUTING.md that a program can check, each with a violation that it finds."""

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support import habits
from support.source import ROOT, Module, modules

Rule = Callable[[Iterable[Module]], list[str]]

FOLDERS = {
    habits.too_long: ("src", "tests", "bench", "examples"),
    habits.unfinished: ("src", "tests", "bench", "examples"),
    habits.undocumented_tests: ("tests",),
    habits.unreasoned: ("src", "tests", "bench", "examples"),
    habits.sleeping: ("tests",),
    habits.stopped_clocks: ("tests",),
    habits.given_away: ("src", "tests", "bench", "examples"),
    habits.unexplained_options: ("src",),
}


@pytest.fixture(scope="module")
def project() -> dict[str, list[Module]]:
    """Parse the modules of each folder once for all rules of this file."""
    return {folder: modules(ROOT / folder) for folder in ("src", "tests", "bench", "examples")}


@pytest.mark.parametrize("rule", FOLDERS, ids=lambda rule: rule.__name__)
def test_project_keeps_the_habit(rule: Rule, project: dict[str, list[Module]]) -> None:
    """The source, tests, benchmarks and examples follow the rules of CONTRIBUTING.md."""
    assert [line for folder in FOLDERS[rule] for line in rule(project[folder])] == []


# Names that several classes have; each with its reason, or until one of them is renamed.
SAME_NAME = {
    "StreamSub": "FastStream's name for it, which compat has for users who come from there",
    "Router": "the users' word for a part of an app; inside Spark it finds the server of a key",
}


def test_a_class_has_a_name_of_its_own(project: dict[str, list[Module]]) -> None:
    """Each class name occurs once in the source."""
    found = habits.classes_of_one_name(project["src"])
    assert [line for line in found if line.partition(":")[0] not in SAME_NAME] == []


def test_the_tree_of_errors_is_whole(project: dict[str, list[Module]]) -> None:
    """The tree of errors drawn in errors.py is complete."""
    drawn = habits.drawn_tree(
        ast.get_docstring(ast.parse((ROOT / "src/millstream/errors.py").read_text()), clean=False)
    )
    assert drawn ^ habits.error_tree(project["src"], "MillstreamError") == set()


def test_a_drawn_tree_is_read_as_it_is_drawn() -> None:
    """A drawn tree is read by the position of its names, without the lines between branches."""
    text = """One.

    ::

    Root
    ├── A      what it is
    │   └── B  what that is
    │
    │   Of another kind:
    └── C      the last
    """
    assert habits.drawn_tree(text) == {("A", "Root"), ("B", "A"), ("C", "Root")}


def test_rule_sees_two_classes_of_one_name(tmp_path: Path) -> None:
    """The rule finds two classes of one name, also inside a function."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/x.py").write_text("class Record: ...\nclass Other: ...\n")
    (tmp_path / "src/y.py").write_text("def f():\n    class Record: ...\n")
    assert habits.classes_of_one_name(modules(tmp_path / "src")) == ["Record: src/x.py, src/y.py"]


def test_a_module_of_the_source_is_shorter_than_one_of_the_tests(tmp_path: Path) -> None:
    """A module of ``src`` may have at most 650 lines."""
    (tmp_path / "src").mkdir()
    for lines in (650, 651):
        (tmp_path / f"src/x{lines}.py").write_text("x = 1\n" * lines)
    assert habits.too_long(modules(tmp_path / "src")) == ["src/x651.py: 651 lines"]


LATER = "# TO" + "DO: later"
BARE = "# no" + "qa"
IGNORE = "# type: " + "ignore"

PLANTED: list[tuple[Rule, str, int]] = [
    (habits.too_long, "x = 1\n" * 801, 1),
    (habits.too_long, "x = 1\n" * 800, 0),
    (habits.unfinished, f"x = 1  {LATER}\n", 1),
    (habits.unfinished, "def f():\n    raise NotImplementedError('soon')\n", 1),
    (habits.unfinished, "MASTODON = 'TODOS'\n", 0),
    (habits.undocumented_tests, "class TestIt:\n    async def test_a(self):\n        assert 1\n", 1),
    (habits.undocumented_tests, "def test_a():\n    '''Says why.'''\n", 0),
    (habits.undocumented_tests, "def helper(): ...\n", 0),
    (habits.unreasoned, f"import os  {BARE}\n", 1),
    (habits.unreasoned, f"import os  {BARE}: F401\n", 1),
    (habits.unreasoned, f"import os  {BARE}: F401, E501 - tells Spark where we are\n", 0),
    (habits.unreasoned, f"x = f()  {IGNORE}\n", 1),
    (habits.unreasoned, f"x = f()  {IGNORE}[no-untyped-call]\n", 1),
    (habits.unreasoned, f"x = f()  {IGNORE}[no-untyped-call]  # py4j has no types\n", 0),
    (habits.sleeping, "import time\ntime.sleep(0)\n", 1),
    (habits.sleeping, "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n", 1),
    (habits.sleeping, "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n", 0),
    (habits.sleeping, "from time import sleep\nsleep(1)\n", 1),
    (habits.stopped_clocks, "def test_a(patch):\n    patch.setattr(time, 'sleep', f)\n", 1),
    (habits.stopped_clocks, "def test_a(patch):\n    patch.setattr(module.time, 'sleep', f)\n", 1),
    (habits.stopped_clocks, "def test_a(patch):\n    patch.setattr('module.time.sleep', f)\n", 1),
    (habits.stopped_clocks, "def test_a(patch):\n    patch.setattr(module, 'time', f)\n", 0),
    (habits.given_away, "import socket\nsocket.socket().bind(('127.0.0.1', 0))\n", 1),
    (habits.given_away, "import socket\nsocket.create_server(('127.0.0.1', 0))\n", 0),
    (habits.unexplained_options, "@click.option('--a', is_flag=True)\ndef f(a): ...\n", 1),
    (habits.unexplained_options, "@click.option('--a', help='Why.')\ndef f(a): ...\n", 0),
    (habits.unexplained_options, "@x.command()\n@click.argument('a')\ndef f(a):\n    'Does it.'\n", 1),
    (habits.unexplained_options, "@x.command()\n@click.argument('a', metavar='[B|C]')\ndef f(a):\n    'Of B.'\n", 1),
    (habits.unexplained_options, "@x.command()\n@click.argument('a')\ndef f(a):\n    'Does A.'\n", 0),
]


@pytest.mark.parametrize(("rule", "text", "count"), PLANTED)
def test_habit_sees_a_planted_lapse(tmp_path: Path, rule: Rule, text: str, count: int) -> None:
    """Each habit's check finds a planted violation."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_x.py").write_text(text)
    assert len(rule(modules(tmp_path / "tests"))) == count
