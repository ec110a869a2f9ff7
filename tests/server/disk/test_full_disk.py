"""A server on a really full disk."""

from pathlib import Path

import pytest

from support import campaign
from support.smalldisk import run_on

UNOPENED = Path(__file__).with_name("unopened.py")
UNREWRITTEN = Path(__file__).with_name("unrewritten.py")
ROUND = Path(__file__).with_name("full.py")
FLOOR = Path(__file__).with_name("floor.py")


def filled(folder: Path, fsync: str, seed: int) -> None:
    """Run one round on a file system of its own."""
    small = folder / f"small-{fsync}-{seed}"
    small.mkdir()
    run_on(small, "16m", ROUND, fsync, str(seed))


@pytest.mark.parametrize(("fsync", "seed"), [("always", 1), ("everysec", 2), ("no", 5)])
def test_really_full_disk(tmp_path: Path, fsync: str, seed: int) -> None:
    """On a full disk of 16 MiB reads work, errors have the reason, and nothing acknowledged is lost."""
    filled(tmp_path, fsync, seed)


@pytest.mark.parametrize("tier", ["no", "yes"])
def test_retention_alone_makes_room_below_the_floor(tmp_path: Path, tier: str) -> None:
    """While clients' writes are refused, a shorter retention removes entries, and the log is rewritten by itself."""
    small = tmp_path / "small"
    small.mkdir()
    run_on(small, "32m", FLOOR, tier)


def test_start_without_any_space(tmp_path: Path) -> None:
    """A server that cannot create its first file reports the directory, the reason and advice."""
    small = tmp_path / "small"
    small.mkdir()
    run_on(small, "300k", UNOPENED)


def test_a_snapshot_without_space(tmp_path: Path) -> None:
    """A rewriting without space for its snapshot reports file, reason and advice, and succeeds once there is space."""
    small = tmp_path / "small"
    small.mkdir()
    run_on(small, "16m", UNREWRITTEN)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_really_full_disk_twenty_times(tmp_path: Path) -> None:
    """On a full disk, twenty times, reads work, errors have the reason, and nothing acknowledged is lost."""
    campaign.run(
        "full-disk", lambda seed: filled(tmp_path, ("always", "everysec", "no")[seed % 3], seed), range(10, 30)
    )
