"""A test's requirements of the machine: a missing one skips the test, and fails it under ``CI=true``."""

import functools
import importlib
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Skip the running test with ``reason``, or fail it if everything must be installed (``CI=true``)."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have this: {reason}")
    pytest.skip(reason)


def present_core() -> None:
    """End the run if the native core was built from other sources, since missing parts would silently run in Python."""
    from millstream import core

    if core.native is not None:
        digest = runpy.run_path(str(Path(__file__).parents[2] / "scripts/build_core.py"))["digest"]()
        if getattr(core.native, "MADE_FROM", "") != digest:
            pytest.exit("the native core was made from other sources: make core", returncode=3)


def program(name: str) -> str:
    """Return the full path of a program, or skip the test (fail it under CI)."""
    path = shutil.which(name)
    if path is None:
        lacking(f"no {name} on PATH")
    return path


def package(name: str) -> ModuleType:
    """Import a module of an optional package, or skip the test (fail it under CI)."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in (name, name.partition(".")[0]):
            raise  # it is there, and lacks something
        lacking(f"no package {name}")


def native_core(*, at_work: bool = False) -> ModuleType:
    """Import the native core, or skip the module (fail it under CI, unless Python's core is selected).

    Args:
        at_work: True if the engine must use it here, too.
    """
    is_pythons = os.environ.get("MILLSTREAM_CORE") == "python"
    try:
        found = importlib.import_module("millstream._native")
    except ModuleNotFoundError:
        if os.environ.get("CI") == "true" and not is_pythons:
            pytest.fail("CI must have this: the native core, built", pytrace=False)
        pytest.skip("the native core is not built", allow_module_level=True)
    if at_work and is_pythons:
        pytest.skip("the Python core is at work", allow_module_level=True)
    return found


#: Further servers, used if installed: name -> the environment variable that names the program, and what it
#: is called on PATH, or in ``.servers/`` of the checkout, without it; ``scripts/newer-redis.sh``
#: and ``scripts/older-redis.sh`` put the second and the third there.
OTHERS = {
    "valkey": ("MILLSTREAM_VALKEY", "valkey-server"),
    "redis8": ("MILLSTREAM_REDIS8", "redis-server-8"),
    "redis6": ("MILLSTREAM_REDIS6", "redis-server-6"),
}
SERVERS = Path(__file__).parents[2] / ".servers"


def found(name: str) -> str | None:
    """Return the full path of a server in :data:`OTHERS`, if there is one. The variable outranks the usual places."""
    variable, usual = OTHERS[name]
    given = os.environ.get(variable)
    return shutil.which(given) if given else shutil.which(usual) or shutil.which(usual, path=str(SERVERS))


def other(name: str) -> str:
    """Return the full path of a server in :data:`OTHERS`, or skip the test.

    The test is skipped under CI too: a fresh Debian 12 has none without another source of packages.
    """
    path = found(name)
    if path is None:
        variable, usual = OTHERS[name]
        pytest.skip(f"no {os.environ.get(variable) or usual}: set {variable}, or see tests/README.md")
    return path


@functools.cache
def java_version() -> int:
    """Return the major version of the Java that Spark would start, or 0 without Java."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def java() -> None:
    """Require Java 17 or newer, or skip the test (fail it under CI)."""
    if java_version() < 17:
        lacking("no Java 17 or newer for Spark (package openjdk-17-jre-headless)")
