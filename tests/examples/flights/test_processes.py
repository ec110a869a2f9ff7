"""The demo's child processes: their failures are reported, and none is left."""

import os
import sys
from pathlib import Path

import pytest

from flights.running.child import Child, DemoError
from support.waiting import eventually


def python(name: str, code: str, logs: Path, **options: object) -> Child:
    return Child(name, [sys.executable, "-c", code], logs, **options)


def gone(pid: int) -> bool:
    """Return True if no such process runs, except as a zombie."""
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_unexpected_end_is_told_with_the_last_words(tmp_path: Path) -> None:
    """The error for a child that ends unexpectedly has its name, its exit code and the end of its log."""
    child = python("baker", "import sys; print('no flour', file=sys.stderr); sys.exit(3)", tmp_path)
    child.process.wait(30)
    with pytest.raises(DemoError, match=r"(?s)baker ended by itself \(exit code 3\).*no flour"):
        child.check()
    child.stop()


def test_end_by_signal_is_told_by_its_name(tmp_path: Path) -> None:
    """The error for a child that crashes names the signal."""
    child = python("baker", "import os; os.kill(os.getpid(), 11)", tmp_path)
    child.process.wait(30)
    with pytest.raises(DemoError, match="SIGSEGV"):
        child.check()
    child.stop()


def test_stop_ends_what_the_child_started(tmp_path: Path) -> None:
    """Stopping a child ends its own children, even if they ignore SIGTERM."""
    heard: list[str] = []
    code = (
        "import subprocess, sys, time\n"
        "inner = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'\n"
        "p = subprocess.Popen([sys.executable, '-c', inner], stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    child = python("parent", code, tmp_path, on_line=heard.append)
    eventually(lambda: heard)
    inner = int(heard[0])
    os.kill(inner, 0)
    child.stop()
    child.check()  # an end that was asked for is not an error
    eventually(lambda: gone(inner))


def test_stubborn_child_is_killed(tmp_path: Path) -> None:
    """A child that ignores SIGTERM is killed."""
    heard: list[str] = []
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    child = python("mule", code, tmp_path, on_line=heard.append)
    eventually(lambda: heard)
    assert child.stop(grace=0.1) == -9


def test_a_child_goes_to_the_server_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child uses the server that the demo passes, even if the user has a default context."""
    monkeypatch.setenv("MILLSTREAM_CONTEXT", "away")
    heard: list[str] = []
    code = "import os; print(os.environ.get('MILLSTREAM_CONTEXT'), os.environ['MILLSTREAM_URL'])"
    child = python("baker", code, tmp_path, env={"MILLSTREAM_URL": "redis://there"}, on_line=heard.append)
    child.process.wait(30)
    eventually(lambda: heard == ["None redis://there"])
    child.stop()
