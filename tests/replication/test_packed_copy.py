"""A log with packs goes to a replica as files, and only what the replica lacks; damage and a full disk lose nothing."""

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack
from errno import EMFILE
from pathlib import Path

import pytest

from millstream import core
from millstream.errors import DiskError
from millstream.node.log.copied_log import MAGIC, PACKED
from millstream.persistence.check import check
from millstream.persistence.disk import RealDisk
from millstream.persistence.log import Log
from millstream.persistence.manifest import Manifest, PackEntry, is_taken_name, read_manifest
from millstream.persistence.segment import LogFiles
from millstream.replication.handshake import OURS, READS_LOG, READS_PACKS
from millstream.server.leading.copies import Copy
from millstream.server.leading.replicas import Replicas
from millstream.server.thread import ServerThread
from replication.replicated import state
from replication.test_following_redis import follow, wait_level
from replication.test_log_copy import Taker
from replication.test_redis_follows import info, port_of
from server.process.test_tier import PARAMETERS, figures
from support.coldness import IS_COLD
from support.packed import PackedWorld, open_packs, packed
from support.ports import free_port
from support.waiting import eventually
from support.wire import Wire

if IS_COLD:
    pytest.skip("its servers have packs of their own", allow_module_level=True)

native_only = pytest.mark.skipif(core.native is None, reason="the Python core takes no packs of others")


@pytest.fixture(autouse=True)
def _tiered() -> None:
    gc.collect()  # as in the tests of a tier


def fill(wire: Wire, first: int, count: int, key: str = "s", size: int = 500) -> None:
    """Add entries, and wait until most of a stream is in packs."""
    before = int(figures(wire, "tier")["tier_spilled_bytes"])
    wire.ask_together(("XADD", key, f"{number}-1", "f", "x" * size) for number in range(first, first + count))
    eventually(
        lambda: (
            int(figures(wire, "tier")["tier_spilled_bytes"]) > before + count * size // 2
            and figures(wire, "tier")["tier_spill_in_progress"] == "0"
        ),
        what="entries are in packs",
    )


def made(wire: Wire) -> int:
    """Return the bytes of the last copy that a primary made."""
    return int(info(wire)["millstream_last_full_sync_made_bytes"])


def manifest(directory: Path) -> Manifest:
    """Return the manifest of a directory."""
    found = read_manifest(RealDisk(), directory)
    assert found is not None
    return found


def packs_of(directory: Path) -> set[str]:
    """Return the names of the packs in a directory, which are those of its manifest."""
    eventually(lambda: {path.name for path in directory.glob("*.pack")} == {p.name for p in manifest(directory).packs})
    return {path.name for path in directory.glob("*.pack")}


