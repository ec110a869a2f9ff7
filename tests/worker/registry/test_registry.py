"""Worker records and orders to workers: records are accurate, orders are obeyed, and both are cheap."""

import asyncio
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream import App, Message, StreamSub
from millstream.cli.main import main
from millstream.client.delays import due
from millstream.client.line import Line
from millstream.errors import ConfigError
from millstream.worker.registry import protocol
from millstream.worker.registry.reaper import reap
from millstream.worker.settlement import failure_log
from support.groups import all_done, consumers, pending, worker_ids
from support.servers import ServerProcess
from support.waiting import aeventually, eventually


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats ten times a second for the workers of this process."""
    monkeypatch.setattr(protocol, "BEAT", 0.1)


def run(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream worker`` in this process."""
    return CliRunner().invoke(main, ["worker", *words, "--url", server.url])


async def arun(server: ServerProcess, *words: str) -> Result:
    """Run ``millstream worker`` in a thread beside a running app."""
    return await asyncio.to_thread(run, server, *words)


def listed(server: ServerProcess) -> list[dict[str, Any]]:
    """Return the rows of ``millstream worker ls``."""
    found: list[dict[str, Any]] = json.loads(run(server, "ls", "-o", "json").stdout)["workers"]
    return found


async def alisted(server: ServerProcess) -> list[dict[str, Any]]:
    return await asyncio.to_thread(listed, server)


async def test_a_worker_tells_who_it_is_and_what_it_does(
    server: ServerProcess, client: redis.Redis, quick: None
) -> None:
    """A worker's record has its host, handlers, lanes, current jobs and last error. It expires with the worker."""
    app, go = App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("jobs", group="g"), concurrency=2)
    async def work(x: int) -> None:
        if x == 13:
            raise ValueError("unlucky")
        await go.wait()

    began = time.time_ns() // 1_000_000
    async with app.running():
        await app.publish("jobs", {"x": 13})
        running = await app.publish("jobs", {"x": 1})
        facts = await aeventually(lambda: _settled_facts(client))
        assert (facts["state"], facts["version"]) == ("running", __import__("millstream").__version__)
        assert began - 1 <= facts["started_ms"] <= facts["beat_ms"]
        assert facts["last_error"]["error"] == "ValueError: unlucky"
        (sub,) = facts["subscribers"]
        assert (sub["handler"], sub["stream"], sub["group"], sub["slots"]) == ("work", "jobs", "g", 2)
        assert {sub["consumer"]} == consumers(client, "jobs", "g")
        assert [job["id"] for job in sub["jobs"]] == [running]
        since = sub["jobs"][0]["since_ms"]
        later = await aeventually(lambda: [f for f in registry_facts(client) if f["beat_ms"] > facts["beat_ms"]])
        assert later[0]["subscribers"][0]["jobs"][0]["since_ms"] == since
        assert 0 < client.pttl(protocol.worker_key(facts["id"])) <= protocol.TTL_MS
        assert client.pttl(protocol.INDEX) > 0, "what workers leave behind must not stay for ever"
        (row,) = await alisted(server)
        assert (row["id"], row["running"], row["slots"]) == (facts["id"], 1, 2)
        shown = await arun(server, "show", facts["id"][:-1], "-o", "json")
        assert json.loads(shown.stdout)["jobs"][0]["id"] == running
        assert (await arun(server, "show", "nobody")).exit_code == 4
        go.set()
    assert registry_facts(client) == []
    # only its end is left, for a day; a waiting retry keeps its failure record and due time
    kept = [protocol.ENDED, due.key("jobs", "g"), failure_log.key("jobs", "g")]
    assert sorted(client.keys(f"{protocol.PREFIX}*")) == sorted(kept)
    assert client.pttl(protocol.ENDED) > 0
    assert [protocol.parse_end(row.encode()) for row in client.zrange(protocol.ENDED, 0, -1)] == [
        (facts["id"], None, (("work", "jobs", "g"),))
    ]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b'{"id":1,"order":null,"handlers":[]}', b'{"id":"w","order":null,"handlers":[["a"]]}',
             b'{"id":"w","order":5,"handlers":[]}', b'{"id":"w","order":null,"handlers":[[1,2,3]]}', b'"' * 20_000]
)  # fmt: skip
def test_an_end_that_no_worker_wrote_is_skipped(text: bytes) -> None:
    """Any client may write records of ended workers; other forms, and those that are too large, are left out."""
    assert protocol.parse_end(text) is None


