"""Redis's own suites of streams, run by Redis's own harness against ``millstream serve`` as an external server.

They are not part of this project. Name a checkout of Redis (any release since 7.4; nothing in it need be built) by the
environment variable ``MILLSTREAM_REDIS_TREE``, and have ``tclsh`` on PATH; without the variable this is skipped.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.needs import program
from support.servers import millstream_server

TREE = "MILLSTREAM_REDIS_TREE"
# Redis's name of a test -> what its suite expects of an older Redis, and 8.10 does otherwise
OLDER = {
    "XINFO FULL output": "Expected '30' to be equal to '18'",  # XINFO STREAM shows six fields of IDMP since 8.6
}


@pytest.mark.skipif(TREE not in os.environ, reason=f"{TREE} names no checkout of Redis")
@pytest.mark.parametrize("suite", ["unit/type/stream", "unit/type/stream-cgroups"])
@pytest.mark.parametrize("kept", ["dir", "memory"])
def test_suite(tmp_path: Path, suite: str, kept: str) -> None:
    """Every test that can run against an external server passes, but those that ask for what 8.10 changed.

    With a data directory those that reload the log run as well.
    """
    program("tclsh")
    tree = Path(os.environ[TREE])
    shutil.copytree(tree / "tests", tmp_path / "tests")
    shutil.copy(tree / "runtest", tmp_path)
    options = ["--memory"] if kept == "memory" else ["--set", "enable-debug-command=local"]
    tags = "-needs:repl -large-memory" + (" -needs:debug" if kept == "memory" else "")
    with millstream_server(tmp_path, *options) as server:
        words = ["./runtest", "--host", "127.0.0.1", "--port", str(server.port), "--single", suite, "--tags", tags]
        ran = subprocess.run(
            [*words, "--durable"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
        )
    told = re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout)
    passed = re.findall(r"^\[ok\]: (.*) \(\d+ ms\)$", told, flags=re.MULTILINE)
    failed = re.findall(r"^\[err\]: (.*) in tests/\S+\n(.*)", told, flags=re.MULTILINE)
    unexpected = [(name, why) for name, why in failed if name not in OLDER or not why.startswith(OLDER[name])]
    assert unexpected == []
    assert "[exception]" not in told, told[-2000:]
    assert len(passed) > 50, told[-2000:]
