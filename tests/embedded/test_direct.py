"""A store without redis-py: the same commands through the same engine, and the behaviour of its calls."""

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import millstream
from millstream.embedded.direct import OpenStore
from millstream.embedded.store import Channel
from millstream.errors import CommandError, ConfigError, Disconnected, LogLockedError, MillstreamError, UsageError
from millstream.persistence.log import Log
from support.source import ROOT
from support.waiting import eventually

LONG = 60_000


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an unused store."""
    return "memory://direct" if request.param == "memory" else (tmp_path / "data").as_uri()


def waiting(store: OpenStore[bytes], readers: int) -> bool:
    """Return True if that many clients wait."""
    return b"blocked_clients:%d\r" % readers in store.execute("INFO", "clients")


@pytest.fixture
def told() -> list[object]:
    """Return a list for the replies of threads."""
    return []


def in_thread(told: list[object], call: Callable[[], object]) -> threading.Thread:
    """Start a thread that keeps the call's reply or error."""

    def run() -> None:
        try:
            told.append(call())
        except MillstreamError as error:
            told.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_journey(url: str) -> None:
    """A store adds, reads, reads as a group and acknowledges; a redis-py client of the same URL sees the same."""
    with millstream.open_store(url) as store, millstream.connect(url) as client:
        ids = [store.xadd("orders", {"item": f"tea {number}", b"price": number}) for number in range(4)]
        fields = [{b"item": b"tea %d" % number, b"price": b"%d" % number} for number in range(4)]
        entries = list(zip(ids, fields, strict=True))
        assert store.xrange("orders") == entries == client.xrange("orders")
        assert store.xrange(b"orders", ids[1], ids[3], count=2) == entries[1:3]
        assert store.xread({"orders": ids[2]}) == {b"orders": entries[3:]}
        assert store.xread({"orders": ids[3]}) == {}
        assert store.xlen("orders") == 4
        assert store.execute("XGROUP", "CREATE", "orders", "billing", "0") == b"OK"
        assert store.xreadgroup("billing", "anna", {"orders": ">"}, count=3) == {b"orders": entries[:3]}
        assert store.xack("orders", "billing", *ids[:2], "5-5") == 2
        client.xdel("orders", ids[2])
        assert store.xreadgroup("billing", "anna", {"orders": "0"}) == {b"orders": [(ids[2], {})]}
        assert store.xreadgroup("billing", "bert", {"orders": ">"}, noack=True) == {b"orders": entries[3:]}
        assert client.xpending("orders", "billing")["pending"] == 1


def test_options_of_adding() -> None:
    """``xadd`` accepts an id and trims exactly or approximately."""
    with millstream.open_store() as store:
        assert [store.xadd("s", {"a": 1}, f"{number}-0", maxlen=3) for number in range(1, 9)][-1] == b"8-0"
        assert store.xlen("s") == 8
        store.xadd("s", {"a": 1}, maxlen=3, approximate=False)
        assert store.xlen("s") == 3
        with pytest.raises(CommandError, match=r"^ERR The ID specified in XADD is equal or smaller"):
            store.xadd("s", {"a": 1}, "1-1")


@pytest.mark.parametrize("count", [0, -1])
def test_no_entries_asked_for_are_none(count: int) -> None:
    """``xrange`` with a count of none returns an empty list, although Redis replies null."""
    with millstream.open_store("memory://") as store:
        store.xadd("s", {"f": "v"})
        assert store.xrange("s", count=count) == []
        assert store.xrange("missing", count=count) == []


def test_replies_may_be_text() -> None:
    """With ``text=True``, ids, keys, names and values are text, and bytes that are not UTF-8 survive a round trip."""
    with millstream.open_store(text=True) as store:
        entry = store.xadd("orders", {"item": "té", "raw": b"\xff"})
        assert store.xread({"orders": "0"}) == {"orders": [(entry, {"item": "té", "raw": "\udcff"})]}
        assert store.execute("HGETALL", "none") == {}
        with pytest.raises(CommandError, match=r"^WRONGTYPE"):
            store.execute("GET", "orders")


def test_text_of_a_reply_can_be_sent_again() -> None:
    """Text of a reply can be sent again as it is. Other text that is not UTF-8 is refused with a clear error."""
    with millstream.open_store(text=True) as store:
        store.execute("XGROUP", "CREATE", b"k\xff", "billing", "0", "MKSTREAM")
        store.xadd(b"k\xff", {b"n\xfe": b"\x80", "item": "té"})
        ((key, [(entry, fields)]),) = store.xreadgroup("billing", "anna", {b"k\xff": ">"}).items()
        assert store.xack(key, "billing", entry) == 1
        assert store.execute("EXISTS", key) == 1
        store.xadd("copy", fields)
        assert [copied for _, copied in store.xrange("copy")] == [fields]
        with pytest.raises(UsageError, match=r"'\\ud800' is text"):
            store.execute("GET", "\ud800")


