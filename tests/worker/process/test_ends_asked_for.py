"""An entry ends no worker, neither by an exit in its handler's task nor through the worker's event loop."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from support.groups import all_done
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import eventually

SERVERS = ["millstream"]

APP = """
import asyncio, contextlib, sys
from millstream import App, Retry, StreamSub

app = App(grace="1s")

async def leave(how):
    await asyncio.sleep(0)
    if how.startswith("interrupt"):
        raise KeyboardInterrupt
    sys.exit(0)

async def end(how):
    loop = asyncio.get_running_loop()
    if how.endswith("task"):
        await asyncio.create_task(leave(how))
    elif how == "wait_for":
        await asyncio.wait_for(leave(how), 5)
    elif how == "gather":
        await asyncio.gather(leave(how), asyncio.sleep(0))
    elif how == "shield":
        await asyncio.shield(leave(how))
    elif how == "group":
        async with asyncio.TaskGroup() as group:
            group.create_task(leave(how))
    elif how == "returned":
        return asyncio.ensure_future(leave(how))
    elif how == "unawaited":
        task = asyncio.create_task(leave(how))
        await asyncio.sleep(0.05)
    elif how == "call_soon":
        loop.call_soon(sys.exit)
        await asyncio.sleep(0.05)
    elif how == "caught":
        try:
            await asyncio.create_task(leave(how))
        except SystemExit:
            pass
    elif how == "stop":
        loop.stop()
        await asyncio.sleep(0.05)
    elif how == "stop soon":
        loop.call_soon(loop.stop)
        await asyncio.sleep(0.05)
    elif how == "others":
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)
    elif how == "everything":
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0.05)
    elif how == "own":
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(3600), 0.01)
    elif how == "sleep":
        await asyncio.sleep(0.5)

retry = Retry(max_deliveries=2, base=0.02)

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=300), retry=retry, concurrency=4)
async def work(how: str) -> None:
    return await end(how)

@app.subscriber(StreamSub("rows", group="g", min_idle_time=300), retry=retry, batch=True)
async def batch(entries: list[dict[str, str]]) -> None:
    await end(entries[0]["how"])
"""

EXITS = ["task", "interrupt task", "wait_for", "gather", "shield", "group", "returned", "unawaited", "call_soon"]


def dead(client: redis.Redis, stream: str) -> list[str]:
    """Return the entries in a stream's dead letters."""
    rows: Any = client.xrange(f"{stream}:dead")
    return sorted(fields["how"] for _, fields in rows)


def settled(client: redis.Redis, stream: str, ends: list[str]) -> None:
    """Wait until exactly these entries are dead letters and none is pending."""
    eventually(lambda: dead(client, stream) == sorted(ends))
    eventually(all_done(client, stream, "g"))


