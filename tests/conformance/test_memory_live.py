"""``maxmemory`` beside a running redis-server: the same commands are refused, at the same point of the checks."""

from collections.abc import Iterator

import pytest

from conformance.refusals import FULL, OOM, OVER, PLACES, READY, Both, lines_of
from millstream.commands.table.table import every
from millstream.server.thread import ServerThread
from support.servers import ServerProcess
from support.waiting import eventually

pytestmark = pytest.mark.realserver

# They end a connection or a server, or make it another's
NOT_SENT = frozenset(
    "shutdown sync psync replicaof slaveof subscribe psubscribe monitor quit reset debug failover multi exec".split()  # noqa: SIM905 - shorter than quoted words
)
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


@pytest.fixture
def servers(each_redis: ServerProcess) -> Iterator[tuple[Both, Both]]:
    """Yield Redis, then Millstream, with a stream, a group and a string."""
    with ServerThread() as server:
        both = Both(each_redis.url), Both(server.url)
        try:
            for each in both:
                # Redis is that of all tests of the session: another may have met a lack of memory
                for line in ("CONFIG RESETSTAT", *READY):
                    each.ask(line)
            yield both
            for line in OVER:
                both[0].ask(line)
        finally:
            for each in both:
                each.close()


def needs_newer(servers: tuple[Both, Both]) -> None:
    """Skip the test for a Redis that behaves in another way."""
    if b"redis_version:7.0" in servers[0].one.ask("INFO", "server"):
        pytest.skip("a Redis of 7.2 or later is the measure here")


@pytest.mark.parametrize("place", PLACES)
def test_the_same_is_refused(servers: tuple[Both, Both], place: str) -> None:
    """Without free memory, each command, transaction and script gets Redis's reply, and INFO counts the same errors."""
    if place in NEWER:
        needs_newer(servers)
    for line in lines_of(place):
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
