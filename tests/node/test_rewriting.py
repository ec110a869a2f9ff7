"""A rewriting by a real child process: child or parent killed at any step, nothing lost and nothing left over."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.commands.context.config import Config
from millstream.engine.keyspace import StringValue
from millstream.engine.serialization.rdb.reading import RdbKey, read_file
from millstream.errors import DiskFullError
from millstream.node.log import codec, rewriting
from millstream.node.log.rewriting import CopyOrder, Rewriter, TakeOrder
from millstream.node.node import Node
from millstream.persistence.log import Log
from support.clock import own_clock
from support.waiting import eventually

HERE = Path(__file__).parent


def record(number: int) -> bytes:
    return codec.pack(number, [("lpush", 0, b"l", [b"%d" % number], False)])


def fill(log: Log, count: int) -> None:
    """Append more elements to one list, each a record."""
    for _ in range(count):
        log.append(record(log.appended + 1))
    log.write()
    log.sync()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened, _ = Log.open(tmp_path / "data", segment_bytes=2000)
    fill(opened, 100)
    yield opened
    opened.close()


def recovered(home: Path) -> list[int]:
    """Return the list that a start finds."""
    log, recovery = Log.open(home)
    node = Node(Config())
    node.recover(recovery.payloads())
    log.close()
    value = node.keyspace.databases[0].keys[b"l"]
    return [int(item) for item in value.between(0, len(value))]  # type: ignore[attr-defined] # a list


def kinds(home: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in home.iterdir()} - {"lock", "MANIFEST"}


def ended(rewriter: Rewriter) -> None:
    eventually(lambda: not rewriter.facts.is_running)


def test_a_rewriting_ends_well(log: Log) -> None:
    """A rewriting makes the log smaller. A second one begins only after the first has ended."""
    before = log.total_bytes
    rewriter = Rewriter(log, Config())
    assert rewriter.start()
    assert not rewriter.start()
    ended(rewriter)
    assert (rewriter.facts.is_ok, rewriter.facts.started, rewriter.facts.failed_in_a_row) == (True, 1, 0)
    assert rewriter.facts.seconds >= 0
    assert 0 < log.snapshot_bytes < log.total_bytes < before / 2
    fill(log, 5)
    assert rewriter.start()
    ended(rewriter)
    fill(log, 5)
    log.close()
    assert recovered(log.directory) == list(range(1, 111))


STEPS = ["open_read 1", "open_read 3", "create 1", "append 1", "append 2", "append 3", "datasync 1"]


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_child_does_no_harm(
    log: Log, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A child killed at any step is logged and counted, and its file is removed. The next rewriting works."""
    monkeypatch.setenv("MILLSTREAM_TEST_KILL", step)
    rewriter = Rewriter(log, Config(), program=[sys.executable, str(HERE / "rewriting_child.py")])
    assert rewriter.start()
    ended(rewriter)
    assert (rewriter.facts.is_ok, rewriter.facts.failed_in_a_row) == (False, 1)
    assert f"ended with code -{int(signal.SIGKILL)}" in caplog.text, "it got there"
    assert kinds(log.directory) == {"log"}
    fill(log, 5)
    healthy = Rewriter(log, Config())
    healthy.start()
    ended(healthy)
    assert healthy.facts.is_ok
    log.close()
    assert recovered(log.directory) == list(range(1, 106))


def test_a_stop_waits_for_a_rewriting_that_is_being_started(log: Log) -> None:
    """A server that ends while another thread starts a rewriting waits for it, and fails in no other way."""
    made, may_start = threading.Event(), threading.Event()

    class Held(threading.Thread):
        def start(self) -> None:
            made.set()
            assert may_start.wait(30)
            super().start()

    rewriter, errors = Rewriter(log, Config(), thread=Held), list[BaseException]()

    def stop() -> None:
        try:
            rewriter.stop()
        except RuntimeError as error:
            errors.append(error)

    starting, stopping = threading.Thread(target=rewriter.start), threading.Thread(target=stop)
    starting.start()
    assert made.wait(30)
    stopping.start()
    stopping.join(0.2)  # long enough for an error
    may_start.set()
    stopping.join(30)
    starting.join(30)
    assert not errors
    assert not rewriter.facts.is_running
    assert not rewriter.start()


