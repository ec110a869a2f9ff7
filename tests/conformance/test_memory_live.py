"""``maxmemory`` beside a running redis-server: the same commands are refused, at the same point of the checks."""

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.commands.table.table import every
from millstream.server.thread import ServerThread
from support.servers import ServerProcess
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

OOM = "OOM command not allowed when used memory > 'maxmemory'."
FULL, FREE = "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"
# They end a connection or a server, or make it another's
NOT_SENT = frozenset(
    "shutdown sync psync replicaof slaveof subscribe psubscribe monitor quit reset debug failover multi exec".split()  # noqa: SIM905 - shorter than quoted words
)
PLACES: dict[str, tuple[str, ...]] = {
    "errors come first": ("SET", "SET a", "XADD s", "NOSUCH", "XGROUP NOSUCH"),
    "before the arguments": ("SET a b NX EX 1 nonsense", "XADD k * f v", "XADD s 0-0 f v", "RESTORE k x y"),
    "in a transaction": (
        *("MULTI", "PING", "GET k", "XADD s * f v", "EXEC"),
        *("MULTI", "DISCARD", "MULTI", "EXEC", "MULTI", "DEL k", "XLEN s", "EXEC"),
    ),
    "in a transaction, as bytes": ("MULTI", "SET a 1", "SET a 2", "DISCARD"),
    "queued before": ("other MULTI", "other XADD s * f v", "other GET k", FULL, "other EXEC", "XLEN s"),
    "queued before, and nothing adds": ("other MULTI", "other GET k", "other DEL k", FULL, "other EXEC"),
    "a script queued before": ("other MULTI", "other DEL k", "other EVAL $set 0", FULL, "other EXEC", "EXISTS x"),
    "a flagged script queued before": ("other MULTI", "other EVAL $flags 0", FULL, "other EXEC", "EXISTS x"),
    "a flagged script is not queued": ("MULTI", "EVAL $flags 0", "EVAL $allowed 0", "EXEC"),
    "scripts": (
        *("EVAL $set 0", "EVAL $pcall 0", "EVAL $after 0", "EVAL $reads 0", "EVAL $flags 0", "EVAL $allowed 0"),
        *("EVAL $read_only 0", "EVAL_RO $reads 0", "EVAL $read_only_allowed 0", "EVAL_RO $flags 0", "EVAL $wrong 0"),
        *("SCRIPT LOAD $set", "EVALSHA 8b2ae6dd76cda7fc3e27f97431ae27d7b08a221d 0", "EVAL $stream 0", "EVAL $acked 0"),
    ),
    "rights come first": (
        "ACL SETUSER u on nopass ~a* &* +@all -set",
        *("other AUTH u x", "other SET b 1", "other APPEND a 1", "other AUTH default x"),
    ),
    "before subscriptions": ("other SUBSCRIBE c", "other SET a 1", "other GET a", "other UNSUBSCRIBE c"),
    "before the count of replicas": (
        *("CONFIG SET min-replicas-to-write 3", "SET a 1", "DEL a", "CONFIG SET min-replicas-to-write 0"),
    ),
    "not on a replica": ("REPLICAOF 127.0.0.1 1", "SET a 1", "REPLICAOF NO ONE", "SET a 1"),
    "it is over": ("SET a 1", FREE, "SET a 1", FULL, "SET a 1", "CONFIG SET maxmemory 100gb", "SET a 1"),
    "reads and deletions": (
        *("XLEN s", "XREADGROUP GROUP g c STREAMS s >", "XACK s g 1-1", "XCLAIM s g c 0 1-1", "XDEL s 1-1"),
        *(
            "XTRIM s MAXLEN 0",
            "XGROUP CREATE s h 0",
            "XGROUP CREATECONSUMER s g d",
            "XGROUP SETID s g 0",
            "EXPIRE s 100",
        ),
        *("XGROUP DESTROY s g", "RENAME s t", "COPY t s", "XSETID t 5-5", "MOVE t 1", "PUBLISH c x", "DEL k"),
    ),
}
SCRIPTS = {
    "$set": "return redis.call('set','x','1')",
    "$pcall": "return redis.pcall('set','x','1')",
    "$after": "redis.call('del','nosuch') return redis.call('set','x','1')",
    "$acked": "redis.call('xack','s','nosuch','1-1') return #redis.call('xadd','s','*','f','v') > 0",
    "$stream": "return #redis.call('xadd','s','*','f','v')",
    "$reads": "return redis.call('get','x')",
    "$flags": "#!lua\nreturn redis.call('set','x','1')",
    "$allowed": "#!lua flags=allow-oom\nreturn redis.call('set','y','1')",
    "$read_only": "#!lua flags=no-writes\nreturn redis.call('get','x')",
    "$read_only_allowed": "#!lua flags=no-writes,allow-oom\nreturn redis.call('set','x','1')",
    "$wrong": "#!lua flags=nosuch\nreturn 1",
}
# Redis 7.0 refuses more in a transaction, runs a command that waited without the checks, and words rights otherwise
NEWER = frozenset({"in a transaction", "a flagged script is not queued", "rights come first"})
PARAMETERS = {
    "maxmemory": (
        *(
            "0",
            "1",
            "1b",
            "1k",
            "1kb",
            "1KB",
            "2g",
            "",
            "-1",
            "1.5gb",
            "abc",
            "100%",
            "1 kb",
            "0x10",
            "+5",
            "5 ",
            "1pb",
        ),
        *("9223372036854775807", "9" * 5000),
    ),
    "maxmemory-clients": (
        *("0", "1mb", "5%", "100%", "101%", "0%", "-5%", "5.5%", "%", "-1", "abc", "1kb%", "100gb"),
        *("9" * 5000, "9" * 5000 + "%"),
    ),
    "repl-backlog-size": ("1mb", "-1", "\u00b2", "--5", "5\u212a", "9" * 5000, "9" * 5000 + "kb"),
    "maxmemory-policy": ("noeviction", "NOEVICTION"),
    "replica-ignore-maxmemory": ("yes",),
}


