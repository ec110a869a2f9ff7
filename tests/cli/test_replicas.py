"""``millstream replicas`` and ``millstream compare``, on a Millstream primary and replica."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.client.line import Line
from millstream.errors import Disconnected
from millstream.migrate.compare_keys import TIMEOUT, compare_servers
from millstream.migrate.errors import LinkError
from millstream.server.thread import ServerThread
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import eventually
from support.wire import Wire


def run(*words: str) -> Result:
    """Run one command line."""
    return CliRunner().invoke(main, words)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Wire, Wire, list[str]]]:
    """A primary, its replica, and the URLs of both."""
    with ServerThread(None) as one, ServerThread(None) as other, Wire(one.url) as primary, Wire(other.url) as replica:
        replica.ask("REPLICAOF", "127.0.0.1", one.url.rpartition(":")[2].partition("/")[0])
        eventually(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"), what="it follows")
        yield primary, replica, [one.url, other.url]


def fill(wire: Wire) -> None:
    """Add every kind of data that is compared."""
    wire.ask("FLUSHALL")
    for at in range(1, 6):
        wire.ask("XADD", "orders", f"{at}-1", "n", str(at))
    wire.ask("XGROUP", "CREATE", "orders", "g", "0")
    wire.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", "3", "STREAMS", "orders", ">")
    wire.ask("XNACK", "orders", "g", "FAIL", "IDS", "1", "2-1")
    wire.ask("XDEL", "orders", "5-1")
    fill_others(wire)


def fill_others(wire: Wire) -> None:
    """Write keys that are not streams."""
    wire.ask("SET", "k", "v", "PXAT", "9999999999999")
    wire.ask("RPUSH", "list", *map(str, range(1500)))
    wire.ask("SADD", "set", "b", "a")
    wire.ask("ZADD", "zset", "1.5", "m", "2", "n")
    wire.ask("HSET", "hash", "f", "v", "g", "w")
    wire.ask("SELECT", "3")
    wire.ask("SET", "elsewhere", "v")
    wire.ask("SELECT", "0")


def test_who_follows_whom(pair: tuple[Wire, Wire, list[str]]) -> None:
    """``replicas`` shows the replica below its primary. A server without an answer is shown, and the exit code is 1."""
    _, _, urls = pair
    shown = run("replicas", *reversed(urls))
    assert shown.exit_code == 0, shown.output
    found = json.loads(run("replicas", *urls, "-o", "json").stdout)
    places = [url.removeprefix("redis://").partition("/")[0] for url in urls]
    assert [(one["server"], one["role"], one["follows"], one["link"]) for one in found] == [
        (places[0], "primary", None, None),
        (places[1], "replica", places[0], "up"),
    ]
    assert found[0]["id"] == found[1]["id"]
    assert (found[1]["copies"], found[1]["problem"]) == (1, None)
    assert found[1]["copied_ms"] is not None
    assert [each["dialect"] for each in found] == ["7.0", "7.0"]
    lines = shown.stdout.splitlines()
    assert [line.startswith("  ") for line in lines if "127.0.0.1" in line] == [False, True]
    nobody = f"redis://127.0.0.1:{free_port()}"
    assert run("replicas", urls[0], nobody).exit_code == 1
    assert run("replicas", nobody).exit_code == 3


def test_a_service_without_sentinels_is_an_end(pair: tuple[Wire, Wire, list[str]]) -> None:
    """A Sentinel URL without a reachable Sentinel is reported as not answering, without a traceback."""
    places = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    shown = run("replicas", pair[2][0], f"redis+sentinel://{places}/orders/0")
    assert (shown.exit_code, "does not answer" in shown.output) == (1, True), (shown.output, shown.exception)


def test_comparing_with_a_frozen_server_ends(pair: tuple[Wire, Wire, list[str]]) -> None:
    """``compare`` with a server that accepts connections but never answers ends."""
    here = pair[2][0]
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"redis://127.0.0.1:{frozen.getsockname()[1]}"
        for urls in ((here, url), (url, here)):
            with pytest.raises(LinkError, match=rf"{url} does not answer .* 0.3 s"):
                compare_servers(*urls, lambda *_: None, timeout=0.3)
        shown = run("compare", here, f"{url}?socket_timeout=0.3")
    assert (shown.exit_code, f"{url}?socket_timeout=0.3 does not answer" in shown.stderr) == (3, True), shown.output
    assert TIMEOUT <= 30


def test_a_frozen_server_is_told_in_words() -> None:
    """A frozen server is reported in words, without the name of a Python class."""

    async def asked(url: str) -> None:
        line = Line(url, timeout=0.3)
        try:
            await line.call("PING")
        finally:
            await line.close()

    with (
        socket.create_server(("127.0.0.1", 0)) as frozen,
        pytest.raises(Disconnected, match=r"it did not answer within 0.3 s"),
    ):
        asyncio.run(asked(f"redis://127.0.0.1:{frozen.getsockname()[1]}"))


def test_equal_servers(pair: tuple[Wire, Wire, list[str]]) -> None:
    """``compare`` of a primary and its replica reports the same data, also for released entries."""
    primary, _, urls = pair
    primary.ask("CONFIG", "SET", "repl-annotate", "never")  # which would tell a replica of ours who released what
    fill(primary)
    assert primary.ask("WAIT", "1", "20000") == 1
    found = run("compare", *urls)
    assert (found.exit_code, found.stdout) == (0, "Both hold the same data.\n"), found.output
    assert "0 of 7 keys differ" in found.stderr


@pytest.mark.realserver
def test_what_differs_is_named(pair: tuple[Wire, Wire, list[str]], real_redis: ServerProcess) -> None:
    """``compare`` of a Millstream server and a Redis names each different key and its difference, and no equal ones."""
    primary, _, urls = pair
    fill(primary)
    primary.ask("XACK", "orders", "g", "1-1", "2-1")  # what is left pending is put into the other below
    changes = [
        ("XADD", "orders", "6-1", "n", "9"),
        ("SET", "k", "v"),
        ("RPUSH", "list", "more"),
        ("SADD", "set", "c"),
        ("ZADD", "zset", "1.25", "m"),
        ("DEL", "hash"),
    ]
    with Wire(real_redis.url) as other:
        other.ask("FLUSHALL")
        fill_others(other)
        for at in range(1, 6):
            other.ask("XADD", "orders", f"{at}-1", "n", str(at))
        other.ask("XDEL", "orders", "5-1")
        other.ask("XGROUP", "CREATE", "orders", "g", "3-1", "ENTRIESREAD", "3")
        owned = primary.ask("XPENDING", "orders", "g", "-", "+", "9")
        assert [row[:2] for row in owned] == [[b"3-1", b"c"]]
        full = primary.ask("XINFO", "STREAM", "orders", "FULL")
        delivered = full[full.index(b"groups") + 1][0]
        record = delivered[delivered.index(b"pending" if b"pending" in delivered else b"pel") + 1][0]
        other.ask(
            "XCLAIM", "orders", "g", "c", "0", "3-1", "TIME", str(record[2]), "RETRYCOUNT", "1", "FORCE", "JUSTID"
        )
        same = run("compare", urls[0], real_redis.url)
        assert same.exit_code == 0, same.output
        for words in changes:
            other.ask(*words)
        found = run("compare", urls[0], real_redis.url, "-o", "json")
        other.ask("FLUSHALL")
    assert found.exit_code == 1, found.output
    told = json.loads(found.stdout)
    assert told["keys"] == 7
    assert [one["key"] for one in told["different"]] == ["hash", "k", "list", "orders", "set", "zset"]
    whole = {one["key"]: " ".join(one["what"]) for one in told["different"]}
    assert whole["hash"] == "is missing in the copy"
    assert whole["k"] == "ends at 9999999999999 at the source, never in the copy"
    assert "entry '6-1' is only in the copy" in whole["orders"]
    assert "item 1 is (b'm', 1.5) at the source, (b'm', 1.25) in the copy" in whole["zset"]


def test_a_server_that_is_not_there_is_three(pair: tuple[Wire, Wire, list[str]]) -> None:
    """An unreachable server ends with code 3."""
    assert run("compare", pair[2][0], f"redis://127.0.0.1:{free_port()}").exit_code == 3


def test_handing_over_the_role(pair: tuple[Wire, Wire, list[str]]) -> None:
    """``failover`` hands the role over and back, with the new primary's address.

    A replica refuses, as does a missing yes.
    """
    primary, replica, urls = pair
    places = [url.removeprefix("redis://").partition("/")[0] for url in urls]
    assert run("failover", urls[0]).exit_code == 2  # no terminal to confirm at
    assert run("failover", urls[0], "--to", "nowhere", "--yes").exit_code == 2
    assert run("failover", urls[1], "--yes").exit_code == 5
    for at, old in enumerate((primary, replica)):
        new = places[1 - at]
        eventually(lambda wire=old: b"state=online" in wire.ask("INFO", "replication"), what="it has a replica")
        done = run("failover", urls[at], "--to", new, "--yes")
        assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, f"{new} is the primary now"), done.output
        assert str(old.ask("SET", "k", "v")).startswith("READONLY")
    assert primary.ask("SET", "k", "v") == b"OK"


def test_a_handing_over_says_what_is_done(pair: tuple[Wire, Wire, list[str]]) -> None:
    """``failover`` reports its steps in words. A refusal gives the server's state."""
    primary, replica, urls = pair
    at = urls[1].removeprefix("redis://").partition("/")[0]
    eventually(lambda: b"state=online" in primary.ask("INFO", "replication"), what="it has a replica")
    done = run("failover", urls[0], "--yes")
    assert (done.exit_code, "no-failover" in done.output, f"{at} is the primary now" in done.output) == (0, False, True)
    assert f"it follows {at}: give the URL of the primary" in run("failover", urls[0], "--yes").output
    eventually(lambda: b"state=online" in replica.ask("INFO", "replication"), what="it has a replica")
    assert run("failover", urls[1], "--yes").exit_code == 0
    with ServerThread(None) as alone:
        refused = run("failover", alone.url, "--yes")
        assert (refused.exit_code, "it has no replicas" in refused.output) == (5, True), refused.output


