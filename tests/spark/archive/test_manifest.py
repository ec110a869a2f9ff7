"""The manifest of an archive: batches join without gap or overlap, and merges lose nothing, in any order."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import StorageError
from millstream.spark.archiving.manifest import (
    FAN,
    ArchiveManifest,
    ArchivePosition,
    DataFile,
    ManifestError,
    dump,
    load,
    mergeable,
)
from millstream.spark.archiving.tables.shape import Shape
from millstream.spark.model.offsets import ZERO, Id, Position


def file(first: int, last: int, *, stream: str = "s", size: int = 1000, name: str = "") -> DataFile:
    return DataFile(name or f"{stream}/{first}-{last}", stream, Id(first, 0), Id(last, 0), last - first + 1, size)


def read(start: int, end: int) -> Position:
    return Position(Id(start, 0), start, Id(end, 0), end)


def some() -> ArchiveManifest:
    """Return a manifest with two batches of one stream."""
    first = ArchiveManifest().with_batch({"s": replace(read(0, 10), start=ZERO)}, [file(1, 5), file(6, 10)])
    return first.with_batch({"s": read(10, 20)}, [file(11, 20)])


def test_batches_join_without_gap_or_overlap() -> None:
    """A batch is accepted only if it begins at the archive's end. The same batch twice is refused."""
    made = some()
    assert made.places == {"s": ArchivePosition(Id(20, 0), 20)}
    assert [each.path for each in made.files] == ["s/1-5", "s/6-10", "s/11-20"]
    for wrong in (read(10, 25), read(21, 25), read(0, 25)):
        with pytest.raises(ManifestError, match=r"begins after .* and the archive ends at 20-0: nothing was archived"):
            made.with_batch({"s": wrong}, [])
    with pytest.raises(ManifestError, match="holds entries that are archived"):
        made.with_batch({"s": read(20, 30)}, [file(20, 30)])
    with pytest.raises(ManifestError, match="reaches past"):
        made.with_batch({"s": read(20, 30)}, [file(21, 31)])
    with pytest.raises(ManifestError, match="would hold the same entries"):
        made.with_batch({"s": read(20, 30)}, [file(21, 25), file(25, 30, name="b")])


def test_a_stream_with_nothing_new_stays_where_it_is() -> None:
    """A stream without new entries keeps its position, although the offset repeats its last batch."""
    made = some().with_batch({"s": read(10, 20), "t": replace(read(0, 3), start=ZERO)}, [file(1, 3, stream="t")])
    assert made.places == {"s": ArchivePosition(Id(20, 0), 20), "t": ArchivePosition(Id(3, 0), 3)}


def test_a_merge_keeps_every_row() -> None:
    """A merge is accepted only if the new files hold as many rows of the same range."""
    made = some()
    merged = made.with_merged(made.files[:2], [file(1, 10, name="m")])
    assert [each.path for each in merged.files] == ["m", "s/11-20"]
    with pytest.raises(ManifestError, match="nothing was changed"):
        made.with_merged(made.files[:2], [file(1, 9)])
    with pytest.raises(ManifestError, match="nothing was changed"):
        merged.with_merged(made.files[:2], [file(1, 10)])


def test_files_are_found_by_the_range_they_hold() -> None:
    """Only the files that may hold an entry of the range are read."""
    made = some()
    assert [each.path for each in made.of("s", Id(5, 0), Id(10, 0))] == ["s/6-10"]
    assert [each.path for each in made.of("s", Id(4, 0), Id(11, 0))] == ["s/1-5", "s/6-10", "s/11-20"]
    assert made.of("s", Id(20, 0), Id(99, 0)) == []
    assert made.of("other", ZERO, Id(99, 0)) == []


