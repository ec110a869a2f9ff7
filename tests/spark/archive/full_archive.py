"""A job of each format on a file system that fills up or is read-only: a program for ``support.smalldisk``.

``full_archive.py DIR URL`` archives stream ``s-FORMAT`` into ``DIR/FORMAT`` until there is no space. It checks the
table and the stream, frees space, and continues.
"""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from millstream.errors import MillstreamError
from millstream.spark.archiving.directory import MANIFEST
from millstream.spark.archiving.store import ArchiveSettings
from millstream.spark.archiving.tables.shape import FORMATS, Wanted
from support.archives import archive_once, held
from support.lake import shown

root, url = Path(sys.argv[1]), sys.argv[2]
FREE = 700 << 10


def fill(path: Path) -> None:
    """Fill the file system with a file so that little space is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            while True:
                try:
                    file.write(bytes(size))
                except OSError as reason:
                    if reason.errno != errno.ENOSPC:
                        raise
                    break
        file.truncate(max(0, file.tell() - FREE))


def refused(where: ArchiveSettings, *words: str) -> None:
    """Assert that the job ends with a one-line error that contains the words."""
    with pytest.raises((OSError, MillstreamError)) as caught:
        archive_once(where)
    told = str(caught.value)
    assert any(word in told for word in words), told
    assert "\n" not in told, told


def ids_of(stream: str) -> list[str]:
    """Return the ids of the entries in the stream."""
    return [ident.decode() for ident, _ in client.xrange(stream)]


with redis.Redis.from_url(url) as client:
    for form in FORMATS:
        stream, place = f"s-{form}", root / form
        ids = ids_of(stream)
        where = ArchiveSettings(url, (stream,), place, per_batch=200, wanted=Wanted(form), retain_ms=-1)
        fill(root / "filler")
        refused(where, "No space left", "disk is full", "disk I/O error")
        live = ids_of(stream)
        there = shown(place, stream) if (place / MANIFEST).exists() and len(live) < len(ids) else []
        assert sorted({*live, *there}) == ids, (form, len(live), len(there), len(ids))
        assert len(there) < len(ids), form
        subprocess.run(["mount", "-o", "remount,ro", root], check=True)
        refused(where, "Read-only file system", "readonly database")
        assert ids_of(stream) == live
        subprocess.run(["mount", "-o", "remount,rw", root], check=True)
        (root / "filler").unlink()
        archive_once(where)
        assert shown(place, stream) == [ident for ident, _ in held(place, stream)] == ids, form
        assert client.xlen(stream) == 0
        sys.stdout.write(f"{form} {len(there)} of {len(ids)}\n")
