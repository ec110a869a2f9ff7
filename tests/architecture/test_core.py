"""The selection of the core, and its build: with a compiler, without one, and into a wheel."""

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
    """Run a Python program in the checkout with additional environment variables."""
    inherited = {name: value for name, value in os.environ.items() if name != core.VARIABLE}
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=False, timeout=120
    )


def wheel(folder: Path, **environment: str) -> tuple[str, list[str], str]:
    """Build a wheel of this checkout; return its tags, its files, and the build's output."""
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), **environment)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made.stem.split("-", 2)[2], zipfile.ZipFile(made).namelist(), done.stderr


def test_the_environment_chooses_the_core() -> None:
    """MILLSTREAM_CORE selects the Python core."""
    found = run("-c", "from millstream import core; print(core.NAME)", MILLSTREAM_CORE="python")
    assert (found.stdout, found.stderr) == ("python\n", "")


@pytest.mark.skipif(core.native is None, reason="there is no native core here")
def test_the_core_works_in_the_main_interpreter_alone() -> None:
    """The native core refuses another interpreter of the process. The same one may load it again."""
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
    """If the requested core is missing or unknown, a command ends with one sentence that names the remedy."""
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
    """The server's start names the running core."""
    monkeypatch.setattr(core, "NAME", name)
    monkeypatch.setattr(core, "IS_CHOSEN", is_chosen)
    assert core_note() == note


def test_the_start_says_how_to_get_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the slower core runs by default, the server's start names the remedy."""
    monkeypatch.setattr(core, "NAME", core.PYTHON)
    monkeypatch.setattr(core, "IS_CHOSEN", False)
    assert core.REMEDY in core_note()


def test_a_core_of_other_sources_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test run ends if the native core was built from other sources."""
    stale = ModuleType("millstream._native")
    monkeypatch.setattr(core, "native", stale)
    with pytest.raises(pytest.exit.Exception, match="make core"):
        needs.present_core()


def test_without_a_compiler_building_says_so(tmp_path: Path) -> None:
    """Without a compiler, the build fails with the reason, or with ``--if-possible`` reports it and succeeds."""
    words = ("scripts/build_core.py", "--into", str(tmp_path))
    refused, content = run(*words, **NO_COMPILER), run(*words, "--if-possible", **NO_COMPILER)
    assert (refused.returncode, content.returncode) == (1, 0)
    assert "there is no C compiler (no-such-compiler)" in refused.stderr
    assert "its Python double will run" in content.stdout


@pytest.mark.parametrize(
    ("environment", "word"), [(NO_COMPILER, "there is no C compiler"), ({core.VARIABLE: core.PYTHON}, "")]
)
def test_a_wheel_without_the_core_is_the_pure_one(tmp_path: Path, environment: dict[str, str], word: str) -> None:
    """A wheel without the native core is a pure one. The build reports the reason, unless this was requested."""
    tags, files, said = wheel(tmp_path, **environment)
    assert tags == "py3-none-any"
    assert not [name for name in files if "_native.c" in name or name.endswith((".c", ".h"))]
    assert word in said
    assert ("native core" in said) == bool(word)


def test_a_wheel_has_the_native_core(tmp_path: Path) -> None:
    """A wheel has the native core for this Python, without its sources. A build that requires it fails without it."""
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
