"""Generated handlers under kills of workers, supervisors and the server: each entry has its outcome.

A piece makes subscribers with handlers wrapped in every order. Each entry makes a handler do one thing. A run writes a
line into a file when it begins and when it ends. The file and the server together show that an acknowledged entry was
handled and that none lacks an outcome. They also show which process ended for which entry.
"""

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import failpoints
from millstream.client.delays.due import key
from support import campaign
from support.groups import pending
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually
from worker.conftest import Tasks

APP = """
import asyncio, functools, os, signal, threading, time
from millstream import App, Depends, Message, Nack, Reject, Retry, StreamSub, Timeout, failpoints

if "MILLSTREAM_IS_SPARE" in os.environ:
    failpoints.clear()  # a process stops itself there, and the entry in the spare would be charged for it
app = App(grace=0.5, blocked_after=0.5)
lines = os.open("runs.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

def note(what, stream, x, delivery):
    os.write(lines, f"{what} {stream} {x} {delivery} {os.getpid()}\\n".encode())

class Own(BaseException): pass

class Mute(Exception):
    def __str__(self): raise Own("no text")
    __repr__ = __str__

class Untraced(Exception):
    __traceback__ = property(lambda self: 1 / 0)

ERRORS = {
    "ValueError": ValueError, "StopIteration": StopIteration, "StopAsyncIteration": StopAsyncIteration,
    "GeneratorExit": GeneratorExit, "KeyboardInterrupt": KeyboardInterrupt, "SystemExit": lambda: SystemExit(0),
    "CancelledError": asyncio.CancelledError, "TimeoutError": TimeoutError, "Own": Own, "Mute": Mute,
    "Untraced": Untraced, "BaseExceptionGroup": lambda: BaseExceptionGroup("g", [Own(), KeyboardInterrupt()]),
    "ExceptionGroup": lambda: ExceptionGroup("g", [ValueError()]), "Reject": lambda: Reject("no good"),
}
VALUES = {"return": None, "value": object(), "false": 0, "list": [1], "future": ValueError("not raised")}

def act(do, delivery):
    first, _, name = do.partition("-")
    if do in ERRORS or (first == "once" and delivery == 1):
        raise ERRORS[name or do]()
    if do == "later":
        raise Nack("later", delay="1h")
    if do == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if do in ("raise", "stop"):
        signal.raise_signal(signal.SIGKILL if do == "raise" else signal.SIGSTOP)
    if do == "exit":
        os._exit(0)

def in_loop():
    return threading.current_thread() is threading.main_thread()

def wait(do):
    if do in ("block", "hang"):
        time.sleep(3600 if do == "block" and in_loop() else 0.2)

async def asynchronous(x: int, do: str, msg: Message):
    note("begin", msg.stream, x, msg.delivery_count)
    await asyncio.sleep(0)
    act(do, msg.delivery_count)
    if do == "hang" and in_loop():
        await asyncio.sleep(3600)
    wait(do)
    if do.startswith("cancel"):
        asyncio.current_task().cancel()
    if do == "cancel":
        await asyncio.sleep(1)
    note("end", msg.stream, x, msg.delivery_count)
    return VALUES.get(do)

def synchronous(x: int, do: str, msg: Message):
    note("begin", msg.stream, x, msg.delivery_count)
    act(do, msg.delivery_count)
    wait(do)
    async def rest():
        await asyncio.sleep(0)
        note("end", msg.stream, x, msg.delivery_count)
    if do == "awaitable":
        return rest()
    note("end", msg.stream, x, msg.delivery_count)
    return VALUES.get(do)

def plain(call):
    @functools.wraps(call)
    def around(*words, **named):
        return call(*words, **named)
    return around

def waiting(call):
    @functools.wraps(call)
    async def around(*words, **named):
        result = call(*words, **named)
        return await result if asyncio.iscoroutine(result) else result
    return around

def running(call):
    @functools.wraps(call)
    def around(*words, **named):
        result = call(*words, **named)
        return asyncio.run(result) if asyncio.iscoroutine(result) and not in_loop() else result
    return around

def partial(call):
    return functools.partial(call)

class Called:
    def __init__(self, call):
        self.call = call
    def __call__(self, x: int, do: str, msg: Message):
        return self.call(x=x, do=do, msg=msg)

class Awaited(Called):
    async def __call__(self, x: int, do: str, msg: Message):
        result = self.call(x=x, do=do, msg=msg)
        return await result if asyncio.iscoroutine(result) else result
    async def method(self, x: int, do: str, msg: Message):
        return await Awaited.__call__(self, x, do, msg)

def method(call):
    return Awaited(call).method

async def cleaned(do: str, msg: Message):
    yield 1
    if do.startswith("clean-") and msg.delivery_count == 1:
        raise ERRORS[do[6:]]()

def subscribe(stream, base, wraps, concurrency, depends):
    handler = globals()[base]
    for wrap in wraps:
        handler = globals()[wrap](handler)
    if depends:
        inner = handler
        async def handler(x: int, do: str, msg: Message, dependency: int = Depends(cleaned)):
            result = inner(x=x, do=do, msg=msg)
            return await result if asyncio.iscoroutine(result) else result
    sub = StreamSub(stream, group="g", min_idle_time=1500, polling_interval=200)
    retry = Retry(max_deliveries=3, base=0.05)
    app.subscriber(sub, retry=retry, concurrency=concurrency, middlewares=[Timeout("2s")])(handler)

note("start", "spare" if "MILLSTREAM_IS_SPARE" in os.environ else "-", 0, 0)
for words in SPECS:
    subscribe(*words)
"""

