"""The lifetime of a store: its sharing, its closing, and the garbage collector."""

import gc
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import millstream
from millstream.clock import ManualClock
from millstream.embedded import guard
from millstream.embedded.guard import Guard, Helper, outside
from millstream.embedded.place import parse_place
from millstream.embedded.store import Channel
from millstream.embedded.stores import Lease
from millstream.errors import ConfigError, UsageError
from millstream.persistence.log import Log
from support.waiting import DEADLINE, eventually


def store_threads() -> int:
    """Return the number of running store threads."""
    return sum(thread.name == "millstream-embedded" for thread in threading.enumerate())


def channels() -> int:
    """Return the number of connections to stores in memory, including closed ones."""
    return sum(type(found) is Channel for found in gc.get_objects())


def test_memory_without_a_name_is_private() -> None:
    """Two clients of ``memory://`` have separate data, and the connections of one client share it."""
    with millstream.connect() as first, millstream.connect("memory://") as second:
        first.set("word", "x")
        assert second.get("word") is None
        with first.pubsub() as listener:  # a second connection
            listener.subscribe("news")
            assert first.publish("news", "x") == 1
        first.close()
        assert first.get("word") == b"x", "its data lives as long as the client"


def test_memory_with_a_name_is_shared_until_the_last_closes() -> None:
    """A named memory store is shared until its last client closes. Later use is an error, and the name starts empty."""
    first, second = millstream.connect("memory://shared"), millstream.connect("memory://shared")
    first.set("word", "x")
    first.close()
    assert second.get("word") == b"x"
    assert first.get("word") == b"x", "still there, so the closed client may be used on"
    first.close()
    second.close()
    with pytest.raises(UsageError, match="closed by its last client, and its data is lost"):
        second.get("word")
    with millstream.connect("memory://shared") as third:
        assert third.get("word") is None


@pytest.mark.parametrize("where", ["memory://ends", "file"])
def test_a_closed_store_leaves_no_thread(where: str, tmp_path: Path) -> None:
    """A closed store leaves no thread."""
    url = where if where != "file" else f"file://{tmp_path}/data"
    before = store_threads()
    for _ in range(20):
        with millstream.connect(url) as client:
            client.set("word", "x", ex=100)
            client.xadd("orders", {"item": "lamp"})
    assert store_threads() == before


async def test_last_asyncio_client_closes_too() -> None:
    """A named memory store ends with its last asyncio client, and later use raises redis-py's error."""
    client = millstream.connect_async("memory://async")
    await client.set("word", "x")
    await client.aclose()
    with pytest.raises(redis.ConnectionError, match="its data is lost"):
        await client.get("word")


def test_last_client_lets_the_directory_go(tmp_path: Path) -> None:
    """The last client releases the directory. A client that is used again opens it with all its data."""
    url = tmp_path.as_uri()
    first, second = millstream.connect(url), millstream.connect(f"{url}?db=1")
    entry = first.xadd("s", {"a": "b"})
    first.close()
    assert second.exists("s") == 0
    second.close()
    assert store_threads() == 0
    log, recovery = Log.open(tmp_path)
    assert len(list(recovery.payloads())) == log.durable == 1
    log.close()
    assert first.xrange("s") == [(entry, {b"a": b"b"})]
    first.close()


def test_paths_to_one_directory_are_one_store(tmp_path: Path) -> None:
    """Different paths to one directory are one store."""
    (tmp_path / "link").symlink_to(tmp_path / "data")
    urls = [(tmp_path / "data").as_uri(), (tmp_path / "link").as_uri(), f"{tmp_path.as_uri()}/x/../data"]
    clients = [millstream.connect(url) for url in urls]
    clients[0].set("word", "x")
    assert [client.get("word") for client in clients] == [b"x"] * 3
    for client in clients:
        client.close()


def test_other_fsync_is_refused(tmp_path: Path) -> None:
    """Opening a directory twice with different fsync settings is refused."""
    url = tmp_path.as_uri()
    refused = pytest.raises(ConfigError, match="is open in this process with fsync=no")
    with millstream.connect(f"{url}?fsync=no"), millstream.connect(url), refused:
        millstream.connect(f"{url}?fsync=always")


