"""The demo's command line refuses invalid options at once, with one sentence, before it changes anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flights.__main__ import demo as command
from support.ports import free_port


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the test's folder."""
    monkeypatch.chdir(tmp_path)


def demo(*words: str) -> Result:
    """Run the demo to its end in this process, which has already imported Spark and pandas."""
    return CliRunner().invoke(command, [*words])


def refused(done: Result, out: Path, *texts: str) -> None:
    """Assert exit code 2, one line with ``texts``, no traceback and no files."""
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for text in texts:
        assert text in done.stderr
    assert not out.exists()


def test_help_teaches() -> None:
    """The demo's help explains its work, its files, a first try and the exit codes."""
    done = demo("--help")
    assert done.exit_code == 0
    for text in ("336,776", "demo-out/page.html", "--rows 20000", "--kill-server", "Exit code", "Java 17"):
        assert text in " ".join(done.stdout.split())


@pytest.mark.parametrize("rows", ["0", "-5", "999", "336777"])
def test_rows_out_of_range(tmp_path: Path, rows: str) -> None:
    """A number of rows out of range is refused with the valid range."""
    refused(demo("--rows", rows), tmp_path / "demo-out", "1,000", "336,776")


def test_rows_not_a_number() -> None:
    """A number of rows that is not a number is refused with the value."""
    done = demo("--rows", "many")
    assert done.exit_code == 2
    assert "'many' is not a valid integer" in done.stderr


def test_missing_java_is_said_at_once(tmp_path: Path) -> None:
    """Without Java, the demo prints one sentence with the package to install, and starts and writes nothing."""
    env = {**os.environ, "PATH": "", "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-m", "flights"], capture_output=True, text=True, timeout=120, env=env, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1), done.stderr
    for text in ("Java 17", "openjdk-17-jre-headless"):
        assert text in done.stderr
    assert not (tmp_path / "demo-out").exists()


@pytest.mark.spark
def test_unknown_scheme(tmp_path: Path) -> None:
    """A URL with an unknown scheme is refused with the known schemes."""
    done = demo("--url", "http://localhost")
    refused(done, tmp_path / "demo-out", "the http:// URL", "redis://", "unix://")


@pytest.mark.spark
def test_nobody_at_the_url(tmp_path: Path) -> None:
    """An unreachable server is reported before Spark starts, without its password."""
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    done = demo("--url", url)
    refused(done, tmp_path / "demo-out", "no server answers")
    assert "secret" not in done.stderr


def test_kill_server_needs_our_own(tmp_path: Path) -> None:
    """``--kill-server`` with the URL of another server is refused."""
    done = demo("--kill-server", "--url", "redis://127.0.0.1:1")
    refused(done, tmp_path / "demo-out", "--kill-server", "never touched")


def test_to_stay_is_of_the_console(tmp_path: Path) -> None:
    """``--stay`` without ``--console`` is refused."""
    refused(demo("--stay"), tmp_path / "demo-out", "--stay", "--console")


@pytest.mark.spark
def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """A folder with other files is refused as output, and unchanged."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = demo("--out", "mine")
    refused(done, tmp_path / "demo-out", "not empty", "--out")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
