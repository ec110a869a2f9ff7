"""Planted faults: break one promise in a copy of the source, and check that a named test fails.

The checkout is never touched. A fault is planted in a copy of ``src`` in a separate folder, and the test runs in a
process that imports that copy. The same test must pass on a copy without the fault, so that nothing else made it fail.
It must fail with the exception that the fault names (an assertion, mostly), so that a typing error does not count.
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
"""Time limit of a fault's test in seconds. A longer run counts as a hang, which no fault may show."""

ASSERTION = ("AssertionError", "Failed")
"""Exceptions of a failed assertion and of a ``pytest.raises`` without an exception."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One realistic defect; :mod:`faults.anchors` describes the search for its place.

    Attributes:
        name: Unique words with dashes.
        breaks: Promise that no longer holds.
        file: Path below ``src/millstream``.
        place: ``Class.method``, ``function``, the name of a script, or "" for code outside of functions.
        old: The statements or the expression that it changes.
        new: The replacement; "" deletes.
        caught_by: Test that must fail, ``tests/folder/file.py::name``, with or without ``[parameters]``.
        shows: Names of the exceptions by which that test may fail.
        which: ``2 of 5``, if several statements of the place have the form of ``old``.
        core: Core to run; a fault in Python has no effect in code that the native core replaces.
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
        """Return the fault's file, place and planted code."""
        return Anchor(self.file, self.place, self.old, self.new, self.which)

    def problem(self, package: Path = PACKAGE) -> str | None:
        """Return the reason why it cannot be planted in a package, or None."""
        try:
            locate(package, self.anchor)
        except (Misplaced, SyntaxError) as reason:
            return f"{self.name}: {reason}"
        return None


class WrongFailure(AssertionError):  # noqa: N818 - the name of what is wrong
    """Error for a planted fault that was not caught, or not by the named exception."""


def copy_of_source(folder: Path, fault: Fault | None = None) -> Path:
    """Copy the source into a folder, with the fault planted if there is one; return the folder for the path.

    Bytecode is copied too, since the processes of a test would compile some hundred modules each. That of the broken
    file is left out, whatever its times are.
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
        passed: Number of passed tests.
        failures: Exception's name for each failure in any phase; ``setup`` and similar phases are prefixed.
        output: pytest's output, for people.
    """

    passed: int
    failures: tuple[str, ...]
    output: str


def run(folder: Path, tests: Sequence[str], fault: Fault | None = None, core: str = "python") -> Run:
    """Run tests against a copy of the source, up to the first that fails.

    Args:
        folder: New folder for the run.
        tests: Node ids of the tests.
        fault: Fault planted in the copy; None for none.
        core: Core to run if there is no fault that names one.
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
    """Return True if the fault was caught as required.

    Raises:
        WrongFailure: It was not; the message has advice.
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
    """Plant a fault and require that its test fails, and that the same test passes without it.

    Args:
        fault: Fault to catch.
        folder: New folder for the runs.
        sound: Results of tests without any fault; missing ones are added.

    Raises:
        WrongFailure: The fault was not caught as required.
    """
    if fault.caught_by not in sound:
        sound[fault.caught_by] = run(folder / "sound", [fault.caught_by], core=fault.core)
    judge(fault, sound[fault.caught_by], run(folder / "broken", [fault.caught_by], fault))
