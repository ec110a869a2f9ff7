"""A store of this process with a tier: streams take more than ``maxmemory``, and a kill at any moment loses nothing."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import millstream
from embedded.test_packs import open_packs
from millstream.clock import Now
from millstream.embedded import stores
from millstream.embedded.direct import OpenStore
from millstream.errors import CommandError, ConfigError, DiskError
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.check import check
from support.coldness import IS_COLD
from support.resident import collect_garbage
from support.servers import millstream_server
from support.waiting import eventually

if IS_COLD:
    pytest.skip("its stores have packs of their own", allow_module_level=True)

MIB = 1 << 20
SMALL = "tier=yes&tier-hot=128kb&tier-stall-ms=100000"  # machines may be slow
QUICK = f"{SMALL}&fsync=no"
OOM = "OOM command not allowed"
PAD = "x" * 500

WRITER = """
import sys, threading, millstream
store = millstream.open_store(sys.argv[1], text=True)
store.execute("CONFIG", "SET", "stream-node-max-entries", 20)
guard = threading.Lock()

def write(writer):
    while True:
        entry = store.xadd("s", {"w": writer, "pad": "x" * 500})
        if entry[-3:] == "0-0":
            store.execute("XTRIM", "s", "MAXLEN", "~", 4000)
        with guard:
            print(entry, flush=True)

for writer in range(3):
    threading.Thread(target=write, args=(writer,)).start()
"""


@pytest.fixture(autouse=True)
def _without_others() -> None:
    collect_garbage()  # streams of earlier tests count until they are freed, as one process has one count


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a data directory that does not exist yet."""
    return (tmp_path / "data").as_uri()


def figures(store: OpenStore[str], section: str) -> dict[str, str]:
    """Return a section of INFO."""
    return dict(line.split(":", 1) for line in store.execute("INFO", section).splitlines() if ":" in line)


def fill(store: OpenStore[str], first: int, last: int) -> None:
    """Add entries with these ids."""
    for number in range(first, last + 1):
        store.xadd("s", {"n": number, "pad": PAD}, f"{number}-1")


def expect(store: OpenStore[str], last: int) -> None:
    """Read all entries in parts, and one by itself."""
    found, after = [], "-"
    while part := store.xrange("s", after, count=1000):
        found += part
        after = f"({part[-1][0]}"
    assert found == [(f"{number}-1", {"n": str(number), "pad": PAD}) for number in range(1, last + 1)]
    assert store.xrange("s", "5-1", "5-1") == found[4:5]


