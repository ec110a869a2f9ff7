"""Worker processes: killed at a named point, stopped, restarted, several at once."""

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.errors import ConfigError
from millstream.printable import without_password
from millstream.worker.child import find_app
from millstream.worker.process.supervisor import Supervisor
from support.groups import all_done, consumers, pending
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import eventually

APP = """
import asyncio, os, signal
from millstream import App, Message, Retry, StreamSub

app = App()
doom = os.environ.get("DOOM")

async def around(call_next, msg):
    result = await call_next(msg)
    if msg.fields["x"] == b"20":
        os.kill(os.getpid(), signal.SIGKILL)
    return result

if doom == "middleware":
    app = App(middlewares=[around])

@app.subscriber(
    StreamSub("jobs", group="g", min_idle_time={min_idle}),
    retry=Retry(max_deliveries=3, base=0.02, jitter=False),
    concurrency={concurrency},
)
async def work(x: int, msg: Message) -> None:
    await app.publish("effects", {{"x": x, "pid": os.getpid(), "delivery": msg.delivery_count}})
    if x == 13:
        raise ValueError("unlucky")
    if x == 5 and doom == "slow":
        await asyncio.sleep(3600)
"""

either_server = pytest.mark.either_server
"""Marks tests that need one kind of server.

They test process behaviour, or points with equal commands on both servers.
"""

POINTS = [
    pytest.param("after_read", marks=either_server),
    pytest.param("before_handler", marks=either_server),
    pytest.param("after_handler", marks=either_server),
    pytest.param("before_ack", marks=either_server),
    pytest.param("after_ack", marks=either_server),
    "before_retry",
    "after_retry",
    "before_dead",
    "in_dead",
    "after_dead",
    "after_claim",
]


def effects(client: redis.Redis) -> Counter[int]:
    """Return the number of effects of each job."""
    rows: Any = client.xrange("effects")
    return Counter(int(fields["x"]) for _, fields in rows)


def publish(client: redis.Redis, count: int) -> None:
    for number in range(count):
        client.xadd("jobs", {"x": number})


def test_help_shows_an_app_that_can_be_copied() -> None:
    """The example in ``run --help`` keeps its lines, so that it can be pasted into a file and compiled."""
    text = CliRunner().invoke(main, ["run", "--help"]).output
    lines = [line.strip("\n")[6:] for line in text.splitlines()]
    start, end = lines.index("# orders.py"), lines.index("$ millstream run orders:app --workers 4")
    compile("\n".join(lines[start:end]), "orders.py", "exec")
    assert "\\b" not in text


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_anywhere_loses_nothing(
    server: ServerProcess, client: redis.Redis, tasks: Any, point: str
) -> None:
    """After SIGKILL at any named point the next worker recovers.

    Every job has its effect, and the poison one dead letter.
    """
    publish(client, 40)
    target = tasks.app(APP.format(min_idle=400, concurrency=4))
    doomed = tasks.worker(target, server.url, MILLSTREAM_FAILPOINTS=f"{point}=kill")
    assert doomed.wait(timeout=60) == -signal.SIGKILL  # the point was reached
    tasks.worker(target, server.url)
    eventually(all_done(client, "jobs", "g"))
    seen = effects(client)
    assert sorted(seen) == list(range(40))
    assert all(count <= 2 for number, count in seen.items() if number != 13)
    # three tries, and one more run if the kill lost an outcome: the first crash is not charged
    assert 3 <= seen[13] <= 4
    assert client.xlen("jobs:dead") == 1


