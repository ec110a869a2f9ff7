"""redis-cli, unmodified, on a Millstream server: RESP2 and RESP3, TCP and unix socket, also after a restart."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from support.needs import program
from support.servers import ServerProcess, millstream_server


class Cli:
    """One way to start redis-cli.

    Args:
        options: connection and output options.
    """

    def __init__(self, *options: str) -> None:
        self._options = options

    def lines(self, *words: str) -> list[str]:
        """Return the lines printed for one command."""
        ended = subprocess.run(
            [program("redis-cli"), *self._options, *words], capture_output=True, text=True, check=True, timeout=60
        )
        return ended.stdout.rstrip("\n").split("\n")

    def json(self, *words: str) -> object:
        """Return the reply of one command as redis-cli's JSON."""
        ended = subprocess.run(
            [program("redis-cli"), *self._options, "--json", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return json.loads(ended.stdout)

    def script(self, text: str) -> list[str]:
        """Return the lines printed for commands on standard input."""
        ended = subprocess.run(
            [program("redis-cli"), *self._options], input=text, capture_output=True, text=True, check=True, timeout=60
        )
        return ended.stdout.rstrip("\n").split("\n")


@pytest.mark.realserver
@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_journey(our_server: ServerProcess, protocol: str) -> None:
    """redis-cli adds, reads in a group, claims and releases. After a restart the pending entries are unchanged."""
    cli = Cli("-p", str(our_server.port), protocol)
    assert cli.lines("PING") == ["PONG"]
    assert cli.lines("XADD", "orders", "1-1", "item", "tea") == ["1-1"]
    assert cli.lines("XADD", "orders", "1-*", "item", "milk") == ["1-2"]
    assert cli.lines("XGROUP", "CREATE", "orders", "billing", "0") == ["OK"]
    read = cli.lines("XREADGROUP", "GROUP", "billing", "anna", "STREAMS", "orders", ">")
    head = ["orders 1-1"] if protocol == "-3" else ["orders", "1-1"]  # redis-cli's own layout of a map
    assert read == [*head, "item", "tea", "1-2", "item", "milk"]
    assert cli.lines("XCLAIM", "orders", "billing", "bert", "0", "1-1", "JUSTID") == ["1-1"]
    assert cli.lines("XACK", "orders", "billing", "1-2") == ["1"]
    assert cli.lines("XNACK", "orders", "billing", "SILENT", "IDS", "1", "1-1") == ["1"]
    before = cli.lines("XPENDING", "orders", "billing")
    assert our_server.stop() == 0
    our_server.start()
    assert cli.lines("XPENDING", "orders", "billing") == before
    assert cli.lines("XAUTOCLAIM", "orders", "billing", "carl", "0", "0") == ["0-0", "1-1", "item", "tea"]


@pytest.mark.realserver
def test_json_shows_resp3_shapes(our_server: ServerProcess) -> None:
    """In RESP3 a read is a map by stream and XINFO is a map, as tools that parse --json expect."""
    cli = Cli("-p", str(our_server.port), "-3")
    cli.lines("XADD", "orders", "1-1", "item", "tea")
    assert cli.json("XREAD", "STREAMS", "orders", "0") == {"orders": [["1-1", ["item", "tea"]]]}
    info = cli.json("XINFO", "STREAM", "orders")
    assert isinstance(info, dict)
    assert (info["length"], info["last-generated-id"], info["first-entry"]) == (1, "1-1", ["1-1", ["item", "tea"]])
    assert cli.json("XRANGE", "nothing", "-", "+") == []


@pytest.mark.realserver
def test_commands_from_standard_input(our_server: ServerProcess) -> None:
    """redis-cli runs commands from standard input, with transactions and errors."""
    cli = Cli("-p", str(our_server.port))
    told = cli.script("MULTI\nXADD s 1-1 a b\nXLEN s\nEXEC\nXADD s 1-1 a b\nSELECT 1\nXLEN s\n")
    assert told[:5] == ["OK", "QUEUED", "QUEUED", "1-1", "1"]
    assert told[5] == "ERR The ID specified in XADD is equal or smaller than the target stream top item"
    assert [line for line in told[6:] if line] == ["OK", "0"]


@pytest.mark.realserver
def test_unix_socket_and_scan(tmp_path: Path) -> None:
    """redis-cli -s connects over the socket file, and --scan lists keys."""
    socket = tmp_path / "s"
    with millstream_server(tmp_path, "--unixsocket", str(socket), "--memory"):
        cli = Cli("-s", str(socket))
        for number in range(25):
            cli.lines("XADD", f"stream:{number}", "*", "a", "b")
        assert sorted(cli.lines("--scan", "--pattern", "stream:1*")) == sorted(
            f"stream:{number}" for number in (1, *range(10, 20))
        )


@pytest.mark.realserver
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["XNACK"], "key group SILENT|FAIL|FATAL IDS numids id [id ...] [RETRYCOUNT count] [FORCE]"),
        (["XGROUP", "DESTROY"], "key group"),
        (["XACKDEL"], "key group [KEEPREF|DELREF|ACKED] IDS numids id [id ...]"),
    ],
)
def test_help_knows_commands_that_this_redis_cli_is_too_old_for(
    our_server: ServerProcess, words: list[str], shown: str
) -> None:
    """``redis-cli help`` shows the server's own arguments, summary, version and group of a newer command."""
    told = Cli("-p", str(our_server.port)).lines("help", *words)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in told]
    assert f"{' '.join(words)} {shown}" in plain
    assert [line.partition(":")[0] for line in plain if ":" in line] == ["summary", "since", "group"]


@pytest.mark.realserver
def test_hints_while_typing(our_server: ServerProcess) -> None:
    """redis-cli shows a command's remaining arguments as a hint while it is typed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))  # wide enough for one line
    command = [program("redis-cli"), "-p", str(our_server.port)]
    environment = os.environ | {"TERM": "xterm", "HOME": str(our_server.log.parent)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        _read_until(ours, "> ")
        os.write(ours, b"XNACK ")
        _read_until(ours, "key group SILENT|FAIL|FATAL IDS numids id [id ...] [RETRYCOUNT count] [FORCE]")
        os.write(ours, b"orders billing FAIL ")
        _read_until(ours, "FAIL IDS numids id [id ...] [RETRYCOUNT count] [FORCE]")
        os.write(ours, b"\x03")
        running.wait(timeout=60)
        os.close(ours)


def _read_until(terminal: int, wanted: str) -> None:
    """Read the terminal's output, without colours and cursor movements, until ``wanted`` appears."""
    seen = ""
    while wanted not in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen):
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, seen
        seen += os.read(terminal, 65536).decode()