@pytest.mark.parametrize(
    ("value", "named"), [(None, "NoneType: None"), (True, "bool: True"), ({"a": 1}, "dict: {'a': 1}")]
)
def test_a_value_that_is_no_word_is_named(value: object, named: str) -> None:
    """An argument that cannot be sent is named in the error."""
    with millstream.open_store() as store, pytest.raises(UsageError, match=re.escape(f"number, not {named}")):
        store.xadd("orders", {"item": "tea", "note": value, "price": 2})  # type: ignore[dict-item]  # the point


def test_any_command(url: str) -> None:
    """``execute`` runs any command, returns Python types, and raises Redis's errors. The store continues afterwards."""
    with millstream.open_store(url) as store:
        assert store.execute("SET", "word", 1.5) == b"OK"
        assert store.execute(b"get", "word") == b"1.5"
        assert store.execute("GET", "none") is None
        assert store.execute("HSET", "h", "a", 1, "b", 2) == 2
        assert store.execute("HGETALL", "h") == {b"a": b"1", b"b": b"2"}
        with pytest.raises(CommandError, match=r"^ERR unknown command 'NOSUCH'"):
            store.execute("NOSUCH")
        with pytest.raises(CommandError, match=r"^NOGROUP No such key 'orders'"):
            store.xreadgroup("billing", "anna", {"orders": ">"})
        assert store.execute("EVAL", "return {1, {'two'}}", 0) == [1, [b"two"]]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("SET", "k", None),
        ("XADD", "s", "*", "a", object()),
        ("MULTI",),
        (b"subscribe", "news"),
        ("Select", 1),
        ("CLIENT", "REPLY", "OFF"),
        (b"client", b"reply", b"off"),
        (5, "k"),
    ],
)
def test_what_is_no_command_of_a_store_is_refused(words: tuple[object, ...]) -> None:
    """Commands that change a connection or have no reply are refused by a store."""
    with millstream.open_store() as store:
        with pytest.raises((UsageError, CommandError)):
            store.execute(*words)  # type: ignore[arg-type]  # some are not words
        assert store.execute("PING") == b"PONG"


def test_database_of_the_url() -> None:
    """``?db=`` in the URL selects the database for each connection."""
    with millstream.open_store("memory://many?db=3") as third, millstream.open_store("memory://many") as first:
        third.execute("SET", "word", "x")
        assert (first.execute("GET", "word"), third.execute("GET", "word")) == (None, b"x")


@pytest.mark.parametrize("address", ["redis://localhost", "redis://localhost/0", "memory://a/b", "file://data"])
def test_url_of_no_place_is_refused(address: str) -> None:
    """An invalid URL is refused with one sentence before anything is opened."""
    with pytest.raises(ConfigError):
        millstream.open_store(address)


# ---------------------------------------------------------------------- waiting


def test_blocked_read_is_woken(url: str, told: list[object]) -> None:
    """A blocked read is woken by another thread of the store or by a redis-py client, in the order of waiting."""
    with millstream.open_store(url) as store, millstream.connect(url) as client:
        store.execute("XGROUP", "CREATE", "jobs", "g", "$", "MKSTREAM")
        reader = in_thread(told, lambda: store.xread({"orders": "$"}, block=LONG))
        eventually(lambda: waiting(store, 1), what="the reader waits")
        group = in_thread(told, lambda: store.xreadgroup("g", "c", {"jobs": ">"}, block=LONG))
        eventually(lambda: waiting(store, 2), what="both wait")
        first = store.xadd("orders", {"item": "tea"})
        reader.join(30)
        second = client.xadd("jobs", {"item": "pot"})
        group.join(30)
        assert told == [{b"orders": [(first, {b"item": b"tea"})]}, {b"jobs": [(second, {b"item": b"pot"})]}]
        back = in_thread(told, lambda: client.xread({"orders": "$"}, block=LONG))
        eventually(lambda: waiting(store, 1), what="the client waits")
        third = store.xadd("orders", {"item": "cup"})
        back.join(30)
        assert third in str(told[2]).encode()


def test_blocked_read_times_out(url: str) -> None:
    """A blocked read returns nothing after its timeout."""
    with millstream.open_store(url) as store:
        assert store.xread({"orders": "$"}, block=10) == {}


def test_interrupted_read_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during a blocked call leaves no waiting client, and the next call gets its own reply."""
    with millstream.open_store("memory://stop") as store, millstream.open_store("memory://stop") as other:

        def press() -> None:
            eventually(lambda: waiting(other, 1), what="the reader waits")
            os.kill(os.getpid(), 2)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt) as pressed:
            store.xread({"orders": "$"}, block=LONG)
        thread.join()
        assert waiting(other, 0), "though the exception still holds the call"
        assert pressed.value.__traceback__ is not None
        entry = other.xadd("orders", {"a": "b"})
        assert store.xrange("orders") == [(entry, {b"a": b"b"})]


def test_twenty_threads(url: str) -> None:
    """With twenty threads, each returned id is stored once, and each thread's entries are in its order."""
    added: list[list[bytes]] = [[] for _ in range(20)]

    def write(writer: int) -> None:
        for number in range(25):
            added[writer].append(store.xadd("s", {"writer": writer, "number": number}))
            assert store.xrange("s", added[writer][-1], added[writer][-1]), "a thread sees what it was answered"

    with millstream.open_store(url) as store:
        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = [entry for entry, _ in store.xrange("s")]
    assert sorted(entry for own in added for entry in own) == sorted(stored)
    for own in added:
        assert own == sorted(own, key=stored.index)