def test_the_manifest_survives_its_file() -> None:
    """A written manifest is read back unchanged, including stream names that need escaping."""
    made = some().with_batch({'ü"\n': Position(ZERO, 0, Id(2**64 - 1, 2**64 - 1), 7, 2)}, [])
    assert load(dump(made)) == made
    for wrong in ("", "{}", "[]", dump(made)[:-20], dump(made).replace('"n": 7', '"n": null')):
        with pytest.raises(StorageError, match=r"the archive's manifest is damaged.*restore it from a backup"):
            load(wrong)
    with pytest.raises(StorageError, match="format 4, and this version reads 2 and 3: upgrade"):
        load(dump(made).replace('"format": 2', '"format": 4'))
    with pytest.raises(StorageError, match="format 3 with the table None"):
        load(dump(made).replace('"format": 2', '"format": 3'))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "s/../../x", "s//x", "./x", "", "s/\0x", "s/\ud800", 7, None, ["x"]]
)
def test_a_manifest_names_files_of_its_archive_only(path: object) -> None:
    """An archive's manifest that names a path outside the archive is refused as damaged."""
    text = dump(some()).replace('"s/1-5"', json.dumps(path))
    with pytest.raises(StorageError, match=r"the archive's manifest is damaged"):
        load(text)


@pytest.mark.parametrize("wrong", ["[" * 5000, '{"format": 2, "generation": Infinity}', "9" * 5000, "\ud800"])
def test_a_manifest_of_any_bytes_is_damaged_or_one(wrong: str) -> None:
    """A manifest of arbitrary bytes is reported as damaged, with a known error."""
    with pytest.raises(StorageError, match=r"the archive's manifest is damaged.*restore it from a backup"):
        load(wrong)


def test_what_is_wrong_with_a_manifest_is_said_in_plain_words() -> None:
    """The error for a damaged manifest states the fault without Python terms."""
    text = dump(some())
    for wrong, said in (
        (text[:-20], "it ends too early"),
        ("", "it ends too early"),
        (text.replace(":", ";", 1), "it is not JSON from line 1, column 10 on"),
        (text.encode().replace(b"s/1-5", b"s/\xff"), "it is not UTF-8"),
        (text.replace('"places"', '"place"'), "it has no 'places'"),
        ("[]", "a value in it is of another kind than belongs there"),
        (text.replace(", 5, 1000]", ", 5]", 1), "a value in it is of another kind than belongs there"),
        (text.replace('"1-0"', '"1-x"'), "'1-x'"),
    ):
        with pytest.raises(ManifestError, match=r"manifest is damaged \(") as told:
            load(wrong)
        assert said in str(told.value)
        assert "Error" not in str(told.value)


DOUBLED = '["s/1-5", "s", "1-0", "5-0", 5, 1000],'
WRONG = [
    (DOUBLED, DOUBLED + DOUBLED, "the file s/1-5 is named twice"),
    (DOUBLED, DOUBLED + DOUBLED.replace("s/1-5", "s/b"), "the files s/1-5 and s/b would hold the same entries"),
    ('"1-0", "5-0"', '"1-0", "6-0"', "the files s/1-5 and s/6-10 would hold the same entries"),
    ('"1-0", "5-0"', '"5-0", "1-0"', "the file s/1-5 ends before it begins"),
    ('"11-0", "20-0"', '"11-0", "21-0"', "the file s/11-20 reaches past what was read of its stream"),
    ('"s/1-5", "s"', '"s/1-5", "t"', "the file s/1-5 is of stream 't', of which nothing is archived"),
    ('"5-0", 5, 1000', '"5-0", 0, 1000', "0 is not a whole number of"),
    ('"5-0", 5, 1000', '"5-0", -5, 1000', "-5 is not a whole number of"),
    ('"5-0", 5, 1000', '"5-0", 5, -1', "-1 is not a whole number of"),
    ('"5-0", 5, 1000', '"5-0", 5.5, 1000', "5.5 is not a whole number of"),
    ('"5-0", 5, 1000', '"5-0", "5", 1000', "'5' is not a whole number of"),
    ('"5-0", 5, 1000', '"5-0", true, 1000', "True is not a whole number of"),
    ('"n": 20', '"n": -1', "-1 is not a whole number of"),
    ('"n": 20', '"n": 20, "holes": -1', "-1 is not a whole number of"),
    ('"generation": 2', '"generation": -2', "-2 is not a whole number of"),
    ('"11-0", "20-0", 10,', '"11-0", "20-0", 9,', "the files of stream 's' hold 19 entries, and 20 were archived"),
    ('"archived": {"s": 20}', '"archived": {"s": 21}', "the files of stream 's' hold 20 entries, and 21 were archived"),
    ('"archived": {"s": 20}', '"archived": {}', "the files of stream 's' hold 20 entries, and 0 were archived"),
    ('"archived": {"s": 20}', '"archived": {"s": -1}', "-1 is not a whole number of"),
]


