"""Conditions that prevent plain runs, and their effects on other clients, compared with one-by-one commands.

``test_batch.py`` compares single commands at random. Here other clients act between two commands.
"""

import re
from collections.abc import Callable

import pytest

from millstream.node.durability.outage import Outage
from millstream.protocol.reader import CommandReader
from support.inprocess import Client, World, to_words
from support.plain import RUN_MAX, answered, needs_runner
from support.state import snapshot
from support.wire import pack

READY = (
    *("XADD s 1-1 f v", "XADD t 1-1 f v", "SET k v", "SET brief v PX 50"),
    *("XGROUP CREATE s g 1-1 ENTRIESREAD 1", "XGROUP CREATECONSUMER s g c"),
)

Scene = list[tuple[str, str]]
"""The actors and commands of a scene: ``a`` and ``b`` are clients, ``disk`` and ``clock`` the environment."""
_SEPARATOR = re.compile(r"\|(?=[A-Z])")  # of commands; a rule such as +xread|count has none

SCENES: dict[str, Scene] = {
    "rights taken away": [("a", "SET k 1|ACL SETUSER default -set|SET k 2|GET k|ACL SETUSER default +set|SET k 3")],
    "rights taken away by another": [
        ("a", "SET k 1"),
        ("b", "ACL SETUSER default ~x -@write"),
        ("a", "SET k 2|GET k|PING"),
    ],
    "some rights": [
        ("b", "ACL SETUSER u on nopass +xadd +xlen +xread +xreadgroup +ping ~s ~k"),
        ("a", "AUTH u x|XADD s * f v|XADD s * f v|XADD t * f v|XLEN s|XLEN t|XREAD STREAMS s 0|XREAD STREAMS t 0"),
        ("a", "GET k|SET k v|PING|XRANGE s - +|XACK s g 1-1|XREADGROUP GROUP g c STREAMS s >|XADD s * f v|XLEN s"),
        ("b", "ACL SETUSER u -xadd"),
        ("a", "XADD s * f v|XLEN s|XREAD COUNT 1 STREAMS s 0|MULTI|XLEN s|EXEC"),
        ("b", "ACL SETUSER u resetkeys ~t +xadd|ACL SETUSER v on nopass +@all ~*"),
        ("a", "XADD s * f v|XLEN s|XADD t * f v|XADD t * f v|AUTH v x|XADD s * f v|XADD s * f v|DEL s|XADD s * f v"),
    ],
    "rights by the first word": [
        ("b", "ACL SETUSER u on nopass +xread|count +xadd|s +xreadgroup|group ~*"),
        ("b", "ACL SETUSER v on nopass +xread|streams ~*"),
        ("a", "AUTH u x|XREAD STREAMS s 0|XREAD COUNT 1 STREAMS s 0|XREAD STREAMS s 0|XADD s * f v|XADD t * f v"),
        ("a", "XADD s * f v|XREADGROUP GROUP g c STREAMS s >|XREADGROUP GROUP g c COUNT 1 STREAMS s >|XADD t * f v"),
        ("a", "AUTH v x|XREAD STREAMS s 0|XREAD COUNT 1 STREAMS s 0|XREAD STREAMS s 0|XREAD BLOCK 0 STREAMS s 0"),
        ("a", "XREAD STREAMS t s 0 0|XREAD STREAMS s t 0 0"),
    ],
    "rights to read alone": [
        ("b", "ACL SETUSER u on nopass +@all %R~s %W~t (+xlen ~t)"),
        ("a", "AUTH u x|XLEN s|XADD s * f v|XLEN t|XADD t * f v|XLEN t|XRANGE t - +|XRANGE s - +|XRANGE s - +"),
        ("a", "XADD t * f v|XREADGROUP GROUP g c STREAMS s >|XACK s g 1-1|XPENDING s g"),
        ("a", "EVAL return(redis.call('XADD','s','*','f','v')) 0"),
    ],
    "a transaction": [("a", "SET k 1|MULTI|SET k 2|XADD s * f v|GET k|DISCARD|GET k|MULTI|SET k 3|EXEC|GET k")],
    "a transaction of many kinds": [
        ("a", "MULTI|SET k 2|HSET h f v|XADD s * f v|XADD s|EXEC|MULTI|SET k 2|HSET h f v|XADD s * f v|GET k|EXEC"),
        ("a", "MULTI|SET k 4|SADD k x|XADD k * f v|XADD brief * f v|SET brief x|XADD s 1-1 f v|EXEC|GET k"),
    ],
    "a reader waits for a transaction": [
        ("b", "XREAD BLOCK 0 STREAMS s t $ $"),
        ("a", "MULTI|SET k 1|XADD t * f 1|XADD s * f 2|XADD s * f 3|EXEC|XLEN s"),
    ],
    "two wait for a transaction": [
        ("b", "BLPOP l 0"),
        ("a", "MULTI|XADD s * f 1|RPUSH l x y|XADD t * f 1|EXEC|LLEN l"),
    ],
    "a consumer waits for a transaction": [
        ("b", "XREADGROUP GROUP g c BLOCK 0 STREAMS s >"),
        ("a", "MULTI|XADD s * f 1|XREADGROUP GROUP g c STREAMS s >|XACK s g 1700000000000-0|XADD s * f 2|EXEC"),
    ],
    "a transaction of who watches": [
        ("a", "WATCH k|SET k 1|MULTI|SET k 2|EXEC|GET k|WATCH k|MULTI|SET k 3|XADD s * f v|EXEC|GET k"),
        ("a", "WATCH k"),
        ("b", "SET k 4"),
        ("a", "MULTI|SET k 5|EXEC|SET k 6"),
    ],
    "a transaction watched by another": [
        ("b", "WATCH s"),
        ("a", "MULTI|SET k 1|XADD s * f v|EXEC"),
        ("b", "MULTI|SET k 2|EXEC"),
    ],
    "a transaction that switches events on": [
        ("b", "PSUBSCRIBE *"),
        ("a", "MULTI|SET k 1|CONFIG SET notify-keyspace-events KEA|XADD s * f v|EXEC|MULTI|SET k 1|EXEC"),
    ],
    "a transaction that goes elsewhere": [("a", "MULTI|SET k 1|SELECT 1|SET k 2|HELLO 3|SET k 3|EXEC|GET k")],
    "a transaction that wants no replies": [("a", "MULTI|SET k 1|CLIENT REPLY SKIP|SET k 2|EXEC|PING|PING")],
    "a transaction that shows times": [
        ("a", "MULTI|XAUTOCLAIM s g c 0 0|EXEC|MULTI|XAUTOCLAIM s g c 0 0|XINFO CONSUMERS s g|EXEC")
    ],
    "a transaction whose rights are taken away": [
        ("a", "MULTI|SET k 1|XADD s * f v"),
        ("b", "ACL SETUSER default ~x -set"),
        ("a", "SET k 2|EXEC|GET x"),
    ],
    "a transaction on a disk that fills": [
        ("a", "MULTI|SET k 1|XADD s * f v"),
        ("disk", "full"),
        ("a", "EXEC|SET k 2"),
        ("disk", "free"),
        ("a", "MULTI|SET k 3|XADD s * f v|EXEC"),
    ],
    "a transaction in a pause": [
        ("a", "MULTI|SET k 1|XADD s * f v"),
        ("b", "CLIENT PAUSE 100 WRITE"),
        ("a", "SET k 2|XLEN s|EXEC"),
        ("clock", "100"),
    ],
    "a transaction in CLIENT LIST": [("a", "MULTI|SET k 1|XADD s * f v|GET k"), ("b", "CLIENT LIST")],
    "replies not wanted": [("a", "CLIENT REPLY OFF|SET k 1|PING|CLIENT REPLY ON|CLIENT REPLY SKIP|SET k 2|GET k")],
    "subscribed": [
        ("a", "SUBSCRIBE x|GET k|PING|XLEN s|UNSUBSCRIBE x|GET k"),
        ("a", "PSUBSCRIBE x*|GET k|PUNSUBSCRIBE|PING"),
    ],
    "watched by another": [("b", "WATCH k"), ("a", "SET k 1|SET k 2"), ("b", "MULTI|GET k|EXEC"), ("a", "SET k 3")],
    "a stream watched": [("b", "WATCH s"), ("a", "XADD s * f v"), ("b", "MULTI|XLEN s|EXEC")],
    "its own watch": [("a", "WATCH k|SET k 1|MULTI|GET k|EXEC|SET k 2")],
    "watched no more": [("b", "WATCH k|UNWATCH"), ("a", "SET k 1|GET k")],
    "events": [
        ("b", "CONFIG SET notify-keyspace-events KEA"),
        ("b", "PSUBSCRIBE *"),
        ("a", "SET k 1|XADD s * f v|GET none"),
    ],
    "paused for writes": [("b", "CLIENT PAUSE 100 WRITE"), ("a", "GET k|XLEN s|SET k 1|GET k"), ("clock", "100")],
    "paused for all": [("b", "CLIENT PAUSE 100 ALL"), ("a", "PING|GET k"), ("clock", "100")],
    "a full disk": [
        ("disk", "full"),
        ("a", "GET k|SET k 1|XADD s * f v|GET k|PING"),
        ("disk", "free"),
        ("a", "SET k 2|GET k"),
    ],
    "held by the disk": [("a", "SET k 1"), ("disk", "held"), ("a", "GET k|XLEN s|SET k 2")],
    "a key that dies": [("a", "SET brief 2|GET brief"), ("clock", "60"), ("a", "GET brief|SET brief 3|GET brief")],
    "dead and not yet deleted": [
        ("clock", "0"),
        ("a", "PEXPIRE s 5"),
        ("clock", "-9"),
        ("a", "XADD s * f v|XLEN s|GET k"),
    ],
    "a reader waits": [("b", "XREAD BLOCK 0 STREAMS s $"), ("a", "SET k 1|XADD s * f 1|XADD s * f 2|XLEN s")],
    "a consumer waits": [
        ("b", "XREADGROUP GROUP g c BLOCK 0 STREAMS s >"),
        ("a", "XADD s * f 1|XADD s * f 2|XREADGROUP GROUP g c STREAMS s >|XACK s g 1700000000000-0 1700000000000-0"),
    ],
    "waited for in another database": [
        *[("b", "SELECT 1"), ("b", "XADD s 1-1 f v"), ("b", "XREAD BLOCK 0 STREAMS s $")],
        *[("a", "XADD s * f 1|SET k 1|SELECT 1|XADD s * f 2|GET k")],
    ],
    "a list is waited for": [("b", "BLPOP k 0"), ("b", "PING"), ("a", "DEL k|SET k 1|GET k")],
    "waits no more": [
        ("b", "XREAD BLOCK 5 STREAMS s $"),
        ("clock", "10"),
        ("a", "XADD s * f 1"),
        ("b", "XREAD BLOCK 5 STREAMS s $"),
    ],
    "ids of the client": [
        ("b", "XREAD BLOCK 0 STREAMS s 7-1"),
        (
            "a",
            "XADD s 1-1 f v|XADD s 1-2 f v|XADD s 5 f v|XADD s 5-0 f v|XADD s 0-0 f v|XADD s 05-7 f v|XADD s 6-* f v",
        ),
        ("a", "XADD s +9 f v|XADD s -1 f v|XADD s 7- f v|XADD s 7-1 f v|XADD s 7-2 f v|XADD s 8 f|XLEN s"),
        ("a", "XADD s 999999999999999999-999999999999999999 f v|XADD s 9 f v|XADD s * f v|MULTI|XADD t 3 f v|EXEC"),
        ("a", "XADD s 18446744073709551615-18446744073709551615 f v|XADD s * f v|XADD t 3 f v|XADD t 4 f v"),
    ],
    "caps beyond what goes at once": [
        ("a", "CONFIG SET stream-node-max-entries 2|" + "|".join(["XADD s * f v"] * 450)),
        ("a", "XADD s MAXLEN ~ 3 * f v|XLEN s|XADD s MAXLEN ~ 3 * f v|XLEN s|XADD s MINID ~ 18 * f v|XLEN s"),
        ("a", "CONFIG SET stream-node-max-entries 0|XADD s MAXLEN ~ 2 * f v" + "|XADD s MAXLEN = 1 * f v" * 9),
        ("a", "XADD s MAXLEN 0 * f v|XLEN s|XADD s MAXLEN 2 * f v|XADD s MAXLEN 0 1 f v|XADD s MAXLEN 1 f v|XLEN s"),
    ],
    "the lowest id at a node's end": [
        ("a", "CONFIG SET stream-node-max-entries 3|XADD s 2 f v|XADD s 3 f v|XADD s 4 f v|XADD s 5 f v|XDEL s 3"),
        ("a", "XADD s MINID = 3 6 f v|XINFO STREAM s|XADD s MINID ~ 6 7 f v|XINFO STREAM s|XADD s MINID 7 8 f v"),
    ],
    "acknowledged twice": [("a", "XADD s 9-9 f v|XREADGROUP GROUP g c STREAMS s >|XACK s g 9-9 9-9 8-8|XACK s g 9-9")],
}