@pytest.mark.parametrize(
    "point",
    [
        "before_uncharge",
        "after_uncharge",
        pytest.param("before_renew", marks=either_server),
        pytest.param("before_release", marks=either_server),
        "after_release",
        pytest.param("middleware", marks=either_server),
    ],
)
def test_a_worker_killed_off_the_main_road_loses_nothing(
    server: ServerProcess, client: redis.Redis, tasks: Any, point: str
) -> None:
    """After SIGKILL during a rarer step, such as a lease renewal or a handback, the next worker loses nothing."""
    publish(client, 40)
    if "uncharge" in point:
        client.xgroup_create("jobs", "g", "0")
        client.xreadgroup("g", "ghost", {"jobs": ">"}, count=20)
        left = list(pending(client, "jobs", "g"))
        client.execute_command("XCLAIM", "jobs", "g", "ghost", 0, *left, "IDLE", 60_000, "RETRYCOUNT", 1, "JUSTID")
    target = tasks.app(APP.format(min_idle=400, concurrency=4))
    doom = {"middleware": "middleware"}.get(point, "" if "uncharge" in point else "slow")
    hook = {} if doom == "middleware" else {"MILLSTREAM_FAILPOINTS": f"{point}=kill"}
    doomed = tasks.worker(target, server.url, DOOM=doom, MILLSTREAM_GRACE="0.5", **hook)
    if "release" in point:
        eventually(lambda: 5 in effects(client))
        doomed.terminate()
    assert doomed.wait(timeout=60) == -signal.SIGKILL  # the point was reached
    tasks.worker(target, server.url)
    eventually(all_done(client, "jobs", "g"))
    seen = effects(client)
    assert sorted(seen) == list(range(40))
    assert all(count <= 2 for number, count in seen.items() if number != 13)
    assert 3 <= seen[13] <= 4
    assert client.xlen("jobs:dead") == 1


@either_server
def test_three_workers_one_killed_every_job_done(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """Three workers of ``millstream run`` all work, and a killed one is replaced. SIGTERM ends all with code 0."""
    target = tasks.app(APP.format(min_idle=500, concurrency=2))
    running = tasks.run(target, server.url, "--workers", "3")
    eventually(lambda: len(consumers(client, "jobs", "g")) == 3 if client.exists("jobs") else False)
    publish(client, 150)
    eventually(lambda: len(effects(client)) > 20)
    victim = next(name for name in consumers(client, "jobs", "g"))
    os.kill(int(victim.split("-")[-2]), signal.SIGKILL)
    publish(client, 150)
    eventually(all_done(client, "jobs", "g"))
    assert set(effects(client)) == set(range(150))
    eventually(lambda: len(consumers(client, "jobs", "g")) == 4)  # the dead worker's name, and three live ones
    running.terminate()
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
    assert "signal SIGKILL" in out
    assert consumers(client, "jobs", "g") <= {victim}


@pytest.mark.parametrize(
    ("way", "word"), [("os.kill(os.getpid(), 9)", "signal SIGKILL"), ("os._exit(5)", "exit code 5")]
)
def test_an_end_before_the_first_worker_reads_is_reported(tasks: Any, way: str, word: str) -> None:
    """If the first worker ends before it reads, and cannot report that itself, the supervisor does."""
    running = tasks.run(tasks.app(f"import os\n{way}\n"), f"redis://127.0.0.1:{free_port()}")
    out, _ = running.communicate(timeout=60)
    assert out.count("\n") == 1
    assert f"worker 1 ended with {word} before it read; giving up" in out
    assert running.returncode == (5 if "exit" in way else 1)


def test_a_worker_is_replaced_although_its_replacement_cannot_start_at_first(
    real_redis: ServerProcess, tasks: Any, tmp_path: Path
) -> None:
    """A supervisor that cannot start a process logs the reason, tries again, and then has its worker."""
    tasks.output = tmp_path / "out.txt"
    running = tasks.run(tasks.app(SLOW), real_redis.as_new().url, "--workers", "2")

    def found(words: str) -> list[str]:
        return re.findall(rf"\[(\d+)\] .*{re.escape(words)}", tasks.output.read_text())

    # The second worker began after the first had reported that it reads
    first, _ = eventually(lambda: pids if len(pids := found("reading jobs")) == 2 else None)
    usual = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (3, usual[1]))  # it has these descriptors already
    os.kill(int(first), signal.SIGKILL)
    refused = "worker 1 cannot be started: [Errno 24] Too many open files; trying again in"
    eventually(lambda: found(refused), what=refused)
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, usual)
    eventually(lambda: len(found("reading jobs")) == 3)
    running.terminate()
    assert running.wait(timeout=60) == 0


