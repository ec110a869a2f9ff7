"""Subcommands with missing packages: one sentence with the command to install them, never a traceback."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from millstream.cli.shared.extras import EXTRAS, advice
from support.layers import THIRD_PARTY
from support.ports import free_port

HIDE = """
import os, sys
for name in os.environ["HIDDEN"].split():
    sys.modules[name] = None  # an import of it raises as if it were not there
"""
URL = f"redis://127.0.0.1:{free_port()}"
NEEDY = {
    "sql": ["sql", "SELECT 1", "--url", URL],
    "recover": ["recover", "s", "--group", "g", "--min-idle", "10m", "--verdict", "release", "--url", URL],
    "archive": ["archive", URL, "s", "--to", "a", "--once"],
    "replay": ["replay", "nowhere", "s", "--to", URL],
}
ABLE = {
    "spark": ["spark", "ls", "--url", URL],
    "worker": ["worker", "ls", "--url", URL],
    "dead": ["dead", "ls", "--url", URL],
    "doctor": ["doctor", URL],
    "import": ["import", URL, "--to", URL],
    "export": ["export", URL, "streams.resp"],
    "log": ["log", "check", "nowhere"],
    "backup": ["backup", "nowhere", "b"],
    "restore": ["restore", "nowhere", "d"],
}


def without(hidden: list[str], words: list[str], folder: Path) -> tuple[int, str]:
    """Run a subcommand with blocked packages; return exit code and output."""
    (folder / "sitecustomize.py").write_text(HIDE)
    environment = {**os.environ, "PYTHONPATH": str(folder), "HIDDEN": " ".join(hidden)}
    program = str(Path(sys.executable).with_name("millstream"))
    done = subprocess.run([program, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", NEEDY)
def test_what_is_missing_is_named_with_its_line(command: str, tmp_path: Path) -> None:
    """Without any extra installed, a subcommand that needs one ends with code 2 and the install command."""
    code, said = without([*EXTRAS], NEEDY[command], tmp_path)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"millstream {command}: needs ")
    assert "pip install 'millstream[spark]'" in said


@pytest.mark.parametrize(("package", "form"), [("deltalake", "delta"), ("pyiceberg", "iceberg")])
def test_a_format_without_its_package(package: str, form: str, tmp_path: Path) -> None:
    """An output format without its package is refused before Spark starts and before anything is written."""
    code, said = without([package], [*NEEDY["archive"], "--format", form], tmp_path)
    assert (code, said.count("\n")) == (2, 1), said
    assert f"--format {form} needs {package}, which is not installed: pip install 'millstream[lake]'" in said
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("package", "command"), [("pyspark", "sql"), ("pyarrow", "replay")])
def test_one_missing_package_is_named(package: str, command: str, tmp_path: Path) -> None:
    """A single missing package gives the same sentence, wherever it is imported."""
    code, said = without([package], NEEDY[command], tmp_path)
    assert (code, "Traceback" in said) == (2, False), said
    assert said.startswith(f"millstream {command}: needs {package}, which is not installed: pip install 'millstream[")


def test_the_other_subcommands_need_no_extra(tmp_path: Path) -> None:
    """Subcommands without extras work in a bare install, up to a missing server or directory."""
    for command, words in ABLE.items():
        code, said = without([*EXTRAS], words, tmp_path)
        assert code in {1, 2, 3}, command
        assert "Traceback" not in said, said
        assert "pip install" not in said, said


def test_every_package_of_an_extra_is_known() -> None:
    """The table of packages covers all names in pyproject.toml and the import rules."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert set(EXTRAS.values()) <= set(declared["project"]["optional-dependencies"])
    known = {name: extra for name, (_, extra) in THIRD_PARTY.items() if extra not in {"", "dev", "console"}}
    assert known.items() <= EXTRAS.items()
    assert advice(ModuleNotFoundError("No module named 'triage'", name="triage")) is None