def size_of(directory: Path) -> int:
    """Return the size of all files in a data directory, in bytes."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


class Pair:
    """Two servers with a tier, and connections to them.

    Attributes:
        servers: the servers.
        wires: connections to them.
    """

    def __init__(self, home: Path, stack: ExitStack, count: int = 2) -> None:
        self.homes = [home / name for name in "abc"[:count]]
        self.stack = stack
        given = [PARAMETERS, PARAMETERS, {}]  # the last one only serves what is in packs
        self.servers = [
            stack.enter_context(ServerThread(home, parameters=parameters))
            for home, parameters in zip(self.homes, given, strict=False)
        ]
        self.wires = [stack.enter_context(Wire(server.url)) for server in self.servers]

    def join(self, replica: int = 1, primary: int = 0) -> None:
        """Let one follow another."""
        follow(self.wires[replica], int(port_of(self.servers[primary])))
        wait_level(self.wires[replica], self.wires[primary])

    def expect_equal(self, one: int = 0, other: int = 1) -> None:
        """Compare all data of two servers."""
        assert state(self.wires[one].ask) == state(self.wires[other].ask)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def seal(pair: Pair, number: int) -> None:
    """End the pack that a server fills, which would otherwise take 64 MiB; nothing writes to it meanwhile."""
    wire, spilling = pair.wires[number], pair.servers[number].server._spilling  # noqa: SLF001 - no command does it
    assert spilling is not None
    assert wire.ask("CONFIG", "SET", "tier", "no") == b"OK"
    eventually(lambda: not spilling.spiller.background.is_busy, what="the last entries are in the pack")
    spilling.spiller.filler.end()
    assert wire.ask("CONFIG", "SET", "tier", "yes") == b"OK"


def lose_backlog(pair: Pair, first: int, count: int) -> None:
    """Let the primary add so much while the replica is away that it needs another copy."""
    one, two = pair.wires
    assert two.ask("REPLICAOF", "NO", "ONE") == b"OK"
    one.ask("CONFIG", "SET", "repl-backlog-size", "16kb")
    fill(one, first, count)


@native_only
def test_coming_back_costs_the_hot_part_and_new_packs(pair: Pair, tmp_path: Path) -> None:
    """The first copy brings all packs; the next one only those that the replica lacks, by count of bytes."""
    one, two = pair.wires
    fill(one, 1, 5000)
    seal(pair, 0)
    fill(one, 10_001, 500)
    pair.join()
    pair.expect_equal()
    sealed, other = manifest(tmp_path / "a").packs
    assert sealed.sealed
    assert not other.sealed
    first = made(one)
    assert first > (sealed.bytes or 0) > 1 << 20
    came = {each.identity for each in manifest(tmp_path / "b").packs if is_taken_name(each.name)}
    assert came == {sealed.identity, other.identity}  # the replica may have begun one of its own since
    assert packs_of(tmp_path / "b")
    eventually(lambda: int(figures(two, "tier")["tier_entries"]) > 4000, what="they are cold there")
    lose_backlog(pair, 20_001, 500)
    pair.join()
    pair.expect_equal()
    assert info(one, "stats")["sync_full"] == "2"
    # Entries go to packs at any time, and their records to the log, so only the files show all that a copy can have
    assert made(one) < size_of(tmp_path / "a") - (sealed.bytes or 0) + (64 << 10)
    assert sealed.identity in {each.identity for each in manifest(tmp_path / "b").packs}
    assert packs_of(tmp_path / "b")
    for home in pair.homes:
        assert not [problem for problem in check(home).problems if problem.refuses]
    pair.stack.close()
    for home in pair.homes:
        with ServerThread(home, parameters=PARAMETERS) as server, Wire(server.url) as wire:
            assert wire.ask("XLEN", "s") == 6000
            assert len(wire.ask("XRANGE", "s", "-", "+")) == 6000


@native_only
def test_a_full_copy_brings_a_pack_whose_damage_is_known(pair: Pair, tmp_path: Path) -> None:
    """Damage on a replica ends with its next copy; otherwise each change that meets it would ask for one more."""
    one, two = pair.wires
    fill(one, 1, 5000)
    seal(pair, 0)
    pair.join()
    (pack,) = (tmp_path / "b").glob("*.pack")
    with pack.open("r+b") as file:
        file.seek(pack.stat().st_size // 2)
        file.write(b"damaged" * 100)
    assert "MSDAMAGED" in str(two.ask("XRANGE", "s", "-", "+"))
    one.ask("XGROUP", "CREATE", "s", "g", "0")
    one.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", "4500", "STREAMS", "s", ">")
    eventually(lambda: info(two)["millstream_link_divergences"] == "1", what="the replica needs a copy")
    wait_level(two, one)
    assert len(two.ask("XRANGE", "s", "-", "+")) == 5000
    assert figures(two, "tier")["tier_damaged_extents"] == "0"
    pair.expect_equal()
    assert info(two)["millstream_link_divergences"] == "1"


@native_only
def test_a_replica_spills_by_itself_and_follows(pair: Pair, tmp_path: Path) -> None:
    """After the switch a replica reads the new packs, applies changes of cold entries, and spills what follows."""
    one, two = pair.wires
    fill(two, 1, 3000, key="old")
    fill(one, 1, 4000)
    one.ask("XGROUP", "CREATE", "s", "g", "0")
    pair.join()
    assert two.ask("EXISTS", "old") == 0
    for words in (
        ("XDEL", "s", "5-1", "1000-1"),
        ("XTRIM", "s", "MINID", "900-1"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "s", ">"),
        ("XCLAIM", "s", "g", "d", 0, "902-1"),
        ("XTRIM", "s", "MAXLEN", 3500, "ACKED"),
        ("XADD", "s", "MAXLEN", 3000, "5000-1", "f", "v"),
        ("COPY", "s", "t"),
    ):
        assert not isinstance(one.ask(*words), Exception)
    wait_level(two, one)
    pair.expect_equal()
    before = int(figures(two, "tier")["tier_spilled_bytes"])
    fill(one, 6001, 3000)
    wait_level(two, one)
    eventually(lambda: int(figures(two, "tier")["tier_spilled_bytes"]) > before, what="the replica spills")
    pair.expect_equal()
    own = [each for each in manifest(tmp_path / "b").packs if not is_taken_name(each.name)]
    assert own
    assert min(each.number for each in own) >= 2
    two.ask("REPLICAOF", "NO", "ONE")
    fill(two, 20_001, 3000)
    pair.stack.close()
    with ServerThread(tmp_path / "b", parameters=PARAMETERS) as server, Wire(server.url) as wire:
        assert wire.ask("XLEN", "s") == len(wire.ask("XRANGE", "s", "-", "+"))


@native_only
def test_a_replica_with_packs_leads_and_its_former_primary_follows(tmp_path: Path) -> None:
    """In a chain, and after a failover, each server gets packs by file, also those of equal numbers."""
    with ExitStack() as stack:
        trio = Pair(tmp_path, stack, 3)
        one, two, three = trio.wires
        fill(one, 1, 4000)
        trio.join()
        trio.join(2, 1)
        trio.expect_equal(0, 2)
        assert all(is_taken_name(name) for name in packs_of(tmp_path / "c"))
        fill(one, 5001, 3000)  # each spills by itself
        wait_level(three, one)
        one.ask("SET", "tail", "v")
        two.ask("REPLICAOF", "NO", "ONE")
        fill(two, 10_001, 3000)
        fill(one, 10_001, 1000, key="lost")
        two.ask("CONFIG", "SET", "repl-backlog-size", "16kb")
        one.ask("CONFIG", "SET", "repl-backlog-size", "16kb")
        trio.join(0, 1)
        wait_level(three, two)
        trio.expect_equal(0, 1)
        trio.expect_equal(1, 2)
        assert one.ask("EXISTS", "lost") == 0
        fill(two, 20_001, 2000)
        wait_level(one, two)
        wait_level(three, two)
        eventually(
            lambda: any(not is_taken_name(each.name) for each in manifest(tmp_path / "a").packs), what="it spills"
        )
        assert len(one.ask("XRANGE", "s", "-", "+")) == 12_000
        for home in trio.homes:
            packs_of(home)
            assert not [problem for problem in check(home).problems if problem.refuses]
        stack.close()
        for home in trio.homes:
            with ServerThread(home, parameters=PARAMETERS) as server, Wire(server.url) as wire:
                assert len(wire.ask("XRANGE", "s", "-", "+")) == 12_000


@pytest.mark.parametrize(
    "announced",
    [
        (),
        (b"capa", OURS),
        (b"capa", OURS, b"capa", READS_LOG),
        (b"capa", READS_PACKS, b"rdb-only", b"1"),
        (b"capa", READS_PACKS, b"rdb-filter-only", b""),
    ],
    ids=["redis", "earlier", "log-1", "copy", "keyless"],
)
def test_who_else_gets_an_rdb_file(tmp_path: Path, announced: tuple[bytes, ...]) -> None:
    """A Redis, a Millstream that reads no packs, and tools for copies get an RDB file with the entries of packs."""
    packed(tmp_path)
    with ServerThread(tmp_path) as server, Taker(server.url, *announced) as taker:
        _, _, data = taker.copy()
        assert data.startswith(b"REDIS")
        assert (b"v20" in data) == (b"rdb-filter-only" not in announced)


def test_a_log_without_packs_is_sent_as_before(tmp_path: Path) -> None:
    """A replica that reads packs gets a log without packs in the same form as one that does not."""
    copies = []
    for number, more in enumerate([(), (b"capa", READS_PACKS)]):
        with (
            ServerThread(tmp_path / str(number)) as server,
            Taker(server.url, b"capa", OURS, b"capa", READS_LOG, *more) as taker,
        ):
            copies.append(taker.copy()[2])
    assert all(each.startswith(MAGIC) for each in copies)
    assert len(copies[0]) == len(copies[1])


def test_packs_are_named_in_one_command(tmp_path: Path) -> None:
    """The packs that a replica names do not come along; the names of others are not kept."""
    packed(tmp_path)
    (pack,) = manifest(tmp_path).packs
    sizes = []
    with ServerThread(tmp_path) as server:
        for names in ([], [b"0" * 16], [b"\xff", pack.identity.encode()]):
            with Taker(server.url, b"capa", OURS, b"capa", READS_PACKS) as taker:
                if names:
                    assert taker.wire.ask("REPLCONF", "HAVE-PACKS", *names) == b"OK"
                data = taker.copy()[2]
                assert data.startswith(PACKED)
                sizes.append(len(data))
        assert 0 <= sizes[1] - sizes[0] < 100, "one record more about the history"
        assert abs(sizes[1] - sizes[2] - (pack.bytes or 0)) < 100
        with Wire(server.url) as wire:
            names = [pack.identity, "x" * 16, b"\xff" * 100_000, *map(str, range(10_000))]
            assert wire.ask("REPLCONF", "have-packs", *names) == b"OK"
            known = server.server.node.primary.followers.known(wire.ask("CLIENT", "ID"), "")
            assert known.packs == {pack.identity}


@pytest.mark.parametrize("why", ["memory", "python"])
def test_who_takes_no_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """A replica without a directory, or with the Python core, gets an RDB file and holds all entries in memory."""
    packed(tmp_path / "a")
    if why == "python":
        monkeypatch.setattr(core, "native", None)
    with ExitStack() as stack:
        first = stack.enter_context(ServerThread(tmp_path / "a"))
        second = stack.enter_context(ServerThread(None if why == "memory" else tmp_path / "b"))
        one, two = (stack.enter_context(Wire(server.url)) for server in (first, second))
        follow(two, int(port_of(first)))
        wait_level(two, one)
        assert two.ask("XLEN", "s") == len(two.ask("XRANGE", "s", "-", "+")) == 20
        assert not list(tmp_path.glob("b/*.pack"))


@native_only
def test_no_pack_is_looked_at_while_the_primary_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica tries each second to connect; only a connection needs the names of its packs."""
    packed(tmp_path)
    looks, real = list[None](), Log.sealed_packs

    def look(opened: Log) -> list[PackEntry]:
        looks.append(None)
        return real(opened)

    monkeypatch.setattr(Log, "sealed_packs", look)
    with ServerThread(tmp_path) as server, ServerThread() as primary, Wire(server.url) as wire:
        follow(wire, free_port())
        eventually(lambda: "refused" in info(wire)["millstream_link_error"], what="nobody is there")
        assert not looks
        follow(wire, int(port_of(primary)))
        eventually(lambda: info(wire)["master_link_status"] == "up", what="the link is up")
        assert looks


