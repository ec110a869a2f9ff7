"""Publishing from programs that outlive their connections, with and without an event loop."""

import asyncio
import math
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

import millstream
from millstream import App, Disconnected, Middleware
from millstream.client.capabilities import find_sync
from millstream.client.line import Line
from millstream.errors import MillstreamError, UsageError
from millstream.server.thread import ServerThread
from millstream.worker.handlers.middleware import Publication, Publish
from millstream.worker.handlers.sender import SCRIPT, WORDS_LIMIT
from support import needs
from support.ports import free_port
from support.readme import block
from support.servers import ServerProcess, redis_server
from support.thief import Thief
from support.waiting import DEADLINE, aeventually, eventually


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """An app that only publishes."""
    found = App(server.url, registry=False)
    yield found
    await found.close()


def hang_up(client: redis.Redis) -> None:
    """Close every other connection, as a server's ``timeout`` or a proxy does."""
    own = client.client_id()
    for row in client.client_list():
        if int(row["id"]) != own:
            client.client_kill_filter(_id=row["id"])
    eventually(lambda: len(client.client_list()) == 1)  # a killed connection is listed until it is closed


async def test_a_connection_that_was_closed_while_idle_is_made_anew(app: App, client: redis.Redis) -> None:
    """After an idle connection was closed, the next publish adds one entry without an error."""
    await app.publish("s", {"n": 1})
    for number in range(2, 5):
        await asyncio.to_thread(hang_up, client)
        await app.publish("s", {"n": number})
    assert [fields["n"] for _, fields in client.xrange("s")] == ["1", "2", "3", "4"]


async def test_a_server_that_was_started_again_is_no_error(own_server: ServerProcess) -> None:
    """After a restart of the server, the next publish adds one entry without an error."""
    app = App(own_server.url, registry=False)
    await app.publish("s", {"n": 1})
    await asyncio.to_thread(own_server.stop)
    await asyncio.to_thread(own_server.start)
    await app.publish("s", {"n": 2})
    await app.close()
    with own_server.client() as client:
        assert client.xlen("s") == 2


async def test_a_line_with_a_state_is_not_made_anew_behind_its_users_back(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A connection with an active WATCH is not reopened silently. Its transaction raises Disconnected."""
    line = Line(server.url)
    await line.call("WATCH", "a")
    await asyncio.to_thread(hang_up, client)
    with pytest.raises(Disconnected):
        await line.calls([("MULTI",), ("SET", "a", 1), ("EXEC",)])
    assert client.exists("a") == 0
    await line.close()


async def test_disconnected_is_public_and_says_whether_anything_was_sent(server: ServerProcess) -> None:
    """The public error Disconnected reports whether anything was sent. If not, it is safe to publish again."""
    assert millstream.Disconnected is Disconnected
    assert issubclass(Disconnected, MillstreamError)
    nobody = App(f"redis://127.0.0.1:{free_port()}/0", registry=False)
    with pytest.raises(Disconnected) as unsent:
        await nobody.publish("s", {"n": 1})
    assert not unsent.value.sent
    assert str(unsent.value).startswith(f"publish('s'): cannot connect to {nobody.url}: connection refused. Start")
    assert str(unsent.value).endswith(" waits for a server that starts. Nothing was added.")
    with pytest.raises(Disconnected, match=r"publish\('s'\).* Nothing was added"):
        await nobody.publish_batch("s", [{"n": 1}])
    await nobody.close()
    async with Thief(server.port, b"XADD") as thief:
        app = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)
        with pytest.raises(Disconnected) as sent:
            await app.publish("s", {"n": 1})
        assert sent.value.sent
        assert "It may have been added. Look at the stream before you publish it again." in str(sent.value)
        await app.close()


async def test_a_publish_whose_reply_is_lost_is_sent_again_and_added_once(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A publish that loses its reply is sent again, is added once, and returns the first entry's id."""
    idmp = find_sync(client).idmp
    async with Thief(server.port, b"IDMP\r\n" if idmp else SCRIPT.sha.encode()) as thief:
        app = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)
        if not idmp:  # the server has the script now
            client.script_load(SCRIPT.text)
        ids = [await app.publish("s", {"n": number}, retry=20) for number in range(3)]
        await app.close()
        assert thief.stolen == 1
    assert [entry for entry, _ in client.xrange("s")] == ids
    assert [fields["n"] for _, fields in client.xrange("s")] == ["0", "1", "2"]


