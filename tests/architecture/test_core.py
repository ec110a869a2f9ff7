"""The choice of the core, and how it is built: with a compiler, without one, and into a wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millstream import core
from millstream.server.process import core_note

ROOT = Path(__file__).parents[2]
NO_COMPILER = {"CC": "no-such-compiler"}


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python program in the checkout, with these variables beside what is set."""
    inherited = {name: value for name, value in os.environ.items() if name != core.VARIABLE}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=False, timeout=120
    )


def wheel(folder: Path, **environment: str) -> tuple[str, list[str], str]:
    """A wheel of this checkout: its tags, its files, and what building it said."""
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), **environment)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made.stem.split("-", 2)[2], zipfile.ZipFile(made).namelist(), done.stderr


def test_the_environment_chooses_the_core() -> None:
    """The Python one on request; the native one where it was built; anything else is a mistake."""
    found = run("-c", "from millstream import core; print(core.NAME)", MILLSTREAM_CORE="python")
    assert (found.stdout, found.stderr) == ("python\n", "")
    wrong = run("-c", "from millstream import core", MILLSTREAM_CORE="fast")
    assert "MILLSTREAM_CORE is 'fast'; it may be native or python" in wrong.stderr


@pytest.mark.parametrize(
    ("name", "is_chosen", "note"),
    [("native", False, ""), ("native", True, ""), ("python", True, " (MILLSTREAM_CORE says so)")],
)
def test_the_start_says_which_core_runs(monkeypatch: pytest.MonkeyPatch, name: str, is_chosen: bool, note: str) -> None:
    """In a word, where there is nothing to do."""
    monkeypatch.setattr(core, "NAME", name)
    monkeypatch.setattr(core, "IS_CHOSEN", is_chosen)
    assert core_note() == note


def test_the_start_says_how_to_get_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody chose the slower one."""
    monkeypatch.setattr(core, "NAME", core.PYTHON)
    monkeypatch.setattr(core, "IS_CHOSEN", False)
    assert core.REMEDY in core_note()


def test_without_a_compiler_building_says_so(tmp_path: Path) -> None:
    """As an error, or as a remark where the package works without."""
    words = ("scripts/build_core.py", "--into", str(tmp_path))
    refused, content = run(*words, **NO_COMPILER), run(*words, "--if-possible", **NO_COMPILER)
    assert (refused.returncode, content.returncode) == (1, 0)
    assert "there is no C compiler (no-such-compiler)" in refused.stderr
    assert "its Python double will run" in content.stdout


@pytest.mark.parametrize(
    ("environment", "word"), [(NO_COMPILER, "there is no C compiler"), ({core.VARIABLE: core.PYTHON}, "")]
)
def test_a_wheel_without_the_core_is_the_pure_one(tmp_path: Path, environment: dict[str, str], word: str) -> None:
    """It fits every machine; the build says what is missing and why, unless it was asked for."""
    tags, files, said = wheel(tmp_path, **environment)
    assert tags == "py3-none-any"
    assert not [name for name in files if "_native" in name or name.endswith((".c", ".h"))]
    assert word in said
    assert ("native core" in said) == bool(word)


def test_a_wheel_has_the_native_core(tmp_path: Path) -> None:
    """Compiled for this Python, without what it was compiled from; a build that must have it fails without."""
    tags, files, _ = wheel(tmp_path, MILLSTREAM_CORE="native", CFLAGS="-O0 -Wno-cpp")  # quick to compile
    assert tags.startswith(f"cp{sys.version_info.major}{sys.version_info.minor}-")
    assert len([name for name in files if name.startswith("millstream/_native.")]) == 1
    assert not [name for name in files if name.endswith((".c", ".h"))]
    failed = run(
        "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), MILLSTREAM_CORE="native", **NO_COMPILER
    )
    assert failed.returncode != 0
