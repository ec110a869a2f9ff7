"""pip installs the package with and without a C compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from millstream import core
from support import servers
from support.ports import free_port

ROOT = Path(__file__).parents[2]
ADD_ONE = (
    "import millstream; from millstream import core; "
    "print(core.NAME, millstream.connect('memory://', decode_responses=True).xadd('s', {'f': 'v'}, id='1-1'))"
)


def run(*words: str | Path, tools: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program, optionally with a PATH of only one folder."""
    inherited = {name: value for name, value in os.environ.items() if name not in {core.VARIABLE, "PYTHONPATH", "CC"}}
    if tools is not None:
        inherited["PATH"] = str(tools)
    inherited["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    command = [str(word) for word in words]
    return subprocess.run(
        command, cwd="/", env=inherited | environment, capture_output=True, text=True, check=False, timeout=120
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a program that must succeed."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an unpacked sdist of the checkout, without a compiled core."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (made,) = folder.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        archive.extractall(folder, filter="data")
    return folder / made.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def empty_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a PATH with only a shell and no compiler."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "sh").symlink_to("/bin/sh")
    assert not [name for name in ("cc", "gcc", "clang", "c99") if shutil.which(name, path=str(folder))]
    return folder


def fresh(folder: Path) -> Path:
    """Create an environment with the packages of this one, except for Millstream, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Beside an environment's own packages, and its .pth files are not looked at: no network, nothing installed twice
    (packages / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    return folder / "bin/python"


def install(python: Path, *words: str | Path, tools: Path | None = None, **environment: str) -> str:
    """Install with pip and return its output, with ``-v`` for the output of the build."""
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-v")
    return succeeded(run(*pip, "--no-build-isolation", "--no-index", "--no-deps", *words, tools=tools, **environment))


def copied(source: Path, folder: Path) -> Path:
    """Copy the source, so that an editable installation can put its core into it."""
    return shutil.copytree(source, folder / "checkout", ignore=shutil.ignore_patterns("docs", "tests", "bench"))


def test_the_sdist_has_what_the_core_is_made_of(source: Path) -> None:
    """The sdist has the core's sources and build scripts, and nothing compiled."""
    there = {path.name for path in (source / "src/millstream/_core").iterdir()}
    assert there == {path.name for path in (ROOT / "src/millstream/_core").glob("*.[ch]")}
    assert [
        name for name in ("build_core.py", "build_hook.py", "pypi.py") if not (source / "scripts" / name).exists()
    ] == []
    assert [each.name for each in source.glob("src/millstream/_native*")] == ["_native.pyi"]


# In place is how `make install` has installed what runs here
@pytest.mark.parametrize("editable", [False, pytest.param(True, marks=pytest.mark.long)])
def test_with_a_compiler_pip_installs_the_native_core(source: Path, tmp_path: Path, editable: bool) -> None:
    """With a compiler, pip installs the native core, normally and in editable mode."""
    python = fresh(tmp_path / "venv")
    words = ("-e", copied(source, tmp_path)) if editable else (source,)
    install(python, *words, CFLAGS="-O0 -Wno-cpp")  # quick to compile
    assert succeeded(run(python, "-c", ADD_ONE)) == "native 1-1\n"
    where = succeeded(run(python, "-c", "import millstream._native as found; print(found.__file__)"))
    assert where.startswith(str(tmp_path / "checkout" if editable else tmp_path / "venv"))


def test_without_a_compiler_pip_installs_the_package_in_place(source: Path, tmp_path: Path, empty_path: Path) -> None:
    """Without a compiler, pip installs the package in editable mode."""
    python = fresh(tmp_path / "venv")
    said = install(python, "-e", copied(source, tmp_path), tools=empty_path)
    assert len([line for line in said.splitlines() if "without its native core" in line]) == 1
    assert succeeded(run(python, "-c", ADD_ONE)) == "python 1-1\n"


def test_without_a_compiler_everything_says_so(
    source: Path, tmp_path: Path, empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler, the build, the server's start, INFO and the doctor report the Python core and the remedy."""
    python = fresh(tmp_path / "venv")
    said = install(python, source, tools=empty_path)
    (line,) = [line for line in said.splitlines() if "without its native core" in line]
    assert "there is no C compiler" in line
    assert succeeded(run(python, "-c", ADD_ONE)) == "python 1-1\n"

    program, port, data = python.with_name("millstream"), free_port(), tmp_path / "data"
    command = [str(program), "serve", "--port", str(port), "--dir", str(data)]
    monkeypatch.delenv(core.VARIABLE, raising=False)
    with servers.ServerProcess(command, port, tmp_path / "server.out") as server, server.client() as client:
        assert client.info("server")["millstream_core"] == "python"
    (start,) = [line for line in (tmp_path / "server.out").read_text().splitlines() if line.startswith("  core ")]
    assert start.startswith("  core     python, the slower one. ")
    assert core.REMEDY in start
    told = " ".join(run(program, "doctor", COLUMNS="500").stdout.split())
    assert "python: the native core is not installed" in told
    assert core.REMEDY in told


def test_without_pythons_headers_building_says_so(tmp_path: Path) -> None:
    """Without Python's headers, the build names the missing package."""
    library = Path(sysconfig.get_path("stdlib"))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / library.name).symlink_to(library)
    words = (Path(sys.executable).resolve(), ROOT / "scripts/build_core.py", "--if-possible", "--into", tmp_path)
    said = succeeded(run(*words, PYTHONHOME=str(tmp_path)))
    assert "Python's headers are missing (Debian has them in python3-dev)" in said
    assert len(said.splitlines()) == 1
