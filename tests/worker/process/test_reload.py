"""Finding an app in a folder or by a function, and restarting workers when files change."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App
from millstream.errors import ConfigError
from millstream.worker.child import find_app
from support.servers import ServerProcess
from support.waiting import eventually
from worker.process.test_blocking import NATIVE, SHORT

APP = """
from millstream import App, StreamSub

def make_app():
    app = App()

    @app.subscriber("jobs")
    async def work(x: int) -> None:
        await app.publish("effects", {{"x": x, "edition": {edition}}})

    @app.subscriber(StreamSub("jobs", group="count"))
    async def count(x: int) -> None: ...

    return app
"""


def test_an_app_is_found_in_a_folder_and_made_by_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``module:make_app()`` is called to make the app. A name that cannot be called or returns no app is an error."""
    monkeypatch.syspath_prepend("")  # find_app's addition to sys.path is removed
    (tmp_path / "made_here.py").write_text(APP.format(edition=1) + "\nnumber = 3\ndef wrong():\n    return 3\n")
    assert isinstance(find_app("made_here:make_app()", str(tmp_path)), App)
    for target, text in (
        ("number()", "cannot be called"),
        ("wrong()", "not a millstream.App"),
        ("nobody()", "no 'nob"),
    ):
        with pytest.raises(ConfigError, match=text):
            find_app(f"made_here:{target}", str(tmp_path))


@pytest.mark.either_server
def test_workers_start_again_when_a_file_changes(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """A changed file restarts the workers. A version that fails to import waits for the next one."""
    file = tasks.folder / "src" / "jobs.py"
    file.parent.mkdir()
    file.write_text(APP.format(edition=1))
    running = tasks.run(
        "jobs:make_app()", server.url, "--app-dir", str(file.parent), "--reload", PYTHONDONTWRITEBYTECODE="1"
    )  # versions of the same second and size would share bytecode
    output: list[str] = []

    def heard(text: str) -> None:
        for line in running.stdout:
            output.append(line)
            if text in line:
                return
        raise AssertionError("".join(output))

    heard("reading jobs\n")  # once, however many read it
    for edition in (2, 3):
        if edition == 3:
            file.write_text("this is no Python")
            heard("waiting for a file to change")
        file.write_text(APP.format(edition=edition))
        heard("reading jobs\n")
        client.xadd("jobs", {"x": edition})
        eventually(lambda edition=edition: edition in editions(client))
    assert editions(client) == [2, 3]
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 0


def editions(client: redis.Redis) -> list[int]:
    rows: Any = client.xrange("effects")
    return [int(fields["edition"]) for _, fields in rows]


BUSY = """
import asyncio, pathlib, re, time
from millstream import App, StreamSub

app = App(grace={grace})
SLOW = pathlib.Path("slow")
while SLOW.exists():
    time.sleep(0.01)

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=60_000))
async def work(x: int) -> None:
    print("begins", flush=True)
    {body}
    print("ended", flush=True)
"""


@pytest.fixture
def edited(server: ServerProcess, tasks: Any) -> Any:
    """Start a run with --reload on a generated module.

    The fixture's function returns the process and helpers to read its output and to save the module again.
    """
    file = tasks.folder / "src" / "jobs.py"
    file.parent.mkdir()

    def run(body: str, grace: float = 60) -> Any:
        file.write_text(BUSY.format(body=body, grace=grace))
        folder = str(file.parent)
        running = tasks.run("jobs:app", server.url, "--app-dir", folder, "--reload", PYTHONDONTWRITEBYTECODE="1")

        def heard(text: str) -> str:
            lines = []
            for line in running.stdout:
                lines.append(line)
                if text in line:
                    return "".join(lines)
            raise AssertionError("".join(lines))

        def save(more: str = "") -> None:
            file.write_text(file.read_text().replace(f"grace={grace}", more or f"grace={grace}") + "#\n")

        return running, heard, save

    return run


@pytest.mark.either_server
@pytest.mark.parametrize("second", ["save", "stop"])
def test_a_second_change_or_a_stop_leaves_a_handler_its_grace(
    client: redis.Redis, tasks: Any, edited: Any, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """A second change or a stop does not shorten the grace of a worker that already stops.

    Its entry is acknowledged.
    """
    (tasks.folder / "sitecustomize.py").write_text("from millstream import ending\nending.ONE_WISH = 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tasks.folder))
    go = tasks.folder / "go"
    running, heard, save = edited(f"while not pathlib.Path({str(go)!r}).exists(): await asyncio.sleep(0.01)")
    heard("reading jobs\n")
    client.xadd("jobs", {"x": 1})
    heard("begins")
    save()
    heard("changed; starting")
    if second == "save":
        save()
        heard("changed; starting")
    else:
        running.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.3)
    go.touch()
    heard("ended")
    if second == "save":
        heard("reading jobs\n")
        running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 0
    waiting: Any = client.xpending("jobs", "g")
    assert waiting["pending"] == 0


@pytest.mark.either_server
def test_a_change_during_the_first_start_starts_again(tasks: Any, edited: Any) -> None:
    """A file saved while the first worker still imports restarts the worker and does not end the run."""
    (tasks.folder / "slow").touch()
    running, heard, save = edited("pass")
    eventually(lambda: running.poll() is None and b"millstream.worker.child" in children(running.pid))
    save()
    heard("changed; starting")
    (tasks.folder / "slow").unlink()
    heard("reading jobs\n")
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 0


def children(pid: int) -> bytes:
    """Return the command lines of a process's children."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return b"".join(Path(f"/proc/{one}/cmdline").read_bytes() for one in found)


@pytest.mark.either_server
def test_a_change_ends_a_worker_that_cannot_end_itself(
    client: redis.Redis, tasks: Any, edited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change, a worker whose handler blocks Python is killed after the grace time. The new version reads."""
    (tasks.folder / "sitecustomize.py").write_text(SHORT)
    monkeypatch.setenv("PYTHONPATH", str(tasks.folder))
    running, heard, save = edited(f"import ctypes; {NATIVE}", grace=0.3)
    heard("reading jobs\n")
    client.xadd("jobs", {"x": 1})
    heard("begins")
    save("grace=60")  # so that a slow machine does not kill the new version at its stop
    heard("worker 1 did not stop in time; killing it")
    heard("reading jobs\n")
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 0