def test_a_handing_over_that_fails_names_who_lags() -> None:
    """A failover to a replica that does not catch up fails with the missing bytes. Writes are accepted again."""
    with ServerThread(None) as one, ServerThread(None) as other, Wire(one.url) as primary, Wire(other.url) as replica:
        replica.ask("REPLICAOF", "127.0.0.1", one.url.rpartition(":")[2].partition("/")[0])
        eventually(lambda: b"state=online" in primary.ask("INFO", "replication"), what="it has a replica")
        replica.ask("CLIENT", "PAUSE", "1000000", "WRITE")
        primary.ask("SET", "k", "v")
        failed = run("failover", one.url, "--timeout", "300ms", "--yes")
        assert failed.exit_code == 1, failed.output
        place = other.url.removeprefix("redis://").partition("/")[0]
        assert f"no replica caught up in time: {place} lacked" in failed.output
        assert "bytes and was last heard from" in failed.output
        assert primary.ask("SET", "k", "w") == b"OK"


def test_a_handing_over_without_masterauth_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``failover`` warns of a missing masterauth before and after. With the setting it works."""
    with ServerThread(None) as one, ServerThread(None) as other, Wire(one.url) as primary, Wire(other.url) as replica:
        for wire in (primary, replica):
            wire.ask("CONFIG", "SET", "requirepass", "pw")
            wire.ask("AUTH", "pw")
        replica.ask("CONFIG", "SET", "masterauth", "pw")
        replica.ask("REPLICAOF", "127.0.0.1", one.url.rpartition(":")[2].partition("/")[0])
        eventually(lambda: b"state=online" in primary.ask("INFO", "replication"), what="it has a replica")
        config = tmp_path / "millstream/config.toml"
        config.parent.mkdir()
        config.write_text(f'[contexts.one]\nurl = "{one.url}"\npassword-env = "PW"\n')
        config.chmod(0o600)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("PW", "pw")
        asked = run("failover", "context:one")
        assert (asked.exit_code, "requires a password and has no masterauth" in asked.output) == (2, True)
        failed = run("failover", "context:one", "--yes")
        assert failed.exit_code == 1, failed.output
        last = failed.output.splitlines()[-1]
        assert "no replica took the role, and this server accepts writes again" in last
        assert "masterauth is empty here" in last
        assert "`CONFIG SET masterauth PASSWORD`" in last
        primary.ask("CONFIG", "SET", "masterauth", "wrong")
        eventually(lambda: b"state=online" in primary.ask("INFO", "replication"), what="it has a replica again")
        wrong = run("failover", "context:one", "--yes").output
        assert ("Where that is WRONGPASS" in wrong, "has no masterauth" in wrong) == (True, False), wrong
        primary.ask("CONFIG", "SET", "masterauth", "pw")
        eventually(lambda: b"state=online" in primary.ask("INFO", "replication"), what="it has a replica again")
        done = run("failover", "context:one", "--yes")
        assert (done.exit_code, "masterauth" in done.output) == (0, False), done.output


def test_where_sentinel_watches_it_hands_over(pair: tuple[Wire, Wire, list[str]]) -> None:
    """``failover`` is refused where Sentinel is watching, also with --yes, and prints the Sentinel command.

    A real Sentinel is at work in tests/docs/test_sentinel_page.py.
    """
    primary, _, (url, _) = pair
    assert "Sentinel" not in run("failover", url).output
    with Wire(url) as sentinel:
        sentinel.ask("SUBSCRIBE", "__sentinel__:hello")
        done = run("failover", url, "--yes")
        assert (done.exit_code, "-h SENTINEL -p 26379 SENTINEL FAILOVER NAME`" in done.output) == (2, True), done.output
    done = run("failover", "redis+sentinel://10.0.0.9:5000,10.0.0.8/orders/0", "--yes")
    assert (done.exit_code, "`redis-cli -h 10.0.0.9 -p 5000 SENTINEL FAILOVER orders`" in done.output) == (2, True)
    assert b"role:master" in primary.ask("INFO", "replication")


def test_no_password_is_on_the_command_line() -> None:
    """A password in a URL on the command line is refused without repeating it, with the alternatives."""
    url = f"redis://:s3cret@127.0.0.1:{free_port()}"
    for words in (["replicas", url], ["doctor", url], ["compare", url, url], ["failover", url, "--yes"]):
        done = run(*words)
        assert (done.exit_code, "s3cret" in done.output) == (2, False), (words, done.output)
        assert "which all users of this machine can see (ps)" in done.output
    doctor = ["doctor", "redis://127.0.0.1:1", "--replica", url]
    assert run(*doctor).exit_code == 2


class Nonsense:
    """A server that answers everything with the same bytes.

    Args:
        reply: the bytes.
    """

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with contextlib.suppress(OSError), client:
                    reader = hiredis.Reader()
                    while data := client.recv(65536):
                        reader.feed(data)
                        while reader.gets() is not False:
                            client.sendall(self._reply)

    def __enter__(self) -> "Nonsense":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


_INFO = b"role:\x1b[2Jx\r\nmaster_replid:\x1b[2J\r\nslave0:ip=\x1b[2J,port=x,state=\x1b[2J\xff,offset=-1,lag=z\r\n"


@pytest.mark.parametrize(
    "reply", [b":42\r\n", b"$-1\r\n", b"+OK\r\n", b"*1\r\n:1\r\n", b"$%d\r\n%b\r\n" % (len(_INFO), _INFO)]
)
def test_what_answers_nonsense_is_told_of_in_a_line(pair: tuple[Wire, Wire, list[str]], reply: bytes) -> None:
    """A server with nonsense replies is one printable line, without a traceback or an endless loop."""
    ours = pair[2][0]
    pair[0].ask("FLUSHALL")
    with Nonsense(reply) as other:
        for words, codes in (
            (["replicas", ours, other.url], {0}),
            (["compare", ours, other.url], {1}),
            (["compare", other.url, ours], {1}),
            (["failover", other.url, "--yes"], {5}),
        ):
            result = run(*words)
            assert result.exit_code in codes, (words, result.output)
            assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
            assert result.output.replace("\n", "").isprintable()
            assert words[0] != "compare" or "has sent a reply that no Redis sends" in result.output


def test_an_answer_that_cannot_be_read_is_an_end(pair: tuple[Wire, Wire, list[str]]) -> None:
    """A reply that cannot be parsed ends the command with that reason."""
    with Nonsense(b"%1\r\n*1\r\n:1\r\n:2\r\n") as other:
        shown = run("replicas", pair[2][0], other.url)
        assert (shown.exit_code, "its answer cannot be read" in shown.output) == (1, True), shown.output
        assert run("failover", other.url, "--yes").exit_code == 3


def test_names_are_resolved_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host names of several servers are resolved at the same time."""
    real, together = socket.getaddrinfo, threading.Barrier(3, timeout=20)

    def slow(host: str, port: object, *words: Any, **options: Any) -> Any:
        if port is None:  # not of a connection
            together.wait()
        return real(host, port, *words, **options)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    port = free_port()
    shown = run("replicas", *(f"redis://127.0.0.{number}:{port}" for number in (1, 2, 3)))
    assert shown.exit_code == 3, shown.output