def test_streams_grow_beyond_the_limit(url: str) -> None:
    """Writers in several threads wait for packs instead of an error, and every entry is read, also after a restart."""
    count, threads = 9000, 3
    with millstream.open_store(f"{url}?{QUICK}", text=True) as store:
        store.execute("CONFIG", "SET", "stream-node-max-entries", 20)
        limit = int(figures(store, "memory")["used_memory"]) + MIB
        store.execute("CONFIG", "SET", "maxmemory", limit)
        errors: list[CommandError] = []

        def write(key: str) -> None:
            try:
                for number in range(1, count // threads + 1):
                    store.xadd(key, {"n": number, "pad": PAD}, f"{number}-1")
            except CommandError as error:
                errors.append(error)

        writers = [threading.Thread(target=write, args=(key,)) for key in ("s", "t", "u")]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert errors == []
        eventually(lambda: int(figures(store, "memory")["used_memory"]) <= limit)  # copies on their way count
        tiered, memory = figures(store, "tier"), figures(store, "memory")
        assert memory["total_oom_rejected"] == "0"
        eventually(lambda: int(figures(store, "tier")["tier_entries"]) > 6000)  # counted once a second
        assert tiered["tier_last_spill_status"] == "ok"
        expect(store, count // threads)
        assert int(figures(store, "tier")["tier_reads"]) > 0
    assert check(Path(url.removeprefix("file://"))).problems == []
    with millstream.open_store(f"{url}?fsync=no", text=True) as store:
        expect(store, count // threads)


def test_a_directory_with_packs_is_served_without_a_tier(url: str) -> None:
    """With ``tier no`` entries in packs are read, and nothing more goes there."""
    with millstream.open_store(f"{url}?{QUICK}", text=True) as store:
        fill(store, 1, 2000)
        eventually(lambda: int(figures(store, "tier")["tier_entries"]) > 1000)
    with millstream.open_store(f"{url}?fsync=no", text=True) as store:
        before = figures(store, "tier")
        assert (before["tier_enabled"], before["tier_spilled_bytes"]) == ("0", "0")
        fill(store, 2001, 4000)
        expect(store, 4000)
        after = figures(store, "tier")
        assert (after["tier_bytes"], after["tier_spill_in_progress"]) == (before["tier_bytes"], "0")
        assert store.execute("CONFIG", "SET", "tier", "yes", "tier-hot", "128kb") == "OK"
        eventually(lambda: int(figures(store, "tier")["tier_bytes"]) > int(before["tier_bytes"]))
        expect(store, 4000)


@pytest.mark.parametrize("told", [0, 300, 5000])
@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_kill_loses_nothing(url: str, fsync: str, told: int) -> None:
    """Killed at a time after the first pack: every acknowledged entry that was not trimmed is there, once."""
    home = Path(url.removeprefix("file://"))
    command = [sys.executable, "-W", "error", "-c", WRITER, f"{url}?fsync={fsync}&{SMALL}&maxmemory=2mb"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip()]
        while not list(home.glob("*.pack")):
            lines.append(process.stdout.readline().strip())
        lines += [process.stdout.readline().strip() for _ in range(told)]
        process.send_signal(signal.SIGKILL)
        lines += [line for line in process.stdout.read().split("\n")[:-1] if line]
    assert process.returncode == -signal.SIGKILL
    assert check(home).problems == []
    with millstream.open_store(url, text=True) as store:
        stored = [entry for entry, _ in store.xrange("s")]
        first = tuple(map(int, stored[0].split("-")))
        assert {line for line in lines if tuple(map(int, line.split("-"))) >= first} <= set(stored)
        assert len(set(stored)) == len(stored) == store.xlen("s")


def test_a_forked_child_holds_no_pack(url: str, tmp_path: Path) -> None:
    """A child closes its copies of the packs, and the parent goes on."""
    home = tmp_path / "data"
    with millstream.open_store(f"{url}?{QUICK}", text=True) as store:
        fill(store, 1, 2000)
        eventually(lambda: int(figures(store, "tier")["tier_entries"]) > 1000)
        assert open_packs(home)
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os._exit(len(open_packs(home)))
        assert os.waitpid(child, 0)[1] == 0
        fill(store, 2001, 3000)
        expect(store, 3000)


def test_a_close_ends_a_pack(url: str) -> None:
    """A close while entries go to a pack ends it, so the next opening finds a sealed one."""
    for last in range(1000, 4000, 1000):
        with millstream.open_store(f"{url}?{QUICK}", text=True) as store:
            fill(store, last - 999, last)
            eventually(lambda: int(figures(store, "tier")["tier_spilled_bytes"]) > 0)
    with millstream.open_store(f"{url}?fsync=no", text=True) as store:
        expect(store, 3000)
        report = check(Path(url.removeprefix("file://")))
    assert report.problems == []


async def test_a_client_of_asyncio_has_the_same_options(url: str) -> None:
    """Keywords of both clients of redis-py set parameters."""
    async with millstream.connect_async(url, tier=True, tier_hot="128kb", decode_responses=True) as client:
        assert await client.config_get("tier*") == {
            **await client.config_get("tier*"),
            "tier": "yes",
            "tier-hot": "131072",
        }
        pipe = client.pipeline(transaction=False)
        for number in range(1, 2001):
            pipe.xadd("s", {"n": number, "pad": PAD}, f"{number}-1")
        await pipe.execute()
        async with asyncio.timeout(30):
            while not (await client.info("tier"))["tier_entries"]:
                await client.ping()
    with millstream.connect(url, maxmemory="1gb", tier_max_bytes=5) as other:
        assert other.config_get("maxmemory") == {"maxmemory": "1073741824"}
        assert other.config_get("tier-max-bytes") == {"tier-max-bytes": "5"}
        assert other.xlen("s") == 2000


def test_options_of_a_store_in_memory() -> None:
    """It may have a limit, and no tier."""
    with millstream.open_store("memory://?maxmemory=1", text=True) as store:
        with pytest.raises(CommandError, match=OOM):
            store.xadd("s", {"f": "v"})
        with pytest.raises(CommandError, match="a tier needs a data directory"):
            store.execute("CONFIG", "SET", "tier", "yes")
    for refused in (lambda: millstream.connect(tier=True), lambda: millstream.open_store("memory://a?tier=yes")):
        with pytest.raises(ConfigError, match=r"parameter tier cannot be 'yes': a tier needs a data directory\. Give"):
            refused()


def test_options_that_disagree_are_refused(url: str, tmp_path: Path) -> None:
    """A store has one limit, which another client may repeat or leave out; a server's own options count."""
    with millstream.open_store(f"{url}?maxmemory=1gb", tier=True) as store:
        with millstream.open_store(url, maxmemory=1 << 30), millstream.connect(url, tier="yes") as client:
            assert client.ping()
        with pytest.raises(ConfigError, match=r"with maxmemory=1073741824\. Leave maxmemory out to share it"):
            millstream.connect(f"{url}?maxmemory=2gb")
        store.execute("CONFIG", "SET", "maxmemory", "2gb")
        with millstream.connect(url, maxmemory="2gb") as client:
            assert client.ping()
    for wrong in ("tier-hot=much", "maxmemory=x", "tier=maybe"):
        with pytest.raises(ConfigError, match=f"parameter {wrong.partition('=')[0]} cannot be"):
            millstream.connect(f"{url}?{wrong}")
    with pytest.raises(ConfigError, match="maxmemory is in the URL and among the keywords"):
        millstream.connect(f"{url}?maxmemory=1gb", maxmemory="1gb")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        millstream.open_store(url, colour="red")
    with millstream_server(tmp_path), pytest.raises(ConfigError, match=r"controls tier\. Leave it out"):
        millstream.connect(url, tier=True)


@pytest.mark.parametrize("connect", [millstream.connect, millstream.open_store])
def test_a_server_setting_is_no_option(url: str, connect: Callable[..., object]) -> None:
    """A keyword for a setting that only servers have is refused with the ones that a store has."""
    with pytest.raises(TypeError, match=r"the keyword tier_threads is invalid: .* Use one of: maxmemory, "):
        connect(url, tier_threads=2)


def test_retention_is_an_option(url: str) -> None:
    """The rules of a store are in its URL or a keyword, which another client may repeat."""
    with millstream.open_store(f"{url}?stream-retention=old*%201ms%200%20*%2030d%201gb", text=True) as store:
        store.xadd("older", {"f": "v"})
        store.xadd("s", {"f": "v"})
        eventually(lambda: store.execute("XLEN", "older") == 0)
        assert store.execute("XLEN", "s") == 1
        rules = "old* 1ms 0  * 30d 1gb"
        with millstream.connect(url, stream_retention=rules, stream_retention_groups="ignore") as other:
            assert other.config_get("stream-retention") == {"stream-retention": "old* 1ms 0 * 30d 1gb"}
        with pytest.raises(ConfigError, match="Leave stream-retention out to share it"):
            millstream.connect(url, stream_retention="* 1d 0")
    with pytest.raises(ConfigError, match=r"parameter stream-retention cannot be '\* 7x 0': the age '7x' is invalid"):
        millstream.open_store("memory://", stream_retention="* 7x 0")


def test_a_defect_while_entries_move_is_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error there ends no call, and later entries go to packs."""
    real, failed = Spiller.turn, threading.Event()

    def turn(spiller: Spiller, now: Now) -> float | None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a defect")
        return real(spiller, now)

    monkeypatch.setattr("millstream.embedded.spilling._AFTER_ERROR", 0.0)
    monkeypatch.setattr(Spiller, "turn", turn)
    with millstream.open_store(f"{url}?{QUICK}", text=True) as store:
        fill(store, 1, 2000)
        eventually(lambda: int(figures(store, "tier")["tier_entries"]) > 1000)
        assert failed.is_set()
        expect(store, 2000)


def test_a_store_whose_disk_failed_rests(url: str) -> None:
    """After a failure of the disk no turn of spilling is due, though the last one was left out."""
    with millstream.open_store(f"{url}?{SMALL}", text=True) as store:
        fill(store, 1, 400)
        mine = [each for each in stores._process.open if each.place.directory == Path(url.removeprefix("file://"))]  # noqa: SLF001 - only the store knows when it wakes
        kept = mine[0]
        with kept._guard:  # noqa: SLF001 - likewise
            assert kept._durable is not None  # noqa: SLF001 - likewise
            kept._durable.spilling.due = -1.0  # noqa: SLF001 - likewise
            assert kept._next_due() == -1.0  # noqa: SLF001 - likewise
            kept.fail(DiskError("cannot sync: the medium is gone"))
            assert kept._next_due() != -1.0  # noqa: SLF001 - likewise


def test_a_vacuum_closes_holes_and_lets_packs_go(url: str) -> None:
    """TIER VACUUM of a store writes mostly deleted extents anew and removes packs; every other entry is there."""
    with millstream.open_store(f"{url}?{QUICK}", text=True) as store:
        store.execute("CONFIG", "SET", "stream-node-max-entries", 20)
        fill(store, 1, 4000)
        eventually(lambda: int(figures(store, "tier")["tier_entries"]) > 3000, what="entries are in packs")
        deleted = [f"{number}-1" for number in range(1, 3001) if number % 10]
        assert store.execute("XDEL", "s", *deleted) == len(deleted)
        before = int(figures(store, "tier")["tier_bytes"])
        assert store.execute("TIER", "VACUUM") == "Background vacuum started"
        eventually(lambda: figures(store, "tier")["tier_vacuum_in_progress"] == "0", what="the vacuum ends")
        assert figures(store, "tier")["tier_last_vacuum_status"] == "ok"
        assert int(figures(store, "tier")["tier_vacuumed_extents"]) > 0
        eventually(lambda: int(figures(store, "tier")["tier_bytes"]) < before, what="packs are removed")
        kept = [entry for entry, _ in store.xrange("s")]
    assert kept == [f"{number}-1" for number in range(1, 4001) if number > 3000 or number % 10 == 0]
    with millstream.open_store(f"{url}?fsync=no", text=True) as store:
        assert [entry for entry, _ in store.xrange("s")] == kept
