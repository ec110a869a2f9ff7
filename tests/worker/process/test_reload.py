"""Finding an app: in a folder, by a function; and starting workers again when their files change."""

from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import App
from millstream.errors import ConfigError
from millstream.worker.child import find_app
from support.servers import ServerProcess
from support.waiting import eventually

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
    """``module:make_app()`` is called; what cannot be called, or returns something else, is said."""
    monkeypatch.syspath_prepend("")  # what find_app adds to the path is taken off again
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
    """The second edition runs; one that cannot be imported waits for the third; SIGTERM ends it with code 0."""
    file = tasks.folder / "src" / "jobs.py"
    file.parent.mkdir()
    file.write_text(APP.format(edition=1))
    running = tasks.run(
        "jobs:make_app()", server.url, "--app-dir", str(file.parent), "--reload", PYTHONDONTWRITEBYTECODE="1"
    )  # editions of one second and one size would share their bytecode
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