class Both:
    """Two connections to one server."""

    def __init__(self, url: str) -> None:
        self.one, self.other = Wire(url), Wire(url)

    def ask(self, line: str) -> Any:
        """Send one line, by the second connection if it begins with ``other``."""
        wire = self.other if line.startswith("other ") else self.one
        reply = wire.ask(*(SCRIPTS.get(word, word) for word in line.removeprefix("other ").split(" ")))
        return f"{type(reply).__name__} {reply}"


@pytest.fixture
def servers(each_redis: ServerProcess) -> Iterator[tuple[Both, Both]]:
    """Yield Redis, then Millstream, with a stream, a group and a string."""
    with ServerThread() as server:
        both = Both(each_redis.url), Both(server.url)
        try:
            for each in both:
                # Redis is that of all tests of the session: another may have met a lack of memory
                for line in ("CONFIG RESETSTAT", "XADD s 1-1 f v", "XADD s 1-2 f v", "XGROUP CREATE s g 0", "SET k v"):
                    each.ask(line)
            yield both
            for line in (FREE, "CONFIG RESETSTAT", "SCRIPT FLUSH", "ACL DELUSER u"):
                both[0].ask(line)
        finally:
            for each in both:
                each.one.socket.close()
                each.other.socket.close()


def needs_newer(servers: tuple[Both, Both]) -> None:
    """Skip the test for a Redis that behaves in another way."""
    if b"redis_version:7.0" in servers[0].one.ask("INFO", "server"):
        pytest.skip("a Redis of 7.2 or later is the measure here")


@pytest.mark.parametrize("place", PLACES)
def test_the_same_is_refused(servers: tuple[Both, Both], place: str) -> None:
    """Without free memory, each command, transaction and script gets Redis's reply, and INFO counts the same errors."""
    lines = PLACES[place]
    if place in NEWER:
        needs_newer(servers)
    if FULL not in lines[:5]:
        lines = (FULL, *lines)
    for line in lines:
        theirs, ours = (each.ask(line) for each in servers)
        assert ours == theirs, line
    assert len({each.one.ask("INFO", "errorstats").count(b"OOM") for each in servers}) == 1


def test_every_command_has_the_flag_by_which_redis_refuses_it(servers: tuple[Both, Both]) -> None:
    """Without free memory, Millstream refuses the same commands as Redis, for all commands that both have."""
    for each in servers:
        each.ask(FULL)
    refused = []
    for row in every():
        words = row.name.split("|")
        if row.handler is None or words[0] in NOT_SENT or words[0] in {"client", "config", "script", "acl", "function"}:
            continue
        line = " ".join([*words, *["x"] * (abs(row.arity) - len(words))])
        theirs, ours = (each.one.ask(*line.split(" ")) for each in servers)
        theirs, ours = str(theirs), str(ours)
        if "unknown" not in theirs:
            assert (OOM in ours) == (OOM in theirs), line
            refused += [row.name] * (OOM in ours)
    assert {"xadd", "set", "xgroup|create", "copy", "blmove"} <= set(refused)


def test_a_command_that_waited_is_refused(servers: tuple[Both, Both]) -> None:
    """A blocked BLMOVE that is served after memory exceeded its limit is refused and moves nothing."""
    needs_newer(servers)
    replies = []
    for each in servers:
        each.other.send("BLMOVE", "l", "m", "LEFT", "LEFT", "0")
        eventually(lambda each=each: b"blocked_clients:1" in each.one.ask("INFO", "clients"), what="it waits")
        said = each.one.ask_together(
            [["MULTI"], FULL.split(), ["RPUSH", "l", "x"], ["EXEC"], ["LRANGE", "l", "0", "-1"]]
        )
        replies.append([str(each.other.read()), *map(str, said)])
    assert replies[1] == replies[0]
    assert replies[0][0] == OOM


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_parameters_take_the_same_values(servers: tuple[Both, Both], name: str) -> None:
    """CONFIG SET accepts and refuses the same memory parameters with the same errors, and CONFIG GET shows the same."""
    for value in PARAMETERS[name]:
        answers = [
            [each.one.ask("CONFIG", "SET", name, value), each.one.ask("CONFIG", "GET", name)] for each in servers
        ]
        assert str(answers[1]) == str(answers[0]), value
    for each in servers:
        each.one.ask("CONFIG", "SET", "maxmemory-clients", "0")
