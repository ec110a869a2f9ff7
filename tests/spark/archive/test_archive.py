"""An archive loses nothing, holds nothing twice and trims nothing that a group still needs, wherever its job is killed.

Here Spark's part of a job runs in the test's process (``support.archives``); ``test_archive_spark.py`` uses Spark.
"""

import cProfile
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.cli.main import main
from millstream.errors import ConfigError, StorageError, UsageError
from millstream.failpoints import ARCHIVE as POINTS
from millstream.spark.archiving.directory import LOCK, MANIFEST, ArchiveLockedError, Folder
from millstream.spark.archiving.files import WritePlan, archived, merge, read_pages, write_batches, write_files
from millstream.spark.archiving.job import PARTS, batch_size, look, partitions_ahead
from millstream.spark.archiving.manifest import ArchiveManifest, ArchivePosition, DataFile
from millstream.spark.archiving.store import ArchiveSettings, ArchiveStore
from millstream.spark.archiving.tables.rows import DamagedFileError
from millstream.spark.archiving.tables.shape import Shape, Wanted, choose
from millstream.spark.archiving.tables.storage import LocalStorage
from millstream.spark.archiving.trim import Keep, ReplacedError, Trimmer
from millstream.spark.arrow.decode import decode_parsed
from millstream.spark.arrow.page import Want
from millstream.spark.model.offsets import MAX_PART, ZERO, DataLossError, Id, Position, parse_id
from millstream.spark.options import read as options
from millstream.spark.read.stream_info import StreamInfo
from millstream.spark.source import MillstreamSource
from support.archives import LAST, RAW, Traffic, archive_once, data_files, held, rows_of
from support.servers import ServerProcess
from support.streams import fill
from support.waiting import eventually

pytestmark = pytest.mark.realserver

NASTY = [
    ("1-0", [(b"a", b"1"), (b"b", b""), (b"a", b"2")]),
    ("5-18446744073709551615", [(b"", b"\x00\xff\r\n")]),
    ("1700000000000-0", [(b"\xff\xfe", b"$3\r\nabc"), (b"z", b"*2"), (b"y", b"x" * 5000)]),
    ("1700003600000-7", [(b"later", b"hour")]),
    ("18446744073709551615-3", [(b"last", b"one")]),
]


@pytest.fixture
def client(both: ServerProcess) -> Iterator[redis.Redis]:
    """Yield a client of an emptied server."""
    with both.client() as made:
        made.flushall()
        yield made


def ids(client: redis.Redis, stream: str = "s") -> list[int]:
    """Return the millisecond parts of the ids in a stream."""
    return [int(ident.partition(b"-")[0]) for ident, _ in client.xrange(stream)]


# --- what is archived ------------------------------------------------------------------------------------------------