def together(client: Client, line: str) -> bytes:
    """Send commands in one piece, as a connection does."""
    world, reader = client.world, CommandReader()
    reader.feed(b"".join(pack(*words.split()) for words in _SEPARATOR.split(line)))
    replies = b"".join(found for found, _ in answered(world.node, client.session, reader, world.clock.now()))
    world.deliver()
    return replies


def singly(client: Client, line: str) -> bytes:
    """Send the same commands one by one."""
    world, replies = client.world, b""
    for words in _SEPARATOR.split(line):
        if client.session.blocked:
            break
        outcome = world.node.execute(client.session, to_words(words.split()), world.clock.now())
        replies += b"" if outcome is None else b"".join(outcome.buffers)
    world.deliver()
    return replies


def played(scene: Scene, run: Callable[[Client, str], bytes]) -> list[object]:
    """Run a scene and return everything visible."""
    world = World()
    clients = {name: world.client() for name in "ab"}
    for words in READY:
        clients["a"].call(*words.split())
    seen: list[object] = []
    for who, what in scene:
        if who == "disk":
            held = world.log.payloads[-1:] if what == "held" else []
            world.node.journal.resume() if what == "free" else world.node.journal.suspend(Outage("full", held))
        elif who == "clock":
            world.advance(int(what)) if int(what) > 0 else world.clock.advance(-int(what))
        else:
            seen.append(run(clients[who], what))
    stats = world.node.stats
    stats.collect()
    seen += [client.inbox for client in clients.values()]
    seen += [
        snapshot(world.node),
        stats.processed,
        stats.dirty,
        stats.lookups,
        stats.errors,
        list(world.node.waits.lines.by_place),
    ]
    seen += [(name, each.calls, each.rejected) for name, each in sorted(stats.commands.items()) if each.calls]
    seen += [
        (client.session.last_command, client.session.commands, client.session.blocked) for client in clients.values()
    ]
    return [*seen, snapshot(world.recovered())]


