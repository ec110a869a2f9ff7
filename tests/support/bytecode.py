"""Bytecode compiled once for all processes of a parallel test run.

pytest compiles tests in its own way, which takes longer than the other work of collecting them. Processes of a parallel
run collect the same files at the same time, so that in a fresh checkout each would repeat the whole work.
"""

import compileall
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[2]

PLAIN = ("src", "tests/support")
"""Folders whose modules are compiled by Python itself."""


def is_wanted(config: pytest.Config) -> bool:
    """Return True if this process distributes tests to others, and bytecode is written at all."""
    others = getattr(config.option, "numprocesses", None) or 0
    return others > 1 and not hasattr(config, "workerinput") and not sys.dont_write_bytecode


def prepare(config: pytest.Config) -> None:
    """Compile all files that lack bytecode, on every processor. A process that needs a file checks it again."""
    missing = [(source, kept) for source, kept in sorted(_tests()) if _is_older(kept, source)]
    processors = os.cpu_count() or 1
    parts = [missing[first::processors] for first in range(processors)] if missing else []
    if parts:
        for folder in PLAIN:
            compileall.compile_dir(ROOT / folder, quiet=2, workers=0)
    children = [_in_a_fork(config, part) for part in parts]
    for child in children:
        os.waitpid(child, 0)


def _tests() -> list[tuple[Path, Path]]:
    """Yield each file that pytest compiles, with the path of its bytecode."""
    found = [one for name in ("test_*.py", "conftest.py") for one in (ROOT / "tests").rglob(name)]
    return [(one, rewrite.get_cache_dir(one) / f"{one.stem}{rewrite.PYC_TAIL}") for one in found]


def _is_older(kept: Path, source: Path) -> bool:
    """Return True if bytecode is missing or older than its source. A wrong guess is harmless."""
    return not kept.exists() or kept.stat().st_mtime < source.stat().st_mtime


def _in_a_fork(config: pytest.Config, files: list[tuple[Path, Path]]) -> int:
    """Fork a process that compiles the files, and return its id. Files that fail to compile are reported on import."""
    child = os.fork()
    if child:
        return child
    try:
        for source, kept in files:
            kept.parent.mkdir(exist_ok=True)
            stamp, code = rewrite._rewrite_test(source, config)  # noqa: SLF001 - pytest has no public name for it
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stamp, kept)  # noqa: SLF001 - pytest has no public name for it
    finally:
        os._exit(0)
