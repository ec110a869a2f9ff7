"""Sealed packs are read and compared with their checksums while nothing else is to be done."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from errno import EMFILE
from pathlib import Path

import pytest

from millstream.engine.cold import cold_records
from millstream.node.log.compaction import compact
from millstream.persistence.frame import FRAME_SIZE
from node.test_vacuum import care, filled, spoil, worlds
from support.coldness import IS_COLD
from support.simdisk import SimDisk, SimFile
from support.spilled import Later, SpillWorld, small

if IS_COLD:
    pytest.skip("its worlds have packs of their own", allow_module_level=True)


@pytest.fixture(autouse=True)
def _tiered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    small(monkeypatch)
    yield
    Later.waiting.clear()


def test_scrubbing_finds_damage_of_sealed_packs_once() -> None:
    """Each damaged frame is reported once a round, also one with a damaged head, and the next ones are still read."""
    _, cold, _ = worlds()
    damages = []
    cold.vacuum.on_damage = damages.append
    cold.spiller.filler.end()
    places = sorted(
        int.from_bytes(rows[at : at + 8], "little")
        for _, stream in cold.streams()
        for _, rows, _ in cold_records(stream.entries, 99)
        for at in range(0, len(rows), 88)
    )
    assert len(places) > 2
    care(cold, 61)
    assert cold.vacuum.scrubber.ended_at == 0
    for _ in range(4):
        care(cold, 1)
    assert damages == []
    assert cold.vacuum.scrubber.ended_at
    spoil(cold, places[0] + 8)  # in the head
    spoil(cold, places[1] + FRAME_SIZE + 3)
    care(cold, 3600)
    assert damages == []
    care(cold, 86_400)
    for _ in range(4):
        care(cold, 1)
    assert [damage[1] for damage in damages] == places[:2]


def test_a_round_that_could_not_open_a_pack_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its time would say that all packs were compared."""
    disk = SimDisk()
    cold = SpillWorld(disk=disk)
    filled(cold, 60)
    cold.spill()
    cold.spiller.filler.end()

    def refuse(path: Path) -> SimFile:
        raise OSError(EMFILE, f"Too many open files: {path}")

    with monkeypatch.context() as context:
        context.setattr(disk, "open_unreserved", refuse)
        for _ in range(9):
            care(cold, 61)
    assert cold.vacuum.scrubber.ended_at == 0
    care(cold, 86_400)
    for _ in range(4):
        care(cold, 1)
    assert cold.vacuum.scrubber.ended_at


@pytest.mark.parametrize("way", ["put back", "let go"])
def test_scrubbing_reports_a_pack_that_was_removed(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Reads go on from the open file, so nobody else notices; the pack counts as damaged until it is back or gone."""
    _, cold, clients = worlds()
    cold.vacuum.on_damage, cold.vacuum.scrubber.on_return = cold.node.cold.report_damage, cold.node.cold.forget_removal
    cold.spiller.filler.end()
    (path,) = (path for path in cold.disk.names if path.suffix == ".pack")  # type: ignore[attr-defined]  # a SimDisk
    file = cold.disk.names[path]  # type: ignore[attr-defined]  # likewise
    cold.disk.remove(path)
    for _ in range(3):
        care(cold, 86_400)
        care(cold, 1)
    assert cold.node.cold.damages() == {(1, 0)}
    (line,) = [each for each in caplog.messages if path.name in each]
    assert "was removed or moved away" in line
    assert "BGREWRITEAOF" in line
    assert len(clients[1].call("XRANGE", "s", "-", "+")) == 60  # type: ignore[arg-type]  # a reply may be anything
    if way == "put back":
        cold.disk.names[path] = file  # type: ignore[attr-defined]  # likewise
    else:
        cold.opened._manifest = replace(cold.opened._manifest, packs=())  # noqa: SLF001 - as a rewriting leaves it
        cold.vacuum.scrubber.turn(cold.clock.now()._replace(mono=1 << 50), 1)
        assert not cold.node.cold.damages()
        return
    care(cold, 86_400)
    care(cold, 1)
    assert not cold.node.cold.damages()


def test_scrubbing_reports_no_pack_that_a_rewriting_removed() -> None:
    """The rewriting may end between the choice of a pack and its opening."""
    _, cold, _ = worlds(thread=Later)
    damages = []
    cold.vacuum.on_damage = damages.append
    cold.spiller.filler.end()
    while not Later.waiting:
        care(cold, 61)
    (path,) = (path for path in cold.disk.names if path.suffix == ".pack")  # type: ignore[attr-defined]  # a SimDisk
    cold.disk.remove(path)
    cold.opened._manifest = replace(cold.opened._manifest, packs=())  # noqa: SLF001 - as a rewriting leaves it
    Later.run_all()
    care(cold, 1)
    assert damages == []


def test_scrubbing_keeps_its_rate_with_frames_that_are_larger() -> None:
    """A pack takes as long as its bytes at the rate, though each frame is larger than the bytes of a second."""
    world = SpillWorld({"tier-scrub": "20"})
    client = world.client()
    for number in range(1, 61):
        client.call("XADD", "s", f"{number}-1", "f", "x" * 31)
    world.spill()
    world.spiller.filler.end()
    (entry,) = world.opened.packs
    seconds = (entry.bytes or 0) // 20
    assert seconds > 60
    care(world, 61)
    for _ in range(seconds - 5):
        care(world, 1)
    assert not world.vacuum.scrubber.ended_at
    for _ in range(20):
        care(world, 1)
    assert world.vacuum.scrubber.ended_at


def test_packs_of_a_full_copy_are_read_from_their_beginning() -> None:
    """Another pack of the same number takes the place of one that was read in part; no damage is reported."""
    one, two = SpillWorld(), SpillWorld({"tier-scrub": "100"})
    for world, value in ((one, "x" * 31), (two, "y" * 9)):
        client = world.client()
        for number in range(1, 61):
            client.call("XADD", "s", f"{number}-1", "f", value)
        for _ in range(8):
            world.spill()
        world.spiller.filler.end()
    damages = []
    two.vacuum.on_damage = damages.append
    care(two, 61)
    care(two, 1)
    two.vacuum.sparse = frozenset({1})
    two.written()
    rewrite = two.opened.begin_rewrite()
    assert rewrite is not None
    compact(two.disk, two.directory, rewrite)
    (entry,) = one.opened.packs
    with closing(one.opened.open_pack(entry.name)) as source, closing(two.opened.receive_pack(entry.name)) as file:
        file.append(source.read_at(0, entry.bytes or 0))
        file.datasync()
    two.opened.commit_rewrite(rewrite, taken=[entry], next_pack=2)
    two.node.cold.replace_packs([(1, entry.name, two.opened.open_pack(entry.name))])
    two.spiller.begin_again()
    assert two.vacuum.sparse == frozenset()
    for _ in range(60):
        care(two, 3)
    assert two.vacuum.scrubber.ended_at
    assert damages == []
