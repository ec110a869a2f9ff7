"""Planting faults: break one promise in a copy of the source, and see that a named test notices.

The checkout is never touched. A fault is planted in a copy of ``src`` in a folder of its own, and the test runs in a
process that imports that copy. The same test must pass on a copy without the fault, so that nothing else made it fail.
It must fail with the exception that the fault names (an assertion, mostly), so that a typing error proves nothing.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from faults.anchors import Anchor, Misplaced, laid_out, locate

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/millstream"
SECONDS = 240
"""A test of a fault that has not ended by then counts as one that hangs, which is not what a fault may show."""

ASSERTION = ("AssertionError", "Failed")
"""What a failed assertion and a ``pytest.raises`` that saw nothing raise."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One defect that somebody could write; :mod:`faults.anchors` says how it finds its place.

    Attributes:
        name: in words with dashes, unique.
        breaks: the promise that no longer holds.
        file: below ``src/millstream``.
        place: ``Class.method``, ``function``, the name of a script, or "" for what is outside of functions.
        old: the statements or the expression that it changes.
        new: what takes their place; "" deletes.
        caught_by: the test that must fail, ``tests/folder/file.py::name``, with or without ``[parameters]``.
        shows: names of the exceptions by which that test may fail.
        which: ``2 of 5``, where several statements of the place have the shape of ``old``.
        core: which one runs; what is planted in Python is passed over where the native core does the same.
    """

    name: str
    breaks: str
    file: str
    place: str
    old: str
    new: str
    caught_by: str
    shows: tuple[str, ...] = ASSERTION
    which: str = ""
    core: str = "python"

    @property
    def anchor(self) -> Anchor:
        """Its file, its place and the planted code."""
        return Anchor(self.file, self.place, self.old, self.new, self.which)

    def problem(self, package: Path = PACKAGE) -> str | None:
        """Why it cannot be planted in a package, or None."""
        try:
            locate(package, self.anchor)
        except (Misplaced, SyntaxError) as reason:
            return f"{self.name}: {reason}"
        return None


class WrongFailure(AssertionError):  # noqa: N818 - the name of what is wrong
    """A planted fault was not caught, or not by what it should show."""


def copy_of_source(folder: Path, fault: Fault | None = None) -> Path:
    """Copy the source into a folder, with the fault planted if there is one; returns what to put on the path.

    Bytecode goes with it, since the processes of a test would compile some hundred modules each; that of the broken
    file stays behind, whatever its times say.
    """
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    if fault is not None:
        path, broken = locate(source / "millstream", fault.anchor)
        path.write_text(laid_out(broken))
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    return source


@dataclass(frozen=True, slots=True)
class Run:
    """The result of the test.

    Attributes:
        passed: how many tests passed.
        failures: the exception's name for each that failed, whatever its phase; ``setup`` and the like stand before it.
        output: of pytest, for people.
    """

    passed: int
    failures: tuple[str, ...]
    output: str


def run(folder: Path, tests: Sequence[str], fault: Fault | None = None, core: str = "python") -> Run:
    """Run tests against a copy of the source, up to the first that fails.

    Args:
        folder: made for it.
        tests: their node ids.
        fault: planted in the copy; None for none.
        core: which one runs where there is no fault to say it.
    """
    folder.mkdir(parents=True)
    source = copy_of_source(folder, fault)
    report = folder / "report.json"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        "MILLSTREAM_CORE": core if fault is None else fault.core,
        "PLANTED_SOURCE": str(source),
        "PLANTED_REPORT": str(report),
    }
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-p",
        "faults.reporter",
    ]
    words += ["--hypothesis-seed=0", f"--basetemp={folder / 'tmp'}", *tests]
    ended = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    output = ended.stdout + ended.stderr
    if not report.exists():
        return Run(0, ("pytest itself",), output)
    told = json.loads(report.read_text())
    return Run(told["passed"], tuple(told["failures"]), output)


def judge(fault: Fault, sound: Run, broken: Run) -> None:
    """True if the fault was caught as it should be.

    Raises:
        WrongFailure: with what to do.
    """
    if sound.failures or not sound.passed:
        why = ", ".join(sound.failures) or "it did not run"
        raise WrongFailure(f"{fault.name}: its test fails without any fault ({why}):\n{sound.output[-3000:]}")
    if not broken.failures:
        raise WrongFailure(
            f"{fault.name} survives {fault.caught_by}: nothing guards this promise: {fault.breaks}. "
            "Write the test that does, and name it in the fault"
        )
    if not set(broken.failures) <= set(fault.shows):
        raise WrongFailure(
            f"{fault.name}: {fault.caught_by} fails by {', '.join(broken.failures)}, "
            f"not by {' or '.join(fault.shows)}: is it the fault that it shows?\n{broken.output[-3000:]}"
        )


def prove(fault: Fault, folder: Path, sound: dict[str, Run]) -> None:
    """Plant a fault and see it caught; see the same test pass without it.

    Args:
        fault: to be caught.
        folder: made for it.
        sound: how tests went without any fault; what is not known yet is found out and kept here.

    Raises:
        WrongFailure: the fault was not caught as it should be.
    """
    if fault.caught_by not in sound:
        sound[fault.caught_by] = run(folder / "sound", [fault.caught_by], core=fault.core)
    judge(fault, sound[fault.caught_by], run(folder / "broken", [fault.caught_by], fault))
