"""redis-cli, unmodified, against our server: RESP2 and RESP3, TCP and unix socket, before and after a restart."""

import json
import subprocess
from pathlib import Path

import pytest

from support.needs import program
from support.servers import ServerProcess, millstream_server


class Cli:
    """One way to start redis-cli.

    Args:
        options: how to connect and what to print.
    """

    def __init__(self, *options: str) -> None:
        self._options = options

    def lines(self, *words: str) -> list[str]:
        """The lines printed for one command."""
        ended = subprocess.run(
            [program("redis-cli"), *self._options, *words], capture_output=True, text=True, check=True, timeout=60
        )
        return ended.stdout.rstrip("\n").split("\n")

    def json(self, *words: str) -> object:
        """The reply of one command as redis-cli's JSON."""
        ended = subprocess.run(
            [program("redis-cli"), *self._options, "--json", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return json.loads(ended.stdout)

    def script(self, text: str) -> list[str]:
        """The lines printed for commands given on standard input."""
        ended = subprocess.run(
            [program("redis-cli"), *self._options], input=text, capture_output=True, text=True, check=True, timeout=60
        )
        return ended.stdout.rstrip("\n").split("\n")


@pytest.mark.realserver
@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_journey(our_server: ServerProcess, protocol: str) -> None:
    """Produce, read as a group, claim, give back; after a restart the pending entries stand as they stood."""
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
    """Scripts that feed redis-cli work, transactions and errors among them."""
    cli = Cli("-p", str(our_server.port))
    told = cli.script("MULTI\nXADD s 1-1 a b\nXLEN s\nEXEC\nXADD s 1-1 a b\nSELECT 1\nXLEN s\n")
    assert told[:5] == ["OK", "QUEUED", "QUEUED", "1-1", "1"]
    assert told[5] == "ERR The ID specified in XADD is equal or smaller than the target stream top item"
    assert [line for line in told[6:] if line] == ["OK", "0"]


@pytest.mark.realserver
def test_unix_socket_and_scan(tmp_path: Path) -> None:
    """redis-cli -s reaches the server, and --scan lists its keys."""
    socket = tmp_path / "s"
    with millstream_server(tmp_path, "--unixsocket", str(socket), "--memory"):
        cli = Cli("-s", str(socket))
        for number in range(25):
            cli.lines("XADD", f"stream:{number}", "*", "a", "b")
        assert sorted(cli.lines("--scan", "--pattern", "stream:1*")) == sorted(
            f"stream:{number}" for number in (1, *range(10, 20))
        )