@pytest.mark.parametrize(("old", "new", "said"), WRONG, ids=[row[1] for row in WRONG])
def test_a_manifest_that_contradicts_itself_is_damaged(old: str, new: str, said: str) -> None:
    """A manifest that names a file twice, or contradicts itself otherwise, is refused with its path and the fault."""
    text = dump(some())
    assert text.count(old) == 1
    with pytest.raises(
        ManifestError, match=r"^/x/y: the archive's manifest is damaged \(.*: restore it from a b"
    ) as told:
        load(text.replace(old, new), "/x/y")
    assert said in str(told.value)


def test_a_manifest_without_the_files_of_what_was_archived_is_damaged() -> None:
    """A manifest is damaged if its files hold fewer entries than were archived."""
    head, begun, _ = dump(some()).partition('"files": [')
    with pytest.raises(ManifestError, match="the files of stream 's' hold 0 entries, and 20 were archived"):
        load(f"{head}{begun}]}}")
    with pytest.raises(ManifestError, match="it has no 'archived'"):
        load(dump(some()).replace('"archived": {"s": 20}, ', ""))


def test_a_file_that_is_named_is_not_retired_as_well() -> None:
    """A manifest that lists a current file as retired is damaged, since the file would be removed after a day."""
    made = replace(some(), shape=Shape("delta"))
    assert load(dump(replace(made, retired=(("s/old", 5),)))).retired == (("s/old", 5),)
    for retired, said in (
        ((("s/1-5", 5),), "the file s/1-5 is named twice"),
        ((("s/old", 5), ("s/old", 6)), "the file s/old is named twice"),
        ((("s/old", -5),), "-5 is not a whole number of"),
    ):
        with pytest.raises(ManifestError, match=said):
            load(dump(replace(made, retired=retired)))


@settings(deadline=None)
@given(st.lists(st.integers(1, 200 << 20), max_size=40), st.booleans())
def test_merging_takes_neighbours_and_comes_to_an_end(sizes: list[int], closed: bool) -> None:
    """Merges join neighbouring files in order. Repeated merging ends with few files in a closed hour."""
    target = 128 << 20
    files = [file(10 * at + 1, 10 * at + 9, size=size) for at, size in enumerate(sizes)]
    for _ in range(len(files) + 1):
        runs = mergeable(files, closed=closed, target=target)
        if not runs:
            break
        for run in runs:
            at = files.index(run[0])
            assert files[at : at + len(run)] == run
            assert len(run) > 1
            assert sum(each.bytes for each in run) <= target
            whole = DataFile("m", "s", run[0].first, run[-1].last, 1, sum(each.bytes for each in run))
            files = [*files[:at], whole, *files[at + len(run) :]]
    else:
        pytest.fail("merging never ends")
    if closed:
        together = [one.bytes + other.bytes for one, other in pairwise(files)]
        assert all(size > target for size in together)


def test_an_open_hour_is_merged_once_a_size() -> None:
    """In an open hour, each byte is rewritten at most as often as its file can double."""
    files: list[DataFile] = []
    written = 0
    for at in range(1000):
        files.append(file(at + 1, at + 1, size=20_000))
        for run in mergeable(files, closed=False, target=128 << 20):
            place = files.index(run[0])
            size = sum(each.bytes for each in run)
            written += size
            files = [
                *files[:place],
                DataFile("m", "s", run[0].first, run[-1].last, len(run), size),
                *files[place + len(run) :],
            ]
    assert len(files) < 3 * FAN
    assert written < 10 * 1000 * 20_000