def test_entries_come_back_as_they_were(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """An archive keeps every byte, the field order, repeated field names and the largest ids.

    The streams are empty then.
    """
    for ident, fields in NASTY:
        client.execute_command("XADD", "s", ident, *[part for pair in fields for part in pair])
    fill(client, "ü:/..", 3)
    archive_once(ArchiveSettings(both.url, ("s", "ü:/.."), tmp_path / "a"))
    assert held(tmp_path / "a", "s") == [(ident, tuple(fields)) for ident, fields in NASTY]
    assert [ident for ident, _ in held(tmp_path / "a", "ü:/..")] == ["1-0", "2-0", "3-0"]
    assert (client.xlen("s"), client.xlen("ü:/..")) == (0, 0)
    assert {path.split("/")[0] for path in data_files(tmp_path / "a")} == {"stream=s", "stream=%C3%BC%3A%2F.."}


def test_a_job_goes_on_where_the_archive_ends(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A job that runs repeatedly archives each entry once, and merges many small batches into few files."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a", per_batch=50, wanted=RAW)
    for run in range(3):
        fill(client, "s", 500, first=500 * run + 1)
        archive_once(where, label=f"run{run}")
    assert [ident for ident, _ in held(tmp_path / "a", "s")] == [f"{number}-0" for number in range(1, 1501)]
    named = {file.path for file in Folder(tmp_path / "a").read().files}
    assert data_files(tmp_path / "a") == named
    assert len(named) < 12
    client.xadd("s", {"n": "new hour"}, id="7200000-0")
    archive_once(where, label="run3")
    files = Folder(tmp_path / "a").read().files
    assert [(str(file.first), str(file.last)) for file in files] == [("1-0", "1500-0"), ("7200000-0", "7200000-0")]


def test_entries_trimmed_by_others_are_missed(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """If a producer's MAXLEN removes entries before they are archived, the job fails and reports how many are gone."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a")
    fill(client, "s", 10)
    archive_once(where)
    fill(client, "s", 10, first=11)
    client.xtrim("s", maxlen=5, approximate=False)
    with pytest.raises(DataLossError, match="stream 's': 5 entries after 10-0 and before 16-0 were trimmed away"):
        archive_once(where)
    assert len(held(tmp_path / "a", "s")) == 10


def test_a_new_archive_says_what_was_gone_before_it(both: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """A new archive reports once how many entries were trimmed before it. It reports nothing for a complete stream."""
    where = ArchiveSettings(both.url, ("s", "whole", "none"), tmp_path / "a")
    fill(client, "s", 10)
    fill(client, "whole", 10)
    client.xtrim("s", maxlen=4, approximate=False)
    client.xdel("s", "8-0")
    info = StreamInfo(options.parse({"url": both.url, "streamPattern": "*"}))
    states = info.states(["s", "whole", "none"])
    store = ArchiveStore(where)
    with store.open():
        store.inspect(states, info.entries)
        told = "stream 's': 7 entries were trimmed or deleted before the archive begins, which has none of them"
        assert list(store.fresh_news()) == [told]
    archive_once(replace(where, streams=("s",), trim=False))
    with store.open():
        store.inspect(states, info.entries)
        assert list(store.fresh_news()) == []
    info.close()


def test_batches_are_smaller_where_there_are_many_partitions(both: ServerProcess, client: redis.Redis) -> None:
    """A batch over many hours is split, so a job shows progress and a kill loses only seconds of work."""
    hours = ArchiveManifest(1, shape=Shape(partition="hour"))
    for name, ids in {
        "hours": [f"{1_600_000_000_000 + 3_600_000 * at}-0" for at in range(2000)],
        "few": [f"{1_600_000_000_000 + at}-0" for at in range(2000)],
        "odd": ["1-0", *(f"{1_600_000_000_000 + at}-0" for at in range(2000)), f"{MAX_PART}-7"],
    }.items():
        pipeline = client.pipeline(transaction=False)
        for ident in ids:
            pipeline.xadd(name, {"a": "1"}, id=ident)
        pipeline.execute()
    info = StreamInfo(options.parse({"url": both.url, "streamPattern": "*"}))
    states = info.states(["hours", "few", "odd"])
    parts = {name: partitions_ahead(hours, name, state, info.first_in) for name, state in states.items()}
    one = ArchiveManifest(1, shape=Shape())
    unparted = [partitions_ahead(one, name, state, info.first_in) for name, state in states.items()]
    info.close()
    assert (parts["hours"], parts["few"], unparted) == (2000, 1, [1, 1, 1])
    assert batch_size(200_000, 2000, parts["hours"]) == PARTS
    assert batch_size(200_000, 2000, parts["odd"]) == 200_000
    assert parts["odd"] <= PARTS
    assert batch_size(200_000, 2_000_000, parts["hours"]) == 200_000
    assert batch_size(200_000, 200_000, parts["hours"]) == 50_000
    assert batch_size(200, 2000, parts["hours"]) == 200
    assert partitions_ahead(hours, "none", None, info.first_in) == 0
    done = ArchiveManifest(1, places={"few": ArchivePosition(Id(1_700_000_000_000, 0), 2000)}, shape=hours.shape)
    assert partitions_ahead(done, "few", states["few"], info.first_in) == 0


def test_a_batch_costs_no_more_than_its_files(tmp_path: Path) -> None:
    """The cost of a batch grows linearly with its number of files."""

    def calls(count: int) -> int:
        store = ArchiveStore(ArchiveSettings("redis://127.0.0.1:1", ("s",), tmp_path / str(count)))
        with store.open():
            (tmp_path / str(count) / "stream=s").mkdir()
            files = [
                DataFile(f"stream=s/{at}-0123456789abcdef.parquet", "s", Id(at, 0), Id(at, 0), 1, 1 << 40)
                for at in range(1, count + 1)
            ]
            profile = cProfile.Profile()
            profile.runcall(store.take, "x", {"s": Position(ZERO, 0, Id(count, 0), count)}, lambda *_: files)
            (progress,) = store.report()
            assert (progress.archived, progress.total) == (count, count)
        return sum(row.callcount for row in profile.getstats())

    assert calls(1600) < 2.4 * calls(800)


def test_a_stream_that_went_back_is_neither_archived_nor_trimmed(
    both: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If a stream was deleted and created again, the job reports it and neither archives nor trims it."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a")
    fill(client, "s", 10)
    archive_once(where)
    client.delete("s")
    store = ArchiveStore(where)
    with store.open():
        store.inspect({"s": None}, lambda *_: [])
    assert re.search("'s' went back: .* it no longer exists.*into a new directory", store.still["s"])
    fill(client, "s", 4, first=20)
    (found,) = look(where)
    assert (found.archive, found.trim, found.left) == (0, 0, 4)
    assert re.search(r"'s' went back: it is archived up to 10-0 \(entry 10\).*neither archived nor", found.held_by)
    with pytest.raises(ReplacedError, match=r"'s' went back.*neither archived nor trimmed"):
        Trimmer(both.url, Keep()).trim("s", ArchivePosition(Id(10, 0), 10))
    assert ids(client) == [20, 21, 22, 23]


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_stream_begun_anew_that_outgrew_the_old_one_is_told_from_it(
    both: ServerProcess, client: redis.Redis, tmp_path: Path, form: str
) -> None:
    """A recreated stream that passed the archive's end is recognized by its first entry and the archive's last."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a", trim=False, wanted=Wanted(form))
    fill(client, "s", 10)
    archive_once(where)
    assert look(where)[0].archive == 0
    client.xdel("s", "1-0", "10-0")
    client.xadd("s", {"n": "11"}, "11-0")
    assert look(where)[0].archive == 1
    for first, pairs in (("0-7", {"n": "1"}), ("1-0", {"n": "other"}), ("1-0", {"n": "1", "m": ""})):
        client.delete("s")
        client.xadd("s", pairs, first)
        fill(client, "s", 20, first=20)
        assert re.search(rf"'s' is not the one .*: its entry {first} is .*neither archived", look(where)[0].held_by)
    client.delete("s")
    fill(client, "s", 9)
    client.xadd("s", {"n": "other"}, "10-0")
    assert re.search("'s' is not the one .*: its entry 10-0 is", look(where)[0].held_by)
    for middle in ({"n": "other"}, {"n": "5", "m": ""}):
        client.delete("s")
        fill(client, "s", 4)
        client.xadd("s", middle, "5-0")
        fill(client, "s", 5, first=6)
        assert re.search("'s' is not the one .*: its entry 5-0 is", look(where)[0].held_by)
    client.delete("s")
    fill(client, "s", 20)
    assert look(where)[0].archive == 10


@pytest.mark.parametrize("count", [10, 2_000])
def test_a_stream_begun_anew_in_a_running_job_with_the_same_ends_is_not_cut(
    both: ServerProcess, client: redis.Redis, count: int
) -> None:
    """A stream recreated during a job with the same first id, last id and length is recognized and not trimmed."""
    fill(client, "s", count)
    client.xgroup_create("s", "g", "5-0")
    trimmer, checked = Trimmer(both.url, Keep()), list[str]()
    place = ArchivePosition(Id(count, 0), count)
    assert (trimmer.trim("s", place, checked.append).count, checked) == (5, ["1-0"])
    assert (trimmer.trim("s", place, checked.append).count, checked) == (0, ["1-0"])
    client.delete("s")
    fill(client, "s", 1, first=6)
    for number in range(7, count):
        client.xadd("s", {"n": "other"}, f"{number}-0")
    fill(client, "s", 1, first=count)
    for number in range(1, 6):
        client.xadd("s", {"n": "later"}, f"{count + number}-0")

    def refuse(first: str) -> None:
        raise ReplacedError(first)

    with pytest.raises(ReplacedError, match="6-0"):
        trimmer.trim("s", place, refuse)
    assert len(ids(client)) == count
    trimmer.close()


# --- what is trimmed -------------------------------------------------------------------------------------------------


def test_a_trim_whose_first_entry_keeps_moving_gives_up_until_the_next_time(
    both: ServerProcess, client: redis.Redis
) -> None:
    """If others remove the first entry during each check, a trim gives up.

    The next trim succeeds once the head is stable.
    """
    fill(client, "s", 100)
    trimmer, place, checked = Trimmer(both.url, Keep()), ArchivePosition(Id(50, 0), 50), list[str]()

    def move(first: str) -> None:
        assert len(checked) < 10, "the trim asks without end"
        checked.append(first)
        client.xdel("s", first)

    found = trimmer.trim("s", place, move)
    assert (checked, found.count, found.left) == (["1-0", "2-0", "3-0"], 0, 97)
    assert "first entry changed during each check" in found.held_by
    assert trimmer.trim("s", place, checked.append).count == 47
    trimmer.close()


def test_a_long_trim_ends_between_two_cuts_when_the_job_is_to_stop(both: ServerProcess, client: redis.Redis) -> None:
    """A trim of many steps stops between two steps when the job receives SIGTERM."""
    fill(client, "s", 1000)
    trimmer, place, asked = Trimmer(both.url, Keep(entries=10)), ArchivePosition(Id(1000, 0), 1000), list[int]()

    def stop() -> bool:
        asked.append(client.xlen("s"))
        return len(asked) == 2

    found = trimmer.trim("s", place, stop=stop)
    assert (asked, found.count, found.left) == ([900, 800], 200, 800)
    assert "the job was stopped" in found.held_by
    assert trimmer.trim("s", place).left == 10
    trimmer.close()


def test_what_a_group_needs_stays(both: ServerProcess, client: redis.Redis) -> None:
    """An archive job trims no entry from the oldest one on that is pending or unread in any group."""
    fill(client, "s", 20)
    trimmer = Trimmer(both.url, Keep())
    archived = ArchivePosition(Id(15, 0), 15)

    def trimmed() -> tuple[int, str]:
        found = trimmer.trim("s", archived)
        assert found.left == client.xlen("s")
        return ids(client)[0], found.held_by

    client.xgroup_create("s", "g", "0")
    assert trimmed() == (1, "group 'g' has read nothing")
    client.xreadgroup("g", "c", {"s": ">"}, count=12)
    client.xack("s", "g", "1-0", "2-0", "3-0", "5-0")
    assert trimmed() == (4, "group 'g' has 4-0 pending, held by consumer 'c'")
    client.xclaim("s", "g", "other", 0, ["4-0"])
    client.xack("s", "g", *[f"{number}-0" for number in range(6, 13)])
    assert trimmed() == (4, "group 'g' has 4-0 pending, held by consumer 'other'")
    client.xgroup_create("s", "late", "0")
    client.xack("s", "g", "4-0")
    assert trimmed() == (4, "group 'late' has read nothing")
    client.xgroup_destroy("s", "late")
    client.xgroup_setid("s", "g", "6-0")
    assert trimmed() == (7, "group 'g' has read up to 6-0")
    client.xgroup_setid("s", "g", "$")
    assert trimmed() == (16, "the rest is not archived yet")
    trimmer.close()


def test_what_is_to_be_kept_stays(both: ServerProcess, client: redis.Redis) -> None:
    """A trim keeps exactly the given number of entries, and entries younger than the age by the server's clock."""
    fill(client, "s", 1000)
    assert Trimmer(both.url, Keep(entries=2000)).trim("s", ArchivePosition(Id(900, 0), 900)).count == 0
    since_1970 = Keep(ms=100 * 365 * 86_400_000, entries=33)
    found = Trimmer(both.url, since_1970).trim("s", ArchivePosition(Id(900, 0), 900))
    assert (found.count, found.held_by) == (0, "kept for 36500 d 0 h")
    found = Trimmer(both.url, Keep(entries=333)).trim("s", ArchivePosition(Id(900, 0), 900))
    assert (found.count, found.left, found.held_by) == (667, 333, "the newest 333 entries are kept")
    assert ids(client) == list(range(668, 1001))
    assert Trimmer(both.url, Keep(entries=33)).trim("s", ArchivePosition(Id(900, 0), 900)).left == 100
    young = client.xadd("s", {"n": "1"})
    place = ArchivePosition(parse_id(young.decode()), 1001)
    found = Trimmer(both.url, Keep(ms=3_600_000, given="1h")).trim("s", place)
    assert (found.count, found.held_by) == (100, "kept for 1h")
    assert [ident for ident, _ in client.xrange("s")] == [young]
    assert Trimmer(both.url, Keep(ms=0)).trim("s", ArchivePosition(place.id, 1001)).left in (
        0,
        1,
    )  # within this millisecond


def test_ids_of_any_size_are_compared_right(both: ServerProcess, client: redis.Redis) -> None:
    """Ids up to 2^64 are compared correctly, although Lua's numbers are exact only up to 2^53."""
    big = MAX_PART
    places = [Id(9, big), Id(10, 0), Id(2**53, 1), Id(2**53 + 1, 0), Id(big - 1, big), Id(big, 9), Id(big, 10)]
    for at in places:
        client.execute_command("XADD", "s", str(at), "a", "1")
    for number, at in enumerate(places, 1):
        Trimmer(both.url, Keep()).trim("s", ArchivePosition(at, number))
        assert [parse_id(ident.decode()) for ident, _ in client.xrange("s")] == places[number:]


def test_a_group_made_meanwhile_loses_nothing(both: ServerProcess, client: redis.Redis) -> None:
    """An archive job checks the groups and trims in one step, so a group created at 0 meanwhile loses no entry."""
    fill(client, "s", 3000)
    done = threading.Event()
    failed: list[Exception] = []

    def trim() -> None:
        trimmer = Trimmer(both.url, Keep())
        try:
            for number in range(1, 3001, 12):
                trimmer.trim("s", ArchivePosition(Id(number, 0), number))
        except Exception as reason:  # noqa: BLE001 - the test's own thread shows it
            failed.append(reason)
        finally:
            done.set()
            trimmer.close()

    thread = threading.Thread(target=trim)
    thread.start()
    seen = 0
    while not done.is_set():
        client.xgroup_create("s", "g", "0")
        there = client.xlen("s")
        for _ in range(3):
            assert client.xlen("s") == there
        client.xgroup_destroy("s", "g")
        seen += 1
    thread.join()
    assert failed == []
    assert seen > 3
    assert ids(client)[0] > 1000


def test_a_dry_run_changes_nothing_and_names_who_holds_it(
    both: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """A dry run counts the entries to archive and to trim and names the group that holds them. It changes nothing."""
    fill(client, "s", 20)
    fill(client, "t", 5)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "web-1", {"s": ">"}, count=12)
    client.xack("s", "g", *[f"{number}-0" for number in range(1, 8)])
    found = look(ArchiveSettings(both.url, ("s", "t"), tmp_path / "a"))
    assert [(one.stream, one.archive, one.trim, one.left, one.held_by) for one in found] == [
        ("s", 20, 7, 13, "group 'g' has 8-0 pending, held by consumer 'web-1'"),
        ("t", 5, 5, 0, ""),
    ]
    found = look(ArchiveSettings(both.url, ("t",), tmp_path / "a", keep=Keep(entries=2)))
    assert [(one.trim, one.left, one.held_by) for one in found] == [(3, 2, "the newest 2 entries are kept")]
    found = look(ArchiveSettings(both.url, ("s", "t"), tmp_path / "a", trim=False))
    assert [(one.archive, one.trim, one.left, one.held_by) for one in found] == [
        (20, 0, 20, "nothing is trimmed"),
        (5, 0, 5, "nothing is trimmed"),
    ]
    client.xadd("t", {"n": "1"})
    words = ["archive", both.url, "t", "--to", str(tmp_path / "a"), "--dry-run", "--keep", "1h", "-o", "json"]
    assert "kept for 1h" in CliRunner().invoke(main, words).output
    client.xdel("t", client.xrevrange("t", count=1)[0][0])
    assert not (tmp_path / "a").exists()
    assert (client.xlen("s"), client.xlen("t")) == (20, 5)
    with pytest.raises(ConfigError, match="stream 'nope' does not exist"):
        look(ArchiveSettings(both.url, ("nope",), tmp_path / "a"))


# --- the directory ---------------------------------------------------------------------------------------------------


def test_one_job_an_archive(tmp_path: Path) -> None:
    """A second job fails with an error that names the owner.

    Without a lock, the manifest's generation stops the loser.
    """
    where = ArchiveSettings("redis://127.0.0.1:1", ("s",), tmp_path / "a")
    first, second = ArchiveStore(where), ArchiveStore(where)
    with first.open():
        with (
            pytest.raises(ArchiveLockedError, match=f"is in use by process {os.getpid()}. Wait for that job"),
            second.open(),
        ):
            pass
        manifest = first.folder.read()
        second.folder.switch(manifest, ArchiveManifest(manifest.generation + 1))
        with pytest.raises(StorageError, match="written by another job meanwhile"):
            first.folder.switch(manifest, ArchiveManifest(manifest.generation + 1))
    with second.open():
        assert second.manifest.generation == manifest.generation + 1


def test_the_commands_that_the_docs_name_are_enough(real_redis: ServerProcess, tmp_path: Path) -> None:
    """A user with only the documented commands can archive; if one is missing, the error names it."""
    docs = Path(__file__).parents[3] / "docs"
    told = {
        name: re.findall(r"[A-Z]{4,}", re.search(begin + r"([^.]*?)(?:,? and SCAN| to read)", text)[1])  # type: ignore[index]  # the docs have the sentence
        for name, begin in (("archive", "user on the server needs "), ("spark/reference", "user in the `url` needs "))
        for text in [(docs / f"{name}.md").read_text()]
    }
    url = real_redis.url.replace("redis://", "redis://a:p@")
    with real_redis.client() as client:
        client.flushall()
        fill(client, "s", 5)
        try:
            for commands in (told["spark/reference"], told["archive"]):
                may = [f"+{command.lower()}" for command in commands]
                client.acl_setuser("a", enabled=True, reset=True, passwords=["+p"], keys=["*"], commands=may)
                source = MillstreamSource({"url": url, "stream": "s"})
                made = source.reader(source.schema())
                assert sum(batch.num_rows for part in made.partitions() for batch in made.read(part)) == 5
            archive_once(ArchiveSettings(url, ("s",), tmp_path / "a"))
            assert (len(held(tmp_path / "a", "s")), client.xlen("s")) == (5, 0)
            client.acl_setuser("a", enabled=True, commands=["-echo"])
            with pytest.raises(UsageError, match=r"the user needs \+echo"):
                source.reader(source.schema()).partitions()
        finally:
            client.acl_deluser("a")


def test_a_job_that_no_lock_keeps_out_takes_nothing_from_the_other(
    both: ServerProcess, client: redis.Redis, tmp_path: Path
) -> None:
    """If two jobs run without a lock and one removes the other's files, the other neither commits them nor trims."""
    where = ArchiveSettings(both.url, ("s",), tmp_path / "a")
    first, second = ArchiveStore(where), ArchiveStore(where)
    rows = [(f"{ms}-0", [(b"n", b"1")]) for ms in range(1, 6)]
    for ident, _ in rows:
        client.xadd("s", {"n": "1"}, id=ident)

    def write(plan: WritePlan, label: str) -> list[DataFile]:
        root = plan.root
        files = write_files(plan, label, rows_of("s", rows))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fcntl.flock", lambda *_: None)
            with second.open():
                assert data_files(root) == set()
        return files

    ranges = {"s": Position(ZERO, 0, Id(5, 0), 5)}
    with first.open(), pytest.raises(StorageError, match="written by another job meanwhile"):
        first.take("x", ranges, write)
    assert first.folder.read().files == ()


def test_a_job_killed_before_its_first_manifest(real_redis: ServerProcess, tmp_path: Path) -> None:
    """After a job is killed before its first manifest, the next job uses the directory and archives all entries."""
    with real_redis.client() as client:
        fill(client, "s", 5)
        assert child(real_redis, tmp_path / "a", "switching:1") == -signal.SIGKILL
        assert not (tmp_path / "a" / MANIFEST).exists()
        archive_once(ArchiveSettings(real_redis.url, ("s",), tmp_path / "a"))
        assert len(held(tmp_path / "a", "s")) == 5


def test_a_first_run_that_fails_leaves_nothing(real_redis: ServerProcess, tmp_path: Path) -> None:
    """A first run that fails leaves neither a directory nor a format that would bind the next run.

    Earlier data stays.
    """
    where = ArchiveSettings(real_redis.url, ("s",), tmp_path / "x/a", wanted=Wanted("delta"))
    with pytest.raises(ConfigError, match="schema"), ArchiveStore(replace(where, wanted=Wanted(schema="x"))).open():
        pass
    with pytest.raises(RuntimeError, match="no such stream"), ArchiveStore(where).open():
        raise RuntimeError("no such stream")
    assert list((tmp_path / "x").iterdir()) == []
    (tmp_path / "x/a").mkdir()
    with pytest.raises(RuntimeError, match="no such stream"), ArchiveStore(where).open():
        raise RuntimeError("no such stream")
    assert [path.name for path in (tmp_path / "x/a").iterdir()] == [LOCK]
    store = ArchiveStore(where)
    with pytest.raises(RuntimeError, match="full disk"), store.open():
        store.take("x", {}, lambda plan, label: failed(write_files(plan, label, rows_of("s", NASTY[:1]))))
    assert {path.name for path in (tmp_path / "x/a").iterdir()} == {LOCK, MANIFEST, "s"}
    for wanted, form in ((Wanted(), "delta"), (Wanted("parquet"), "parquet"), (Wanted(), "parquet")):
        with ArchiveStore(replace(where, wanted=wanted)).open():
            assert Folder(where.to).read().shape.format == form


def test_a_directory_into_which_another_job_comes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed first job does not remove a directory that another job has just locked. It reports its own error."""
    storage, rmdir = LocalStorage(tmp_path / "a"), Path.rmdir

    def late(folder: Path) -> None:
        with LocalStorage(folder).locked(LOCK) as holder:
            assert holder is None
            rmdir(folder)

    monkeypatch.setattr(Path, "rmdir", late)
    with pytest.raises(RuntimeError, match="no such stream"), storage.locked(LOCK):
        raise RuntimeError("no such stream")
    assert storage.top() == {LOCK}


def failed(_files: object) -> list[DataFile]:
    """Raise the error of a task on a full disk."""
    raise RuntimeError("full disk")


def test_links_out_of_an_archive_are_not_followed(real_redis: ServerProcess, tmp_path: Path) -> None:
    """An archive job follows no links: it reads, writes and removes nothing outside of its directory."""
    where = ArchiveSettings(real_redis.url, ("s",), tmp_path / "a")
    with real_redis.client() as client:
        client.flushall()
        fill(client, "s", 20)
        archive_once(where)
        moved = tmp_path / "stream=s"
        (tmp_path / "a" / "stream=s").rename(moved)
        (moved / "mine.txt").write_text("not the archive's")
        (tmp_path / "a" / "stream=s").symlink_to(moved)
        with pytest.raises(StorageError, match="leads out of the archive"):
            held_by_replay(tmp_path / "a")
        fill(client, "s", 5, first=21)
        with pytest.raises(StorageError, match="leads out of the archive"):
            archive_once(where)
        assert client.xlen("s") == 5
    assert (moved / "mine.txt").read_text() == "not the archive's"
    (tmp_path / "a" / LOCK).unlink()
    (tmp_path / "a" / LOCK).symlink_to(moved / "mine.txt")
    with pytest.raises(OSError, match="symbolic links"):
        archive_once(where)
    assert (moved / "mine.txt").read_text() == "not the archive's"


def held_by_replay(root: Path) -> list[Any]:
    """Return the rows of stream ``s`` that a replay reads from the archive."""
    folder = Folder(root)
    paths = [file.path for file in folder.read().files]
    return list(archived(folder, "s", ZERO, LAST, paths, Want(listed=True)))


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """A directory with other files is refused as an archive, and a damaged manifest is an error, not a new archive."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/notes.txt").write_text("mine")
    with (
        pytest.raises(ConfigError, match="is not empty and is not an archive"),
        ArchiveStore(ArchiveSettings("redis://127.0.0.1:1", ("s",), tmp_path / "a")).open(),
    ):
        pass
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["notes.txt"]
    (tmp_path / "a" / MANIFEST).write_text("{")
    with (
        pytest.raises(StorageError, match="manifest is damaged"),
        ArchiveStore(ArchiveSettings("redis://127.0.0.1:1", ("s",), tmp_path / "a")).open(),
    ):
        pass
    with pytest.raises(ConfigError, match="is not an archive"):
        Folder(tmp_path / "b").read()


