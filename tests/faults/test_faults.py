"""Each planted fault is caught by its named test, which proves the tests themselves."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import dedent
from zlib import crc32

import pytest

from faults.anchors import FIXED, Anchor, Misplaced, changed, laid_out, locate, scopes
from faults.catalogue import FAULTS, QUICK
from faults.planting import PACKAGE, ROOT, SECONDS, Fault, Run, WrongFailure, judge, prove, run
from support import campaign

MOST_OF_A_TEST = 2
BY_NAME = {fault.name: fault for fault in FAULTS}


def test_every_fault_can_be_planted() -> None:
    """The statement of each fault occurs once in the source."""
    assert [problem for fault in FAULTS if (problem := fault.problem())] == []


def names_of(tree: ast.AST) -> set[str]:
    """Return the names in Python code, except for its own variables and builtins."""
    known = FIXED | {name for kind in (str, bytes, dict, list, set, int) for name in dir(kind)} | {"LOCK_UN"}
    nodes = list(ast.walk(tree))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}) - own - known


def test_every_fault_plants_names_that_exist() -> None:
    """Each name in a fault's replacement exists in the source, so that no fault is caught as a typing error."""
    there = {word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    code = [fault for fault in FAULTS if fault.file.endswith(".py") and not fault.place.isupper()]
    missing = {fault.name: names_of(ast.parse(dedent(fault.new).strip())) - there for fault in code}
    assert {name: words for name, words in missing.items() if words} == {}


class Renamer(ast.NodeTransformer):
    """A visitor that renames each variable, parameter and attribute."""

    def visit(self, node: ast.AST) -> ast.AST:
        """Rename in a node and its children."""
        for name in ("id", "attr", "arg"):
            if (old := getattr(node, name, None)) and old not in FIXED:
                setattr(node, name, f"{old}_renamed")
        return super().generic_visit(node)


def test_a_fault_survives_renames_and_moves(tmp_path: Path) -> None:
    """Twenty faults are still found after every name of their function is changed and their files are moved."""
    files = {fault.file: fault for fault in FAULTS if fault.file.endswith(".py") and "." in fault.place}
    chosen = list(files.values())[:20]
    planted = [laid_out(locate(PACKAGE, fault.anchor)[1]) for fault in chosen]
    for number_, fault in enumerate(chosen):
        tree = ast.parse((PACKAGE / fault.file).read_text())
        for scope in scopes(tree, fault.place, strict=True):
            Renamer().visit(scope)
        name = Path(fault.file).name if number_ % 2 else f"other_{number_}.py"
        (tmp_path / f"room_{number_}").mkdir()
        (tmp_path / f"room_{number_}" / name).write_text(ast.unparse(tree))
    assert len(chosen) == 20
    assert [laid_out(locate(tmp_path, fault.anchor)[1]).replace("_renamed", "") for fault in chosen] == planted


SOURCE = """
LIMIT = 5
SCRIPT = 'if taken then  return 0 end'

class Reader:
    def read(self, fd):
        if self.full:
            self.stop(fd)
        try:
            size = self.take(fd)
        except OSError as error:
            raise Gone from error
        self.stop(size)
        self.stop(size)
        return size
"""


@pytest.mark.parametrize(
    ("place", "old", "new", "which", "is_there"),
    [
        (
            "Reader.read",
            "if self.is_full: ...",
            "if not self.is_full: ...",
            "",
            "if not self.full:\n            self.stop(fd)",
        ),
        ("Other.read", "if self.y: ...", "...", "", "(self, fd):\n        self.stop(fd)\n        try"),
        ("Reader.read", "n = self.get(f)", "n = self.get(f) + f", "", "size = self.take(fd) + fd"),
        ("Reader.read", "try: ...\nexcept OSError as e: ...", "...", "", "self.stop(fd)\n        size = self.take(fd)"),
        ("Reader.read", "self.halt(n)", "halt(n)", "3 of 4", "        halt(size)\n        self.stop(size)\n"),
        ("Reader.read", "self.stop(fd)", "", "", "if self.full:\n            pass\n"),
        ("", "BOUND = 5", "BOUND = 6", "", "LIMIT = 6"),
        ("SCRIPT", "then return 0", "then return 1", "", "taken then return 1 end"),
    ],
)
def test_an_anchor_finds_what_it_means(place: str, old: str, new: str, which: str, is_there: str) -> None:
    """An anchor finds its statement by form, with the names of the source, or by exact names or number among equals."""
    assert is_there in laid_out(changed(SOURCE, Anchor("reader.py", place, old, new, which)))


@pytest.mark.parametrize(
    ("place", "old", "which", "words"),
    [
        ("Reader.write", "x = 1", "", "reader.py, Reader.write: no such function, class or name there"),
        ("Reader.read", "if self.full == 1: ...", "", "reader.py, Reader.read: (?s:.*)is line 7: if self.full:"),
        ("Reader.read", "self.halt(n)", "", "3 statements there have the shape of(?s:.*)does not say which"),
        ("Reader.read", "self.halt(n)", "2 of 4", "3 statements there have the shape of(?s:.*)there were 4"),
        ("Reader.read", "f.halt(n)", "1 of 3", "no statement there has the shape"),
        ("Reader.read", "self.stop(size)", "", "3 statements there"),
        ("SCRIPT", "return 1", "", "'return 1' is 0 times there"),
    ],
)
def test_an_anchor_that_does_not_fit_says_what_stands_there(
    tmp_path: Path, place: str, old: str, which: str, words: str
) -> None:
    """An anchor that does not match is an error that shows the source, and nothing is planted."""
    (tmp_path / "reader.py").write_text(SOURCE)
    with pytest.raises(Misplaced, match=words):
        locate(tmp_path, Anchor("reader.py", place, old, "", which))


def test_a_method_is_found_when_class_and_file_have_other_names(tmp_path: Path) -> None:
    """If class and file were renamed, a method is found by its name and the exact statement."""
    (tmp_path / "other.py").write_text(SOURCE.replace("class Reader", "class Other"))
    anchor = Anchor("reader.py", "Reader.read", "if self.full: ...", "")
    assert locate(tmp_path, anchor)[0] == tmp_path / "other.py"
    with pytest.raises(Misplaced, match="no such file"):
        locate(tmp_path, replace(anchor, old="if self.is_full: ..."))


def test_a_lua_function_is_found_in_another_file(tmp_path: Path) -> None:
    """A Lua function is found in another file by its name with its table, and only its text is changed."""
    text = "local function take(a)\n  return 1\nend\nfunction t.take(a)\n  return  1\nend\n"
    (tmp_path / "other.lua").write_text(text)
    found = locate(tmp_path, Anchor("natives.lua", "t.take", "return 1", "return 2"))
    assert found == (tmp_path / "other.lua", text.replace("return  1", "return 2"))


def test_a_place_that_is_in_two_files_is_named(tmp_path: Path) -> None:
    """If two files match a fault whose file is gone, the error names both."""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(SOURCE)
    with pytest.raises(Misplaced, match=r"no such file; it fits each of one\.py, two\.py"):
        locate(tmp_path, Anchor("reader.py", "Reader.read", "if self.full: ...", ""))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of a file's test functions, cached, since many faults name the same file."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_fault_names_a_test_that_exists() -> None:
    """Every fault names an existing test."""
    missing = []
    for fault in FAULTS:
        found = re.fullmatch(r"(tests/[\w/]+/test_\w+\.py)::(test_\w+)(\[[\w -]+\])?", fault.caught_by)
        if not found or not (ROOT / found[1]).exists() or found[2] not in names_in(ROOT / found[1]):
            missing.append(fault)
    assert missing == []


def test_every_fault_names_parameters_that_exist() -> None:
    """Every fault names existing parameters of its test."""
    named = {fault.caught_by for fault in FAULTS if "[" in fault.caught_by}
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    words += sorted({name.partition("[")[0] for name in named})
    plain = os.environ | {"PYTEST_ADDOPTS": ""}  # the list looks otherwise with -v
    collected = subprocess.run(words, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert sorted(named - set(collected.stdout.splitlines())) == []


def test_the_catalogue_is_small_and_each_fault_breaks_a_promise() -> None:
    """Each fault breaks a promise of docs/promises.toml, and few faults share a test."""
    parts = tomllib.loads((ROOT / "docs" / "promises.toml").read_text())["part"]
    promised = {test for part in parts for promise in part["promise"] for test in promise.get("small", ())}
    caught = {fault.name: fault.caught_by.partition("[")[0] for fault in FAULTS}
    assert {name: test for name, test in caught.items() if not {test, test.partition("::")[0]} & promised} == {}
    counts = Counter(fault.caught_by for fault in FAULTS)
    assert {test: count for test, count in counts.items() if count > MOST_OF_A_TEST} == {}


def test_names_and_numbers_of_faults_are_their_own() -> None:
    """Each fault has a unique name and number, and the quick faults are in the catalogue."""
    assert len(BY_NAME) == len(FAULTS) == len({number(fault) for fault in FAULTS})
    assert set(QUICK) <= set(BY_NAME)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the tests of the quick faults on a source without any fault."""
    return run(tmp_path_factory.mktemp("faults") / "sound", [BY_NAME[name].caught_by for name in QUICK])


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_caught(tmp_path: Path, sound: Run, name: str) -> None:
    """A planted fault of each part is caught by its test."""
    fault = BY_NAME[name]
    judge(fault, sound, run(tmp_path / "broken", [fault.caught_by], fault))


def number(fault: Fault) -> int:
    """Return a fault's number in a campaign, which depends on its content alone."""
    return crc32(repr(fault).encode())


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_every_planted_fault_is_caught(tmp_path: Path) -> None:
    """Every planted fault of the catalogue is caught by its test."""
    numbered = {number(fault): fault for fault in FAULTS}
    sound: dict[str, Run] = {}
    campaign.run(
        "faults", lambda seed: prove(numbered[seed], tmp_path / str(seed), sound), [*numbered], unit="planted faults"
    )


HARMLESS = Fault(
    "harmless",
    "Nothing.",
    "persistence/log.py",
    "",
    "SEGMENT_BYTES = 64 << 20",
    "SEGMENT_BYTES = 32 << 21",
    "tests/persistence/test_log.py::test_append_write_and_sync_move_their_own_positions",
)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (HARMLESS, "harmless survives tests/persistence"),
        (replace(HARMLESS, new="SEGMENT_BYTES = none_such"), "fails by (pytest itself|collection)"),
        (replace(HARMLESS, new="SEGMENT_BYTES = 'large'"), "fails by TypeError.*, not by AssertionError or Failed"),
    ],
    ids=["survives", "not importable", "another failure"],
)
def test_the_harness_can_fail(tmp_path: Path, sound: Run, fault: Fault, words: str) -> None:
    """A fault that survives, a typing error, and a failure by another exception are each reported."""
    with pytest.raises(WrongFailure, match=words):
        judge(fault, sound, run(tmp_path / "broken", [fault.caught_by], fault))


def test_a_test_that_does_not_pass_proves_nothing() -> None:
    """A test that fails or does not run without a fault proves nothing, and is reported."""
    failing, caught = Run(1, ("AssertionError",), ""), Run(0, ("AssertionError",), "")
    for sound in (failing, Run(0, (), "")):
        with pytest.raises(WrongFailure, match="fails without any fault"):
            judge(HARMLESS, sound, caught)
    judge(HARMLESS, Run(1, (), ""), caught)
