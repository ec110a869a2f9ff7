"""The checks before the README's two commands: one sentence for each missing requirement."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(argument: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the check with a PATH of only ``folder`` and the shell's own tools."""
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts/prerequisites.sh"), argument],
        env={"PATH": f"{folder}:{folder}/tools", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a PATH with only the tools of the check itself."""
    (tmp_path / "tools").mkdir()
    for tool in ("sed", "head"):
        path = next(at for at in map(Path, (f"/usr/bin/{tool}", f"/bin/{tool}")) if at.exists())
        (tmp_path / "tools" / tool).symlink_to(path)
    return tmp_path


def fake(path: Path, line: str) -> None:
    """A program that prints ``line`` on stderr, as ``java -version`` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    path.chmod(0o755)


def test_missing_java_names_the_package(folder: Path) -> None:
    """Without Java, the check prints one sentence with the package to install."""
    found = run("java", folder)
    assert found.returncode == 1
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1
    assert "openjdk-17-jre-headless" in found.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0),
        ('openjdk version "21" 2023-09-19', 0),
        ('openjdk version "11.0.2" 2019-01-15', 1),
        ('java version "1.8.0_292"', 1),
        ("The operation could not be completed. Unable to locate a Java Runtime.", 1),
    ],
)
def test_java_must_be_17_or_newer(folder: Path, line: str, code: int) -> None:
    """The check reads Java's version, also in the old numbering, and requires 17 or newer."""
    fake(folder / "java", line)
    found = run("java", folder)
    assert found.returncode == code, found.stderr
    assert ("openjdk-17-jre-headless" in found.stderr) == bool(code)


def test_java_home_decides_as_it_does_for_spark(folder: Path) -> None:
    """The check tests the Java of JAVA_HOME, which Spark starts, before that of PATH."""
    fake(folder / "java", 'openjdk version "17.0.15"')
    fake(folder / "old/bin/java", 'openjdk version "11.0.2"')
    assert run("java", folder).returncode == 0
    assert run("java", folder, JAVA_HOME=str(folder / "old")).returncode == 1


def test_missing_python_is_one_sentence(folder: Path) -> None:
    """Without the requested Python, the check prints one sentence with its name."""
    found = run("python", folder, PYTHON="python3.99")
    assert found.returncode == 1
    assert len(found.stderr.splitlines()) == 1
    assert "python3.99" in found.stderr


def test_makefile_checks_java_before_it_installs() -> None:
    """``make demo`` checks Java before it downloads Spark."""
    plan = subprocess.run(
        ["make", "-n", "-B", "demo"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    java = next(number for number, line in enumerate(plan) if line.endswith("prerequisites.sh java"))
    assert java == 0
    assert any("-m venv" in line for line in plan[java:])
    assert plan[-1].strip() == "PYTHONPATH=examples .venv/bin/python -m flights"


def test_readme_and_ci_run_the_same_commands() -> None:
    """CI runs the commands of the README."""
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
    assert "\nmake test\n" in (ROOT / ".ci/run").read_text()
