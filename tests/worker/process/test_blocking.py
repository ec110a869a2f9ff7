"""An entry that blocks its event loop ends its own process only, charges no other entry, and delays no stop."""

import asyncio
import json
import os
import re
import signal
import time
from typing import Any

import pytest

from millstream.cli.worker.run import kill_limit
from millstream.errors import UsageError
from millstream.worker.process.supervisor import Supervisor
from millstream.worker.process.voice import Voice, grace_of
from support.groups import pending
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import aeventually, eventually
from worker.monitoring.test_health import get

GROUPS = """
import asyncio, ctypes, hashlib, os, re, threading, time
from millstream import App, Depends, Message, Retry, StreamSub
app = App(grace=0.3, blocked_after=0.2)
MIN_IDLE = {min_idle}

def block(x: int) -> None:
    print("blocks", flush=True)
    {how}

async def later(x: int) -> None:
    block(x)

def called(x: int) -> None:
    block(x)

async def around(call_next, message):
    if message.raw[1] == b"13":
        block(13)
    return await call_next(message)

async def open_it(x: int) -> int:
    if x == 13:
        block(x)
    return x

def one(stream, **options):
    sub = StreamSub(stream, group="g", min_idle_time=MIN_IDLE, polling_interval=200)
    return app.subscriber(sub, retry=Retry(max_deliveries={tries}, base=0.02), **options)

@one("bad", **{options})
async def bad(x: int, msg: Message{more}) -> None:
    {bad}

@one("slow")
async def slow(x: int, msg: Message) -> None:
    await asyncio.sleep(0.3)
    await app.publish("effects", {{"x": f"slow {{x}}", "delivery": msg.delivery_count}})

@one("plain")
def plain(x: int, msg: Message) -> None:
    time.sleep(0.05)
    print("plain", x, msg.delivery_count, flush=True)

@one("quick", concurrency=1)
async def quick(x: int, msg: Message) -> None:
    await asyncio.sleep(0.01)
    await app.publish("effects", {{"x": f"quick {{x}}", "delivery": msg.delivery_count}})
"""

SHORT = "from millstream.worker.process import run\nrun.KILL_AFTER = 0.3\n"  # the bound beyond the grace time
SLEEP = "time.sleep(3600)"
HANDLER = "if x == 13: block(x)"
REGEX = 're.match(r"(a+)+$", "a" * 64 + "b")'  # holds Python's lock
NATIVE = "libc, lock = ctypes.PyDLL(None), bytes(64); libc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)"


def app(
    *, how: str = SLEEP, bad: str = HANDLER, more: str = "", options: str = "{}", min_idle: int = 60_000, tries: int = 2
) -> str:
    """Return a module with an app of four groups, one of them with a blocking handler."""
    return GROUPS.format(how=how, bad=bad, more=more, options=options, min_idle=min_idle, tries=tries)


def effects(client: Any) -> dict[str, list[int]]:
    """Return the delivery counts of each job that ran."""
    found: dict[str, list[int]] = {}
    for _, fields in client.xrange("effects"):
        found.setdefault(fields["x"], []).append(int(fields["delivery"]))
    return found


def kills(out: str) -> int:
    """Count the restarts of workers."""
    return out.count("restarting it in")


WAYS: dict[str, dict[str, Any]] = {
    "handler": {},
    "busy loop": {"how": "while True: pass"},
    "a task of the handler's": {"bad": "if x == 13: await asyncio.gather(later(x))"},
    "a callback of the handler's": {
        "bad": "if x == 13: asyncio.get_running_loop().call_soon(called, x); await asyncio.sleep(3600)"
    },
    "dependency": {"bad": "pass", "more": ", y: int = Depends(open_it)"},
    "middleware": {"bad": "pass", "options": '{"middlewares": [around]}'},
    "regular expression": {"how": REGEX},
}


