"""An entry that ends processes ends at most one worker and one spare process, whatever its limit."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream.worker.process import senders
from support.groups import pending
from support.servers import ServerProcess
from support.waiting import eventually

APP = """
import asyncio, ctypes, os, resource, signal, time
from millstream import App, Message, Retry, StreamSub
app = App(grace=0.3, blocked_after=0.2)
SPARE = "MILLSTREAM_IS_SPARE" in os.environ
print("start", os.getpid(), SPARE, flush=True)

@app.on_startup
async def begin() -> None:
    {begin}

limit = Retry(max_deliveries={tries})
@app.subscriber(StreamSub("bad", group="g", min_idle_time=1500, polling_interval=200), retry=limit)
async def bad(do: str, msg: Message) -> None:
    print("bad", os.getpid(), do, flush=True)
    await asyncio.sleep(0.1)
    {how}

@app.subscriber(StreamSub("good", group="g", min_idle_time=1500, polling_interval=200))
async def good(x: int) -> None:
    print("good", os.getpid(), time.monotonic(), flush=True)
"""

WAYS = {
    "exit": "if do == 'end': os._exit(1)",
    "dismissed": "if do == 'end': os._exit(3)",
    "config": "if do == 'end': os._exit(78)",
    "kill": "if do == 'end': os.kill(os.getpid(), 9)",
    "block": "if do == 'end': time.sleep(3600)",
    "signal": "if do == 'end': os.kill(os.getpid(), 15); await asyncio.sleep(3600)",
    "libc": "if do == 'end': ctypes.CDLL(None).kill(os.getpid(), 9)",
    "time": "if do == 'end': resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); sum(iter(int, 1))",
    "stop": "if do == 'end': signal.raise_signal(19); await asyncio.sleep(3600)",
    "another program": "if do == 'end': os.execlp('sleep', 'sleep', '3600')",
    "interrupt": "if do == 'end': await asyncio.to_thread(signal.raise_signal, 2); await asyncio.sleep(3600)",
}
STANDS_STILL = ("block", "stop", "another program")
"""Ways that need a kill by the blocking limit. The others get a long limit, so that a busy machine kills no worker."""


def starts(text: str) -> Counter[str]:
    """Count the processes that started, workers and spares, in the text."""
    return Counter(re.findall(r"^start \d+ (\w+)$", text, re.MULTILINE))


@pytest.mark.parametrize(("way", "tries"), [*((way, 2) for way in WAYS), ("exit", 1), ("exit", 5), ("kill", 5)])
def test_an_entry_ends_one_worker_and_one_spare(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any, way: str, tries: int
) -> None:
    """An entry that ends processes becomes a dead letter after one worker and one spare. Its neighbour is handled."""
    tasks.output = tmp_path / "out.txt"
    target = tasks.app(APP.format(begin="pass", how=WAYS[way], tries=tries))
    for do in ("end", "return"):
        client.xadd("bad", {"do": do})
    tasks.run(target, server.url, "--workers", "2", "--kill-blocked-after", "3s" if way in STANDS_STILL else "60s")
    eventually(lambda: client.xlen("bad:dead") == 1, 120)
    eventually(lambda: not pending(client, "bad", "g"), 60)
    eventually(lambda: starts(tasks.output.read_text())["False"] >= 3, 60)  # the second may start late
    eventually(lambda: re.search(r"^bad \d+ return$", tasks.output.read_text(), re.MULTILINE), 60)  # may be read last
    found = tasks.output.read_text()
    assert starts(found)["False"] == 3, found
    ended = {line.split()[1] for line in found.splitlines() if line.startswith("bad ") and line.endswith(" end")}
    assert len(ended) == 2, found
    letters: Any = client.xrange("bad:dead")
    assert letters[0][1]["_dead.reason"] == "overdue"
    assert "the last one ended a process that ran it alone" in letters[0][1]["_dead.error"]


def test_a_kill_from_outside_makes_no_dead_letter(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any
) -> None:
    """An entry is handled, not dead-lettered, although its worker and two spare processes were killed from outside."""
    tasks.output = tmp_path / "out.txt"
    waits = tmp_path / "waits"
    waits.touch()
    target = tasks.app(
        APP.format(begin="pass", how=f"while os.path.exists({str(waits)!r}): await asyncio.sleep(0.01)", tries=4)
    )
    client.xadd("bad", {"do": "wait"})
    tasks.run(target, server.url)
    for number in range(1, 4):
        eventually(lambda number=number: tasks.output.read_text().count("\nbad ") == number, 60)
        os.kill(int(re.findall(r"^bad (\d+)", tasks.output.read_text(), re.MULTILINE)[-1]), signal.SIGKILL)
    eventually(lambda: tasks.output.read_text().count("\nbad ") == 4, 60)
    waits.unlink()
    eventually(lambda: not pending(client, "bad", "g"), 60)
    assert not client.xlen("bad:dead")
    assert starts(tasks.output.read_text()) == {"False": 2, "True": 3}


@pytest.fixture
def small_group(tmp_path: Path) -> Iterator[Path]:
    """A control group with little memory. The test is skipped if it cannot be made."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    place = next((line.split(":")[2] for line in lines if line.split(":")[1] == "memory"), None)
    folder = Path(f"/sys/fs/cgroup/memory{place}/millstream-{tmp_path.name}-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of version 1 can be made: {error}")
    (folder / "memory.limit_in_bytes").write_text("300M")
    yield folder
    eventually(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_memory_that_runs_out_ends_one_worker_and_one_spare(
    server: ServerProcess, client: redis.Redis, small_group: Path, tasks: Any, tmp_path: Any
) -> None:
    """The kernel's out-of-memory kill counts as the entry's own crash, and the log reports it."""
    tasks.output = tmp_path / "out.txt"
    running = tasks.run(tasks.app(APP.format(begin="pass", how="b'x' * 500_000_000", tries=5)), server.url)
    eventually(lambda: "reading" in tasks.output.read_text(), 60)
    for pid in (running.pid, *re.findall(r"^start (\d+)", tasks.output.read_text(), re.MULTILINE)):
        (small_group / "cgroup.procs").write_text(str(pid))
    client.xadd("bad", {"do": "end"})
    eventually(lambda: client.xlen("bad:dead") == 1, 60)
    found = tasks.output.read_text()
    assert len(re.findall(r"^bad \d+ end", found, re.MULTILINE)) == 2, found
    assert "the spare process ended with signal SIGKILL, as memory had run out" in found


def test_counts_of_a_control_group_are_read(tmp_path: Path) -> None:
    """The count of killed processes is read from a control group's file. A file without one is an error."""
    file = tmp_path / "memory.events"
    file.write_text("low 0\nhigh 1\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert senders.count(file) == 2
    file.write_text("oom 3\n")
    with pytest.raises(ValueError, match=r"memory\.events"):
        senders.count(file)


STILL = {
    "stopped": "signal.raise_signal(19); await asyncio.sleep(3600)",
    "without threads": "lock = bytes(64); [ctypes.PyDLL(None).pthread_mutex_lock(lock) for _ in range(2)]",
}
SHORT_ONCE_IT_RAN = """
import os
from millstream.worker.settlement import spare

class Patience:
    def __lt__(self, given: int) -> bool:
        return os.path.exists(RAN) and given > 1000

RAN, spare.PATIENCE_MS = {ran!r}, Patience()
"""
"""Patience of one second that begins with the entry's run in the spare, since starting the spare takes longer."""


@pytest.mark.parametrize(("way", "tries"), [*((way, 5) for way in STILL), ("stopped", 1)])
def test_no_worker_takes_an_entry_back_from_a_spare_that_stands_still(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any, way: str, tries: int
) -> None:
    """No worker claims an entry from a spare process that stands still.

    It becomes dead only after the spare is killed.
    """
    tasks.output = tmp_path / "out.txt"
    short = SHORT_ONCE_IT_RAN.format(ran=str(tmp_path / "ran"))
    client.xadd("bad", {"do": "end"})
    how = f"SPARE and open(RAN, 'w').close(); {STILL[way]}"
    tasks.run(
        *(tasks.app(short + APP.format(begin="pass", how=how, tries=tries)), server.url),
        *("--workers", "2", "--kill-blocked-after", "7s"),
    )
    eventually(lambda: client.xlen("bad:dead") == 1, 120)
    assert re.search(r"the spare process has .* s; killing it", tasks.output.read_text())
    eventually(lambda: starts(tasks.output.read_text())["False"] >= 3, 60)
    found = tasks.output.read_text()
    assert starts(found)["False"] == 3, found
    assert len(re.findall(r"^bad \d+ end", found, re.MULTILINE)) == 2, found


def test_a_spare_that_an_operator_stops_makes_no_dead_letter(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any
) -> None:
    """A worker or spare that an operator stops is replaced with a log line.

    Its entry is handled and not dead-lettered.
    """
    tasks.output = tmp_path / "out.txt"
    waits = tmp_path / "waits"
    waits.touch()
    how = f"while os.path.exists({str(waits)!r}): await asyncio.sleep(0.01)"
    client.xadd("bad", {"do": "wait"})
    tasks.run(tasks.app(APP.format(begin="pass", how=how, tries=5)), server.url, "--kill-blocked-after", "1s")
    for number, name in ((1, "worker 1"), (2, "the spare process")):
        eventually(lambda number=number: tasks.output.read_text().count("\nbad ") == number, 60)
        pid = int(re.findall(r"^bad (\d+)", tasks.output.read_text(), re.MULTILINE)[-1])
        os.kill(pid, signal.SIGSTOP)
        lines = (f"{name} (process {pid}) has been stopped, by SIGSTOP,", f"{name} was killed, since it was stopped")
        eventually(lambda lines=lines: all(line in tasks.output.read_text() for line in lines), 60)
    eventually(lambda: tasks.output.read_text().count("\nbad ") == 3, 60)
    waits.unlink()
    eventually(lambda: not pending(client, "bad", "g"), 60)
    assert not client.xlen("bad:dead")


def test_other_groups_go_on_while_an_entry_blocks_the_spare(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any
) -> None:
    """While one entry blocks the spare process, a single worker continues with another stream."""
    tasks.output = tmp_path / "out.txt"
    waits = tmp_path / "waits"
    waits.touch()
    how = f"[time.sleep(0.01) for _ in iter(lambda: SPARE and os.path.exists({str(waits)!r}), False)]; os._exit(1)"
    target = tasks.app(APP.format(begin="pass", how=how, tries=2))
    client.xadd("bad", {"do": "end"})
    tasks.run(target, server.url, "--kill-blocked-after", "120s")
    eventually(lambda: tasks.output.read_text().count("\nbad ") == 2, 60)
    for x in range(20):
        client.xadd("good", {"x": x})
    eventually(lambda: tasks.output.read_text().count("\ngood ") == 20, 60)
    assert not client.xlen("bad:dead"), tasks.output.read_text()
    waits.unlink()
    eventually(lambda: client.xlen("bad:dead") == 1, 60)


@pytest.mark.parametrize("options", [(), ("--no-spare",)])
def test_without_a_spare_a_worker_runs_them_itself(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any, options: tuple[str, ...]
) -> None:
    """Without a spare process, or if it cannot start, workers run deadly entries themselves.

    These become dead letters.
    """
    tasks.output = tmp_path / "out.txt"
    short = "from millstream.worker.settlement import spare\nspare.PATIENCE_MS = 2000\n"
    target = tasks.app(
        short + APP.format(begin="if SPARE: raise OSError('the port is taken')", how=WAYS["exit"], tries=2)
    )
    client.xadd("bad", {"do": "end"})
    client.xadd("good", {"x": 1})
    tasks.run(target, server.url, "--workers", "2", *options)
    eventually(lambda: client.xlen("bad:dead") == 1, 60)
    found = tasks.output.read_text()
    assert bool(starts(found)["True"]) is not bool(options)
    eventually(lambda: tasks.output.read_text().count("\ngood ") >= 1, 60)  # twice if it ran while its worker ended


def test_the_spare_ends_after_its_work(server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any) -> None:
    """The spare process ends by itself after an idle time, and the workers continue."""
    tasks.output = tmp_path / "out.txt"
    short = "from millstream.worker.settlement import spare\nspare.IDLE = 1.0\n"
    target = tasks.app(short + APP.format(begin="pass", how=WAYS["exit"], tries=2))
    client.xadd("bad", {"do": "end"})
    process = tasks.run(target, server.url)
    eventually(lambda: client.xlen("bad:dead") == 1, 60)
    ended = "the spare process ended normally"
    eventually(lambda: tasks.output.read_text().count("start") > 2 and ended in tasks.output.read_text(), 60)
    client.xadd("good", {"x": 1})
    eventually(lambda: tasks.output.read_text().count("\ngood ") == 1, 60)
    process.terminate()
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("options", [(), ("--no-spare",)])
def test_deadly_entries_that_come_one_by_one_end_no_supervisor(
    real_redis: ServerProcess, tasks: Any, tmp_path: Any, options: tuple[str, ...]
) -> None:
    """Deadly entries that arrive one by one each restart the one worker.

    The supervisor continues, as do other groups.
    """
    tasks.output = tmp_path / "out.txt"
    target = tasks.app(APP.format(begin="pass", how=WAYS["exit"], tries=2).replace("1500", "60_000"))
    with real_redis.as_new().client() as client:
        process = tasks.run(target, real_redis.url, *options)
        for number in range(1, 8):
            eventually(lambda number=number: starts(tasks.output.read_text())["False"] == number, 60)
            client.xadd("bad", {"do": "end"})
        client.xadd("good", {"x": 1})
        eventually(lambda: "\ngood " in tasks.output.read_text(), 60)
    assert process.poll() is None


def test_a_stop_of_the_supervisor_is_no_crash_of_what_ran(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any
) -> None:
    """A handler that outlasts the grace time of a deploy is delivered again and not charged."""
    tasks.output = tmp_path / "out.txt"
    target = tasks.app(APP.format(begin="pass", how="await asyncio.sleep(3600)", tries=2))
    client.xadd("bad", {"do": "wait"})
    for number in range(1, 4):
        process = tasks.run(target, server.url)
        eventually(lambda number=number: tasks.output.read_text().count("\nbad ") == number, 60)
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert [deliveries for _, deliveries in pending(client, "bad", "g").values()] == [0]
    assert not client.xlen("bad:dead")


def test_an_entry_that_kills_its_supervisor_is_dead_after_its_limit(
    real_redis: ServerProcess, tasks: Any, tmp_path: Any
) -> None:
    """An entry that kills its supervisor is charged from the second crash on, and then becomes a dead letter."""
    tasks.output = tmp_path / "out.txt"
    how = "if do == 'end': os.kill(os.getppid(), 9); await asyncio.sleep(3600)"
    target = tasks.app(APP.format(begin="pass", how=how, tries=1))
    with real_redis.as_new().client() as client:
        client.xadd("bad", {"do": "end"})
        for _ in range(2):
            assert tasks.run(target, real_redis.url).wait(60) == -signal.SIGKILL
        tasks.run(target, real_redis.url)
        eventually(lambda: client.xlen("bad:dead") == 1, 60)
    assert tasks.output.read_text().count("\nbad ") == 2