@pytest.mark.parametrize("name", SCENES)
def test_what_stands_in_the_way_is_seen(name: str) -> None:
    """A scene has the same replies, messages to others, data, log and counters together and one by one."""
    assert played(SCENES[name], together) == played(SCENES[name], singly)


@needs_runner
def test_plain_commands_are_plain_again_when_nothing_stands_in_the_way() -> None:
    """A client that watched, waited, paused or queued runs plain commands together again afterwards."""
    world = World()
    client, other = world.client(), world.client()
    for words in (*READY, "WATCH k", "UNWATCH", "MULTI", "DISCARD", "CLIENT PAUSE 10 ALL"):
        client.call(*words.split())
    world.advance(20)
    for words in ("WATCH k", "MULTI", "EXEC", "SUBSCRIBE x", "UNSUBSCRIBE x"):
        other.call(*words.split())
    other.send("XREAD", "BLOCK", 5, "STREAMS", "s", "$")
    other.world.advance(10)
    other.send("XREAD", "BLOCK", 0, "STREAMS", "k2", "s", "$", "$")
    other.close()
    assert world.node.batches.takes(client.session)
    data = b"".join(
        pack(*words.split()) for words in ("SET k2 v", "XADD s 2-2 f v", "XADD s MAXLEN ~ 9 * f v", "GET k2")
    )
    run = world.node.batches.run(client.session, data, 0, world.clock.now().wall)
    assert (run.commands, run.at, run.words, run.woken) == (4, len(data), None, None)


