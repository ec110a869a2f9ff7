"""ioredis and node-redis, unmodified, on a Millstream server, before and after a restart.

npm installs the clients at the versions of ``node/package.json``, once for a run. Without Node.js 20 or without the
packages the tests are skipped. Under CI they fail if a recent Node.js cannot install them.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.needs import lacking, program
from support.servers import ServerProcess

SCRIPTS = Path(__file__).with_name("node")
NEEDED = 20


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts with their installed packages."""
    node = program("node")
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    major = re.match(r"v(\d+)", told)
    if major is None or int(major[1]) < NEEDED:  # under CI too: older releases of Debian and Ubuntu have no newer one
        pytest.skip(f"these clients need Node.js {NEEDED}, this is {told.strip()}")
    folder = tmp_path_factory.mktemp("node") / "clients"
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("node_modules"))
    words = [program("npm"), "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    if ended.returncode:
        lacking(f"npm cannot install the clients: {ended.stderr.strip()[-300:]}")
    return folder


def line_of(process: "subprocess.Popen[str]") -> str:
    """Return the next line of a script, or its error output if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        assert process.stderr is not None
        pytest.fail(f"the script ended: {process.stderr.read()[-3000:]}")
    return line


# A stop in order asks less of a client than a kill
@pytest.mark.parametrize("restart", [pytest.param("stop", marks=pytest.mark.long), "kill"])
@pytest.mark.parametrize("words", [["ioredis.mjs"], ["node-redis.mjs", "2"], ["node-redis.mjs", "3"]], ids=" ".join)
def test_journey(clients: Path, our_server: ServerProcess, words: list[str], restart: str) -> None:
    """A Node.js client adds, reads in a group, blocks, claims and acknowledges, and continues after a restart."""
    command = [program("node"), words[0], our_server.url, *words[1:]]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=clients, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    try:
        assert line_of(process) == "restart"
        if restart == "stop":
            our_server.stop()
        else:
            our_server.kill()
        our_server.start()
        assert process.stdin is not None
        process.stdin.write("up\n")
        process.stdin.flush()
        assert line_of(process) == "done"
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
