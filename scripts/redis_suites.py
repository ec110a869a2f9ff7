"""Redis's own suites that start servers themselves, with Millstream as the server: see ``--help``.

The tree is copied first; in the copy ``src/redis-server`` is a program that runs ``tests/suites/as_redis_server.py``,
and Sentinel is the tree's own. Nothing of Redis is kept in this project.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SUITES = ["unit/type/stream", "unit/type/stream-cgroups", "unit/wait"]
SUITES += [f"integration/{name}" for name in ("block-repl", "failover", "shutdown", "psync2", "psync2-reg")]
SUITES += [f"integration/{name}" for name in ("psync2-pingoff", "psync2-master-restart", "replication-psync")]
SUITES += [f"integration/{name}" for name in ("replication", "replication-2", "replication-3", "replication-4")]
SUITES += ["integration/replication-buffer"]
SENTINEL = "sentinel"
# What needs these is not there: docs/compatibility.md
# These wait for what there is no switch for here, and would hold up those behind them
SKIPPED = (
    "WAITAOF local copy before fsync",
    "WAITAOF replica copy before fsync",
    "WAITAOF local client unblock with timeout and error",
)
TAGS = "-large-memory -needs:config-maxmemory -cluster"


def prepared(tree: Path, folder: Path) -> Path:
    """Return a copy of the tree with Millstream as its redis-server.

    Args:
        tree: Built tree of Redis.
        folder: Folder for the copy; an existing copy is used.
    """
    copy = folder / "redis"
    if not copy.exists():
        (copy / "src").mkdir(parents=True)
        shutil.copytree(tree / "tests", copy / "tests", ignore=shutil.ignore_patterns("tmp"))
        for own in ("tests/tmp", "tests/sentinel/tmp"):
            (copy / own).mkdir()
        for file in tree.glob("runtest*"):
            shutil.copy(file, copy)
        for name in ("redis-cli", "redis-benchmark", "redis-sentinel"):
            shutil.copy(tree / "src" / name, copy / "src")
        instances = copy / "tests" / "instances.tcl"  # a start takes longer here, above all on a machine that is busy
        instances.write_text(re.sub(r"(server_is_up \S+ \S+ )100\b", r"\g<1>1000", instances.read_text()))
    server = copy / "src" / "redis-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE}/tests/suites/as_redis_server.py" "$@"\n')
    server.chmod(0o755)
    return copy


def run(copy: Path, suite: str, only: list[str], seconds: int, ports: int) -> bool:
    """Run one suite with its output in a file beside the copy; print the passed and failed tests.

    Args:
        copy: Copy made by :func:`prepared`.
        suite: Name of the suite, with ``sentinel/`` for one of Sentinel's.
        only: Names of tests; empty for all.
        seconds: Time limit.
        ports: First port of its servers; two concurrent runs need different ones.
    """
    sentinel = suite.startswith(SENTINEL)
    if sentinel:
        words = ["./runtest-sentinel", "--single", suite.partition("/")[2]]
    else:
        words = [
            "./runtest",
            "--single",
            suite,
            "--durable",
            "--clients",
            "1",
            "--tags",
            TAGS,
            "--baseport",
            str(ports),
        ]
        words += [word for name in SKIPPED for word in ("--skiptest", name)]
        words += [word for name in only for word in ("--only", name)]
    out = copy.parent / (suite.replace("/", "-") + ".out")
    with out.open("w") as file:
        harness = subprocess.Popen(words, cwd=copy, stdout=file, stderr=file, start_new_session=True)
        try:
            code = harness.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(harness.pid, signal.SIGKILL)  # its servers too
            code = harness.wait()
    told = re.sub(r"\x1b\[[0-9;]*m", "", out.read_text(errors="replace"))
    passed = re.findall(r"^\[ok\]: " if not sentinel else r": OK$", told, flags=re.MULTILINE)
    failed = re.findall(r"^\[(?:err|exception|timeout)\]:? ?(.*)", told, flags=re.MULTILINE)
    print(f"{suite}: {len(passed)} passed, {len(failed)} failed, exit code {code}; {out}", flush=True)
    for line in failed:
        print(f"    {line[:200]}", flush=True)
    return code == 0


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="a checkout of Redis in which `make` was run")
    parser.add_argument("folder", type=Path, help="an empty folder for the copy and what the suites print")
    parser.add_argument("suites", nargs="*", help="such as integration/psync2 or sentinel/00; all that apply if none")
    parser.add_argument("--only", action="append", default=[], help="only the test of this name; repeatable")
    parser.add_argument("--seconds", type=int, default=900, help="how long one suite may take")
    parser.add_argument(
        "--ports", type=int, default=21111, help="the first port of the servers, not of Sentinel's suites"
    )
    given = parser.parse_args()
    copy = prepared(given.tree, given.folder.resolve())
    suites = given.suites or [*SUITES, *(f"sentinel/{number:02}" for number in range(17) if number not in {4, 11})]
    sys.exit(sum(not run(copy, suite, given.only, given.seconds, given.ports) for suite in suites) > 0)


if __name__ == "__main__":
    main()