async def test_very_many_at_once_are_each_added_once(server: ServerProcess, client: redis.Redis) -> None:
    """Three hundred concurrent publishes over a connection that breaks are each added once.

    The server remembers only a hundred ids of a producer.
    """
    word = b"IDMP\r\n" if find_sync(client).idmp else b"EVALSHA"
    async with Thief(server.port, word) as thief:
        app = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)
        await asyncio.gather(*(app.publish("s", {"n": number}, retry=20) for number in range(300)))
        await app.close()
        assert thief.stolen == 1
    assert sorted(int(fields["n"]) for _, fields in client.xrange("s")) == list(range(300))


async def test_very_many_with_ids_of_their_own_are_each_added_once(server: ServerProcess, client: redis.Redis) -> None:
    """Three hundred concurrent publishes with caller-given ids are each added once although their connection breaks."""
    if not find_sync(client).idmp:
        pytest.skip("this server has no XADD IDMP")  # and says so: tests/worker/middlewares/test_middlewares.py
    async with Thief(server.port, b"IDMP\r\n") as thief:
        app = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)
        await asyncio.gather(*(app.publish("s", {"n": n}, idempotent=f"order-{n}", retry=20) for n in range(300)))
        await app.publish_batch("s", [{"n": n} for n in range(300)], idempotent=lambda content: f"order-{content['n']}")
        await app.close()
        assert thief.stolen == 1
    assert sorted(int(fields["n"]) for _, fields in client.xrange("s")) == list(range(300))


async def test_a_wide_entry_waits_for_a_server_that_takes_no_writes_now() -> None:
    """A publish with too many fields for a script waits with ``retry=`` until the server accepts writes again."""
    fields = {f"f{number}": number for number in range(WORDS_LIMIT)}
    with ServerThread() as server:
        app = App(server.url, registry=False)
        client = redis.asyncio.Redis.from_url(server.url)
        await client.replicaof("127.0.0.1", free_port())
        publish = asyncio.create_task(app.publish("s", fields, retry=60))

        async def is_refused() -> bool:
            return "errorstat_READONLY" in await client.info("errorstats")

        await aeventually(is_refused, what="writes are refused")
        await client.replicaof("NO", "ONE")
        assert await publish
        assert await client.xlen("s") == 1
        await app.close()
        await client.aclose()


async def test_a_server_that_takes_no_writes_now_may_know_idmp() -> None:
    """A publish with ``idempotent=`` to a replica fails as read-only.

    After the promotion the same app publishes once.
    """
    with ServerThread() as server:
        app = App(server.url, registry=False)
        client = redis.asyncio.Redis.from_url(server.url)
        await client.replicaof("127.0.0.1", free_port())
        with pytest.raises(redis.ReadOnlyError):
            await app.publish("s", {"n": 1}, idempotent="order-1")
        await client.replicaof("NO", "ONE")
        assert await app.publish("s", {"n": 1}, idempotent="order-1") == await app.publish(
            "s", {"n": 1}, idempotent="order-1"
        )
        await app.close()
        await client.aclose()


