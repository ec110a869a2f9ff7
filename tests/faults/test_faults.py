"""Each planted fault is caught by the test that it names: proof of the tests themselves."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from faults.catalogue import FAULTS, QUICK
from faults.planting import ROOT, SECONDS, Fault, Run, WrongFailure, judge, prove, run
from support import campaign

PARTS = 3
BY_NAME = {fault.name: fault for fault in FAULTS}


def test_every_fault_can_be_planted() -> None:
    """The text that each fault replaces is in the source, once: faults follow the source or are seen not to."""
    assert [problem for fault in FAULTS if (problem := fault.problem())] == []


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of the test functions of a file, which many faults name."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_fault_names_a_test_that_exists() -> None:
    """File and function are there."""
    missing = []
    for fault in FAULTS:
        found = re.fullmatch(r"(tests/\w+/test_\w+\.py)::(test_\w+)(\[[\w -]+\])?", fault.caught_by)
        if not found or not (ROOT / found[1]).exists() or found[2] not in names_in(ROOT / found[1]):
            missing.append(fault)
    assert missing == []


def test_every_fault_names_parameters_that_exist() -> None:
    """Asks pytest which there are: parameters come and go with a test."""
    named = {fault.caught_by for fault in FAULTS if "[" in fault.caught_by}
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    words += sorted({name.partition("[")[0] for name in named})
    plain = os.environ | {"PYTEST_ADDOPTS": ""}  # the list looks otherwise with -v
    collected = subprocess.run(words, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert sorted(named - set(collected.stdout.splitlines())) == []


def test_the_catalogue_is_as_large_as_promised() -> None:
    """At least thirty faults, each with a name of its own; those planted in every run are among them."""
    assert len(BY_NAME) == len(FAULTS) == len({number(fault) for fault in FAULTS}) >= 60
    assert set(QUICK) <= set(BY_NAME)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The tests of the faults planted here, on a source without any."""
    return run(tmp_path_factory.mktemp("faults") / "sound", [BY_NAME[name].caught_by for name in QUICK])


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_caught(tmp_path: Path, sound: Run, name: str) -> None:
    """One fault of each part; the long run plants all."""
    fault = BY_NAME[name]
    judge(fault, sound, run(tmp_path / "broken", [fault.caught_by], fault))


def number(fault: Fault) -> int:
    """Its number in a campaign: another one when the fault becomes another, the same when others come and go."""
    return crc32(repr(fault).encode())


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_planted_fault_is_caught(tmp_path: Path, part: int) -> None:
    """Bar F1: all of them, in three campaigns; faults of one test are in the same, since it is run soundly but once."""
    mine = {number(fault): fault for fault in FAULTS if crc32(fault.caught_by.encode()) % PARTS == part}
    sound: dict[str, Run] = {}
    campaign.run(
        f"faults-{part}", lambda seed: prove(mine[seed], tmp_path / str(seed), sound), [*mine], unit="planted faults"
    )


HARMLESS = Fault(
    "harmless",
    "Nothing.",
    "persistence/log.py",
    "SEGMENT_BYTES = 64 << 20\n",
    "SEGMENT_BYTES = 32 << 21\n",
    "tests/persistence/test_log.py::test_append_write_and_sync_move_their_own_positions",
)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (HARMLESS, "harmless survives tests/persistence"),
        (replace(HARMLESS, new="SEGMENT_BYTES = \n"), "fails by (pytest itself|collection)"),
        (replace(HARMLESS, new="SEGMENT_BYTES = 'large'\n"), "fails by TypeError.*, not by AssertionError or Failed"),
    ],
    ids=["survives", "no python", "another failure"],
)
def test_the_harness_can_fail(tmp_path: Path, sound: Run, fault: Fault, words: str) -> None:
    """A fault that survives, one that is only a typing error, and one that shows something else, are told apart."""
    with pytest.raises(WrongFailure, match=words):
        judge(fault, sound, run(tmp_path / "broken", [fault.caught_by], fault))


def test_a_test_that_does_not_pass_proves_nothing() -> None:
    """It must pass without the fault; one that did not run has not."""
    failing, caught = Run(1, ("AssertionError",), ""), Run(0, ("AssertionError",), "")
    for sound in (failing, Run(0, (), "")):
        with pytest.raises(WrongFailure, match="fails without any fault"):
            judge(HARMLESS, sound, caught)
    judge(HARMLESS, Run(1, (), ""), caught)