@needs_runner
def test_a_run_ends_so_that_others_have_their_turn() -> None:
    """A run ends after a limited number of commands, and after the first that wakes another client."""
    world = World()
    client, other = world.client(), world.client()
    for words in READY:
        client.call(*words.split())
    data = pack("SET", "k", "v") * (RUN_MAX + 5)
    run = world.node.batches.run(client.session, data, 0, 5)
    assert (run.commands, run.words) == (RUN_MAX, None)
    assert world.node.batches.run(client.session, data, run.at, 5).commands == 5
    other.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    data = pack("PING") + pack("XADD", "s", "*", "f", "v") * 3
    run = world.node.batches.run(client.session, data, 0, 5)
    assert (run.commands, run.woken) == (2, b"s")


@needs_runner
def test_each_run_has_the_time_it_is_given() -> None:
    """Each run uses the time of its call, and not that of an earlier run."""
    world = World()
    client = world.client()
    for words in READY:
        client.call(*words.split())
    data = pack("XADD", "s", "*", "f", "v") * 2
    for wall, ids in ((9_000_000_000_000, b"%d-%d"), (9_000_000_000_007, b"%d-%d")):
        run = world.node.batches.run(client.session, data, 0, wall)
        assert run.replies == b"".join(b"$15\r\n%b\r\n" % (ids % (wall, number)) for number in range(2))
        assert client.session.last_used == wall