def test_fsync_is_a_keyword_too(tmp_path: Path) -> None:
    """Both clients and ``open_store`` take it; a second or unknown value, or one for memory, is refused."""
    url = tmp_path.as_uri()
    with millstream.connect(url, fsync="no") as client, millstream.open_store(url, fsync="no"):
        assert client.config_get("appendfsync") == {"appendfsync": "no"}
    for wrong, options, reason in (
        (f"{url}?fsync=no", {"fsync": "no"}, "fsync is in the URL and among the keywords"),
        (url, {"fsync": "often"}, "the keyword fsync is invalid: its value is unknown"),
        ("memory://", {"fsync": "no"}, "the keyword fsync is invalid: memory:// has no files"),
    ):
        with pytest.raises(ConfigError, match=reason):
            millstream.connect(wrong, **options)
        with pytest.raises(ConfigError, match=reason):
            millstream.connect_async(wrong, **options)


def test_a_url_takes_names_with_underscores(tmp_path: Path) -> None:
    """An option has the same name in a URL as among the keywords, or the one of CONFIG."""
    for name in ("tier_hot", "tier-hot"):
        with millstream.connect(f"{tmp_path.as_uri()}?{name}=1mb") as client:
            assert client.config_get("tier-hot") == {"tier-hot": "1048576"}


def test_dropped_client_is_a_closed_one(tmp_path: Path) -> None:
    """A client without references releases the directory, even from a reference cycle."""
    client = millstream.connect(tmp_path.as_uri())
    client.xadd("s", {"a": "b"})
    cycle = [client]
    cycle.append(cycle)  # type: ignore[arg-type]  # a list that holds itself, for the collector
    del client, cycle
    gc.collect()
    log, _ = Log.open(tmp_path)
    log.close()
    assert store_threads() == 0


def test_closed_connection_is_freed_without_the_collector() -> None:
    """A closed connection is freed at once, without the garbage collector."""
    with millstream.connect("memory://freed") as client:
        client.ping()
        gc.collect()
        before = channels()
        gc.disable()
        try:
            with millstream.connect("memory://freed") as other:
                other.set("word", "x")
                assert channels() == before + 1
            del other
            assert channels() == before
        finally:
            gc.enable()


def test_close_wakes_who_waits() -> None:
    """Closing a store wakes blocked threads with an error."""
    client, told = millstream.connect(), []

    def wait() -> None:
        try:
            client.xread({"s": "$"}, block=0)
        except redis.ConnectionError as error:
            told.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: client.info("clients")["blocked_clients"] == 1, what="the reader waits")
    client.close()
    thread.join(30)
    assert len(told) == 1


def test_shutdown_ends_every_connection() -> None:
    """SHUTDOWN ends all connections, and the store lives as long as its clients."""
    with millstream.connect("memory://down") as client, millstream.connect("memory://down") as other:
        other.set("word", "x")
        client.shutdown()
        assert client.get("word") == b"x"


def test_too_many_clients_are_refused() -> None:
    """``maxclients`` limits the connections of a store."""
    with millstream.connect("memory://few") as client:
        client.config_set("maxclients", 1)
        with millstream.connect("memory://few") as other, pytest.raises(redis.ConnectionError, match="max number"):
            other.ping()


def test_subscriber_that_takes_nothing_is_cut() -> None:
    """A subscriber that reads nothing is disconnected at the output buffer limit."""
    with millstream.connect() as client, client.pubsub() as listener:
        client.config_set("client-output-buffer-limit", "pubsub 1mb 0 0")
        listener.subscribe("news")
        for _ in range(20):
            client.publish("news", "x" * 100_000)
        assert client.pubsub_numsub("news") == [(b"news", 0)]


def test_password_is_asked_for() -> None:
    """``requirepass`` applies to clients in the process."""
    with millstream.connect("memory://secret") as client:
        client.config_set("requirepass", "open sesame")
        with millstream.connect("memory://secret", password="open sesame") as other:
            assert other.ping()
        with millstream.connect("memory://secret") as other, pytest.raises(redis.AuthenticationError):
            other.get("word")


def test_broken_bytes_end_the_connection() -> None:
    """Input that is not RESP gets Redis's error, and the connection ends."""
    with millstream.connect() as client:
        connection = client.connection_pool.get_connection()
        connection.send_packed_command([b"*1\r\nPING\r\n"])
        with pytest.raises(redis.ResponseError, match=r"Protocol error: expected '\$', got 'P'"):
            connection.read_response()
        with pytest.raises(redis.ConnectionError):
            connection.read_response()
        client.connection_pool.release(connection)
        assert client.ping()