def registry_facts(client: redis.Redis) -> list[dict[str, Any]]:
    return [json.loads(text) for worker in worker_ids(client) if (text := client.get(protocol.worker_key(worker)))]


def _settled_facts(client: redis.Redis) -> dict[str, Any] | None:
    found = registry_facts(client)
    return next((f for f in found if f["last_error"] and f["subscribers"][0]["running"] == 1), None)


@pytest.mark.either_server
async def test_an_idle_worker_sends_at_most_two_commands_a_second(server: ServerProcess, client: redis.Redis) -> None:
    """An idle worker sends at most two commands a second, including registry and control."""
    app = App(server.url)

    @app.subscriber(StreamSub("jobs", group="g"))
    async def work(x: int) -> None:
        """Do nothing, as no entry arrives."""

    def beats() -> int:
        found = registry_facts(client)
        return int(found[0]["beat_ms"]) if found else 0

    async with app.running():
        first = await aeventually(beats)
        start = await aeventually(lambda: (beats(), commands(client), moment(client)) if beats() > first else None)
        end = await aeventually(lambda: (beats(), commands(client), moment(client)) if beats() > start[0] else None)
    names = set(end[1]) - {"zrange", "get", "info", "ping", "time"}  # these are the test's own
    sent = sum(end[1][name] - start[1].get(name, 0) for name in names)
    seconds = end[2] - start[2]  # when they were counted: on a busy machine that is well after the beat
    assert seconds > 4
    assert 3 <= sent <= 2 * seconds + 1, {name: end[1][name] - start[1].get(name, 0) for name in names}


def moment(client: redis.Redis) -> float:
    """Return the server's time in seconds."""
    now: Any = client.time()
    return float(now[0] + now[1] / 1_000_000)


def commands(client: redis.Redis) -> dict[str, int]:
    stats: Any = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}


async def test_a_worker_without_permission_for_the_registry_works(
    server: ServerProcess, client: redis.Redis, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker without rights to the registry's keys handles every entry, and logs the missing right once."""
    client.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "resetkeys", "~jobs*", "+@all", "-eval")
    app, seen = App(server.url.replace("redis://", "redis://narrow:pw@")), []

    @app.subscriber(StreamSub("jobs", group="g"))
    async def work(x: int) -> None:
        seen.append(x)

    with caplog.at_level(logging.WARNING, "millstream.worker"):
        async with app.running():
            for x in range(20):
                await app.publish("jobs", {"x": x})
            await aeventually(lambda: len(seen) == 20)
            await aeventually(all_done(client, "jobs", "g"))
    client.execute_command("ACL", "DELUSER", "narrow")
    said = [record.getMessage() for record in caplog.records if "registry" in record.getMessage()]
    assert len(said) == 1
    assert "~millstream:*" in said[0]
    assert client.keys(f"{protocol.PREFIX}*") == []


async def test_a_worker_has_the_version_of_its_app(server: ServerProcess, client: redis.Redis) -> None:
    """A version of the app takes the place of Millstream's in the record; one that is not a short text is refused."""
    app = App(server.url, version="2026-11-30")

    @app.subscriber(StreamSub("jobs", group="g"))
    async def work(x: int) -> None: ...

    async with app.running():
        (row,) = await alisted(server)
        assert row["version"] == "2026-11-30"
    for wrong in ("", "x" * 61, 5):
        with pytest.raises(ConfigError, match=r"App\(version="):
            App(server.url, version=wrong)  # type: ignore[arg-type] - refused


