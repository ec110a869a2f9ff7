"""Backups and restores with packs: copied, or linked to a directory or an earlier backup, and read back as told."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from maintenance.conftest import content, flip
from millstream.cli.main import main
from millstream.errors import LogCorruptError, UsageError
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.log.examine import examine_directory
from millstream.maintenance.log.moment import parse_moment
from support.coldness import IS_COLD
from support.packed import PackedWorld

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)


def grown(home: Path, key: str) -> None:
    """Start on a directory, and add a stream whose sealed nodes are in a pack."""
    world = PackedWorld(home)
    world.fill(key)
    world.chill(key.encode())
    world.close()


def inodes(home: Path) -> dict[str, int]:
    """Return the inode of each pack."""
    return {path.name: path.stat().st_ino for path in home.glob("*.pack")}


def entries(home: Path) -> list[object]:
    """Return the ids of all streams' entries, as a start finds them."""
    world = PackedWorld(home)
    client = world.client()
    found: list[object] = []
    for key in sorted(world.node.keyspace.databases[0].keys):
        found += [each[0] for each in client.call("XRANGE", key, "-", "+")]  # type: ignore[attr-defined]  # a reply may be anything
    world.close()
    return found


def test_a_daily_backup_copies_only_new_packs(tmp_path: Path) -> None:
    """Packs of the earlier backup are linked, new ones copied, and the older backup stays as it was."""
    home, first, second = (tmp_path / name for name in ("data", "first", "second"))
    grown(home, "s")
    assert back_up(home, first).linked == 0
    assert not set(inodes(home).values()) & set(inodes(first).values())
    before = content(first)
    grown(home, "t")
    made = back_up(home, second, since=first)
    (old,) = inodes(first)
    assert made.linked == (first / old).stat().st_size
    assert [inodes(second)[name] == inode for name, inode in inodes(first).items()] == [True]
    assert len(inodes(second)) == 2
    assert not set(inodes(home).values()) & set(inodes(second).values())
    assert content(first) == before
    for copy in (first, second):
        assert examine_directory(copy).report.ok
    restore(second, tmp_path / "new")
    assert entries(tmp_path / "new") == entries(home)
    restore(first, tmp_path / "old", links=True)
    assert inodes(tmp_path / "old") == inodes(first)
    assert len(entries(tmp_path / "old")) == 20
    assert content(first) == before
    with pytest.raises(UsageError, match="is not a backup"):
        back_up(home, tmp_path / "third", since=home)


def test_packs_are_linked_to_the_directory_itself(tmp_path: Path) -> None:
    """A linked backup takes no space for sealed packs, and keeps them when the directory removes them.

    A pack that is being filled is copied.
    """
    home = tmp_path / "data"
    grown(home, "s")
    world = PackedWorld(home)
    world.fill("t")
    world.chill(b"t")
    made = back_up(home, tmp_path / "backup", links=True)
    ours, theirs = inodes(home), inodes(tmp_path / "backup")
    assert sorted(ours[name] == theirs[name] for name in ours) == [False, True]
    assert 0 < made.linked < made.bytes
    world.close()
    for pack in home.glob("*.pack"):
        pack.unlink()
    restore(tmp_path / "backup", tmp_path / "new")
    assert len(entries(tmp_path / "new")) == 40


def test_a_pack_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that vanished, or of an earlier backup that is cut, is copied; another file system is an error."""
    home = tmp_path / "data"
    grown(home, "s")
    back_up(home, tmp_path / "first")
    (pack,) = (tmp_path / "first").glob("*.pack")
    pack.write_bytes(pack.read_bytes()[:-1])
    assert back_up(home, tmp_path / "second", since=tmp_path / "first").linked == 0
    assert examine_directory(tmp_path / "second").report.ok
    for code, how in ((errno.ENOENT, "copied"), (errno.EMLINK, "copied"), (errno.EXDEV, "refused")):

        def link(*_: Any, code: int = code, **__: Any) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", link)
        if how == "copied":
            assert back_up(home, tmp_path / f"copy-{code}", links=True).linked == 0
        else:
            with pytest.raises(UsageError, match="different file systems"):
                back_up(home, tmp_path / "none", links=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("none")]


def test_linked_packs_are_read_on_request(tmp_path: Path) -> None:
    """Damage inside a linked pack is found with --verify all, and by its seal only what a start finds."""
    home = tmp_path / "data"
    grown(home, "s")
    (pack,) = home.glob("*.pack")
    flip(pack, pack.stat().st_size // 2)
    back_up(home, tmp_path / "seals", links=True)
    with pytest.raises(LogCorruptError, match="no copy was made"):
        back_up(home, tmp_path / "all", links=True, reads_all=True)
    with pytest.raises(LogCorruptError, match="no copy was made"):
        back_up(home, tmp_path / "copied")


def test_a_damaged_pack_is_copied_on_request(tmp_path: Path) -> None:
    """With --damaged a backup and its restore hold all that can be read, and the command reports the damage."""
    home = tmp_path / "data"
    grown(home, "s")
    (pack,) = home.glob("*.pack")
    flip(pack, pack.stat().st_size // 2)
    made = back_up(home, tmp_path / "backup", keeps_damage=True)
    assert len(made.damage) == 1
    assert str(tmp_path / "backup" / pack.name) in made.damage[0]
    with pytest.raises(LogCorruptError, match="no copy was made"):
        restore(tmp_path / "backup", tmp_path / "new")
    restore(tmp_path / "backup", tmp_path / "new", keeps_damage=True)
    assert (tmp_path / "new" / pack.name).read_bytes() == pack.read_bytes()
    words = ["backup", str(home), str(tmp_path / "again"), "--damaged"]
    done = CliRunner().invoke(main, words, prog_name="millstream")
    assert (done.exit_code, "is damaged" in done.output) == (0, True)
    (segment,) = home.glob("*.seg")
    flip(segment, 60)
    with pytest.raises(LogCorruptError, match="no copy was made"):
        back_up(home, tmp_path / "none", keeps_damage=True)


def test_a_restore_to_a_moment_has_the_packs_of_that_moment(tmp_path: Path) -> None:
    """Every pack that a record may name is restored, whatever the moment since the snapshot."""
    home = tmp_path / "data"
    grown(home, "s")
    grown(home, "t")
    back_up(home, tmp_path / "backup")
    for last, count in (("10", 9), ("21", 20), ("30", 28)):
        restore(tmp_path / "backup", tmp_path / f"new-{last}", until=parse_moment(last, 0))
        assert abs(len(entries(tmp_path / f"new-{last}")) - count) <= 1


def test_the_commands_take_the_options(tmp_path: Path) -> None:
    """``millstream backup`` and ``restore`` link on request, and report the linked bytes."""
    home = tmp_path / "data"
    grown(home, "s")
    for words in (
        ["backup", home, tmp_path / "one"],
        ["backup", home, tmp_path / "two", "--since", tmp_path / "one", "--verify", "all"],
        ["backup", home, tmp_path / "three", "--link"],
        ["restore", tmp_path / "two", tmp_path / "new", "--link"],
    ):
        done = CliRunner().invoke(main, [*map(str, words)], prog_name="millstream")
        assert done.exit_code == 0, done.output
    assert inodes(tmp_path / "one") == inodes(tmp_path / "two") == inodes(tmp_path / "new")
    assert inodes(tmp_path / "three") == inodes(home)