def test_a_copy_of_what_was_rewritten_just_now_rewrites_nothing(log: Log, tmp_path: Path) -> None:
    """A copy soon after a rewriting does not rewrite the log, unless it has many files."""
    log.append(codec.pack(0, [("set", 0, b"large", b"v" * 100_000, None)]))
    log.write()
    rewriter, seen = Rewriter(log, Config()), []
    rewriter.start()
    ended(rewriter)
    for number in range(rewriting.FEW_FILES + 1):
        log.append(codec.pack(0, [("set", 0, b"last", b"%d" % number, None)]))
        log.write()
        made: list[rewriting.CopyMade | str] = []
        path = tmp_path / f"{number}.rdb"
        with path.open("w+b") as file:
            rewriter.start(copy=rewriting.CopyOrder(file, 10, made.append))
            ended(rewriter)
        values = {item.key: item.value for item in read_file([path.read_bytes()]) if isinstance(item, RdbKey)}
        assert isinstance(value := values[b"last"], StringValue)
        assert (value.data, len(values), len(made)) == (b"%d" % number, 3, 1)
        seen.append([each.name for each in log.directory.glob("*.snap")])
    assert all(len(names) == 1 for names in seen)
    assert [names == seen[0] for names in seen] == [True] * rewriting.FEW_FILES + [False]
    assert rewriter.facts.is_ok
    log.close()


WAITS_FOR_EVER = """
import os, sys, threading
from millstream.node.log import compaction
from millstream.persistence.disk import RealDisk
RealDisk.open_read = lambda *_: threading.Event().wait()
os._exit(compaction.main(*sys.argv[1:]))
"""


def test_a_child_ends_with_its_parent_whatever_it_waits_for(log: Log) -> None:
    """A child ends silently with its parent when its standard input closes, even in a read that blocks for ever."""
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    words = [sys.executable, "-P", "-c", WAITS_FOR_EVER, str(log.directory), "3", log.place]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert child.stdin is not None
        child.stdin.write(rewrite.encode().encode() + b"\n")
        child.stdin.flush()
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert eventually(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == min(ours + 3, 19))
        child.stdin.close()
        assert eventually(lambda: child.poll() is not None)
        assert child.stderr is not None
        assert (child.returncode, child.stderr.read()) == (1, b"")
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


@pytest.mark.parametrize(
    ("last", "grown", "expected"), [(-1, 1e6, 0), (0, 0.1, 0), (0, 19.9, 0), (0, 20, 10), (7, 139, 0), (7, 140, 10)]
)
def test_a_rewriting_stands_back_only_where_there_is_time(last: int, grown: float, expected: int) -> None:
    """A rewriting has low priority only if the log grows slowly; after fast growth it could never catch up."""
    assert rewriting.niceness(last, grown) == expected


def test_a_log_that_grows_is_rewritten_at_the_priority_it_needs(log: Log, tmp_path: Path) -> None:
    """A rewriting on request runs at low priority, one that the log's fast growth started at normal priority."""
    told = tmp_path / "told"
    shell = ["/bin/sh", "-c", f'echo "$0 $1" >> {told}; exit 1']
    asked = Rewriter(log, Config(), program=shell)
    asked.start()
    ended(asked)
    fill(log, 5)
    grown = Rewriter(log, Config({"auto-aof-rewrite-min-size": "1"}), program=shell)
    grown.consider()
    ended(grown)
    assert told.read_text().splitlines() == [f"{log.directory} 10", f"{log.directory} 0"]


