"""Redis's own suites of streams, run by Redis's harness against ``millstream serve`` as an external server.

They are not part of this project. Name a checkout of Redis (any release since 7.4; nothing in it need be built) by the
environment variable ``MILLSTREAM_REDIS_TREE``, and have ``tclsh`` on PATH; without the variable this is skipped.

Two things are changed in a copy of it. Two tests with SWAPDB are marked as not for external servers, whose databases
other clients might use; here none does. And one test counts the fields of XINFO STREAM FULL, which are six more
since 8.6.
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
PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
# Tests that talk to a replica: this server has none. The page lists them.
NOT_RUN = {
    "Consumer group last ID propagation to slave (NOACK=$noack)",
    "Replication tests of XCLAIM with deleted entries (autoclaim=$autoclaim)",
    "XREADGROUP ACK would propagate entries-read",
    "XREADGROUP from PEL inside MULTI",
}


def adapted(suite: Path) -> tuple[set[str], set[str]]:
    """Make the two changes; return the names of a suite's tests, and of those excluded for external servers."""
    text = suite.read_text()
    text = re.sub(r"(swapped DB,.*?\} \{0\}) \{external:skip\}", r"\1", text, flags=re.DOTALL)
    text = re.sub(r"(?<=\[llength \$reply\] )18\b", "30", text)
    suite.write_text(text)
    lines = text.split("\n")
    kept: set[str] = set()
    for number, line in enumerate(lines):
        if block := re.match(r"( *)(start_server|test) ", line):
            rest = range(number + 1, len(lines))
            end = next((at for at in rest if lines[at].startswith(block[1] + "}")), len(lines) - 1)
            if "external:skip" in line + lines[end]:
                kept |= names("\n".join(lines[number:end]))
    return names(text), kept


def names(text: str) -> set[str]:
    """Return the names of the tests in a part of a suite."""
    return set(re.findall(r'^ *test [{"](.*)[}"] \{$', text, flags=re.MULTILINE))


@pytest.mark.skipif(TREE not in os.environ, reason=f"{TREE} names no checkout of Redis")
@pytest.mark.parametrize("suite", ["unit/type/stream", "unit/type/stream-cgroups"])
@pytest.mark.parametrize("kept", ["dir", "memory"])
def test_suite(tmp_path: Path, suite: str, kept: str) -> None:
    """Every test of Redis's stream suites passes, except the listed ones.

    Without a data directory, reloads are skipped.
    """
    program("tclsh")
    tree = Path(os.environ[TREE])
    shutil.copytree(tree / "tests", tmp_path / "tests")
    shutil.copy(tree / "runtest", tmp_path)
    wanted, kept_from_us = adapted(tmp_path / "tests" / f"{suite}.tcl")
    options = ["--memory"] if kept == "memory" else ["--set", "enable-debug-command=local"]
    with millstream_server(tmp_path, *options) as server:
        words = ["./runtest", "--host", "127.0.0.1", "--port", str(server.port), "--single", suite, "--durable"]
        words += ["--tags", "-large-memory" + (" -needs:debug" if kept == "memory" else "")]
        ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    told = re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout)
    passed = re.findall(r"^\[ok\]: (.*) \(\d+ ms\)$", told, flags=re.MULTILINE)
    failed = re.findall(r"^\[err\]: (.*) in tests/\S+\n(.*)", told, flags=re.MULTILINE)
    assert failed == []
    assert "[exception]" not in told, told[-2000:]
    assert len(passed) > 50, told[-2000:]
    if kept == "dir":
        assert wanted - set(passed) == kept_from_us
        assert kept_from_us >= NOT_RUN or suite.endswith("stream")


def test_the_page_lists_what_does_not_run() -> None:
    """The page lists the tests of Redis's suites that do not run."""
    page = PAGE.read_text()
    assert [name for name in NOT_RUN if f"`{name.partition(' (')[0]}`" not in page] == []
