"""CLIENT REPLY OFF and SKIP with messages: the bytes of redis-server."""

import random
import re

import pytest

from millstream.protocol.reader import CommandReader
from millstream.server.thread import ServerThread
from support import campaign
from support.inprocess import World
from support.plain import answered
from support.servers import ServerProcess
from support.waiting import eventually
from support.wire import Wire, pack

OFF, SKIP, ON = (pack("CLIENT", "REPLY", word) for word in ("OFF", "SKIP", "ON"))
JOIN, LEAVE = pack("SUBSCRIBE", "a", "b"), pack("UNSUBSCRIBE", "a")


def heard(url: str, version: int, sent: bytes) -> bytes:
    """Return everything that a server sends to these bytes, and to a PING and QUIT after them."""
    with Wire(url, version) as wire:
        wire.socket.sendall(sent + ON + pack("RESET") + pack("PING", "end"))
        data = b""
        while b"$3\r\nend\r\n" not in data:
            more = wire.socket.recv(65536)
            assert more, data
            data += more
        return data


@pytest.mark.realserver
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(OFF + JOIN, id="off"),
        pytest.param(SKIP + JOIN + LEAVE, id="skip"),
        pytest.param(OFF + JOIN + LEAVE + pack("UNSUBSCRIBE"), id="leave"),
        pytest.param(OFF + pack("PSUBSCRIBE", "p*") + pack("PUNSUBSCRIBE"), id="patterns"),
        pytest.param(OFF + pack("UNSUBSCRIBE"), id="none"),
        pytest.param(OFF + pack("SUBSCRIBE"), id="refused"),
        pytest.param(OFF + JOIN + pack("PING"), id="ping"),
        pytest.param(SKIP + pack("GET", "x") + JOIN, id="used up"),
        pytest.param(SKIP + pack("RESET") + pack("PING"), id="reset"),
        pytest.param(OFF + pack("RESET") + pack("PING"), id="reset all"),
        pytest.param(OFF + pack("MULTI") + pack("SET", "x", 1) + JOIN + pack("EXEC"), id="exec"),
    ],
)
def test_confirmations_are_sent_to_who_wants_no_replies(each_redis: ServerProcess, version: int, sent: bytes) -> None:
    """CLIENT REPLY OFF and SKIP do not silence confirmations of SUBSCRIBE and its kin, as in Redis."""
    with ServerThread() as server:
        assert heard(server.url, version, sent) == heard(each_redis.url, version, sent)


def mixed(seed: int) -> list[bytes]:
    """Return commands, many of which switch replies on or off, in transactions and outside."""
    chance = random.Random(seed)
    plain = [b"SET k 1", b"GET k", b"GET none", b"PING", b"XLEN s", b"XADD s * f v", b"XRANGE none - +"]
    others = [b"INCR n", b"GET", b"NOSUCH", b"LPUSH k 1", b"EVAL return\t1 0", b"SELECT 0", b"WATCH k", b"SUBSCRIBE a"]
    modes = [b"CLIENT REPLY " + mode for mode in (b"ON", b"OFF", b"SKIP", b"SKIP", b"SKIP", b"NONSENSE")]
    ends = [b"MULTI", b"MULTI", b"EXEC", b"DISCARD"]
    lines = chance.choices([plain, others, modes, ends], (10, 2, 3, 3), k=chance.choice((5, 20, 60)))
    picked = [chance.choice(kind) for kind in lines]
    return [b"XLEN s" if line == b"XADD s * f v" and chance.randrange(3) else line for line in picked]


def packed(line: bytes) -> bytes:
    return pack(*(word.replace(b"\t", b" ") for word in line.split(b" ")))


def without_ids(data: bytes) -> bytes:
    """Return bytes without ids, which depend on the clock."""
    return re.sub(rb"\$\d+\r\n\d{13}-\d+\r\n", b"<id>", data)


def answers(url: str, version: int, lines: list[bytes]) -> bytes:
    """Return the bytes that a fresh server sends to commands in one piece."""
    with Wire(url) as wire:
        wire.ask("FLUSHALL")
        wire.ask("XADD", "s", "1-1", "f", "v")
    return without_ids(heard(url, version, b"".join(map(packed, lines)) + pack("DISCARD")))


