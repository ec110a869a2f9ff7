"""The command line of the demo: what it refuses, it refuses at once, in one sentence, before anything is touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.ports import free_port

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def demo(*words: str, env: dict[str, str] | None = None, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run the demo to its end."""
    return subprocess.run(
        [MILLSTREAM, "demo", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        check=False,
    )


def refused(done: "subprocess.CompletedProcess[str]", out: Path, *texts: str) -> None:
    """Exit code 2, one line that has ``texts``, no traceback, nothing on disk."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for text in texts:
        assert text in done.stderr
    assert not out.exists()


def test_help_teaches(tmp_path: Path) -> None:
    """The help says what it does, what it leaves, how to try it, and what the exit codes mean."""
    done = demo("--help", cwd=tmp_path)
    assert done.returncode == 0
    for text in ("336,776", "demo-out/page.html", "--rows 20000", "--kill-server", "Exit code", "Java 17"):
        assert text in done.stdout


@pytest.mark.parametrize("rows", ["0", "-5", "999", "336777"])
def test_rows_out_of_range(tmp_path: Path, rows: str) -> None:
    """A number of rows that cannot be run is refused with the range that can."""
    refused(demo("--rows", rows, cwd=tmp_path), tmp_path / "demo-out", "1,000", "336,776")


def test_rows_not_a_number(tmp_path: Path) -> None:
    """What is no number is refused by name."""
    done = demo("--rows", "many", cwd=tmp_path)
    assert done.returncode == 2
    assert "'many' is not a valid integer" in done.stderr


def test_missing_java_is_said_at_once(tmp_path: Path) -> None:
    """Without Java: one sentence that names the package to install, and nothing was started or written."""
    env = {"PATH": "", "JAVA_HOME": ""}
    refused(demo(cwd=tmp_path, env=env), tmp_path / "demo-out", "Java 17", "openjdk-17-jre-headless")


@pytest.mark.spark
def test_unknown_scheme(tmp_path: Path) -> None:
    """A URL that is none of a server's is refused with those that are."""
    done = demo("--url", "http://localhost", cwd=tmp_path)
    refused(done, tmp_path / "demo-out", "http://localhost", "redis://", "unix://")


@pytest.mark.spark
def test_nobody_at_the_url(tmp_path: Path) -> None:
    """A server that does not answer is said before Spark starts."""
    url = f"redis://:secret@127.0.0.1:{free_port()}"
    done = demo("--url", url, cwd=tmp_path)
    refused(done, tmp_path / "demo-out", "no server answers")
    assert "secret" not in done.stderr


def test_kill_server_needs_our_own(tmp_path: Path) -> None:
    """A server that is not ours is never killed."""
    done = demo("--kill-server", "--url", "redis://127.0.0.1:1", cwd=tmp_path)
    refused(done, tmp_path / "demo-out", "--kill-server", "never touched")


@pytest.mark.spark
def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """A folder with somebody else's files is neither emptied nor written to."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = demo("--out", "mine", cwd=tmp_path)
    refused(done, tmp_path / "demo-out", "not empty", "--out")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
