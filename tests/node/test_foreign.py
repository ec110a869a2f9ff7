"""Records of another server: those that no Millstream writes are refused, and all that one does write are accepted."""

import struct
from typing import Any

import pytest

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.engine import transitions
from millstream.engine.history import NO_DATABASE
from millstream.engine.keyspace import Keyspace
from millstream.node.log import codec, copied_log
from millstream.node.log.foreign import from_copy
from millstream.node.log.rebuilding import differing, from_log
from millstream.node.log.snapshot import payloads
from millstream.node.node import Node
from millstream.persistence.log import Log
from node.test_copied_log import Whole, sent
from persistence.reference import HOME, entropy
from replication.replicated import Changes
from support.simdisk import SimDisk

assert transitions.MODULES

NAME, FIVE = "d" * 40, struct.pack(">QQ", 5, 1)
STREAM = ("xmake", 0, b"s", FIVE, bytes(16), [5, 100, 100, 0, 0])
GROUP = ("gnew", 0, b"s", b"g", FIVE, -1)


def made(*steps: Any) -> Keyspace:
    return from_copy([codec.pack(0, steps)])


@pytest.mark.parametrize("seed", range(3))
def test_what_commands_write_is_taken(seed: int) -> None:
    """Each record of a log, and its snapshot, is accepted from another server."""
    log, _ = Log.open(HOME, SimDisk(), entropy=entropy(1))
    clock, node = ManualClock(), Node(Config({}), log)
    session = node.sessions.open(clock.now())
    for words in Changes(seed, clock.now().wall, newest=True).some(1500):
        clock.advance(3)
        node.execute(session, list(words), clock.now())
    node.journal.flush(clock.now().wall)
    log.write()
    space = from_copy(copied_log.payloads(Whole(sent(log.files(log.appended))).read_at))
    assert differing(space, node.keyspace) == []
    assert differing(from_copy(payloads(space, 0)), space) == []


def test_times_and_counters_may_be_at_their_bounds() -> None:
    """Times and counters in a record may have any value up to the limits of 64 bits."""
    history = ("hist", NO_DATABASE, NAME, 2**63 - 1, NAME, -1, [NAME, 5] * 32)
    space = made(history, ("set", 0, b"k", b"v", 2**63 - 1), STREAM, GROUP)
    assert space.history.offset == 2**63 - 1
    assert space.databases[0].expires == {b"k": 2**63 - 1}


@pytest.mark.parametrize(
    "step",
    [
        ("set", 0, "text", b"v", None),
        ("set", 0, b"k", 5, None),
        ("set", 0, b"k", b"v", "soon"),
        ("set", 0, b"k", b"v", True),
        ("set", 0, b"k", b"v", 2**64 - 1),
        ("set", 0, b"k", b"v", None, 7),
        ("set", 0, b"k"),
        ("set", 1.0, b"k", b"v", None),
        ("lpush", 0, b"l", b"abc", False),
        ("lpush", 0, b"l", [b"a", 1], False),
        ("zadd", 0, b"z", [b"a"], struct.pack(">d", float("nan"))),
        ("hist", 99, NAME, 100, "", -1),
        ("hist", 0, NAME, 100.0, "", -1),
        ("hist", 0, NAME, 2**63, "", -1),
        ("hist", 0, NAME, 100, "a\r\nrole:master", 7),
        ("hist", 0, NAME, 100, 5, 7),
        ("hist", 0, NAME, 100, NAME, "x"),
        ("hist", 0, NAME, 100, NAME, 7, [NAME]),
        ("hist", 0, NAME, 100, NAME, 7, [NAME, "7"]),
        ("hist", 0, NAME, 100, NAME, 7, ["a\nb", 7]),
        ("hist", 0, NAME, 100, NAME, 7, [NAME, 7] * 33),
        ("off", 16, 5),
        ("xmake", 0, b"s", FIVE + b"\xff", bytes(16), [5, 100, 100, 0, 0]),
        ("xmake", 0, b"s", FIVE, bytes(16), [5, 100, -100, 0, 0]),
        ("xmake", 0, b"s", FIVE, bytes(16), [2**63, 100, 100, 0, 0]),
        ("xmake", 0, b"s", FIVE, bytes(16), ["a", 100, 100, 0, 0]),
        ("xnew", 0, b"s", "x", 100),
        ("xadd", 0, b"s", struct.pack(">QQ", 6, 1), [b"f"], True, None),
        ("xadd", 0, b"s", struct.pack(">QQ", 6, 1), [], True, None),
        ("gnew", 0, b"s", "g", FIVE, -1),
        ("gnew", 0, b"s", b"g", FIVE, -7),
        ("gconsumers", 0, b"s", b"g", ["c", 5, 5]),
        ("gconsumers", 0, b"s", b"g", [b"c", 5, "x"]),
        ("nothing", 0),
        ([], 0),
        (),
    ],
    ids=str,
)
def test_what_no_command_writes_is_refused(step: tuple[Any, ...]) -> None:
    """A record that no command writes is refused, since it would break later commands, INFO or the next copy."""
    with pytest.raises((ValueError, TypeError, LookupError, OverflowError)):
        made(STREAM, GROUP, step)


def test_own_records_are_believed() -> None:
    """A node's own old log starts, even if newer rules would refuse its content from another server."""
    old = ("gnew", 0, b"s", b"g", FIVE, 2**64 - 1)
    assert differing(made(STREAM, old), from_log([codec.pack(0, [STREAM, old])])) == []