def test_what_is_dropped_inside_a_guard_is_closed_outside() -> None:
    """An object dropped inside a guard is closed after the thread has left all guards."""
    first, second, closed = Guard(), Guard(), []
    with first:
        with second:
            outside(lambda: closed.append("late"))
            assert closed == []
        assert closed == []
    assert closed == ["late"]
    outside(lambda: closed.append("now"))
    assert closed == ["late", "now"]


def test_failed_closing_is_logged_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """If closing a dropped object fails, the error is logged and other closings follow."""
    closed: list[str] = []

    def fail() -> None:
        raise OSError("the medium is gone")

    with Guard():
        outside(fail)
        outside(lambda: closed.append("next"))
    assert closed == ["next"]
    assert "the medium is gone" in caplog.text


def test_the_collector_in_a_starting_helper_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store dropped in a starting helper thread is closed by the thread that starts it, outside its guard."""
    inner, closed = Guard(), list[int]()

    def close() -> None:
        with inner:
            closed.append(threading.get_ident())

    known_as = threading.Thread._set_ident  # type: ignore[attr-defined] # the first step of every thread  # noqa: SLF001 - no public call gives a thread another number

    def collected(thread: threading.Thread) -> None:
        known_as(thread)
        if isinstance(thread, Helper):
            outside(close)

    monkeypatch.setattr(threading.Thread, "_set_ident", collected)

    def start() -> None:
        with inner:
            Helper(target=lambda: None).start()

    starter = threading.Thread(target=start, daemon=True)
    starter.start()
    starter.join(DEADLINE)
    assert closed == [starter.ident]


def test_what_is_dropped_by_a_helper_is_closed_by_another() -> None:
    """An object dropped in a helper thread is closed by another thread."""
    closed: list[str] = []

    def help_out() -> None:
        outside(lambda: closed.append(threading.current_thread().name))
        with Guard():
            pass
        guard.catch_up()

    thread = Helper(target=help_out, name="helper")
    thread.start()
    thread.join()
    assert closed == []
    with Guard():
        pass
    assert closed == [threading.current_thread().name]


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("memory://a/b", "memory:// takes a name"),
        ("memory://a?fsync=no", r"memory:// has no options but db, maxmemory and stream-retention\. Remove fsync\."),
        ("memory://?db=16", "db is not a number from 0 to 15"),
        ("memory://?db=x", "db is not a number from 0 to 15"),
        ("file://data", "absolute path"),
        ("file:///", "absolute path"),
        ("file://", "absolute path"),
        ("file:///tmp/x?fsync=sometimes", "Write always, everysec or no"),
        ("file:///tmp/x?colour=red", r"has no options but db, fsync, maxmemory, tier.*\. Remove colour\."),
        ("file:///tmp/x?s3cret=", r"\. Remove the other\."),
        ("http://x", "a server URL starts with one of"),
    ],
)
def test_urls_that_mean_nothing_are_refused(url: str, match: str) -> None:
    """An invalid URL is refused with one sentence before anything is opened."""
    with pytest.raises(ConfigError, match=match):
        millstream.connect(url)


def test_a_thread_may_be_told_to_close_while_its_state_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection during the creation of a thread's state loses no closing."""
    done: list[str] = []

    def collected() -> deque[Callable[[], None]]:
        monkeypatch.undo()
        with Guard():
            outside(lambda: done.append("closed"))
        return deque()

    def take() -> None:
        with Guard():
            outside(lambda: done.append("put off"))
            done.append("inside")

    monkeypatch.setattr(guard, "deque", collected)
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert done[0] == "inside"
    assert sorted(done[1:]) == ["closed", "put off"]


def test_call_within_a_call_is_refused() -> None:
    """A call within a running command of the same thread, as from a signal handler, is refused."""
    refused: list[str] = []

    class Interrupted(ManualClock):
        def wall_time(self) -> int:
            for call in calls:
                with pytest.raises(UsageError) as error:
                    call()
                refused.append(str(error.value))
            return super().wall_time()

    calls: list[Callable[[], object]] = []
    lease = Lease(parse_place("memory://within"), clock=Interrupted())
    with millstream.open_store("memory://within") as store, millstream.connect("memory://within") as client:
        client.ping()
        calls += [lambda: client.xlen("s"), lambda: store.xlen("s")]
        assert store.xadd("s", {"a": "b"})
        calls.clear()
        assert (client.xlen("s"), store.xlen("s")) == (1, 1)
    lease.give_up()
    assert len(refused) >= 2  # the core in Python reads the clock more than once
    assert all("a signal's handler" in text for text in refused)
