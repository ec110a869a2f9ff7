"""The part of ``docs/replication.md`` about migration, run on other ports."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.server.thread import ServerThread
from replication.test_following_redis import follow, wait_level
from replication.test_redis_follows import port_of
from support.needs import program
from support.servers import ServerProcess, redis_server
from support.source import ROOT
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a Redis to leave, which has seen a command that Millstream lacks."""
    with redis_server(tmp_path / "redis", "--repl-diskless-sync-delay", "0") as found, Wire(found.url) as client:
        client.ask("XADD", "orders", "1-1", "n", "1")
        client.ask("PFADD", "seen", "a", "b")
        client.ask("XINFO", "STREAM", "orders")
        yield found


def command_lines(there: ServerProcess, here: str) -> list[str]:
    """Return the commands of the part, with the ports of these servers."""
    page = (ROOT / "docs/replication.md").read_text()
    part = page.partition("## Migrating from Redis and back")[2].partition("\n## ")[0]
    text = "".join(re.findall(r"```sh\n(.*?)```", part, re.DOTALL))
    for old, new in (
        ("-h redis.example", f"-p {there.port}"),
        ("redis.example:6379", f"127.0.0.1:{there.port}"),
        ("here.example:6400", f"127.0.0.1:{here}"),
        ("-p 6400", f"-p {here}"),
    ):
        text = text.replace(old, new)
    return text.splitlines()


def test_migrating_as_the_page_says(there: ServerProcess, tmp_path: Path) -> None:
    """The page's migration reports missing commands, follows, leads, and hands back with all data."""
    program("redis-cli")
    with ServerThread(tmp_path / "data") as server, Wire(server.url) as ours, Wire(there.url) as theirs:
        *look, serve, _, switch = command_lines(there, port_of(server))
        words = ["bash", "-c", "\n".join(look)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.split() == ["pfadd"]
        assert f"--replicaof 127.0.0.1:{there.port}" in serve
        follow(ours, there.port)
        wait_level(ours, theirs)
        led = CliRunner().invoke(main, [*switch.partition("#")[0].split()[1:], "--yes"])
        assert led.exit_code == 0, led.output
        assert ours.ask("XADD", "orders", "2-1", "n", "2") == b"2-1"
        assert str(theirs.ask("XADD", "orders", "*", "n", "3")).startswith("READONLY")
        eventually(lambda: theirs.ask("XLEN", "orders") == 2, what="the Redis follows")
        back = CliRunner().invoke(main, ["failover", server.url, "--to", f"127.0.0.1:{there.port}", "--yes"])
        assert back.exit_code == 0, back.output
        assert (theirs.ask("XLEN", "orders"), theirs.ask("PFCOUNT", "seen")) == (2, 2)