async def test_the_registry_can_be_switched_off(server: ServerProcess, client: redis.Redis) -> None:
    """With the registry switched off, the worker writes no key of its own."""
    app = App(server.url, registry=False, reap_after=None)

    @app.subscriber(StreamSub("jobs", group="g"))
    async def work(x: int) -> None:
        """Do nothing."""

    async with app.running():
        await app.publish("jobs", {"x": 1})
        await aeventually(all_done(client, "jobs", "g"))
        assert client.keys(f"{protocol.PREFIX}*") == []


async def test_a_pause_holds_through_restarts_until_resumed(
    server: ServerProcess, client: redis.Redis, quick: None
) -> None:
    """A paused group hands back waiting entries uncharged and stays paused over restarts, until it is resumed."""
    seen: list[int] = []
    go = asyncio.Event()

    def make() -> App:
        app = App(server.url)

        @app.subscriber(StreamSub("jobs", group="g", max_records=5), concurrency=1)
        async def work(x: int, msg: Message) -> None:
            await go.wait()
            seen.append(x)

        @app.subscriber(StreamSub("other", group="g"))
        async def other(x: int) -> None:
            seen.append(x)

        return app

    async with make().running(grace=1) as app:
        await app.publish_batch("jobs", [{"x": x} for x in range(6)])
        await aeventually(lambda: len(pending(client, "jobs", "g")) == 5)
        assert (await arun(server, "pause", "jobs", "g", "--reason", "broken", "--by", "ann")).exit_code == 0
        await aeventually(lambda: [count for _, count in pending(client, "jobs", "g").values()].count(0) == 4)
        go.set()
        await aeventually(lambda: seen == [0])
        await app.publish("other", {"x": 100})
        await aeventually(lambda: seen == [0, 100])
        shown = json.loads((await arun(server, "ls", "-o", "json")).stdout)
        assert [(p["stream"], p["group"], p["reason"], p["by"]) for p in shown["pauses"]] == [
            ("jobs", "g", "broken", "ann")
        ]
        assert shown["workers"][0]["handlers"] == ["work (paused)", "other"]
    async with make().running(grace=1) as app:
        await app.publish("other", {"x": 101})
        await aeventually(lambda: 101 in seen)
        facts = await aeventually(lambda: registry_facts(client))
        await aeventually(lambda: registry_facts(client)[0]["beat_ms"] > facts[0]["beat_ms"])
        assert seen == [0, 100, 101]
        assert (await arun(server, "resume", "jobs", "g")).exit_code == 0
        await aeventually(all_done(client, "jobs", "g"))
        assert (await arun(server, "resume", "jobs", "g")).exit_code == 4
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 100, 101]


async def test_a_quiet_worker_leaves_the_work_to_others(
    server: ServerProcess, client: redis.Redis, quick: None
) -> None:
    """A quiet worker reads nothing and leaves its waiting entries to others. Once resumed it works again."""
    seen: dict[str, list[int]] = {"a": [], "b": []}
    go = asyncio.Event()

    def make(name: str) -> App:
        app = App(server.url)

        @app.subscriber(StreamSub("jobs", group="g", consumer=name, max_records=5), concurrency=1)
        async def work(x: int) -> None:
            if name == "a" and not go.is_set():
                await go.wait()
            seen[name].append(x)

        return app

    async with make("a").running(grace=1) as first:
        await first.publish_batch("jobs", [{"x": x} for x in range(6)])
        await aeventually(lambda: len(pending(client, "jobs", "g")) == 5)
        ident = registry_facts(client)[0]["id"]
        assert (await arun(server, "quiet", ident)).exit_code == 0
        async with make("b").running(grace=1):
            await aeventually(lambda: len(seen["b"]) == 5)
            await aeventually(lambda: {f["id"]: f["state"] for f in registry_facts(client)}[ident] == "quiet")
            go.set()
            await aeventually(all_done(client, "jobs", "g"))
            assert seen["a"] == [0]
        assert (await arun(server, "resume", ident)).exit_code == 0
        await first.publish("jobs", {"x": 7})
        await aeventually(lambda: seen["a"] == [0, 7])


