"""A real full disk."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = Path(__file__).with_name("full.py")
MOUNT = 'mount -t tmpfs -o size=400k millstream "$1"'


def test_a_really_full_disk_refuses_and_goes_on(tmp_path: Path) -> None:
    """A log on a file system of 400 KiB that fills up twice has no torn, lost or double record."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare to mount a small file system with")
    shell = [unshare, "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if subprocess.run([*shell, MOUNT, "sh", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no user mount a file system of its own")
    done = subprocess.run(
        [*shell, f'{MOUNT}; exec "$2" "$3" "$1"', "sh", tmp_path, sys.executable, INSIDE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