def test_an_exit_in_a_task_of_a_handler_fails_its_entry(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """SystemExit and KeyboardInterrupt in a handler's task or callback fail the entry and do not end the worker."""
    for word in [*EXITS, "caught", "nothing"]:
        client.xadd("jobs", {"how": word})
    client.xadd("rows", {"how": "unawaited"})
    process = tasks.worker(tasks.app(APP), server.url)
    settled(client, "jobs", EXITS)
    settled(client, "rows", ["unawaited"])
    assert process.poll() is None
    text = tasks.stop()
    assert process.returncode == 0, text


def test_a_handler_that_stops_the_loop_or_cancels_its_tasks_fails_alone(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A handler that stops the event loop or cancels the worker's tasks fails its own entry. The worker continues."""
    ends = ["stop", "stop soon", "others", "everything"]
    for word in ["sleep", *ends, "own", "nothing"]:
        client.xadd("jobs", {"how": word})
    client.xadd("rows", {"how": "stop"})
    process = tasks.worker(tasks.app(APP), server.url)
    settled(client, "jobs", ends)
    settled(client, "rows", ["stop"])
    client.xadd("jobs", {"how": "nothing"})
    settled(client, "jobs", ends)
    assert process.poll() is None
    text = tasks.stop()
    assert process.returncode == 0, text


APPS = """
import asyncio, concurrent.futures
from millstream import App, Retry, StreamSub

app = App(grace="1s")
retry = Retry(max_deliveries=2, base=0.02)

@app.subscriber(StreamSub("plain", group="g", min_idle_time=300), retry=retry)
def plain(how: str) -> None:
    {"stop": lambda: asyncio.run(app.stop()), "run": app.run}.get(how, int)()

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=300), retry=retry)
async def work(how: str) -> None:
    loop = asyncio.get_running_loop()
    if how == "stop":
        await app.stop()
    elif how == "stop task":
        await asyncio.create_task(app.stop())
    elif how == "close":
        await app.close()
    elif how == "with":
        async with app:
            await app.publish("out", {"how": how})
    elif how == "other app":
        async with App(app.url).running() as other:
            await other.publish("out", {"how": how})
    elif how == "executor":
        with concurrent.futures.ThreadPoolExecutor() as pool:
            loop.set_default_executor(pool)
    elif how == "end executor":
        await loop.shutdown_default_executor()
"""


def test_a_handler_that_stops_or_closes_its_app_keeps_no_other_from_its_end(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """In a handler, stopping or running the app is refused. Closing it leaves the subscribers their connections."""
    ends = ["stop", "stop task"]
    for word in [*ends, "close", "with", "other app", "nothing"]:
        client.xadd("jobs", {"how": word})
    for word in ["stop", "run", "nothing"]:
        client.xadd("plain", {"how": word})
    process = tasks.worker(tasks.app(APPS), server.url)
    settled(client, "jobs", ends)
    settled(client, "plain", ["stop", "run"])
    assert client.xlen("out") == 2
    assert process.poll() is None
    text = tasks.stop()
    assert process.returncode == 0, text


@pytest.mark.parametrize("how", ["executor", "end executor"])
def test_a_worker_finds_its_server_again_whatever_a_handler_did_to_the_executor(
    server: ServerProcess, client: redis.Redis, tasks: Any, how: str
) -> None:
    """A worker reconnects by host name even after a handler shut down the event loop's default executor."""
    client.xadd("jobs", {"how": how})
    process = tasks.worker(tasks.app(APPS), server.url.replace("127.0.0.1", "localhost"))
    settled(client, "jobs", [])
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    client.xadd("jobs", {"how": "nothing"})
    settled(client, "jobs", [])
    assert process.poll() is None
    text = tasks.stop()
    assert process.returncode == 0, text


FORKS = """
import asyncio, os, sys
from millstream import App, StreamSub

app = App(grace="1s")

def fork(how):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os.close(os.open(f"{how} {os.waitstatus_to_exitcode(status)}", os.O_CREAT))
    elif how.endswith("exits"):
        sys.exit(7)
    elif how.endswith("raises"):
        raise ValueError
    return child

@app.subscriber(StreamSub("plain", group="g"))
def plain(how: str) -> None:
    fork(how)

@app.subscriber(StreamSub("jobs", group="g"))
async def work(how: str) -> None:
    if how == "async awaits":
        child = os.fork()
        await asyncio.sleep(0 if child else 3600)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        os.close(os.open(f"{how} {os.waitstatus_to_exitcode(status)}", os.O_CREAT))
    else:
        fork(how)

@app.subscriber(StreamSub("rows", group="g", max_records=1), batch=True)
async def batch(entries: list[dict[str, str]]) -> None:
    fork(entries[0]["how"])
"""


def test_a_copy_that_a_handler_forks_ends_with_the_handler(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A forked copy of the worker ends with its handler, with the exit code of an ordinary program."""
    codes = {"returns": 0, "exits": 7, "raises": 1}
    streams = {"plain": "plain", "async": "jobs", "batch": "rows"}
    wanted = {f"{kind} {how} {code}" for kind in streams for how, code in codes.items()} | {"async awaits 1"}
    client.xadd("jobs", {"how": "async awaits"})
    for kind, stream in streams.items():
        for how in codes:
            client.xadd(stream, {"how": f"{kind} {how}"})
    process = tasks.worker(tasks.app(FORKS), server.url)
    eventually(lambda: wanted <= {path.name for path in tasks.folder.iterdir()})
    for stream in streams.values():
        eventually(all_done(client, stream, "g"))
    assert process.poll() is None


CHILDREN = """
import asyncio, multiprocessing, os, time
from millstream import App, StreamSub

app = App(grace=0)
forking = multiprocessing.get_context("fork")

def terminated():
    child = forking.Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    child.join()
    os.close(os.open(f"ended {child.exitcode}", os.O_CREAT))

@app.subscriber(StreamSub("plain", group="g", min_idle_time=300))
def plain(how: str) -> None:
    terminated()

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=300))
async def work(how: str) -> None:
    if how == "terminate":
        terminated()
    elif not os.path.exists("stays"):
        os.close(os.open("stays", os.O_CREAT))
        if not os.fork():
            while os.path.exists("stays"):
                time.sleep(0.01)
            os._exit(0)
        os._exit(1)
"""


def test_a_fork_below_uvloop_prints_no_error(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """A fork in a handler under uvloop prints no error."""
    client.xadd("jobs", {"how": "async returns"})
    tasks.worker(
        tasks.app(f"import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n{FORKS}"),
        server.url,
    )
    eventually(all_done(client, "jobs", "g"))
    assert (tasks.folder / "async returns 0").exists()
    assert "Exception ignored" not in tasks.stop()


@pytest.mark.parametrize("stream", ["plain", "jobs"])
def test_a_child_of_a_handler_ends_by_a_signal(
    server: ServerProcess, client: redis.Redis, tasks: Any, stream: str
) -> None:
    """SIGTERM ends a multiprocessing child as in any program, and settles none of the parent's entries."""
    client.xadd(stream, {"how": "terminate"})
    process = tasks.worker(tasks.app(CHILDREN), server.url)
    eventually(all_done(client, stream, "g"))
    assert (tasks.folder / "ended -15").exists()
    assert process.poll() is None


def test_a_child_of_a_crashed_worker_does_not_keep_its_health_port(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A surviving child of a crashed worker does not keep the health port from the replacement worker."""
    client.xadd("jobs", {"how": "leave a child"})
    process = tasks.run(tasks.app(CHILDREN), server.url, "--health-port", str(free_port()))
    eventually((tasks.folder / "stays").exists)
    eventually(all_done(client, "jobs", "g"))
    (tasks.folder / "stays").unlink()  # It has the other end of our pipe
    text = tasks.stop()
    assert process.returncode == 0, text


CLEAN_UP = """
import asyncio
from millstream.worker.process import lasting

async def stay():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    global task
    task = asyncio.create_task(stay())
    await asyncio.sleep(0)
    return 5

lasting._CLEAN_UP_SECONDS = 0.1
raise SystemExit(lasting.run_lasting(main()))
"""


def test_a_task_that_ignores_its_end_keeps_no_process(tmp_path: Path) -> None:
    """A process ends with the app's exit code after its stop, even if a user's task ignores cancellation."""
    (tmp_path / "program.py").write_text(CLEAN_UP)
    assert subprocess.run([sys.executable, "program.py"], cwd=tmp_path, timeout=30, check=False).returncode == 5


STAYS = """
import threading
from millstream import App, StreamSub
from millstream.worker.process import lasting

lasting._CLEAN_UP_SECONDS = 0.2
app = App(grace="1s")

@app.subscriber(StreamSub("jobs", group="g"))
async def work(how: str) -> None:
    threading.Thread(target=threading.Event().wait).start()
"""


def test_a_thread_of_a_handler_keeps_no_worker_at_a_stop(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A handler's thread that never ends does not delay the worker's clean exit at a stop."""
    client.xadd("jobs", {"how": "thread"})
    process = tasks.run(tasks.app(STAYS), server.url)
    eventually(all_done(client, "jobs", "g"))
    text = tasks.stop()
    assert process.returncode == 0, text
    assert "did not stop in time" not in text
