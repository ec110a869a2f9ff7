"""A plain handler over its hard limit ends its process, which counts as a crash of its entry alone."""

import logging
import re
import threading
from typing import Any

import pytest
import redis

from millstream import App, StreamSub
from millstream.errors import ConfigError
from support.groups import pending
from support.servers import ServerProcess
from support.waiting import aeventually, eventually

# The sleeps are the handlers' own work, shorter and longer than the limit: nothing of the test waits by them
APP = """
import os, threading, time
from millstream import App, Message, Retry, StreamSub
from millstream.worker.handlers.middleware import Timeout
app = App(grace=5)
print("start", os.getpid(), "MILLSTREAM_IS_SPARE" in os.environ, flush=True)

@app.subscriber(
    StreamSub("s", group="g", min_idle_time=60_000, polling_interval=200),
    retry=Retry(max_deliveries=2, base=0.1), hard_limit="1s", {options}
)
def work({parameters}) -> None:
    {body}
    print("ran", do, flush=True)
    if do == "hang": threading.Event().wait()
    if do == "slow": time.sleep(0.3)
    print("done", do, flush=True)

@app.subscriber(StreamSub("t", group="g", min_idle_time=60_000, polling_interval=200))
def other(x: int, msg: Message) -> None:
    if msg.delivery_count == 1:
        print("began", x, flush=True)
        time.sleep(1.5)
    print("other", x, msg.delivery_count, flush=True)
"""

ONE = {"options": "", "parameters": "do: str", "body": "pass"}
WAYS = {
    "one": ONE,
    "batch": {"options": "batch=True, max_records=1,", "parameters": "all: list[dict]", "body": "do = all[0]['do']"},
    "manual": {"options": 'ack="manual",', "parameters": "do: str, msg: Message", "body": "do == 'hang' or msg.ack()"},
}


def read(tasks: Any) -> str:
    """Return everything that the processes printed and logged."""
    return str(tasks.output.read_text())


@pytest.mark.parametrize(("way", "options"), [*((way, ()) for way in WAYS), ("one", ("--no-spare",))])
def test_a_run_beyond_the_limit_is_a_crash_of_its_entry_alone(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any, way: str, options: tuple[str, ...]
) -> None:
    """An entry over its hard limit ends the process and is dead after its tries. A run beside it is not charged."""
    tasks.output = tmp_path / "out.txt"
    client.xadd("t", {"x": 1})
    client.xadd("s", {"do": "hang"})
    tasks.run(tasks.app(APP.format(**WAYS[way])), server.url, *options)
    eventually(lambda: client.xlen("s:dead") == 1, 60)
    client.xadd("s", {"do": "slow"})
    eventually(lambda: "done slow" in read(tasks))
    eventually(lambda: not pending(client, "s", "g") and not pending(client, "t", "g"))
    found = read(tasks)
    assert re.findall(r"^other .*$", found, re.MULTILINE) == ["other 1 1"]
    assert found.count("hard_limit=1 s (handler work, entry ") == 2
    letters: Any = client.xrange("s:dead")
    assert letters[0][1]["_dead.reason"] == "overdue"
    assert "hard_limit=1 s" in letters[0][1]["_dead.error"]
    assert "was killed, since a run took longer than hard_limit=1 s; restarting" in found
    assert "unknown sender" not in found


def test_a_thread_that_timeout_gave_up_ends_its_process(
    server: ServerProcess, client: redis.Redis, tasks: Any, tmp_path: Any
) -> None:
    """A thread that outlived ``timeout`` ends its process at the hard limit.

    Its entry, failed already, is not charged again.
    """
    tasks.output = tmp_path / "out.txt"
    client.xadd("s", {"do": "hang"})
    words = {**ONE, "options": "middlewares=[Timeout(0.3)],"}
    tasks.run(tasks.app(APP.format(**words)), server.url)
    eventually(lambda: client.xlen("s:dead") == 1, 60)
    eventually(lambda: read(tasks).count("start") >= 2)
    letters: Any = client.xrange("s:dead")
    assert (letters[0][1]["_dead.deliveries"], letters[0][1]["_dead.reason"]) == ("2", "error")


async def test_without_a_supervisor_the_log_reports_it(
    server: ServerProcess, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a supervisor, ``hard_limit`` causes a warning at the start.

    A run that exceeds it is logged as an error.
    """
    caplog.set_level(logging.WARNING)
    app, go_on = App(server.url), threading.Event()

    @app.subscriber(StreamSub("s", group="g"), hard_limit=0.1)
    def work() -> None:
        go_on.wait()

    client.xadd("s", {"x": 1})
    async with app.running():
        assert "millstream run" in caplog.text
        await aeventually(lambda: "takes longer than hard_limit=0.1 s" in caplog.text)
        go_on.set()
        await aeventually(lambda: app.loops[0].stats.handled == 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hard_limit": 0}, "above zero"),
        ({"hard_limit": -1}, "between 0"),
        ({"hard_limit": float("nan")}, "between 0"),
        ({"hard_limit": "soon"}, "hard_limit='soon'"),
        ({"hard_limit": True}, "a number of seconds"),
        ({"hard_limit": 5, "sub": StreamSub("s", no_ack=True)}, "no_ack=True"),
    ],
)
def test_a_wrong_hard_limit_is_one_error(options: dict[str, Any], words: str) -> None:
    """A wrong hard limit is one error with the handler's name and the correct form."""
    app = App("redis://nowhere", registry=False)
    with pytest.raises(ConfigError, match=words) as error:

        @app.subscriber(options.pop("sub", "s"), **options)
        def work() -> None: ...

    assert str(error.value).startswith("work: ")


def test_an_async_handler_has_timeout_instead() -> None:
    """An async handler with ``hard_limit`` is refused, with a hint to use Timeout."""
    with pytest.raises(ConfigError, match="Timeout"):

        @App("redis://nowhere", registry=False).subscriber("s", hard_limit=5)
        async def work() -> None: ...