def test_damage_is_found_and_said(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A rewriting names a log file that was damaged since it was written, and makes no snapshot of it."""
    path = min(log.directory.glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    rewriter = Rewriter(log, Config())
    rewriter.start()
    ended(rewriter)
    assert not rewriter.facts.is_ok
    assert path.name in caplog.text
    assert kinds(log.directory) == {"log"}


def test_a_directory_that_is_gone_is_named_with_what_to_do(log: Log) -> None:
    """If the log's directory is gone, the rewriting's error names it and gives advice."""
    rewrite = log.begin_rewrite()
    assert rewrite is not None
    gone = log.directory.with_name("gone")
    words = [*rewriting.PROGRAM, str(gone), "0", log.place]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(f"{rewrite.encode()}\n")
        child.stdin.flush()  # it ends without a word when that is closed
        said = child.stderr.read()
    why = "No such file or directory; check that it is the right directory"
    assert (child.returncode, said) == (1, f"cannot open the data directory {gone}: {why}\n")


def test_an_empty_log_has_nothing_to_rewrite(tmp_path: Path) -> None:
    """Rewriting an empty log does nothing and raises no error."""
    log, _ = Log.open(tmp_path / "data")
    rewriter = Rewriter(log, Config(), program=["/nonexistent/python"])
    rewriter.start()
    ended(rewriter)
    assert (rewriter.facts.is_ok, log.snapshot_bytes) == (True, 0)
    log.close()


def test_a_defect_of_ours_ends_a_rewriting_and_no_more(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error in a rewriting is logged with its place. The log is unchanged, the next one works."""

    def defect(job: object) -> None:
        raise RuntimeError(f"a defect, not {job}")

    broken = Rewriter(log, Config(), exclusively=defect)
    broken.start()
    ended(broken)
    assert (broken.facts.is_ok, broken.facts.failed_in_a_row) == (False, 1)
    assert "internal error while the log was rewritten\nTraceback" in caplog.text
    healthy = Rewriter(log, Config())
    healthy.start()
    ended(healthy)
    assert healthy.facts.is_ok
    log.close()
    assert recovered(log.directory) == list(range(1, 101))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_thread_that_cannot_start_ends_one_rewriting_only(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """A rewriting without a thread fails as any other one, and tells its order. The next one works."""

    class Refused(threading.Thread):
        refusals = 3

        def start(self) -> None:
            Refused.refusals -= 1
            if Refused.refusals >= 0:
                raise error
            super().start()

    rewriter, told = Rewriter(log, Config(), thread=Refused), list[object]()
    assert not rewriter.start()
    assert (rewriter.facts.is_running, rewriter.facts.is_ok, rewriter.facts.failed_in_a_row) == (False, False, 1)
    assert "no thread can be started" in caplog.text
    with (tmp_path / "copy").open("w+b") as file:
        assert rewriter.start(copy=CopyOrder(file, 10, told.append)), "it is told"
        child = rewriter.reader(file, ["", "host", "1", "0", "0"])
        take = TakeOrder(child, ("", 0), lambda *_: None, told.append)
        assert rewriter.start(take=take), "it is told"
    assert ["no thread can be started" in str(each) for each in told] == [True, True]
    assert not _lives(child.pid)
    assert rewriter.start()
    ended(rewriter)
    assert rewriter.facts.is_ok
    rewriter.stop()


def test_a_program_that_is_not_there(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A rewriting whose program or Python does not exist fails with an ordinary error."""
    rewriter = Rewriter(log, Config(), program=["/nonexistent/python"])
    rewriter.start()
    ended(rewriter)
    assert not rewriter.facts.is_ok
    assert "/nonexistent/python" in caplog.text


def test_ctrl_c_is_for_the_parent_alone(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """The child has a process group of its own, so Ctrl-C in a terminal does not end its snapshot."""
    text = "import os, sys; print('alone' if os.getpgrp() == os.getpid() else 'among others'); sys.exit(1)"
    rewriter = Rewriter(log, Config(), program=(sys.executable, "-c", text))
    rewriter.start()
    ended(rewriter)
    assert "alone" in caplog.text


def test_a_full_disk_at_the_beginning(log: Log) -> None:
    """A rewriting without space for a new log file is given up, and another may begin."""

    def full(job: object) -> object:
        raise DiskFullError("cannot add a log file: No space left on device")

    rewriter = Rewriter(log, Config(), exclusively=full)
    rewriter.start()
    ended(rewriter)
    assert (rewriter.facts.is_ok, rewriter.facts.failed_in_a_row) == (False, 1)
    assert rewriter.start()
    ended(rewriter)
    assert rewriter.facts.failed_in_a_row == 2


def test_when_it_begins_by_itself(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewriting begins by itself at the configured size and growth, never at 0 percent.

    After each failure it waits longer.
    """
    now = 1000.0
    own_clock(monkeypatch, "millstream.node.log.rewriting", monotonic=lambda: now)
    config = Config({"auto-aof-rewrite-min-size": str(log.total_bytes + 1), "auto-aof-rewrite-percentage": "100"})
    program = ["/nonexistent/python"]
    rewriter = Rewriter(log, config, program=program)
    begun = []

    def consider() -> int:
        rewriter.consider()
        ended(rewriter)
        begun.append(rewriter.facts.started)
        return begun[-1]

    assert consider() == 0, "too small"
    config.set([("auto-aof-rewrite-min-size", "1")])
    config.set([("auto-aof-rewrite-percentage", "0")])
    assert consider() == 0, "never"
    config.set([("auto-aof-rewrite-percentage", "100")])
    assert consider() == 1
    for number, pause in enumerate((10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600), 1):
        now += pause - 1
        assert consider() == number, pause
        now += 2
        assert consider() == number + 1, pause
    program[:] = rewriting.PROGRAM
    now += 3601
    assert consider() == 13
    assert rewriter.facts.is_ok
    assert consider() == 13, "it has not grown"
    fill(log, 1000)
    assert log.total_bytes > 2 * log.snapshot_bytes
    assert consider() == 14
    assert rewriter.facts.is_ok


def test_more_room_makes_an_early_try(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rewriting that found too little space names numbers, and is tried again soon once there is more."""
    now, free, size = 1000.0, 6_000_000, 20_000_000
    own_clock(monkeypatch, "millstream.node.log.rewriting", monotonic=lambda: now)
    monkeypatch.setattr(log, "free", lambda: free)
    program = [sys.executable, "-c", "import sys; sys.exit('cannot make it: No space left on device; free some')"]
    rewriter = Rewriter(log, Config(), program=program)
    rewriter.data_size = lambda: size
    for _ in range(5):
        assert rewriter.start()
        ended(rewriter)
    assert "; 6.0 MB are free, and the snapshot takes up to 20.0 MB; a shorter stream-retention" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("BGREWRITEAOF tries at once; the next try is in 160 s at the earliest")
    now += 10
    assert not rewriter.reclaim(at_once=True)
    free += 1 << 20  # a sixteenth of the data is more
    assert not rewriter.reclaim(at_once=True), "it would fill the disk in vain"
    free += 1 << 20
    assert rewriter.reclaim(at_once=True)
    ended(rewriter)
    now += 10
    assert not rewriter.reclaim(at_once=True)
    program[:] = rewriting.PROGRAM
    size -= 2 << 20
    assert rewriter.reclaim(at_once=True)
    ended(rewriter)
    assert rewriter.facts.is_ok


def test_a_failure_that_is_not_a_lack_of_space_is_not_tried_early(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room and removed entries do not help then, so the pauses grow, also while the disk is nearly full."""
    now = 1000.0
    own_clock(monkeypatch, "millstream.node.log.rewriting", monotonic=lambda: now)
    rewriter = Rewriter(log, Config(), program=["/nonexistent/python"])
    for _ in range(5):
        assert rewriter.start()
        ended(rewriter)
    for _ in range(15):
        now += 10
        assert not rewriter.reclaim(at_once=True)
    now += 11
    assert rewriter.reclaim(at_once=True)
    ended(rewriter)


def test_stopping_gives_up_what_is_under_way(log: Log, tmp_path: Path) -> None:
    """A stop kills the child and ends the thread. No rewriting begins after it, and none is reported as failed."""
    marker = tmp_path / "started"
    text = "import os, pathlib, signal, sys; pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()} '); signal.pause()"
    program = [sys.executable, "-c", text, str(marker)]
    rewriter = Rewriter(log, Config(), program=program)
    rewriter.start()
    eventually(
        lambda: marker.exists() and marker.read_text().endswith(" "), what="a child that ends by being killed alone"
    )
    rewriter.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert not rewriter.start()


PARENTS = [
    "create log- 1",
    "rename MANIFEST 1",
    "sync_directory data 2",
    "child started 1",
    "list data 1",
    "create MANIFEST 2",
    "rename MANIFEST 2",
    "sync_directory data 4",
    "remove log- 1",
    "remove log- 2",
    "none none 1",
]


@pytest.mark.parametrize("step", PARENTS)
def test_a_killed_parent_loses_nothing_and_takes_its_child_along(tmp_path: Path, step: str) -> None:
    """A parent killed at any step loses no durable record, leaves no file after a start, and its child ends too."""
    home = tmp_path / "data"
    command = [sys.executable, str(HERE / "rewriting_parent.py"), str(home), *step.split()]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    killed = process.returncode == -signal.SIGKILL
    assert killed or (step.startswith("none") and process.returncode == 0), process.stderr
    lines = [line.split() for line in process.stdout.splitlines()]
    durable = max(int(line[1]) for line in lines if line[0] == "durable")
    found = recovered(home)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= durable >= 200
    for line in lines:
        if line[0] == "child":
            eventually(lambda pid=int(line[1]): not _lives(pid))
    log, _ = Log.open(home)
    log.remove_obsolete()  # what a child still made after its parent had died
    assert len(list(home.glob("snapshot-*"))) == (log.snapshot_bytes > 0)
    log.close()
    if step.startswith("none"):
        assert lines[-1] == ["ended", "True"]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