# --- files -----------------------------------------------------------------------------------------------------------

entries = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 10**7), st.integers(0, MAX_PART)),
        st.integers(1, MAX_PART),
        st.lists(st.tuples(st.sampled_from([b"a", b"b", b"", b"\xff"]), st.binary(max_size=4)), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda entry: entry[:2],
).map(lambda rows: sorted(rows, key=lambda entry: entry[:2]))


@settings(deadline=None, max_examples=25)
@given(entries, st.data())
def test_files_are_read_as_the_stream_was(tmp_path_factory: pytest.TempPathFactory, rows, data: st.DataObject) -> None:
    """An archive's file that is written, merged and read by range has the same rows as a live read."""
    root = tmp_path_factory.mktemp("files")
    told = [(f"{ms}-{seq}", fields) for ms, seq, fields in rows]
    raw = [[ident.encode(), [part for pair in fields for part in pair]] for ident, fields in told]
    made = write_files(WritePlan(root), "x", rows_of("s", told))
    assert sum(file.rows for file in made) == len(rows)
    assert {file.path for file in made} == data_files(root)
    by_hour: dict[int, list] = {}
    for file in made:
        by_hour.setdefault(file.first.ms // 3_600_000, []).append(file)
    assert all(len(files) == 1 for files in by_hour.values())
    merged = merge(WritePlan(root), [made[0]], "y")
    assert (merged[0].rows, merged[0].first, merged[0].last) == (made[0].rows, made[0].first, made[0].last)
    after, until = sorted(data.draw(st.tuples(*[st.sampled_from([ZERO, LAST, *(Id(*row[:2]) for row in rows)])] * 2)))
    want = data.draw(st.builds(Want, st.sampled_from([(), (b"a",), (b"\xff", b"")]), st.booleans(), st.booleans()))
    pages = [page for file in made for page in read_pages(root / file.path, after, until, want)]
    wanted = [row for row in raw if after < parse_id(row[0].decode()) <= until]
    whole = decode_parsed(wanted, want)
    if whole is None:
        assert pages == []
        return
    assert [ident for page in pages for ident in page.ids.to_pylist()] == whole.ids.to_pylist()
    assert [time for page in pages for time in page.times.tolist()] == whole.times.tolist()
    for name in want.fields:
        found = [value for page in pages for value in page.fields[name].view(pa.binary()).to_pylist()]
        assert found == whole.fields[name].view(pa.binary()).to_pylist()
    for one, other in ((want.pairs, "pairs"), (want.listed, "listed")):
        if one:
            found = [row for page in pages for row in bare(getattr(page, other))]
            assert found == bare(getattr(whole, other))


def bare(array: pa.Array) -> list:
    """Convert a map or list of fields to lists of pairs of bytes."""
    if pa.types.is_map(array.type):
        keys, items = array.keys.view(pa.binary()).to_pylist(), array.items.view(pa.binary()).to_pylist()
        offsets = array.offsets.to_pylist()
        return [list(zip(keys[begin:end], items[begin:end], strict=True)) for begin, end in pairwise(offsets)]
    return [[(pair["name"], pair["value"]) for pair in row] for row in array.to_pylist()]


@pytest.mark.parametrize("shape", [Shape(), choose(None, RAW)])
def test_a_bit_that_flips_is_seen(tmp_path: Path, shape: Shape) -> None:
    """If any bit of an archive's file flips, a read returns the original data or reports the file as damaged."""
    chance = random.Random(2)
    entries = [
        (f"{ms}-0", [(b"a", b"%d" % chance.randrange(10**9)), (b"b", chance.randbytes(6))]) for ms in range(1, 500)
    ]
    plan = WritePlan(tmp_path, shape)
    (made,) = write_files(plan, "x", rows_of("s", entries))
    whole = (tmp_path / made.path).read_bytes()

    def read() -> list[Any]:
        pages = read_pages(tmp_path / made.path, ZERO, LAST, Want(listed=True))
        return [(page.ids.to_pylist(), bare(page.listed)) for page in pages]

    good, damaged = read(), 0
    for _ in range(60):
        other = bytearray(whole)
        other[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (tmp_path / made.path).write_bytes(other)
        try:
            assert read() == good
        except DamagedFileError:
            damaged += 1
    assert damaged > 20
    (tmp_path / made.path).write_bytes(whole[: len(whole) // 2] + b"x" + whole[len(whole) // 2 + 1 :])
    with pytest.raises(DamagedFileError, match=made.path):
        merge(plan, [made], "y")


def test_a_task_that_fails_leaves_no_file_under_a_name(tmp_path: Path) -> None:
    """A failed task removes its unfinished files. Its finished files count only if the manifest names them."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield from rows_of("s", [("1-0", [(b"a", b"1")]), ("3600000-0", [(b"a", b"1")])])
        raise RuntimeError("the server went away")

    with pytest.raises(RuntimeError, match="went away"):
        list(write_batches(WritePlan(tmp_path, choose(None, RAW)), "x", rows()))
    assert [path.split("/")[1:3] for path in data_files(tmp_path)] == [["date=1970-01-01", "hour=00"]]
    assert all(path.endswith(".parquet") for path in data_files(tmp_path))
    made = next(iter(write_batches(WritePlan(tmp_path), "x", iter(()))))
    assert made.num_rows == 0


def test_other_tools_read_the_files(tmp_path: Path) -> None:
    """Other Parquet readers read the files: raw fields are bytes, and an id beyond bigint is complete in ``id``."""
    made = write_files(WritePlan(tmp_path, choose(None, RAW)), "x", rows_of("s", NASTY[:2]))
    table = pq.read_table(tmp_path / made[0].path, partitioning=None)
    assert table.column_names == ["id", "id_ms", "id_seq", "timestamp", "fields"]
    assert table["id"].to_pylist() == ["1-0", f"5-{MAX_PART}"]
    assert table["id_seq"].to_pylist() == [0, 2**63 - 1]


# --- killed ----------------------------------------------------------------------------------------------------------


def child(server: ServerProcess, root: Path, hook: str) -> int:
    """Run an archive job in a child process and return its exit code."""
    words = [sys.executable, "-m", "support.archives", server.url, str(root), "raw", "s"]
    environment = os.environ | {
        "MILLSTREAM_FAILPOINTS": hook and f"{hook}=kill",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


def test_killed_at_every_point_while_others_write_and_read(real_redis: ServerProcess, tmp_path: Path) -> None:
    """If archive jobs are killed at every failpoint, archive and stream hold each entry once. Groups miss none."""
    root, seed = tmp_path / "a", random.Random(6)
    with Traffic(real_redis) as traffic:
        for point in POINTS:
            goal = len(traffic.added) + 500
            eventually(lambda goal=goal: len(traffic.added) > goal, what="entries are added")
            nth = seed.randint(1, 2) if point not in ("merged", "sweeping") else 1
            assert child(real_redis, root, f"{point}:{nth}") == -signal.SIGKILL, f"{point} was not reached"
    assert traffic.failed == []
    with real_redis.client() as client:
        # Before the last run too: the trimmed entries are archived.
        live = {ident for ident, _ in client.xrange("s")}
        archived = [ident.encode() for ident, _ in held(root, "s")]
        assert sorted({*archived, *live}, key=lambda ident: parse_id(ident.decode())) == traffic.added
        archive_once(ArchiveSettings(real_redis.url, ("s",), root))
        assert [ident.encode() for ident, _ in held(root, "s")] == traffic.added
        assert client.xlen("s") == 0
    assert traffic.read == {"fast": traffic.added, "slow": traffic.added}
    assert data_files(root) == {file.path for file in Folder(root).read().files}
    assert json.loads((root / MANIFEST).read_text())["places"]["s"]["n"] == len(traffic.added)
