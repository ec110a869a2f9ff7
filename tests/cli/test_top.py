"""``millstream top`` on a terminal that is one, on what is none, and as text for a ticket."""

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from cli.test_console import fill
from millstream.cli.main import main
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import DEADLINE, eventually

COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)[;m]")


def top(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """The command in this process, where nothing is a terminal."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["top", server.url, *words])  # or names are cut
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def test_what_is_no_terminal_is_refused_by_name(server: ServerProcess) -> None:
    """With what there is instead."""
    said = top(server, code=2).stderr
    assert all(word in said for word in ("millstream check", "stream ls --watch", "--snapshot"))


def test_a_file_with_several_servers_is_refused(tmp_path: Path) -> None:
    """A terminal shows one."""
    path = tmp_path / "servers"
    path.write_text("redis://127.0.0.1:1/0\nredis://127.0.0.1:2/0\n")
    done = CliRunner().invoke(main, ["top", f"@{path}"])
    assert (done.exit_code, "names 2 servers" in done.stderr) == (2, True)


def test_a_view_is_written_as_text(server: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """All of its rows, with the moment, the rates and the line that shows the same; to a file, or standard output."""
    fill(client)
    text = top(server, "--view", "group orders billing", "--snapshot", "-").stdout
    for word in (
        "lag 2",
        "pending 3",
        "CONSUMERS",
        "c1",
        "PENDING ENTRIES",
        "n=3",
        "$ millstream group show orders billing",
    ):
        assert word in text
    assert re.search(r"billing  20\d\d-\d\d-\d\dT", text)
    file = tmp_path / "ticket.txt"
    done = top(server, "--snapshot", str(file))
    assert (done.stdout, "STREAMS AND GROUPS" in file.read_text()) == ("", True)
    assert str(file) in done.stderr


def test_what_others_wrote_moves_no_cursor_in_a_ticket(server: ServerProcess, client: redis.Redis) -> None:
    """Names and values of any bytes, escaped."""
    strange = b"\x1b[2J\x07\xff\n[bold]"
    client.xadd(strange, {strange: strange}, id="1-0")
    client.xgroup_create(strange, strange, id="0")
    client.execute_command("XREADGROUP", "GROUP", strange, b"c", "STREAMS", strange, ">")
    text = top(server, "--snapshot", "-").stdout
    assert "\\x1b[2J\\x07\\xff\\n[bold]" in text
    assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) == []


def test_a_wrong_view_and_a_missing_server_are_said_so(server: ServerProcess, client: redis.Redis) -> None:
    """By the exit codes of all subcommands."""
    assert "`group STREAM GROUP`" in top(server, "--view", "group orders", "--snapshot", "-", code=2).stderr
    assert "there is no stream" in top(server, "--view", "stream nope", "--snapshot", "-", code=4).stderr
    done = CliRunner().invoke(main, ["top", f"redis://127.0.0.1:{free_port()}/0", "--snapshot", "-"])
    assert (done.exit_code, "does not answer" in done.stderr) == (3, True)
    assert CliRunner().invoke(main, ["top", "redis://anna:s3cret@127.0.0.1:6379/0"]).exit_code == 2


@pytest.mark.process
def test_without_its_package_it_says_what_to_install(tmp_path: Path) -> None:
    """The extra by its name."""
    reader, writer = pty.openpty()
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['textual'] = None\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("millstream"), "top", f"redis://127.0.0.1:{free_port()}/0"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TERM": "xterm-256color"},
        stdin=writer, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    os.close(reader)
    assert done.returncode == 2
    assert "needs textual, which is not installed: pip install 'millstream[console]'" in done.stderr


class OnTerminal:
    """The command on a terminal of its own.

    Args:
        server: that it shows.
        environment: beside the usual one.
    """

    def __init__(self, server: ServerProcess, **environment: str) -> None:
        self._reader, writer = pty.openpty()
        ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        bare = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLORTERM"}}
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("millstream"), "top", server.url],
            env={**bare, "TERM": "xterm-256color", **environment},
            stdin=writer, stdout=writer, stderr=writer, start_new_session=True,
        )  # fmt: skip
        os.close(writer)
        self.drawn = ""

    def read(self) -> str:
        """What was drawn until now."""
        while select.select([self._reader], [], [], 0)[0]:
            try:
                self.drawn += os.read(self._reader, 1 << 16).decode(errors="replace")
            except OSError:  # it has ended
                break
        return self.drawn

    def press(self, key: str) -> None:
        os.write(self._reader, key.encode())

    def ended(self) -> int:
        """Its exit code, when it has ended; what it still draws is read."""
        eventually(lambda: self.read() is not None and self.process.poll() is not None, what="it ends")
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._reader)


@pytest.mark.process
@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colours", "none"])
def test_on_a_terminal_it_draws_and_ends_by_its_key(
    memory_server: ServerProcess, environment: dict[str, str], coloured: bool
) -> None:
    """What needs a person is there in words and by its mark, with NO_COLOR without a colour; q ends it with 0."""
    with memory_server.client() as client:
        client.flushall()
        fill(client, since=10**12)
    terminal = OnTerminal(memory_server, **environment)
    try:
        eventually(lambda: "STREAMS AND GROUPS" in terminal.read(), what="the overview is drawn")
        assert bool(COLOUR.search(terminal.read())) is coloured
        assert "! " in terminal.drawn
        terminal.press("q")
        assert terminal.ended() == 0
        assert "\x1b[?1049l" in terminal.drawn  # the terminal is as it was
    finally:
        terminal.close()


@pytest.mark.process
def test_a_ticket_needs_no_terminals_package(memory_server: ServerProcess) -> None:
    """What is shown as text loads nothing of Textual."""
    code = (
        "import sys, millstream.cli.main as cli\ntry:\n    cli.main()\nfinally:\n    print('textual' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "top", memory_server.url, "--snapshot", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"
