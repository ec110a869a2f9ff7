"""The choice of the core, and how it is built: with a compiler, without one, and into a wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from millstream import core
from millstream.server.process import core_note
from support import needs

ROOT = Path(__file__).parents[2]
HOW = core.REMEDY
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


@pytest.mark.skipif(core.native is None, reason="there is no native core here")
def test_the_core_works_in_the_main_interpreter_alone() -> None:
    """Another interpreter of the process is refused; the same one may load it again, with the same types."""
    found = run(
        "-c",
        """
import importlib.util, sys
from millstream import _native
spec = importlib.util.spec_from_file_location("millstream._native", _native.__file__)
again = importlib.util.module_from_spec(spec)
spec.loader.exec_module(again)
print(again.EntryStore is _native.EntryStore, again.PLAIN_COMMANDS == _native.PLAIN_COMMANDS, flush=True)
try:
    import _xxsubinterpreters as others
except ModuleNotFoundError:
    import _interpreters as others
tried = ["try:", " import millstream._native", "except ImportError: print('no')"]
said = ["import sys", f"sys.path[:0] = {sys.path!r}", *tried]
other = others.create()
others.run_string(other, chr(10).join(said))
others.destroy(other)
""",
    )
    assert (found.stdout, found.stderr) == ("True True\nno\n", "")


@pytest.mark.parametrize(
    "words", [("serve", "--memory", "--port", "0"), ("serve", "--set", "maxclients=5", "--memory"), ("doctor",)]
)
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("fast", "MILLSTREAM_CORE='fast' is invalid. Set it to native or python, or unset it for the faster one."),
        ("native", f"MILLSTREAM_CORE=native, but the native core is not installed: {HOW}; or unset MILLSTREAM_CORE"),
    ],
)
def test_a_core_that_cannot_be_had_ends_a_command_with_one_sentence(
    tmp_path: Path, words: tuple[str, ...], wanted: str, said: str
) -> None:
    """The message for a missing core names the fault and the remedy; a traceback does neither."""
    # Beside the source, which may have a core: one without it, by links to all else
    package = tmp_path / "millstream"
    package.mkdir()
    for each in (ROOT / "src/millstream").iterdir():
        if not each.name.startswith("_native"):
            (package / each.name).symlink_to(each)
    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from millstream.cli.main import main; main()"
    done = run("-c", command, *words, MILLSTREAM_CORE=wanted)
    assert (done.returncode, done.stdout) == (1 if words[0] == "serve" else 2, "")
    assert done.stderr == f"millstream {words[0]}: {said}\n"


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
    """The start names the remedy if the user did not choose the slower core."""
    monkeypatch.setattr(core, "NAME", core.PYTHON)
    monkeypatch.setattr(core, "IS_CHOSEN", False)
    assert core.REMEDY in core_note()


def test_a_core_of_other_sources_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that it lacks would be their Python doubles, and tests of the core would prove nothing."""
    stale = ModuleType("millstream._native")
    monkeypatch.setattr(core, "native", stale)
    with pytest.raises(pytest.exit.Exception, match="make core"):
        needs.present_core()


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
    assert not [name for name in files if "_native.c" in name or name.endswith((".c", ".h"))]
    assert word in said
    assert ("native core" in said) == bool(word)


def test_a_wheel_has_the_native_core(tmp_path: Path) -> None:
    """Compiled for this Python, without what it was compiled from; a build that must have it fails without."""
    tags, files, _ = wheel(tmp_path, MILLSTREAM_CORE="native", CFLAGS="-O0 -Wno-cpp")  # quick to compile
    assert tags.startswith(f"cp{sys.version_info.major}{sys.version_info.minor}-")
    assert len([name for name in files if name.startswith("millstream/_native.c")]) == 1
    assert not [name for name in files if name.endswith((".c", ".h"))]
    failed = run(
        "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), MILLSTREAM_CORE="native", **NO_COMPILER
    )
    assert failed.returncode != 0
    assert failed.stderr.strip().endswith("Mend that, or build without MILLSTREAM_CORE=native for the Python core")
    assert "Traceback" not in failed.stderr