@native_only
def test_a_damaged_pack_is_told_and_costs_nothing_else(pair: Pair, tmp_path: Path) -> None:
    """The copy fails with the entries that cannot be read. Both go on with what they have, and the tries are rare."""
    one, two = pair.wires
    fill(one, 1, 4000)
    two.ask("SET", "mine", "v")
    (pack,) = manifest(tmp_path / "a").packs
    with (tmp_path / "a" / pack.name).open("r+b") as file:
        file.seek(1 << 20)
        byte = file.read(1)
        file.seek(1 << 20)
        file.write(bytes([byte[0] ^ 1]))
    follow(two, int(port_of(pair.servers[0])))
    said = f" of 's' cannot be read: {pack.name} is damaged at byte "
    eventually(lambda: said in info(two).get("millstream_link_error", ""), what="the damage is told")
    assert "see millstream log check" in info(two)["millstream_link_error"]
    assert two.ask("GET", "mine") == b"v"
    assert not isinstance(one.ask("XADD", "s", "*", "f", "v"), Exception)
    eventually(lambda: not list((tmp_path / "b").glob("*.pack")), what="nothing is left of it")
    link = pair.servers[1].server._link  # noqa: SLF001 - no reply shows it
    assert link is not None
    eventually(lambda: link._failed > 1, what="it is tried again")  # noqa: SLF001 - likewise
    assert int(info(one, "stats")["sync_full"]) <= 3