@pytest.mark.either_server
@pytest.mark.parametrize("way", list(WAYS))
def test_a_blocking_entry_is_a_dead_letter_and_no_other_is_charged(
    server: ServerProcess, client: Any, tasks: Any, way: str
) -> None:
    """A blocking entry becomes a dead letter.

    Its process ends once per allowed delivery, and no other entry is charged.
    """
    for stream in ("slow", "quick", "plain"):
        client.xgroup_create(stream, "g", mkstream=True)
        for x in range(8):
            client.xadd(stream, {"x": x})
    client.xgroup_create("bad", "g", mkstream=True)
    entry = client.xadd("bad", {"x": 13})
    tries = 2 if way == "handler" else 1
    running = tasks.run(tasks.app(app(**WAYS[way], tries=tries)), server.url, "--kill-blocked-after", "0.8s")
    dead: Any = eventually(lambda: client.xrange("bad:dead"), what="a dead letter")
    want = {f"{name} {x}" for name in ("slow", "quick") for x in range(8)}
    eventually(lambda: set(effects(client)) >= want and not any(pending(client, s, "g") for s in ("slow", "plain")))
    running.terminate()
    out, _ = running.communicate(timeout=30)
    assert running.returncode == 0, out
    assert [fields["_dead.reason"] for _, fields in dead] == ["overdue"], out
    assert kills(out) == tries, out
    assert set(effects(client)) == want
    assert {delivery for each in effects(client).values() for delivery in each} == {1}, out
    assert set(re.findall(r"^plain \d (\d)$", out, re.MULTILINE)) == {"1"}
    assert re.search(r"will be killed in 0\.\d s, which counts as a crash", out), out
    assert f"handler bad, entry {entry} of bad" in out
    assert re.search(r"still blocked at jobs\.py:\d+ in ", out), out


HOOK = """
from millstream import Middleware

class Look(Middleware):
    def received(self, msgs, began_ns):
        for msg in msgs:
            if msg.raw[1] == b"13":
                block(13)

app = App(grace=0.3, blocked_after=0.2, middlewares=[Look()])
"""


@pytest.mark.either_server
def test_of_a_read_that_a_hook_blocks_at_one_entry_is_charged(server: ServerProcess, client: Any, tasks: Any) -> None:
    """If a hook blocks while it looks at one entry of a read, only that entry is charged."""
    client.xgroup_create("quick", "g", mkstream=True)
    entries = [client.xadd("quick", {"x": x}) for x in (1, 2, 13, 4, 5)]
    text = app().replace("app = App(grace=0.3, blocked_after=0.2)\n", HOOK).replace("concurrency=1", "concurrency=8")
    tasks.run(tasks.app(text), server.url, "--kill-blocked-after", "0.8s")
    dead: Any = eventually(lambda: client.xrange("quick:dead"), what="a dead letter")
    eventually(lambda: not pending(client, "quick", "g"))
    out = tasks.stop()
    assert [fields["_dead.id"] for _, fields in dead] == [entries[2]]
    assert effects(client) == {f"quick {x}": [1] for x in (1, 2, 4, 5)}, out
    assert kills(out) == 2, out


@pytest.mark.either_server
def test_code_that_lets_no_thread_run_is_killed_by_the_supervisor(
    server: ServerProcess, client: Any, tasks: Any
) -> None:
    """Native code that blocks all threads is killed by the supervisor, with the threads' stacks in the log."""
    entry = client.xadd("bad", {"x": 13})
    tasks.run(tasks.app(app(how=NATIVE, min_idle=300)), server.url, "--kill-blocked-after", "0.6s")
    dead: Any = eventually(lambda: client.xrange("bad:dead"), what="a dead letter")
    assert [fields["_dead.id"] for _, fields in dead] == [entry]
    out = tasks.stop()
    assert out.count("; killing it") == int(dead[0][1]["_dead.deliveries"]) - 1 == 2
    assert re.search(r"File \".*jobs\.py\", line \d+ in block", out), out