BASES = ("asynchronous", "synchronous")
WRAPS = ("plain", "waiting", "running", "partial", "Called", "Awaited", "method")
ERRORS = (
    *("ValueError", "StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "Own"),
    *("CancelledError", "TimeoutError", "Mute", "Untraced", "BaseExceptionGroup", "ExceptionGroup"),
)
KILLERS = ("block", "crash", "exit", "raise", "stop")
HARMLESS = ("return", "value", "false", "list", "future", "awaitable")
EVENTS = ("kill_worker", "end_all", "kill_all", "crash")


@dataclass(frozen=True)
class Entry:
    """A published entry."""

    stream: str
    x: int
    do: str


@dataclass
class Storm:
    """One piece of the campaign.

    Args:
        server: server under faults.
        tasks: starter of processes.
        seed: seed of all random decisions.
    """

    server: ServerProcess
    tasks: Tasks
    seed: int
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)  # stream, id
    ended: set[int] = field(default_factory=set)  # processes that the storm ended
    kills: int = 2  # at a failpoint

    def begin(self) -> None:
        """Make the handlers and the entries, and start the workers."""
        self.chance = random.Random(self.seed)
        every = [wraps for count in range(4) for wraps in permutations(WRAPS, count)]
        specs = [
            (f"s{at}", self.chance.choice(BASES), self.chance.choice(every), at % 3 + 1, at % 4 == 3) for at in range(6)
        ]
        self.streams = {spec[0]: spec[3] for spec in specs}
        self.target = self.tasks.app(f"SPECS = {specs!r}\n{APP}")
        with self.server.client(decode_responses=True) as client:
            for stream in self.streams:
                client.xgroup_create(stream, "g", "0", mkstream=True)
            todo = [self.action() for _ in range(110)] + [self.chance.choice(KILLERS) for _ in range(4)]
            self.chance.shuffle(todo)
            for x, do in enumerate(todo):
                self.publish(client, self.chance.choice(list(self.streams)), x, do)
        self.arm()
        self.run()

    def action(self) -> str:
        """Choose a handler's action for one entry; often it only returns."""
        if self.chance.random() < 0.4:
            return self.chance.choice(HARMLESS)
        forms = [*ERRORS, "Reject", "later", "hang", "cancel", "cancelled"]
        forms += [f"{when}-{error}" for when in ("once", "clean") for error in ERRORS]
        return self.chance.choice(forms)

    def publish(self, client: redis.Redis, stream: str, x: int, do: str) -> None:
        """Add one entry."""
        entry: Any = client.xadd(stream, {"x": x, "do": do})
        self.entries[stream, entry] = Entry(stream, x, do)

    def arm(self) -> None:
        """Set a failpoint at which each worker of the first run stops, so that it is killed there."""
        self.stopped = self.tasks.folder / "stopped"
        point, nth = self.chance.choice(failpoints.WORKER), self.chance.randint(1, 12)
        self.environment = {"MILLSTREAM_FAILPOINTS": f"{point}:{nth}={self.stopped}"}

    def run(self) -> None:
        """Start ``millstream run``."""
        words = ("--workers", "2", "--kill-blocked-after", "2s")
        self.running = self.tasks.run(self.target, self.server.url, *words, **self.environment)
        self.environment = {}

    def lines(self) -> list[tuple[str, str, int, int, int]]:
        """Return the lines written by the handlers."""
        with contextlib.suppress(FileNotFoundError):
            rows = [line.split() for line in (self.tasks.folder / "runs.txt").read_text().splitlines()]
            return [(what, stream, int(x), int(delivery), int(pid)) for what, stream, x, delivery, pid in rows]
        return []

    def rage(self) -> None:
        """Inject some faults, spread over the work."""
        for number in range(5):
            mark = 25 * (number + 1)
            until = time.monotonic() + 15
            eventually(lambda mark=mark, until=until: self.calm(mark) or time.monotonic() > until, 60)
            getattr(self, self.chance.choice(EVENTS))()

    def calm(self, mark: int) -> bool:
        """Report whether a number of runs began; kill processes stopped at their failpoint meanwhile."""
        self.end_stopped()
        return sum(what == "begin" for what, *_ in self.lines()) >= mark

    def end_stopped(self) -> None:
        """Kill the first two processes stopped at a failpoint, and continue later ones."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int(self.stopped.read_text())
            self.stopped.unlink()
            if self.kills or not Path(f"/proc/{pid}").exists():  # the supervisor was faster
                self.ended.add(pid)
            os.kill(pid, signal.SIGKILL if self.kills else signal.SIGCONT)
            self.kills = max(self.kills - 1, 0)

    def pids(self, kind: str = "-") -> list[int]:
        """Return the processes in start order: the workers, or the spares."""
        return [pid for what, of, _, _, pid in self.lines() if what == "start" and of == kind]

    def kill_worker(self) -> None:
        """Kill one of the last two workers."""
        victims = self.pids()[-2:]
        if victims:
            victim = self.chance.choice(victims)
            self.ended.add(victim)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    def end_all(self) -> None:
        """Deploy: send SIGTERM to the supervisor, and start a new one."""
        self.ended |= set(self.pids())
        self.running.terminate()
        until = time.monotonic() + 60
        eventually(lambda: self.end_stopped() or self.running.poll() is not None or time.monotonic() > until, 61)
        assert self.running.returncode is not None, "SIGTERM does not end it"
        self.ended |= {*self.pids(), *self.pids("spare")}
        self.run()

    def kill_all(self) -> None:
        """Kill the supervisor, so that its workers end by themselves."""
        self.running.kill()
        self.running.wait(timeout=30)
        self.ended |= {*self.pids(), *self.pids("spare")}
        self.run()

    def crash(self) -> None:
        """Kill the server, and start it again with its data."""
        self.server.kill()
        self.server.start()

    def end(self) -> int:
        """Wait for the outcomes, check every promise, and return the number of entries."""
        with self.server.client(decode_responses=True) as client:
            for at in range(24):
                self.publish(client, f"s{at % len(self.streams)}", 10_000 + at, "return")
            eventually(lambda: self.settled(client), 150, what=f"all is settled; left: {self.left(client)}")
            self.ended |= {pid for pid in (*self.pids(), *self.pids("spare")) if Path(f"/proc/{pid}").exists()}
            self.running.terminate()
            self.running.wait(timeout=60)
            self.check(client)
        return len(self.entries)

    def left(self, client: redis.Redis) -> dict[str, Any]:
        """Return the entries without an outcome."""
        found: dict[str, Any] = {}
        for stream in self.streams:
            rows = pending(client, stream, "g")
            late = {entry: (self.entries[stream, entry], row) for entry, row in rows.items()}
            due = {
                entry for entry in rows if (client.zscore(key(stream, "g"), entry) or 0) > time.time() * 1000 + 60_000
            }
            new: Any = client.xinfo_groups(stream)[0]
            found |= {f"{stream} {entry}": what for entry, what in late.items() if entry not in due}
            after: Any = client.xrange(stream, f"({new['last-delivered-id']}")
            found |= {f"{stream} {entry}": "not read" for entry, _ in after}
        return found

    def settled(self, client: redis.Redis) -> bool:
        self.end_stopped()
        try:
            return not self.left(client)
        except redis.RedisError:
            return False

    def check(self, client: redis.Redis) -> None:
        """Check that each entry has one outcome that fits the action of its handler."""
        finished = {(stream, x) for what, stream, x, _, _ in self.lines() if what == "end"}
        begun = defaultdict(set)
        for what, stream, x, _, pid in self.lines():
            if what == "begin":
                begun[stream, x].add(pid)
        for stream in self.streams:
            rows = pending(client, stream, "g")
            letters: Any = [fields["_dead.id"] for _, fields in client.xrange(f"{stream}:dead")]
            assert len(letters) == len(set(letters)), f"two letters of one entry: {letters}"
            for (of, ident), entry in self.entries.items():
                if of != stream:
                    continue
                done = (stream, entry.x) in finished
                if ident in rows:
                    assert entry.do == "later", f"{entry} is left: {rows[ident]}"
                elif ident in letters:
                    assert entry.do not in HARMLESS, f"{entry} is dead"
                    assert ident not in rows
                else:
                    assert done, f"{entry} was acked and never handled"
                if entry.do in KILLERS:
                    ended = begun[stream, entry.x]
                    workers = ended.intersection(self.pids()) - self.ended
                    assert len(workers) <= 1, f"{entry} ended the workers {workers}"
                    spares = ended.intersection(self.pids("spare")) - self.ended
                    assert len(spares) <= 1, f"{entry} ended the spares {spares}"
        self.check_ends()

    def check_ends(self) -> None:
        """Check that no process ended except those that the storm killed and those ended by a killing entry."""
        killers = {(one.stream, one.x): one for one in self.entries.values() if one.do in KILLERS}
        held = defaultdict(set)
        for what, stream, x, _, pid in self.lines():
            if what == "begin" and (stream, x) in killers:
                held[pid].add((stream, x))
        text = self.tasks.output.read_text()
        strange = [pid for pid in self.pids() if pid not in self.ended and not held[pid]]
        strange = [pid for pid in strange if f"[{pid}] millstream.worker: stopped" not in text]  # with its supervisor
        assert not strange, f"{strange} ended for nobody:\n{text[-5000:]}"


def storm_of(folder: Path, seed: int) -> int:
    """A piece of 138 entries for six handlers, with two workers and five events."""
    folder.mkdir()
    tasks = Tasks(folder, folder / "out.txt")
    server = (
        redis_server(folder, "--appendonly", "yes", "--appendfsync", "always")
        if seed % 2
        else millstream_server(folder)
    )
    with server:
        storm = Storm(server, tasks, seed)
        try:
            storm.begin()
            storm.rage()
            return storm.end()
        finally:
            tasks.end()


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_handlers_in_a_storm(tmp_path: Path) -> None:
    """Each entry of generated handlers has its outcome and no group stops, while processes are killed."""
    campaign.run("handlers", lambda seed: storm_of(tmp_path / str(seed), seed), range(1, 41), unit="entries")