@needs_runner
def test_replies_of_a_run_wait_for_its_record() -> None:
    """Replies of a run wait for its own record, or for the last record if it logs none."""
    world = World()
    client, reader = world.client(), CommandReader()
    for words in READY:
        client.call(*words.split())
    for line in ("SET k 1|XADD s * f v|GET k", "GET k|PING"):
        reader.feed(b"".join(pack(*words.split()) for words in _SEPARATOR.split(line)))
        [(_, barrier)] = answered(world.node, client.session, reader, world.clock.now())
        assert barrier == world.log.appended == len(READY) + 1


@needs_runner
def test_a_run_that_delivers_trims_nothing() -> None:
    """After a delivery a capped XADD ends the run, since replicas get the ids of delivered entries after it."""
    world = World()
    client = world.client()
    for words in READY:
        client.call(*words.split())
    lines = ("XADD s * f v", "XREADGROUP GROUP g c STREAMS s >", "XADD s * f v", "XADD s MAXLEN 1 * f v")
    data = b"".join(pack(*words.split()) for words in lines)
    run = world.node.batches.run(client.session, data, 0, world.clock.now().wall)
    assert (run.commands, run.words) == (3, lines[3].encode().split())
    assert world.node.batches.run(client.session, pack(*lines[3].split()), 0, world.clock.now().wall).commands == 1