SLOW = """
import asyncio
from millstream import App, StreamSub
app = App()

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=3_600_000, max_records=20), concurrency=1)
async def work(x: int) -> None:
    await app.publish("effects", {"x": x})
    await asyncio.sleep(0 if x != 5 else 3600)
"""


@either_server
def test_sigterm_hands_back_at_once_and_exits_with_zero(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """At SIGTERM, entries not yet begun are free at once, while the last handler finishes. Then the exit code is 0."""
    publish(client, 20)
    worker = tasks.worker(tasks.app(SLOW), server.url, MILLSTREAM_GRACE="2")
    eventually(lambda: 5 in effects(client))
    eventually(lambda: len(pending(client, "jobs", "g")) == 15)
    worker.terminate()
    eventually(lambda: client.xautoclaim("jobs", "g", "other", 3_600_000)[1])
    assert worker.wait(timeout=60) == 0
    client.xautoclaim("jobs", "g", "other", 3_600_000)
    assert Counter(pending(client, "jobs", "g").values()) == {("other", 1): 15}
    assert consumers(client, "jobs", "g") == {"other"}


@either_server
def test_a_second_signal_ends_it_at_once(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """A second Ctrl-C ends a stopping process at once."""
    publish(client, 20)
    worker = tasks.worker(tasks.app(SLOW), server.url, MILLSTREAM_GRACE="3600")
    eventually(lambda: 5 in effects(client))
    worker.terminate()
    eventually(lambda: len(pending(client, "jobs", "g")) and released(client))  # the stop has begun
    worker.send_signal(signal.SIGINT)
    assert worker.wait(timeout=60) == 128 + signal.SIGINT


UNTIL_TOLD = """
import asyncio, os
from millstream import App, StreamSub
from millstream.client.connect import connect
app = App(grace=60)

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=3_600_000), concurrency=1)
async def work(x: int) -> None:
    await app.publish("effects", {"x": x, "pid": os.getpid()})
    with connect(app.url) as client:
        while not client.exists("go"):
            await asyncio.sleep(0.02)
"""


@either_server
def test_terminations_in_a_row_are_one(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """SIGTERM sent to a worker both directly and by its supervisor counts as one, and running handlers finish."""
    publish(client, 1)
    running = tasks.run(tasks.app(UNTIL_TOLD), server.url)
    eventually(lambda: 0 in effects(client))
    worker: Any = client.xrange("effects")[0][1]["pid"]
    for _ in range(3):
        for pid in (running.pid, int(worker)):
            os.kill(pid, signal.SIGTERM)
    client.set("go", 1)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
    assert not pending(client, "jobs", "g")
    assert effects(client) == {0: 1}


def released(client: redis.Redis) -> bool:
    return any(name == "" for name, _ in pending(client, "jobs", "g").values())


BLOCKING = SLOW.replace("async def", "def").replace("await asyncio.sleep", "__import__('time').sleep")
BLOCKING = BLOCKING.replace('    await app.publish("effects", {"x": x})\n', "    print('began', x, flush=True)\n")


@either_server
def test_a_thread_that_will_not_end_makes_the_exit_code_say_so(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A thread that outlasts the grace time leaves its entry pending for a later claim, and the exit code is 70."""
    publish(client, 6)
    worker = tasks.worker(tasks.app(BLOCKING), server.url, MILLSTREAM_GRACE="0.2")
    for line in worker.stdout:
        if line.startswith("began 5"):
            break
    eventually(lambda: len(pending(client, "jobs", "g")) == 1)
    worker.terminate()
    assert worker.wait(timeout=60) == 70
    assert len(pending(client, "jobs", "g")) == 1


@either_server
def test_workers_end_when_their_supervisor_is_killed(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """If the supervisor dies in any way, its workers end cleanly."""
    running = tasks.run(tasks.app(APP.format(min_idle=500, concurrency=2)), server.url, "--workers", "2")
    eventually(lambda: len(consumers(client, "jobs", "g")) == 2 if client.exists("jobs") else False)
    running.kill()
    eventually(lambda: not consumers(client, "jobs", "g"))


STANDING_STILL = """
import os, time
from millstream import App, StreamSub
app = App(grace=0.1)

@app.subscriber(StreamSub("jobs", group="g"))
async def work(x: int) -> None:
    with open("pid", "w") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(3600)
"""


@either_server
def test_a_worker_that_stands_still_ends_with_its_supervisor(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Path
) -> None:
    """A worker with a blocked event loop ends with its supervisor, and its entries stay pending for others."""
    publish(client, 1)
    note = tmp_path / "standing-still"
    running = tasks.run(tasks.app(STANDING_STILL.replace('"pid"', repr(str(note)))), server.url)
    pid = int(eventually(lambda: note.read_text().endswith("\n") and note.read_text(), what="the handler has begun"))
    running.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    assert len(pending(client, "jobs", "g")) == 1


@either_server
def test_a_fatal_error_exits_with_non_zero(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """A key that is not a stream ends the worker with an error and a non-zero code."""
    client.set("jobs", "text")
    worker = tasks.worker(tasks.app(APP.format(min_idle=500, concurrency=2)), server.url)
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "WRONGTYPE" in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("target", "words"),
    [("misnamed", "module:name"), ("misnamed:application", "its apps: app"), ("misnamed:os", "not a millstream.App")],
)
def test_each_way_to_misname_an_app_has_its_own_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, words: str
) -> None:
    """The error for a wrong app name shows the wrong part and the correct form."""
    monkeypatch.syspath_prepend("")  # find_app's addition to sys.path is removed
    (tmp_path / "misnamed.py").write_text(APP.format(min_idle=500, concurrency=2))
    monkeypatch.delitem(sys.modules, "misnamed", raising=False)
    with pytest.raises(ConfigError, match=words):
        find_app(target, str(tmp_path))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("broken:app", "No module named 'not_installed'"),
        ("leaving:app", "importing leaving:app called exit(3)"),
        ("silent:app", "importing silent:app called exit(None)"),
        ("leaving:made()", "importing leaving:made() called exit('no settings')"),
    ],
)
def test_a_wrong_name_is_explained_once(tasks: Any, target: str, words: str) -> None:
    """A wrong app name or a failing import is reported once, with code 78, for any number of workers."""
    tasks.app("import not_installed\n", "broken")
    made = "def made():\n    sys.exit('no settings')\n"
    tasks.app(f"import sys\n{made}\nif not sys.argv[-1].endswith('()'):\n    sys.exit(3)\n", "leaving")
    tasks.app("raise SystemExit\n", "silent")
    running = tasks.run(target, "redis://127.0.0.1:1", "--workers", "3")
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 78
    assert out.count(words) == 1


@pytest.mark.parametrize("text", ["import not_installed", "def", "1 / 0", "from jobs_import import nothing", "app.x"])
def test_an_import_error_begins_in_the_users_module(tasks: Any, text: str) -> None:
    """The traceback of a failing import shows only frames of the user's files."""
    tasks.app("\n", "jobs_import")
    out, _ = tasks.worker(tasks.app(f"{text}\n", "broken"), "redis://127.0.0.1:1").communicate(timeout=60)
    assert "broken.py" in out
    assert "child.py" not in out
    assert "importlib" not in out


def test_an_unreachable_server_is_named_without_its_password(tasks: Any) -> None:
    """The error for an unreachable server names its address without the password. The exit code means unavailable."""
    text = APP.format(min_idle=60_000, concurrency=2)
    tasks.app(text + "\nfrom millstream.worker.process import run\nrun.CONNECT_SECONDS = 0.1\n")
    url = f"redis://me:hunter2@127.0.0.1:{free_port()}/0"
    running = tasks.run("jobs:app", "redis://127.0.0.1:1", "--url", url)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 69
    assert "me:***@127.0.0.1" in out
    assert "hunter2" not in out
    assert len(out.splitlines()) == 2, "said once when it begins to try, once when it gives up"


def test_passwords_are_hidden_in_any_url() -> None:
    """Passwords in URLs are masked, and a URL without a password is unchanged."""
    assert without_password("redis://:secret@h:1/0") == "redis://:***@h:1/0"
    assert without_password("redis://h:1/0") == "redis://h:1/0"


def test_a_url_that_is_none_is_refused_before_anything_starts() -> None:
    """A URL with an unknown scheme is a usage error with the valid schemes."""
    result = CliRunner().invoke(main, ["run", "jobs:app", "--url", "http://example.org"])
    assert result.exit_code == 2
    assert "redis://" in result.output


def test_help_teaches() -> None:
    """``millstream run --help`` shows an app, a command line and the exit codes."""
    result = CliRunner().invoke(main, ["run", "--help"])
    assert result.exit_code == 0
    for word in ("@app.subscriber", "millstream run orders:app --workers 4", "SIGTERM", "69", "MILLSTREAM_URL"):
        assert word in result.output


def test_the_working_directory_is_searched(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``module:app`` is found relative to the working directory, also with a dotted name."""
    folder = tmp_path / "shop_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "orders.py").write_text("from millstream import App\nclass Main:\n    app = App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_app("shop_package.orders:Main.app").subscriptions == ()


def test_import_is_light() -> None:
    """The worker imports neither pydantic nor Spark, and ``import millstream`` does not even import redis."""
    code = "import millstream, sys; print(sorted({'redis', 'pydantic', 'asyncio'} & set(sys.modules)))"
    code += "; millstream.App; print(sorted({'pydantic', 'pyspark'} & set(sys.modules)))"
    import sys

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "[]"]


KILLER = """
import os, signal
from millstream import App, Message, Retry, StreamSub
app = App()

@app.subscriber(
    StreamSub("jobs", group="g", min_idle_time=300, max_records=50),
    retry=Retry(max_deliveries=2, base=0.02),
    concurrency=2,
)
async def work(x: int) -> None:
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await app.publish("effects", {"x": x})
"""


@either_server
def test_other_entries_do_not_pay_for_one_that_kills_its_process(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """An entry that kills its process becomes a dead letter, and none of forty-nine entries beside it does."""
    publish(client, 50)
    running = tasks.run(tasks.app(KILLER), server.url)
    eventually(all_done(client, "jobs", "g"), 60)
    running.terminate()
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
    assert set(effects(client)) == set(range(50)) - {2}
    dead: Any = client.xrange("jobs:dead")
    assert [(fields["x"], fields["_dead.reason"], fields["_dead.deliveries"]) for _, fields in dead] == [
        ("2", "overdue", "3")
    ]


DEADLY = """
import os
from millstream import App, StreamSub

app = App(grace="1s")

@app.subscriber(StreamSub("jobs", group="g", min_idle_time=200))
async def work(x: int) -> None:
    if x == 13:
        os._exit(1)
"""


@either_server
def test_a_deadly_entry_is_dead_before_its_worker_is_given_up(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A single worker is restarted until its deadly entry is a dead letter, and then handles the other entries."""
    client.xadd("jobs", {"x": 13})
    run = tasks.run(tasks.app(DEADLY), server.url)
    eventually(lambda: client.xlen("jobs:dead") == 1, seconds=60)
    client.xadd("jobs", {"x": 1})
    eventually(all_done(client, "jobs", "g"))
    assert run.poll() is None


def test_a_lack_of_threads_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asyncio starts a process before the thread that waits for it; such a process would run beside its successor."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def children() -> set[str]:
        return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}

    before = children()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(Supervisor("app:app", 1).run())
    assert children() <= before