@pytest.mark.either_server
def test_other_workers_are_not_taken_down_one_after_the_other(server: ServerProcess, client: Any, tasks: Any) -> None:
    """A block longer than min_idle_time stays in one process: its lease is renewed, and all other groups continue."""
    text = app(min_idle=1500).replace("blocked_after=0.2", "blocked_after=60")
    client.xgroup_create("bad", "g", mkstream=True)
    client.xadd("bad", {"x": 13})
    options = ("--workers", "3", "--kill-blocked-after", "20s")
    running = tasks.run(tasks.app(SHORT + text), server.url, *options)
    assert "blocks\n" in running.stdout  # read up to there

    def looked() -> tuple[str, int, int]:
        row = client.xpending_range("bad", "g", "-", "+", 10)[0]
        return row["consumer"], row["times_delivered"], row["time_since_delivered"]

    consumer, delivery, idle = eventually(looked)
    renewals = 0
    while renewals < 4:  # each after a third of min_idle_time
        client.xadd("quick", {"x": renewals})
        eventually(lambda x=renewals: f"quick {x}" in effects(client), what="the other groups go on")
        before, (now, count, idle) = idle, looked()
        assert (now, count) == (consumer, delivery), "another worker has it"
        renewals += idle < before
    assert kills(tasks.stop()) == 0


