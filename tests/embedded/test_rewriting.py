"""A store in the process rewrites its log like a server: automatically, by command, and interrupted by a close."""

import threading
from pathlib import Path

import pytest

import millstream
from millstream.client.connect import sync_client
from millstream.persistence.check import check
from support.waiting import eventually

THREADS = 3


def kinds(home: Path) -> list[str]:
    """Return the kinds of files of a data directory, sorted."""
    return sorted(path.name.split("-")[0] for path in home.iterdir())


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_it_is_rewritten_while_threads_write(tmp_path: Path, fsync: str) -> None:
    """The log is rewritten several times while threads write, and the next opening finds every acknowledged entry."""
    home = tmp_path / "data"
    added = [0] * THREADS
    stop = threading.Event()

    def write(each: int) -> None:
        while not stop.is_set():
            client.xadd(f"s{each}", {"n": added[each] + 1, "pad": "x" * 200}, maxlen=50, approximate=False)
            added[each] += 1

    with millstream.connect(f"{home.as_uri()}?fsync={fsync}", decode_responses=True) as client:
        client.config_set("auto-aof-rewrite-min-size", 30_000)
        writers = [threading.Thread(target=write, args=(each,)) for each in range(THREADS)]
        for writer in writers:
            writer.start()
        try:
            eventually(lambda: client.info("persistence")["aof_base_size"] > 0, what="a snapshot")
            base = client.info("persistence")["aof_rewrites"]
            eventually(lambda: client.info("persistence")["aof_rewrites"] > base, what="another rewriting")
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        told = client.info("persistence")
        assert told["aof_rewrites_consecutive_failures"] == 0
    report = check(home)
    assert report.problems == []
    assert report.records < sum(added)
    with millstream.connect(home.as_uri(), decode_responses=True) as client:
        for each in range(THREADS):
            stream = client.xinfo_stream(f"s{each}")
            assert (stream["entries-added"], stream["length"]) == (added[each], min(added[each], 50))
            assert stream["last-entry"][1]["n"] == str(added[each])


def test_closing_cuts_a_rewriting_short(tmp_path: Path) -> None:
    """A close interrupts a rewrite, leaves no file of it after the next opening, and loses nothing."""
    home = tmp_path / "data"
    client = sync_client(home.as_uri(), decode_responses=True)
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        pipe.xadd("s", {"n": number, "pad": "x" * 200})
    pipe.execute()
    client.bgrewriteaof()
    eventually(lambda: kinds(home).count("log") == 2, what="the rewriting has begun")
    assert client.info("persistence")["aof_rewrite_in_progress"] == 1
    client.close()
    with millstream.connect(home.as_uri()) as again:
        assert again.xlen("s") == 3000
    assert kinds(home) == ["MANIFEST", "lock", "log", "log"]