async def test_a_publish_waits_for_a_server_that_comes_back(own_server: ServerProcess) -> None:
    """With ``retry=``, a server restart during publishing costs time but no entry."""
    app = App(own_server.url, registry=False)
    await asyncio.to_thread(own_server.stop)
    sending = [asyncio.create_task(app.publish("s", {"n": number}, retry=60)) for number in range(3)]
    await asyncio.sleep(0)
    await asyncio.to_thread(own_server.start)
    await asyncio.gather(*sending)
    await app.close()
    with own_server.client(decode_responses=True) as client:
        assert sorted(fields["n"] for _, fields in client.xrange("s")) == ["0", "1", "2"]


async def test_a_retry_that_fails_remembers_an_earlier_try_that_was_sent(
    app: App, server: ServerProcess, client: redis.Redis
) -> None:
    """If a sent publish loses its reply and later tries fail, the error reports that the entry may have been added."""
    await app.publish("s", {"n": "first"}, retry=5)  # the server has the script now
    async with Thief(server.port, b"stolen", for_good=True) as thief:
        again = App(f"redis://127.0.0.1:{thief.port}/0", registry=False)
        with pytest.raises(Disconnected, match=r"no answer within \d.* It may have been added") as uncertain:
            await again.publish("s", {"n": "stolen"}, retry=0.5)
        await again.close()
    assert (uncertain.value.sent, thief.stolen, client.xlen("s")) == (True, 1, 2)


async def test_retrying_ends_when_its_time_is_over() -> None:
    """When the time of ``retry=`` is over, the error gives the last reason and reports that nothing was added."""
    app = App(f"redis://127.0.0.1:{free_port()}/0", registry=False)
    with pytest.raises(Disconnected, match=r"connection refused.* Nothing was added") as unsent:
        await app.publish("s", {"n": 1}, retry=0.2)
    assert not unsent.value.sent
    with pytest.raises(UsageError, match="more than 0"):
        await app.publish("s", {"n": 1}, retry=0)
    await app.close()


@pytest.mark.parametrize("retry", [0, -1.0, math.inf, math.nan, "soon"])
async def test_a_time_that_cannot_be_meant_is_refused(app: App, client: redis.Redis, retry: float | str) -> None:
    """An invalid ``retry=`` time is refused before anything is sent."""
    with pytest.raises(UsageError, match=r"publish\(retry="):
        await app.publish("s", {"n": 1}, retry=retry)
    assert client.xlen("s") == 0
    await app.publish("s", {"n": 1}, retry="2m")


async def test_a_server_that_cannot_tell_a_repetition_is_refused_before_anything_is_sent(
    real_redis: ServerProcess,
) -> None:
    """Without XADD IDMP and scripts on the server, ``retry=`` is refused with a clear error. No entry is added."""
    with real_redis.client() as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "-@scripting")
        app = App(real_redis.url.replace("redis://", "redis://plain:secret@"), registry=False)
        with pytest.raises(UsageError, match="a repetition could add a second entry"):
            await app.publish("s", {"n": 1}, retry=5)
        await app.close()
        assert client.exists("s") == 0
        client.execute_command("ACL", "DELUSER", "plain")


def test_one_event_loop_after_the_other(server: ServerProcess, client: redis.Redis) -> None:
    """An app publishes from one event loop after another, as with a loop per request, and leaves nothing open."""
    app = App(server.url, registry=False)

    async def request(number: int) -> None:
        await asyncio.wait_for(app.publish("s", {"n": number}, retry=5), 10)

    before = {row["id"] for row in client.client_list()}
    for number in range(3):
        asyncio.run(request(number))
    assert client.xlen("s") == 3
    eventually(lambda: {row["id"] for row in client.client_list()} <= before)


def test_two_event_loops_at_once(server: ServerProcess, client: redis.Redis) -> None:
    """Threads with an event loop each publish through one app side by side."""
    app, together = App(server.url, registry=False), threading.Barrier(2)

    async def publish(number: int) -> None:
        await asyncio.to_thread(together.wait)
        for _ in range(50):
            await app.publish("s", {"n": number})
        await asyncio.to_thread(together.wait)
        await app.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: asyncio.run(publish(number)), range(2)))
    assert client.xlen("s") == 100