# ---------------------------------------------------------------------- the end


def test_closed_store_says_so(url: str, told: list[object]) -> None:
    """Closing a store ends waiting and later calls with an error. A second close does nothing."""
    with millstream.open_store(url) as other:
        store = millstream.open_store(url)
        thread = in_thread(told, lambda: store.xread({"orders": "$"}, block=0))
        eventually(lambda: waiting(other, 1), what="the reader waits")
        store.close()
        thread.join(30)
        assert [(type(each), str(each).partition(":")[0]) for each in told] == [(Disconnected, "this store was closed")]
        with pytest.raises(UsageError, match="open it again"):
            store.xlen("orders")
        store.close()
        assert waiting(other, 0)


def test_last_to_close_lets_the_directory_go(tmp_path: Path) -> None:
    """The last store or redis-py client to close releases the directory."""
    store, client = millstream.open_store(tmp_path.as_uri()), millstream.connect(tmp_path.as_uri())
    store.xadd("s", {"a": "b"})
    client.close()
    with pytest.raises(LogLockedError):
        Log.open(tmp_path)
    store.close()
    Log.open(tmp_path)[0].close()


def test_dropped_store_is_a_closed_one(tmp_path: Path) -> None:
    """A store without references releases its directory and connections."""
    store = millstream.open_store(tmp_path.as_uri())
    store.xadd("s", {"a": "b"})
    del store
    gc.collect()
    assert not any(type(found) is Channel for found in gc.get_objects())
    Log.open(tmp_path)[0].close()


def test_ended_line_is_replaced(url: str) -> None:
    """If SHUTDOWN or CLIENT KILL ends a store's connection, the next call opens a new one."""
    with millstream.open_store(url) as store, millstream.connect(url) as client:
        number = store.execute("CLIENT", "ID")
        assert client.client_kill_filter(_id=number) == 1
        assert store.execute("CLIENT", "ID") > number
        with pytest.raises(Disconnected, match="the store is open"):
            store.execute("SHUTDOWN")
        assert store.execute("PING") == b"PONG"


def test_killed_reader_is_told_what_ended_it(url: str, told: list[object]) -> None:
    """If the connection of a blocked read is killed, the error states this, and the store stays open."""
    with millstream.open_store(url) as store, millstream.connect(url) as client:
        thread = in_thread(told, lambda: store.xread({"orders": "$"}, block=0))
        eventually(lambda: waiting(store, 1), what="the reader waits")
        client.client_kill_filter(_type="normal", skipme=True)
        thread.join(30)
        assert [(type(each), str(each).partition(",")[0]) for each in told] == [
            (Disconnected, "the connection of this call was ended")
        ]
        assert store.xlen("orders") == 0


@pytest.mark.parametrize("used", [True, False])
def test_forked_child_is_told(url: str, used: bool) -> None:
    """A forked child cannot use its parent's store. The parent's store continues."""
    with millstream.open_store(url) as store:
        if used:
            store.xadd("s", {"a": "b"})
        child = os.fork()
        if not child:
            try:
                store.xlen("s")
            except UsageError as error:
                store.close()
                os._exit(0 if re.match("this process was forked", str(error)) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.xlen("s") == used


# ---------------------------------------------------------------------- the document


@pytest.fixture
def example() -> Iterator[str]:
    """Return the program in docs/embedded.md."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "docs/embedded.md").read_text(), re.DOTALL)
    return next(text for text in found if "open_store" in text)


def test_example_of_the_document(example: str, tmp_path: Path) -> None:
    """The program in docs/embedded.md runs as printed, with the test's directory."""
    exec(compile(example.replace("/var/lib/orders", str(tmp_path / "orders")), "docs/embedded.md", "exec"), {})
    with millstream.open_store((tmp_path / "orders").as_uri(), text=True) as store:
        assert [fields["item"] for _, fields in store.xrange("orders")] == ["tea"]
        assert store.execute("XPENDING", "orders", "billing")[0] == 0


def test_both_kinds_of_errors_have_the_same_words() -> None:
    """CommandError has the text of redis-py's ResponseError, with the code before it."""
    with millstream.open_store("memory://words") as store, millstream.connect("memory://words") as client:
        with pytest.raises(redis.ResponseError) as theirs:
            client.execute_command("XADD", "s", "x", "a", "b")
        with pytest.raises(CommandError) as ours:
            store.execute("XADD", "s", "x", "a", "b")
        assert ours.value.line.removeprefix("ERR ") == str(theirs.value)
