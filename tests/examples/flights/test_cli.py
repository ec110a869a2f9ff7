"""The command line of the demo: what it refuses, it refuses at once, in one sentence, before anything is touched."""

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
    """The demo begins in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def demo(*words: str) -> Result:
    """Run the demo to its end, in this process: another would import Spark's and pandas' packages anew."""
    return CliRunner().invoke(command, [*words])


def refused(done: Result, out: Path, *texts: str) -> None:
    """Exit code 2, one line that has ``texts``, no traceback, nothing on disk."""
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for text in texts:
        assert text in done.stderr
    assert not out.exists()


def test_help_teaches() -> None:
    """The help says what it does, what it leaves, how to try it, and what the exit codes mean."""
    done = demo("--help")
    assert done.exit_code == 0
    for text in ("336,776", "demo-out/page.html", "--rows 20000", "--kill-server", "Exit code", "Java 17"):
        assert text in " ".join(done.stdout.split())


@pytest.mark.parametrize("rows", ["0", "-5", "999", "336777"])
def test_rows_out_of_range(tmp_path: Path, rows: str) -> None:
    """A number of rows that cannot be run is refused with the range that can."""
    refused(demo("--rows", rows), tmp_path / "demo-out", "1,000", "336,776")


def test_rows_not_a_number() -> None:
    """A value that is not a number is refused by name."""
    done = demo("--rows", "many")
    assert done.exit_code == 2
    assert "'many' is not a valid integer" in done.stderr


def test_missing_java_is_said_at_once(tmp_path: Path) -> None:
    """Without Java: one sentence that names the package to install, and nothing was started or written."""
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
    """A URL that is not a server's is refused with those that are."""
    done = demo("--url", "http://localhost")
    refused(done, tmp_path / "demo-out", "the http:// URL", "redis://", "unix://")


@pytest.mark.spark
def test_nobody_at_the_url(tmp_path: Path) -> None:
    """A server that does not answer is said before Spark starts."""
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    done = demo("--url", url)
    refused(done, tmp_path / "demo-out", "no server answers")
    assert "secret" not in done.stderr


def test_kill_server_needs_our_own(tmp_path: Path) -> None:
    """A server that is not ours is never killed."""
    done = demo("--kill-server", "--url", "redis://127.0.0.1:1")
    refused(done, tmp_path / "demo-out", "--kill-server", "never touched")


def test_to_stay_is_of_the_console(tmp_path: Path) -> None:
    """Without its pages there is nothing that could stay open."""
    refused(demo("--stay"), tmp_path / "demo-out", "--stay", "--console")


@pytest.mark.spark
def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """A folder with somebody else's files is neither emptied nor written to."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = demo("--out", "mine")
    refused(done, tmp_path / "demo-out", "not empty", "--out")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