def both_ways(lines: list[bytes]) -> tuple[bytes, bytes]:
    """Return the replies of a node that runs plain commands together, and of one that runs all one by one."""
    found = []
    for together in (True, False):
        world, reader = World(), CommandReader()
        session = world.client().session
        reader.feed(b"".join(map(packed, [b"XADD s 1-1 f v", *lines])))
        if together:
            replies = b"".join(answer for answer, _ in answered(world.node, session, reader, world.clock.now()))
        else:
            outcomes = [world.node.execute(session, words, world.clock.now()) for words in iter(reader.next, None)]
            replies = b"".join(b"".join(each.buffers) for each in outcomes if each is not None)
        found.append(replies)
    return found[0], found[1]


def compare(ours: str, theirs: str, seed: int) -> None:
    """Send the same commands in one piece to both servers, and to ours both ways; compare the replies."""
    lines = mixed(seed)
    version = 2 + seed % 2
    one, other = both_ways(lines)
    assert one == other, (seed, lines)
    assert answers(ours, version, lines) == answers(theirs, version, lines), (seed, lines)


@pytest.mark.realserver
def test_who_wants_replies_is_as_in_redis_among_plain_commands(each_redis: ServerProcess) -> None:
    """CLIENT REPLY, mixed with plain commands and transactions, has Redis's effect in 60 conversations."""
    with ServerThread() as server:
        for seed in range(60):
            compare(server.url, each_redis.url, seed)


@pytest.mark.long
@pytest.mark.realserver
@pytest.mark.timeout(campaign.LIMIT)
def test_who_wants_replies_is_as_in_redis_in_many_conversations(each_redis: ServerProcess) -> None:
    """CLIENT REPLY, mixed with plain commands and transactions, has Redis's effect in 10,000 conversations."""
    with ServerThread() as server:
        campaign.run(
            f"muted-{each_redis.release()[0]}",
            lambda piece: [compare(server.url, each_redis.url, seed) for seed in range(piece * 100, piece * 100 + 100)],
            range(1, 101),
        )


WAITS = {
    "BLPOP": (("BLPOP", "k", 0), ("RPUSH", "k", "v")),
    "BRPOP": (("BRPOP", "k", 0), ("RPUSH", "k", "v")),
    "BLMOVE": (("BLMOVE", "k", "d", "LEFT", "LEFT", 0), ("RPUSH", "k", "v")),
    "BLMPOP": (("BLMPOP", 0, 1, "k", "LEFT"), ("RPUSH", "k", "v")),
    "BZPOPMIN": (("BZPOPMIN", "k", 0), ("ZADD", "k", 1, "v")),
    "BZMPOP": (("BZMPOP", 0, 1, "k", "MIN"), ("ZADD", "k", 1, "v")),
    "XREAD": (("XREAD", "BLOCK", 0, "STREAMS", "k", "$"), ("XADD", "k", "*", "f", "v")),
    "XREADGROUP": (("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">"), ("XADD", "s", "*", "f", "v")),
    "time is up": (("BLPOP", "k", "0.01"), ()),
    "XREAD's time is up": (("XREAD", "BLOCK", 10, "STREAMS", "k", "$"), ()),
    "WAIT": (("WAIT", 1, 10), ()),
    "WAITAOF": (("WAITAOF", 0, 1, 10), ()),
    "destroyed": (("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">"), ("DEL", "s")),
    "unblocked": (("BLPOP", "k", 0), ("CLIENT", "UNBLOCK", "id", "ERROR")),
    "unblocked as by time": (("XREAD", "BLOCK", 0, "STREAMS", "k", "$"), ("CLIENT", "UNBLOCK", "id")),
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("mode", [OFF, SKIP], ids=["off", "skip"])
@pytest.mark.parametrize(("wait", "end"), WAITS.values(), ids=list(WAITS))
def test_commands_go_on_after_a_silent_wait(
    wait: tuple[str | int, ...], end: tuple[str | int, ...], mode: bytes, version: int
) -> None:
    """After a blocked command under CLIENT REPLY OFF ends, the connection's next commands run."""
    with ServerThread() as server, Wire(server.url, version) as wire, Wire(server.url) as other:
        other.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        number = wire.ask("CLIENT", "ID")
        wire.socket.sendall(mode + pack(*wait) + pack("SET", "after", "1"))
        if end:
            eventually(lambda: "blocked_clients:1\r" in other.ask("INFO", "clients").decode(), what="it waits")
            other.ask(*(number if word == "id" else word for word in end))
        eventually(lambda: other.ask("GET", "after") == b"1", what="the command behind the wait is run")
        wire.socket.sendall(ON)
        assert wire.read() == b"OK"
        assert mode == OFF or wire.read() == b"OK"
        assert wire.ask("PING") == b"PONG"
