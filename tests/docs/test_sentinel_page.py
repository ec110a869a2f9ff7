"""The part of ``docs/replication.md`` about Sentinel, run on other ports and with shorter timeouts."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from redis.sentinel import MasterNotFoundError

from millstream.cli.main import main
from millstream.client.connect import sync_client
from support.needs import program
from support.ports import free_port
from support.servers import ServerProcess
from support.source import ROOT
from support.waiting import eventually

pytestmark = pytest.mark.realserver


@pytest.fixture
def part() -> str:
    """Return the text of the part, with free ports."""
    page = (ROOT / "docs/replication.md").read_text()
    text = page.partition("## High availability with Sentinel")[2].partition("\n## ")[0]
    for port in ("26479", "26480", "26481", "6479", "6480"):
        text = re.sub(rf"\b{port}\b", f"<{port}>", text)
    for name in set(re.findall(r"<(\d+)>", text)):
        text = text.replace(f"<{name}>", str(free_port()))
    return text.replace("orders 5000", "orders 500")


@pytest.fixture
def running(part: str, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Yield the two servers and the three Sentinels."""
    starts, settings, _ = re.findall(r"```(?:sh)?\n(.*?)```", part, re.DOTALL)
    url = re.search(r"redis\+sentinel://[\w.:,/]+", part)
    assert url is not None
    ports = re.findall(r":(\d+)", url[0])
    for number, port in enumerate(ports, 1):
        text = re.sub(r"^port \d+", f"port {port}", settings)
        (tmp_path / f"sentinel-{number}.conf").write_text(text)
    with ExitStack() as stack:
        found = []
        for at, line in enumerate(starts.splitlines()):
            words = shlex.split(line)
            here = str(Path(sys.executable).with_name(words[0])) if words[0] == "millstream" else program(words[0])
            port = words[words.index("--port") + 1] if "--port" in words else ports[at - 2]
            server = ServerProcess([here, *words[1:]], int(port), tmp_path / f"{at}.out")
            found.append(stack.enter_context(server))
        yield found


def test_sentinel_in_ten_minutes(part: str, running: list[ServerProcess]) -> None:
    """Each line about Sentinel works: after the first server is killed, clients find the second by the page's URL."""
    quorum, who, shown = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)[-1].splitlines()
    first, second, *_ = running
    eventually(lambda: said(quorum).startswith("OK 3 usable Sentinels"), what="they know each other")
    assert said(who).split() == ["127.0.0.1", str(first.port)]
    eventually(lambda: "  up  " in millstream(shown).stdout, what="the replica follows")
    assert millstream(shown).exit_code == 0
    asked = millstream(f"millstream failover redis://127.0.0.1:{first.port} --yes")
    assert (asked.exit_code, "SENTINEL FAILOVER NAME" in asked.output) == (2, True), asked.output
    url = re.search(r"redis\+sentinel://[\w.:,/]+", part)
    assert url is not None
    with sync_client(url[0]) as client:
        client.set("k", "v")
        assert client.wait(1, 10_000) == 1
    first.kill()
    eventually(lambda: said(who).split() == ["127.0.0.1", str(second.port)], what="the second one leads")
    with sync_client(url[0]) as client:

        def value() -> object:
            try:
                return client.get("k")
            except MasterNotFoundError:  # it was slow to answer just now, so the Sentinels hold it to be down
                return None

        assert eventually(value, what="the URL leads to it") == b"v"
        client.set("k", "w")


def said(line: str) -> str:
    """Return the output of redis-cli."""
    words = shlex.split(line)
    return subprocess.run([program(words[0]), *words[1:]], capture_output=True, text=True, check=False).stdout


def millstream(line: str) -> Result:
    """Return the result of a ``millstream`` command line."""
    return CliRunner().invoke(main, shlex.split(line)[1:])