@native_only
def test_a_pack_that_the_disk_does_not_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the primary's disk fails at a pack, the copy is tried again later each time, and succeeds in the end."""
    one, two = pair.wires
    fill(one, 1, 2000)
    with monkeypatch.context() as broken:

        def read(*_: object, may_wait: bool) -> bytes:
            raise OSError(5, "Input/output error")

        broken.setattr("millstream.persistence.packs.PackFiles.read", read)
        follow(two, int(port_of(pair.servers[0])))
        replicas = pair.servers[0].server._replicas  # noqa: SLF001 - no reply shows it
        assert replicas is not None
        maker = replicas._maker  # noqa: SLF001 - likewise
        eventually(lambda: maker._failed == 2, what="it pauses")  # noqa: SLF001 - likewise
    wait_level(two, one)
    pair.expect_equal()
    assert maker._failed == 0  # noqa: SLF001 - likewise


@native_only
def test_a_switch_needs_no_further_descriptor(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a copy is the log, nothing that may fail lies before it is the data: its packs are open already."""
    one, two = pair.wires
    fill(two, 1, 2000, key="old")
    fill(one, 1, 2000)

    def dup(_: int) -> int:
        raise OSError(EMFILE, "Too many open files")

    monkeypatch.setattr("millstream.node.tiering.packreader.os.dup", dup)
    pair.join()
    pair.expect_equal()
    assert two.ask("EXISTS", "old") == 0


@native_only
def test_an_error_after_the_switch_stops_the_server(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record of the old data follows the new snapshot, so a start has the data of the primary."""
    one, two = pair.wires
    fill(two, 1, 2000, key="old")
    fill(one, 1, 2000)
    copied = pair.servers[1].server

    def add(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr("millstream.node.tiering.packreader.allow_files", add)
        follow(two, int(port_of(pair.servers[0])))
        eventually(lambda: copied.failure is not None, what="it stops")
    assert "has now: MemoryError(); start again" in str(copied.failure)
    with pytest.raises((OSError, EOFError)):  # the connection was cut
        two.ask("XADD", "old", "90000-1", "f", "v")
    with pytest.raises(DiskError, match="start again"):
        pair.stack.close()
    assert open_packs(tmp_path) == []
    with ServerThread(tmp_path / "b", parameters=PARAMETERS) as server, Wire(server.url) as wire:
        assert wire.ask("EXISTS", "old") == 0
        assert len(wire.ask("XRANGE", "s", "-", "+")) == 2000


@native_only
def test_a_turn_of_the_loop_ends_while_a_slow_disk_is_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients get their turn after one read."""
    one, two = pair.wires
    fill(one, 1, 2000)
    reads, pump, read = [0], Replicas.pump, Copy.read

    def pumped(replicas: Replicas) -> None:
        reads.append(0)
        pump(replicas)

    def counted(copy: Copy, session_id: int) -> bytes:
        reads[-1] += 1
        return read(copy, session_id)

    monkeypatch.setattr("millstream.server.leading.replicas._READING", 0)
    monkeypatch.setattr(Replicas, "pump", pumped)
    monkeypatch.setattr(Copy, "read", counted)
    follow(two, int(port_of(pair.servers[0])))
    wait_level(two, one)
    assert len(two.ask("XRANGE", "s", "-", "+")) == 2000
    assert sum(reads) > 10
    assert max(reads) == 1


@native_only
def test_a_disk_that_is_too_full_refuses_the_copy(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The free space is compared before anything is written; the replica keeps its data, and takes the copy later."""
    one, two = pair.wires
    fill(one, 1, 4000)
    two.ask("SET", "mine", "v")
    two.ask("CONFIG", "SET", "disk-free-floor", 0)
    free = Log.free
    with monkeypatch.context() as full:
        full.setattr(Log, "free", lambda log: 100_000 if log.directory == tmp_path / "b" else free(log))
        follow(two, int(port_of(pair.servers[0])))
        said = f"bytes, and {tmp_path / 'b'} has room for 100000. Free some space there"
        eventually(lambda: said in info(two).get("millstream_link_error", ""), what="it is refused")
        assert two.ask("GET", "mine") == b"v"
        assert not list((tmp_path / "b").glob("*.pack"))
    wait_level(two, one)
    pair.expect_equal()


def test_packs_stay_while_a_copy_sends_them(tmp_path: Path) -> None:
    """A rewriting does not remove a pack that a copy still has to send; the next one does."""
    world = PackedWorld(tmp_path)
    world.fill()
    world.chill()
    world.seal()
    (pack,) = world.log.packs
    files, other = (world.log.files(world.log.appended, frozenset()) for _ in range(2))
    world.client().call("DEL", "s")
    world.sync()
    for users in (files, other):
        rewriter = world.rewriter()
        assert rewriter.start()
        eventually(lambda rewriter=rewriter: not rewriter.facts.is_running)  # type: ignore[misc]  # a default binds it
        assert not world.log.packs
        assert (tmp_path / pack.name).exists()
        users.close()
        world.fill("t")
        world.sync()
    world.log.remove_obsolete()
    assert not (tmp_path / pack.name).exists()
    world.close()


def test_a_copy_that_finds_no_memory_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replica is cut and tries again; its files are closed, and its packs may go."""
    packed(tmp_path)

    def no_memory(_: LogFiles) -> bytes:
        raise MemoryError

    with ServerThread(tmp_path) as server, Wire(server.url) as wire:
        (pack,) = tmp_path.glob("*.pack")
        before = open_files(tmp_path)
        with monkeypatch.context() as patched, Taker(server.url, b"capa", OURS, b"capa", READS_PACKS) as taker:
            patched.setattr("millstream.server.leading.copies.head", no_memory)
            taker.wire.send("PSYNC", "?", "-1")
            assert taker.line() == b""
        assert open_files(tmp_path) == before
        assert wire.ask("DEL", "s") == 1
        wire.ask("BGREWRITEAOF")
        eventually(lambda: not pack.exists(), what="the pack is removed")


def open_files(home: Path) -> int:
    """Return the number of descriptors of this process that belong to files in a directory."""
    return sum(str(home) in os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("form", ["log", "rdb"])
def test_a_copy_without_packs_lets_the_packs_go(tmp_path: Path, form: str) -> None:
    """A replica with packs that follows a server without packs removes them, and spills the new data."""
    with ExitStack() as stack:
        first = stack.enter_context(ServerThread(None if form == "rdb" else tmp_path / "a"))
        second = stack.enter_context(ServerThread(tmp_path / "b", parameters=PARAMETERS))
        one, two = (stack.enter_context(Wire(server.url)) for server in (first, second))
        fill(two, 1, 2000)
        before = packs_of(tmp_path / "b")
        one.ask_together(("XADD", "t", f"{number}-1", "f", "x" * 500) for number in range(1, 3001))
        follow(two, int(port_of(first)))
        wait_level(two, one)
        assert two.ask("KEYS", "*") == [b"t"]
        eventually(lambda: int(figures(two, "tier")["tier_live_bytes"]) > 500_000, what="the new data are in packs")
        assert not packs_of(tmp_path / "b") & before
        assert state(one.ask) == state(two.ask)
    with ServerThread(tmp_path / "b") as server, Wire(server.url) as wire:
        assert len(wire.ask("XRANGE", "t", "-", "+")) == 3000
