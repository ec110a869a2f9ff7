"""Random commands and damaged bytes on open sessions: the server still replies, and its state is whole.

Damage to single bytes alone finds little: most of it is refused by the reader. So most commands here are whole, of
every existing command, with words that often fit; a few have bytes changed on the wire. A failure prints its seed;
``MILLSTREAM_SEED=n`` runs it again. The long campaign is five million commands, see ``support.campaign``.
"""

import os
import random

import pytest

from millstream.commands.table.table import TABLE
from millstream.server.thread import ServerThread
from support import campaign, state
from support.waiting import eventually
from support.wire import Wire, pack

SESSIONS = 12
ROUND = 50
# Commands that end the server, or its sessions, on request; each has tests of its own
LEFT_OUT = {
    "shutdown",
    "quit",
    "debug",
    "config|set",
    "config|resetstat",
    "acl|setuser",
    "acl|deluser",
    "acl|load",
    "script|kill",
    "failover",
    "psync",
    "replicaof",
    "slaveof",
    "sync",
}
# Commands that make a session wait, or lead to it; TURNS has some of each
STILL = {"subscribe", "psubscribe", "multi", "client|reply", "client|kill", "blpop", "auth", "flushall", "flushdb"}
STILL |= {"swapdb", "select", "xread", "xreadgroup", "wait", "waitaof"}
STILL |= {"blmove", "blmpop", "brpoplpush", "bzmpop", "bzpopmax", "bzpopmin"}
WORDS = [b"s", b"s", b"t", b"u", b"g", b"g", b"h", b"a", b"b", b"", b"*", b">", b"$", b"-", b"+", b"0", b"0-0", b"1-1"]
WORDS += [
    b"2",
    b"3-*",
    b"5",
    b"10",
    b"-1",
    b"1.5",
    b"x",
    b"\xff\r\n\x00",
    b"COUNT",
    b"BLOCK",
    b"1",
    b"GROUP",
    b"STREAMS",
]
WORDS += [
    b"MAXLEN",
    b"~",
    b"=",
    b"MINID",
    b"LIMIT",
    b"IDS",
    b"FAIL",
    b"SILENT",
    b"FORCE",
    b"JUSTID",
    b"CLAIM",
    b"NOACK",
]
WORDS += [b"IDLE", b"FULL", b"MKSTREAM", b"EX", b"PX", b"NX", b"XX", b"MATCH", b"*s*", b"9223372036854775807"]
FITTING = [
    b"XADD s * f v",
    b"XADD t MAXLEN ~ 50 * a 1 b 2",
    b"XADD s IDMPAUTO p * f v",
    b"XGROUP CREATE s g 0 MKSTREAM",
    b"XREADGROUP GROUP g a COUNT 3 STREAMS s >",
    b"XAUTOCLAIM s g b 0 0 COUNT 5",
    b"XCLAIM s g a 0 1-1 2-1 FORCE",
    b"XNACK s g FAIL IDS 1 1-1 FORCE",
    b"XPENDING s g - + 10",
    b"XTRIM s MAXLEN 20",
    b"XINFO STREAM s FULL",
    b"XADD u 5-* k v",
    b"XACK s g 1-1 2-1",
    b"XDEL s 1-1",
    b"XREVRANGE s + - COUNT 3",
    b"HELLO 3",
    b"EXEC",
    b"UNSUBSCRIBE",
]
# Commands that change how a session goes on: now and then, or the sessions would do little else
TURNS = [
    b"XREADGROUP GROUP g b BLOCK 1 CLAIM 0 STREAMS s >",
    b"XREAD BLOCK 1 STREAMS s t $ $",
    b"XREAD BLOCK 0 STREAMS u $",
    b"MULTI",
    b"WATCH s",
    b"SUBSCRIBE c",
    b"PSUBSCRIBE *",
    b"HELLO 2",
    b"RESET",
    b"CLIENT REPLY OFF",
    b"CLIENT KILL TYPE normal SKIPME no",
    b"FLUSHALL",
    b"SELECT 1",
    b"BLPOP k 0",
    b"BLMOVE k l LEFT RIGHT 0",
    b"BZPOPMIN k 0",
    b"WAIT 1 1",
    b"SET s x",
]


