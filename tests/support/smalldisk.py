"""A real, small file system for a test: a tmpfs in a mount namespace that a user may create."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOUNT = 'mount -t tmpfs -o "size=$2" millstream "$1"'


def run_on(folder: Path, size: str, script: Path, *words: str) -> str:
    """Run a Python script in a process that sees a small file system at ``folder``.

    The test is skipped, under ``CI=true`` too, if the system does not allow the mount.

    Args:
        folder: Mount point; the script's first argument.
        size: Size as mount takes it: ``16m``.
        script: Script to run; it may import the modules of tests.
        words: Its further arguments.

    Returns:
        The script's standard output.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare to mount a small file system with")
    shell = [unshare, "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if subprocess.run([*shell, MOUNT, "sh", folder, size], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no user mount a file system of its own")
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*shell, f'{MOUNT}; shift 2; exec "$@"', "sh", folder, size, sys.executable, script, folder, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, f"{script.name} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
