"""Files that the log creates are private to their owner, under any umask. The start reports wider permissions."""

import logging
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from maintenance.conftest import segments, write_log, xadd
from millstream.maintenance.backup.backup import back_up
from millstream.maintenance.backup.restore import restore
from millstream.maintenance.health.directory import diagnose_directory
from millstream.maintenance.log.cut import cut
from millstream.paths import exposed
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log
from millstream.persistence.rewrite import contents, make
from support.servers import millstream_server


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """Set the process's umask to 0."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(home: Path) -> dict[str, str]:
    """Return the permissions of each file by its name; the directory is a dot."""
    found = {path.name: path for path in home.iterdir()} | {".": home}
    return {name: f"{stat.S_IMODE(path.stat().st_mode):04o}" for name, path in found.items()}


def are_private(home: Path) -> bool:
    shown = modes(home)
    return shown.pop(".") == "0700" and set(shown.values()) == {"0600"}


def test_everything_that_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Only the owner may read the log, its lock, manifest, snapshots, saved torn ends, backups and restored backups."""
    home = tmp_path / "above" / "data"
    log = write_log(home, [xadd(number) for number in range(1, 11)], close=False)
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    make(RealDisk(), home, rewrite, contents(RealDisk(), home, rewrite))
    log.commit_rewrite(rewrite)
    log.append(xadd(11))
    log.close()
    with segments(home)[-1].open("ab") as file:
        file.write(b"half a record")
    Log.open(home)[0].close()
    last = segments(home)[-1]
    cut(home, last.name, 32)
    kinds = {name.partition("-")[0] for name in modes(home)}
    assert kinds == {".", "MANIFEST", "lock", "log", "snapshot", "torn", "cut"}
    assert are_private(home), modes(home)
    back_up(home, tmp_path / "backup")
    assert are_private(tmp_path / "backup"), modes(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    assert are_private(tmp_path / "again"), modes(tmp_path / "again")
    assert modes(tmp_path / "above")["."] == "0777", "what is above the data directory is as the umask has it"


def test_what_others_may_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server's start, an embedded store and the doctor report files that others may read, and name the fix."""
    home = tmp_path / "data"
    write_log(home, [xadd(1)])
    assert exposed(home) == ""
    home.chmod(0o755)
    segments(home)[0].chmod(0o644)
    advice = f"`chmod -R go= {home}`"
    for text in (f"{home} (mode 0755)", f"1 file in it, such as {segments(home)[0].name}", advice):
        assert text in exposed(home)
    with caplog.at_level(logging.WARNING), millstream.connect(home.as_uri()) as client:
        client.ping()
    assert advice in caplog.text
    (row,) = (found for found in diagnose_directory(home) if found.check == "rights")
    assert (row.level, advice in row.advice) == ("warning", True)
    server = millstream_server(tmp_path)
    with server:
        server.stop()
    assert f"WARNING others on this machine may enter or list {home}" in server.log.read_text()
    subprocess.run(["/bin/sh", "-c", advice.strip("`")], check=True)
    assert are_private(home)
    assert exposed(home) == ""
    (row,) = (found for found in diagnose_directory(home) if found.check == "rights")
    assert row.level == "ok"


def test_rights_that_cannot_be_seen_are_no_failure(tmp_path: Path) -> None:
    """Permissions that cannot be read raise no error in this check: opening the directory gives a better one."""
    assert exposed(tmp_path / "nowhere") == ""