def names() -> list[list[bytes]]:
    """Return every existing command and subcommand, as words."""
    rows = [row for head in TABLE.values() for row in (head, *head.subcommands.values())]
    return [row.name.encode().split(b"|") for row in rows if row.name not in LEFT_OUT | STILL]


def command(chance: random.Random, known: list[list[bytes]]) -> bytes:
    """Return one command in wire form, whole, odd or damaged."""
    kind = chance.random()
    if kind < 0.005:
        words = chance.choice(TURNS).split()
    elif kind < 0.6:
        words = chance.choice(FITTING).split()
    else:
        words = [*chance.choice(known), *chance.choices(WORDS, k=chance.randrange(8))]
        if not words[0].startswith(b"x") and len(words) > 1 and words[1] in {b"s", b"t", b"u"}:
            words[1] = b"k"  # the streams should stay streams for a while
    if chance.random() < 0.1:
        words[chance.randrange(len(words))] = chance.choice(WORDS) or b"x"
    wire = bytearray(pack(*words))
    if chance.random() < 0.001:
        for _ in range(chance.randrange(1, 4)):
            wire[chance.randrange(len(wire))] = chance.randrange(256)
    return bytes(wire)


class Storm:
    """Sessions of one server, with the bytes sent on them."""

    def __init__(self, server: ServerThread, seed: int) -> None:
        self.chance = random.Random(seed)
        self.known = names()
        self.server = server
        self.wires = [Wire(server.url) for _ in range(SESSIONS)]
        self.control = Wire(server.url)

    def round(self) -> None:
        """Send a batch on one session and read the replies; reopen it now and then, or if the server has cut it.

        Many sessions end up blocked for ever, subscribed, or deep in a transaction, on purpose.
        """
        at = self.chance.randrange(SESSIONS)
        wire = self.wires[at]
        is_open = True
        try:
            wire.socket.settimeout(10)
            wire.socket.sendall(b"".join(command(self.chance, self.known) for _ in range(ROUND)))
            self.ping()  # the batch is done in the server, too
            wire.socket.settimeout(0)
            while is_open:
                is_open = bool(wire.socket.recv(1 << 20))
        except BlockingIOError:
            pass
        except OSError:
            is_open = False
        if not is_open or self.chance.random() < 0.3:
            wire.socket.close()
            self.wires[at] = Wire(self.server.url)

    def ping(self) -> None:
        """Check that the server replies to a valid client, unless another session has cut it off (CLIENT KILL)."""
        try:
            assert self.control.ask("PING") == b"PONG"
        except (EOFError, OSError):
            self.control.socket.close()
            self.control = Wire(self.server.url)
            assert self.control.ask("PING") == b"PONG"

    def calm(self) -> None:
        """End all sessions, and wait until the server has removed them."""
        for wire in (*self.wires, self.control):
            wire.socket.close()
        eventually(lambda: not list(self.server.server.node.sessions), what="no session is left")


def run(commands: int, seed: int) -> None:
    """Send ``commands`` commands; check that the server replies, has no session left and breaks no rule."""
    with ServerThread() as server:
        storm = Storm(server, seed)
        for _ in range(commands // ROUND):
            storm.round()
        storm.ping()
        storm.calm()
        node = server.server.node
        assert not server.server.facts.internal_errors, f"seed {seed}: see what the server logged"
        assert node.stats.processed > commands // 3, f"seed {seed}: most sessions stood still, so little was tried"
        state.check(node)


def test_random_commands_leave_the_server_whole() -> None:
    """20,000 random commands on twelve sessions cause no internal error, leave no session and break no rule."""
    run(20_000, int(os.environ.get("MILLSTREAM_SEED", "1")))


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_random_commands_leave_the_server_whole() -> None:
    """Five million random commands on a hundred servers cause no internal error, leave no session and break no rule."""
    campaign.run("sessions", lambda seed: run(50_000, seed), range(100, 200))
