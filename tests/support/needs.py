"""What a test needs of the machine: absent is a skip at home and a failure under ``CI=true``."""

import functools
import os
import re
import shutil
import subprocess
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Skip the running test with ``reason``, or fail it where everything must be installed (``CI=true``)."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have this: {reason}")
    pytest.skip(reason)


def program(name: str) -> str:
    """The full path of a program, or the test is skipped (failed under CI)."""
    path = shutil.which(name)
    if path is None:
        lacking(f"no {name} on PATH")
    return path


@functools.cache
def java_version() -> int:
    """Major version of the Java that Spark would start; 0 when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def java() -> None:
    """Java 17 or newer, or the test is skipped (failed under CI)."""
    if java_version() < 17:
        lacking("no Java 17 or newer for Spark (package openjdk-17-jre-headless)")