LONG = """
import asyncio
from pathlib import Path
from millstream import App, StreamSub
app = App()

@app.subscriber(StreamSub("jobs", group="g", max_records=1), concurrency=1)
async def work(x: int) -> None:
    await app.publish("effects", {"x": x})
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    await app.publish("effects", {"x": x + 100})
"""


def effects(client: redis.Redis) -> list[int]:
    rows: Any = client.xrange("effects")
    return [int(fields["x"]) for _, fields in rows]


@pytest.mark.either_server
def test_a_drained_worker_finishes_and_is_not_started_again(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A drained worker under ``millstream run`` finishes its job and ends with code 0.

    Waiting entries are handed back.
    """
    for x in range(5):
        client.xadd("jobs", {"x": x})
    running = tasks.run(tasks.app(LONG), server.url, "--workers", "2")
    eventually(lambda: len(effects(client)) == 2 and len(registry_facts(client)) == 2)
    waits = subprocess.Popen(
        [Path(sys.executable).with_name("millstream"), "worker", "drain", "--all", "--wait", "--url", server.url],
        stderr=subprocess.PIPE,
        text=True,
    )
    eventually(lambda: {facts["state"] for facts in registry_facts(client)} == {"draining"})
    eventually(lambda: [count for _, count in pending(client, "jobs", "g").values()].count(0) == 2)
    assert waits.poll() is None, "they still work"
    (tasks.folder / "go").touch()
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
    assert "is not restarted" in out
    _, output = waits.communicate(timeout=60)
    assert (waits.returncode, output.splitlines()[-1]) == (0, "Ended: 2.")
    done = [x for x in effects(client) if x >= 100]
    assert len(done) == 2
    assert [count for _, count in pending(client, "jobs", "g").values()] == [0, 0]
    assert registry_facts(client) == []


async def test_whoever_waits_for_a_drained_worker_is_told_that_it_goes_on(
    server: ServerProcess, client: redis.Redis, quick: None
) -> None:
    """``worker drain --wait`` ends with code 1 if the worker is resumed meanwhile."""
    app, go = App(server.url), asyncio.Event()

    @app.subscriber(StreamSub("jobs", group="g"))
    async def work(x: int) -> None:
        await go.wait()

    async with app.running(grace=1):
        await app.publish("jobs", {"x": 1})
        await aeventually(lambda: pending(client, "jobs", "g") and registry_facts(client))
        program = str(Path(sys.executable).with_name("millstream"))
        waits = await asyncio.create_subprocess_exec(
            *(program, "worker", "drain", "--all", "--wait", "--url", server.url), stderr=subprocess.PIPE
        )
        assert waits.stderr is not None
        assert b"Ordered 1 to drain" in await waits.stderr.readline()  # it has verified the order and waits
        await aeventually(lambda: app.state == "draining")
        assert (await arun(server, "resume", worker_ids(client)[0])).exit_code == 0
        _, told = await waits.communicate()
        assert (waits.returncode, b"these workers were resumed meanwhile" in told) == (1, True)
        late = await arun(server, "drain", "--all", "--wait", "--timeout", "10ms")
        assert (late.exit_code, f"still running: {worker_ids(client)[0]}" in late.stderr) == (1, True)
        assert (await arun(server, "drain", "--all", "--timeout", "1s")).exit_code == 2
        go.set()


@pytest.mark.either_server
def test_a_stopped_worker_hands_back_after_the_grace_time(
    server: ServerProcess, client: redis.Redis, tasks: Any
) -> None:
    """A stop order does the same as SIGTERM. A worker without a supervisor ends with code 0."""
    client.xadd("jobs", {"x": 1})
    worker = tasks.worker(tasks.app(LONG), server.url, MILLSTREAM_GRACE="0.1")
    eventually(lambda: effects(client) == [1] and registry_facts(client))
    assert run(server, "stop", "--all").exit_code == 0
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, out
    assert effects(client) == [1]
    assert [count for _, count in pending(client, "jobs", "g").values()] == [0]


@pytest.mark.either_server
def test_an_order_for_a_worker_that_died_is_forgotten(server: ServerProcess, client: redis.Redis, tasks: Any) -> None:
    """An order to a worker that died before it read the order is removed by the next command. It binds no successor."""
    worker = tasks.worker(tasks.app(LONG), server.url)
    eventually(lambda: registry_facts(client))
    ident = registry_facts(client)[0]["id"]
    worker.send_signal(signal.SIGKILL)
    worker.wait(timeout=60)
    assert run(server, "quiet", ident).exit_code == 0  # its key is still there
    client.pexpire(protocol.worker_key(ident), 3_000)  # The next command must still find it
    waited = run(server, "drain", ident, "--wait")
    assert (waited.exit_code, f"no longer reporting, and not stopped in order: {ident};" in waited.stderr) == (1, True)
    assert listed(server) == []
    assert run(server, "quiet", "--all").exit_code == 0
    assert client.hgetall(protocol.CONTROL) == {}


async def test_only_idle_and_empty_consumers_are_reaped(server: ServerProcess, client: redis.Redis) -> None:
    """Reaping removes only idle consumers without pending entries that belong to no live worker."""
    client.xadd("jobs", {"x": 1})
    client.xgroup_create("jobs", "g", "0")
    for name in ("empty", "alive"):
        client.xgroup_createconsumer("jobs", "g", name)
    client.xreadgroup("g", "holding", {"jobs": ">"})
    line = Line(server.url)
    assert await reap(line, "jobs", "g", idle_ms=60_000) == []
    assert await reap(line, "jobs", "g", idle_ms=0, alive=["alive"]) == ["empty"]
    assert consumers(client, "jobs", "g") == {"alive", "holding"}
    assert len(pending(client, "jobs", "g")) == 1
    done = await arun(server, "reap", "jobs", "--idle", "0s", "-o", "json")
    assert json.loads(done.stdout) == [{"group": "g", "consumer": "alive"}]
    assert (await arun(server, "reap", "jobs", "nobody")).exit_code == 4
    assert (await arun(server, "reap", "jobs", "--idle", "0")).exit_code == 2
    await line.close()


async def test_a_worker_reaps_the_dead_of_its_groups(
    server: ServerProcess, client: redis.Redis, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker removes dead consumers of its groups by itself, counts and logs them, and spares a quiet worker's."""
    client.xgroup_create("jobs", "g", "0", mkstream=True)
    app, paused = App(server.url, reap_after=0.5), App(server.url, reap_after=None)
    for each, name in ((app, "one"), (paused, "two")):

        @each.subscriber(StreamSub("jobs", group="g", consumer=name, polling_interval=100))
        async def work(x: int) -> None:
            """Do nothing."""

    async with paused.running():
        await aeventually(lambda: registry_facts(client))
        await arun(server, "quiet", "--all")
        await aeventually(lambda: registry_facts(client)[0]["state"] == "quiet")
        client.xgroup_createconsumer("jobs", "g", "gone")
        with caplog.at_level(logging.INFO, "millstream.worker"):
            async with app.running():
                await aeventually(lambda: consumers(client, "jobs", "g") == {"one", "two"})
                await aeventually(lambda: app.stats()["work"]["reaped"] == 1)
    assert "removed 1 dead consumer of group g: gone" in caplog.text