# -- without an event loop ---------------------------------------------------------------------------------------------


class Stamp(Middleware):
    """A middleware that adds a field to each published entry."""

    async def publish(self, call_next: Publish, publication: Publication) -> str:
        return await call_next(Publication(publication.stream, {**publication.content, "by": "stamp"}))


@pytest.fixture
def sync_app(server: ServerProcess) -> Iterator[App]:
    """An app in a program without an event loop."""
    found = App(server.url, registry=False, middlewares=[Stamp()])
    yield found
    found.close_sync()


def test_publishing_from_threads_without_a_loop(sync_app: App, client: redis.Redis) -> None:
    """Any number of threads publish over one connection without an event loop, also after it was closed while idle."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: sync_app.publish_sync("s", {"n": number}, retry=10), range(200)))
    assert {int(fields["n"]) for _, fields in client.xrange("s")} == set(range(200))
    assert {fields["by"] for _, fields in client.xrange("s")} == {"stamp"}
    hang_up(client)
    sync_app.publish_sync("s", {"n": 200})
    assert client.xlen("s") == 201
    assert [one.name for one in threading.enumerate()].count("millstream-publish") == 1
    sync_app.close_sync()
    sync_app.publish_sync("s", {"n": 201})
    assert client.xlen("s") == 202


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"delya": 1}, r"publish_sync\(\) got an .*delya"), ({"delay": "soon"}, "delay="), ({"id": "a"}, "at=")],
)
def test_a_wrong_option_is_refused_in_its_name_before_a_thread_starts(
    sync_app: App, options: dict[str, Any], reason: str
) -> None:
    """A wrong option of a synchronous publish is refused by name, before a thread or connection is opened."""
    before = threading.enumerate()
    with pytest.raises((TypeError, MillstreamError), match=reason):
        sync_app.publish_sync("s", {"n": 1}, **options)
    assert "millstream-publish" not in [one.name for one in threading.enumerate() if one not in before]


async def test_a_batch_with_a_middleware_goes_by_publish_for_each_entry(server: ServerProcess) -> None:
    """With a middleware, ``publish_batch`` calls ``publish`` for each entry.

    The ``key`` function runs for all contents first.
    """
    seen = list[object]()

    class Own(App):
        async def publish(self, stream: str, content: Any, **options: Any) -> Any:
            seen.append((content["n"], options["key"], options["result"]))
            return await super().publish(stream, content, **options)

    def key(content: dict[str, int]) -> str:
        seen.append(content["n"])
        return str(content["n"])

    async with Own(server.url, registry=False, middlewares=[Stamp()]) as app:
        await app.partition("s", 2, by="n")
        jobs = await app.publish_batch("s", [{"n": 1}, {"n": 2}], key=key, result="1m")
        assert seen == [1, 2, (1, "1", "1m"), (2, "2", "1m")]
        assert all(job.stream != "s" for job in jobs)


async def test_a_handler_receives_its_app_by_the_class_and_its_base(server: ServerProcess) -> None:
    """A handler parameter annotated with ``App`` or with the app's own subclass receives the app."""
    seen = asyncio.Queue[object]()

    class Own(App):
        """An app subclass."""

    app = Own(server.url, registry=False)

    @app.subscriber("s")
    async def take(whole: App, own: Own) -> None:
        seen.put_nowait((whole, own))

    async with app.running():
        await app.publish("s", {"n": 1})
        assert await asyncio.wait_for(seen.get(), DEADLINE) == (app, app)


async def test_publishing_so_within_a_loop_says_what_to_do(sync_app: App, client: redis.Redis) -> None:
    """The synchronous publish raises an error inside a coroutine, and the alternative that the error names works."""
    with pytest.raises(UsageError, match=r"await app\.publish"):
        sync_app.publish_sync("s", {"n": 1})
    await asyncio.to_thread(sync_app.publish_sync, "s", {"n": 1})
    assert client.xlen("s") == 1