@pytest.mark.either_server
@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (app(), [], 70),
        (app(), ["--grace", "0.2s"], 70),
        (app().replace("grace=0.3, ", ""), ["--grace", "0.2s", "--workers", "2"], 70),
        (app(how='__import__("subprocess").run(["sleep", "3600"])'), [], 70),
        (app(bad="pass").replace("def plain(", "@app.on_startup\ndef hook(): block(0)\n\ndef plain("), [], 70),
    ],
    ids=["loop", "grace option", "two workers", "child process", "start-up"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_time_whatever_blocks(
    server: ServerProcess, client: Any, tasks: Any, text: str, options: list[str], code: int, number: signal.Signals
) -> None:
    """A signal ends a blocked worker within its grace time and a bound, wherever the grace time was set."""
    client.xadd("bad", {"x": 13})
    running = tasks.run(tasks.app(SHORT + text), server.url, *options)
    for line in running.stdout:
        if line == "blocks\n":
            break
    running.send_signal(number)
    assert running.wait(timeout=25) == code


BEGAN = """
began = asyncio.Event()

async def begin() -> None:
    began.set()

app = App(grace=0.3, blocked_after=BLOCKED)
"""


@pytest.mark.either_server
@pytest.mark.parametrize("after", ["0.2", "60"], ids=["noticed", "unnoticed"])
@pytest.mark.parametrize("end", ["signal", "orphan"])
def test_an_end_of_a_blocked_process_hands_back_what_it_held(
    server: ServerProcess, client: Any, tasks: Any, after: str, end: str
) -> None:
    """A blocked process hands its entries back as it ends. Only the blocking entry is charged its delivery."""
    for x in range(3):
        client.xadd("slow", {"x": x})
    client.xadd("bad", {"x": 13})
    text = app(bad="await began.wait(); block(x)").replace("await asyncio.sleep(0.3)", "await begin(); await hang()")
    text = text.replace("app = App(grace=0.3, blocked_after=0.2)\n", BEGAN.replace("BLOCKED", after))
    text += "\nasync def hang() -> None:\n    await asyncio.sleep(3600)\n"
    short = SHORT + "run._ORPHANED_SECONDS = 0.3\n"
    running = tasks.run(tasks.app(short + text), server.url)
    for line in running.stdout:
        if line == "blocks\n":
            break
    running.send_signal(signal.SIGTERM if end == "signal" else signal.SIGKILL)
    nobody = eventually(lambda: {name for name, _ in pending(client, "bad", "g").values()} <= {""})
    assert nobody
    assert [count for _, count in pending(client, "bad", "g").values()] == [1]
    eventually(lambda: set(pending(client, "slow", "g").values()) == {("", 0)})  # groups are left one after the other


ENDPOINT = """
import sys
if __name__ == "__main__":
    app.run(health=("127.0.0.1", int(sys.argv[1])))
"""


@pytest.mark.either_server
@pytest.mark.parametrize("supervised", [False, True])
def test_a_worker_with_a_blocked_loop_is_not_ready(
    server: ServerProcess, client: Any, tasks: Any, supervised: bool
) -> None:
    """While the loop is blocked, /readyz fails and names the line. /healthz fails only without a supervisor."""
    client.xadd("bad", {"x": 13})
    port = free_port()
    target = tasks.app(SHORT + app() + ENDPOINT)
    if supervised:
        tasks.run(target, server.url, "--health-port", str(port), "--kill-blocked-after", "60s")
    else:
        tasks.program("jobs.py", server.url, str(port))

    def blocked() -> tuple[int, Any]:
        status, body = get(port, "/readyz")
        found = json.loads(body)
        assert found.get("blocked")
        return status, found

    status, found = eventually(blocked)
    assert (status, found["ok"]) == (503, False)
    assert re.fullmatch(r"jobs\.py:\d+ in bad", found["blocked"])
    assert get(port, "/healthz")[0] == (200 if supervised else 503)
    assert get(port, "/metrics")[0] == 503
    out = tasks.stop()
    assert re.search(r"blocked for 0\.\d s at jobs\.py:\d+ in bad \(handler bad, entry \S+ of bad\)", out), out


@pytest.mark.either_server
@pytest.mark.parametrize(
    ("options", "environment"),
    [(["--kill-blocked-after", "off"], {}), (["--reload"], {}), (["--kill-blocked-after", "0.4s"], {"DEBUGGED": "1"})],
    ids=["off", "reload", "debugger"],
)
def test_a_worker_is_left_alone_where_somebody_may_look_at_it(
    server: ServerProcess, client: Any, tasks: Any, options: list[str], environment: dict[str, str]
) -> None:
    """Without a limit, with file watching or under a debugger, a worker's handler may block without end."""
    attached = "import os, sys\nif 'DEBUGGED' in os.environ: sys.modules['debugpy'] = os\n"
    how = "time.sleep(1.5); open('went-on', 'w').close()"
    client.xadd("bad", {"x": 13})
    tasks.run(tasks.app(attached + app(how=how)), server.url, *options, **environment)
    eventually((tasks.folder / "went-on").exists)
    out = tasks.stop()
    assert kills(out) == 0, out
    assert "killing" not in out


@pytest.mark.either_server
def test_time_in_which_the_supervisor_was_stopped_does_not_count(
    server: ServerProcess, client: Any, tasks: Any
) -> None:
    """Time in which the supervisor was stopped, alone or with its worker, does not count as blocked time."""
    text = app() + "\nprint('pid', os.getpid(), flush=True)\n"
    running = tasks.run(tasks.app(text), server.url, "--kill-blocked-after", "0.4s")
    lines = iter(running.stdout.readline, "")
    pid = int(next(line for line in lines if line.startswith("pid")).split()[1])
    next(line for line in lines if "reading" in line)
    client.xadd("quick", {"x": 1})
    eventually(lambda: "quick 1" in effects(client))
    for frozen in ([running.pid], [running.pid, pid]):
        for each in frozen:
            os.kill(each, signal.SIGSTOP)
        since = time.monotonic()
        eventually(lambda since=since: time.monotonic() - since > 0.6, what="more than the limit has passed")
        for each in frozen:
            os.kill(each, signal.SIGCONT)
    client.xadd("quick", {"x": 2})
    eventually(lambda: "quick 2" in effects(client))
    assert kills(tasks.stop()) == 0


@pytest.mark.either_server
def test_an_end_soon_after_a_stop_is_named_by_its_code(server: ServerProcess, client: Any, tasks: Any) -> None:
    """A process that was stopped and continued, and then exits by itself, is reported with its own exit code."""
    text = app(how="os.kill(os.getpid(), 19); os._exit(7)")
    running = tasks.run(tasks.app(text), server.url, "--kill-blocked-after", "1s", "--no-spare")
    lines = iter(running.stdout.readline, "")
    next(line for line in lines if "reading" in line)
    client.xadd("bad", {"x": 13})
    stopped = re.search(r"process (\d+)\) has been stopped", next(line for line in lines if "been stopped" in line))
    assert stopped is not None
    os.kill(int(stopped[1]), signal.SIGCONT)
    assert "ended with" in next(line for line in lines if "restarting it in" in line)


@pytest.mark.parametrize(
    ("given", "reload", "seconds"),
    [(None, False, 120.0), (None, True, None), ("off", False, None), (" OFF ", False, None), ("90s", True, 90.0)],
)
def test_the_limit_is_on_by_default(given: str | None, reload: bool, seconds: float | None) -> None:
    """The blocking limit is two minutes by default, and off while files are watched. A given limit overrides both."""
    assert kill_limit(given, reload=reload) == seconds


@pytest.mark.parametrize("given", ["0", "0s", "0ms", "soon", ""])
def test_a_limit_that_is_no_time_is_refused(given: str) -> None:
    """``--kill-blocked-after`` with zero or no valid time is refused. The error names ``off``."""
    with pytest.raises(UsageError, match=r"--kill-blocked-after.*off"):
        kill_limit(given, reload=False)


def test_code_that_hears_no_signal_is_killed_at_a_stop(real_redis: ServerProcess, tasks: Any) -> None:
    """A process that ignores signals is killed ten seconds after the grace time, and the exit code is 1."""
    with real_redis.client() as client:
        client.xadd("bad", {"x": 13})
    running = tasks.run(tasks.app(app(how=NATIVE)), real_redis.url)
    assert "blocks\n" in running.stdout  # read up to there
    running.terminate()
    assert running.wait(timeout=25) == 1


async def test_a_process_that_has_ended_is_never_killed() -> None:
    """The supervisor never kills a process that has ended, since another process may have its id."""
    reports, writing = os.pipe()
    script = f"printf 'ready\\nruns\\n' >/dev/fd/{writing}; exit 3"
    process = await asyncio.create_subprocess_exec("sh", "-c", script, pass_fds=(writing,), start_new_session=True)
    os.close(writing)
    voice = Voice(process, reports)
    await process.wait()
    await aeventually(voice.spoke.is_set)
    assert {voice.listen(1.0, 2.0) for _ in range(20)} == {None}
    voice.close()


async def test_a_process_that_has_not_reported_its_grace_delays_no_stop() -> None:
    """At a stop the supervisor waits for the grace time that any process reported, or else thirty seconds."""
    voices = []
    for script in ("printf 'grace 2.0\\n' >/dev/fd/{}", "true"):
        reports, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script.format(writing), pass_fds=(writing,), start_new_session=True
        )
        os.close(writing)
        voices.append(Voice(process, reports))
        await process.wait()
    await aeventually(lambda: all(voice.spoke.is_set() for voice in voices))
    assert grace_of(voices) == 2.0
    assert grace_of(voices[1:]) == 30.0
    for voice in voices:
        voice.close()


async def test_a_sleep_of_the_supervisor_is_no_silence_of_its_processes() -> None:
    """When the machine sleeps, the supervisor does not count that time as silence of its processes."""
    reports, writing = os.pipe()
    script = f"printf 'ready\\nruns\\n' >/dev/fd/{writing}; exec sleep 60"
    process = await asyncio.create_subprocess_exec("sh", "-c", script, pass_fds=(writing,), start_new_session=True)
    os.close(writing)
    voice = Voice(process, reports)
    await aeventually(voice.spoke.is_set)
    supervisor = Supervisor("app:app", 1, kill_after=0.4)
    supervisor._processes[1], supervisor._voices[1] = process, voice  # noqa: SLF001 - as its start leaves them
    watching = asyncio.create_task(supervisor._listen())  # noqa: SLF001 - the part that looks at them
    await asyncio.sleep(0)
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > 0.6, what="the whole process stood still")
    for _ in range(5):
        await asyncio.sleep(0)
    assert voice.silent == 0.0
    watching.cancel()
    process.kill()
    await process.wait()
    voice.close()