async def test_a_plain_handler_publishes_so(server: ServerProcess, client: redis.Redis) -> None:
    """A handler in a worker's thread may use the synchronous publish."""
    app = App(server.url, registry=False)

    @app.subscriber("s")
    def handle(n: int) -> None:
        app.publish_sync("t", {"n": n})

    client.xadd("s", {"n": 7})
    async with app.running():
        await aeventually(lambda: client.xlen("t") == 1)


def test_closing_ends_what_waits_for_its_answer() -> None:
    """Closing the app ends a synchronous publish that still waits, with an error."""
    listener, told = socket.create_server(("127.0.0.1", 0)), list[Exception]()
    app = App(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", registry=False)

    def publish() -> None:
        try:
            app.publish_sync("s", {"n": 1}, retry=60)
        except Disconnected as error:
            told.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    listener.accept()[0].close()  # it is trying
    listener.close()
    app.close_sync()
    eventually(lambda: not thread.is_alive())
    assert [str(error) for error in told] == ["the app was closed while it published"]


FORKING = """
import gc, os, sys
import millstream

def connections():
    with millstream.connect(sys.argv[1]) as client:
        own = client.client_id()
        return {row["id"] for row in client.client_list()} - {str(own)}

app = millstream.App(sys.argv[1], registry=False)
others = connections()
app.publish_sync("s", {"by": "parent"})
ours = connections() - others
for what in ("nothing", "publish"):
    child = os.fork()
    if child == 0:
        if what == "publish":
            app.publish_sync("s", {"by": "child"})
        gc.collect()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    app.publish_sync("s", {"by": "parent"})
print(len(ours), "the same" if ours <= connections() else "another")
"""


@pytest.mark.either_server
def test_forked_processes_leave_the_connection_of_their_parent_alone(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A forked child publishes through its own connection and leaves its parent's intact, as with gunicorn."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=25)
    assert (done.returncode, done.stderr) == (0, "")
    assert [fields["by"] for _, fields in client.xrange("s")] == ["parent", "parent", "child", "parent"]
    assert done.stdout == "1 the same\n"


@pytest.mark.parametrize("framework", ["flask", "django"])
def test_the_documents_web_applications_publish(
    framework: str, server: ServerProcess, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented snippets for Flask and Django answer a request with an entry."""
    needs.package(framework)
    monkeypatch.setenv("MILLSTREAM_URL", server.url)
    names: dict[str, object] = {"__name__": "shop"}
    text = block("python", f"from {framework}", page="docs/worker/how-to.md")
    exec(compile(text, framework, "exec"), names)
    if framework == "flask":
        response = names["web"].test_client().post("/orders", json={"id": 7})  # type: ignore[attr-defined] # as printed
        assert response.status_code == 202
        entry = response.json["entry"]
    else:
        from django.conf import settings
        from django.test import RequestFactory

        if not settings.configured:
            settings.configure()

        request = RequestFactory().post("/orders", {"id": 7}, content_type="application/json")
        response = names["order"](request)  # type: ignore[operator] # as printed
        assert response.status_code == 202
        (entry,) = re.findall(r'"entry": "([\d-]+)"', response.content.decode())
    names["app"].close_sync()  # type: ignore[attr-defined] # as printed
    ((found, fields),) = client.xrange("orders")
    assert (found, fields["id"]) == (entry, "7")


def test_a_redis_without_persistence_that_lost_all_is_published_to(tmp_path: object) -> None:
    """Publishing continues after a Redis without persistence restarts empty."""
    with redis_server(tmp_path) as server:  # type: ignore[arg-type] # a Path
        app = App(server.url, registry=False)
        app.publish_sync("s", {"n": 1}, retry=20)
        server.kill()
        server.start()
        app.publish_sync("s", {"n": 2}, retry=20)
        app.close_sync()
        with server.client() as client:
            assert client.xlen("s") == 1
