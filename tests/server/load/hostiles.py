"""Hostile sockets: broken off, damaged, cut anywhere, never read, reset; each from one seed.

The replies to a hostile client on keys of its own are known. A node in this process reads the same bytes whole and runs
one command at a time, unlike the server's runs of plain commands. Only ids made by the clock and the client's own
number differ.
"""

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections.abc import Awaitable, Callable

from millstream.errors import ProtocolError
from millstream.protocol.encoder import error_line
from millstream.protocol.reader import CommandReader
from support.inprocess import World
from support.wire import pack

SECONDS = 300
"""Seconds that a hostile client waits for the server to end its connection before the test fails."""
_AHEAD = 4_000_000_000_000  # milliseconds beyond the clock: the ids after it are known
_READ = 64 * 1024  # what the server reads of a socket at once
_OWN = re.compile(rb"\b1[78]\d{11}-\d+|(?<=\$2\r\nid\r\n:)\d+")
_SCRIPT = (
    "redis.call('XADD', KEYS[1], '*', 'n', ARGV[1]) redis.call('XACK', KEYS[1], 'g', ARGV[2]) "
    "return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 3)"
)
_BROKEN = (
    b"*-1\r\n*0\r\n*1\r\n$4\r\nPING\r\n",
    b"*0\r\n*1\r\n$4\r\nPING\r\n",
    b"*00\r\n*1\r\n$04\r\nPING\r\n",
    b"*-2147483649\r\n",
    b"*2147483648\r\n",
    b"*99999999999999999999\r\n",
    b"*9223372036854775808\r\n",
    b"*+1\r\n$4\r\nPING\r\n",
    b"*01\r\n$4\r\nPING\r\n",
    b"*1\r\n$-1\r\n",
    b"*1\r\n$4294967300\r\nPING\r\n",
    b"*1\r\n$18446744073709551620\r\nPING\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n$04\r\nPING\r\n",
    b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n",
    b"*1\rx$4\rxPING\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$4\r\nECHO\r\n*1\r\n$1\r\nx\r\n",
    b"*3\r\n" * 50,
    b"PING\x00\r\n\x00\r\nPING\r\n",
    b'"PI\\x4eG" \x00\xff\r\nECHO "a\\x00b"\r\nECHO "unbalanced\r\n',
    b"\r\n\n\r\n   \r\nPING\n",
    b"x" * (64 * 1024 + 2),
    b"*" + b"1" * (64 * 1024 + 2),
    b"$4\r\nPING\r\n",
    b"*1\n$4\nPING\n",
)

Act = Callable[["Hostile"], Awaitable[None]]


class Hostile:
    """One hostile client.

    Args:
        port: of the server.
        chance: the random generator.

    Attributes:
        name: the start of its keys, so long that damage to it never makes another client's.
        chance: as given.
    """

    def __init__(self, port: int, chance: random.Random) -> None:
        self.name = b"%016x" % chance.getrandbits(64)
        self.chance = chance
        self._said = self._heard = b""
        self._is_whole = True
        self._port = port
        self._socket: socket.socket | None = None

    async def open(self) -> None:
        """Connect; a client has one connection at a time."""
        self.close()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", self._port))

    @property
    def socket(self) -> socket.socket:
        """Return its connection."""
        assert self._socket is not None
        return self._socket

    def close(self) -> None:
        """Disconnect, if still connected."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def reset(self) -> None:
        """Disconnect with a reset: the server sees no end, and loses unread bytes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    async def leave(self) -> None:
        """Disconnect in any way, or stay until all clients are done."""
        how = self.chance.randrange(4)
        if how == 0:
            self.reset()
        elif how == 1:
            self.end()
            await self.read()
            self.close()
        elif how == 2:
            self.close()

    def end(self) -> None:
        """Shut down the sending side, unless the server has closed."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    async def send(self, data: bytes, *cuts: int) -> None:
        """Send bytes in pieces, with turns of others in between; a client that is cut off sends no more.

        Args:
            data: the bytes to send.
            cuts: offsets between pieces.
        """
        loop, at = asyncio.get_running_loop(), 0
        with contextlib.suppress(ConnectionError):
            for end in (*sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)):
                await loop.sock_sendall(self.socket, data[at:end])
                await asyncio.sleep(0)
                at = end

    async def read(self) -> tuple[bytes, bool]:
        """Read until the server closes; return the bytes, and whether it closed without a reset."""
        loop, data = asyncio.get_running_loop(), bytearray()
        try:
            async with asyncio.timeout(SECONDS):
                while more := await loop.sock_recv(self.socket, 1 << 18):
                    data += more
        except ConnectionError:
            return bytes(data), False
        return bytes(data), True

    async def say(self, data: bytes, *cuts: int) -> None:
        """Send bytes, then shut down, and store all replies until the server closes.

        Args:
            data: the bytes to send.
            cuts: offsets between pieces.
        """
        reading = asyncio.ensure_future(self.read())
        await self.send(data, *cuts)
        self.end()
        self._said, (self._heard, self._is_whole) = data, await reading
        self.close()

    def judge(self, world: World, *, may_end: bool) -> int:
        """Compare the replies with the right ones, if these are known; return the number of bytes.

        Args:
            world: the node that gives the right ones; others may have been compared there.
            may_end: only the first replies may have come.
        """
        if not self._said:
            return 0
        wanted, found = _OWN.sub(b"own", known_replies(world, self._said)), self._heard
        if not self._is_whole:  # a protocol error closes, and bytes sent after it make that a reset
            found = found[: found.rfind(b"\r\n") + 2] if b"\r\n" in found else b""
            may_end = True
        found = _OWN.sub(b"own", found)
        assert wanted.startswith(found) if may_end else wanted == found, difference(self._said, wanted, found)
        return len(found)


def difference(sent: bytes, wanted: bytes, found: bytes) -> str:
    """Return the offset of the first difference of two replies."""
    at = next((n for n, (one, other) in enumerate(zip(wanted, found, strict=False)) if one != other), len(found))
    near = slice(max(at - 200, 0), at + 200)
    return (
        f"after {at} bytes of replies\n  wanted: {wanted[near]!r}\n  found:  {found[near]!r}\n  sent: {sent[:4000]!r}"
    )


def known_replies(world: World, data: bytes) -> bytes:
    """Return the right replies to these bytes and then a shutdown: read in one piece, run one by one.

    Args:
        world: the node that runs it.
        data: the client's bytes.
    """
    client, reader, replies = world.client(), CommandReader(), bytearray()
    session = client.session
    reader.feed(data)
    try:
        while not session.closing:
            argv = reader.next()
            if argv is None:
                if reader.has_more:
                    continue
                break
            outcome = world.node.execute(session, argv, world.clock.now())
            if outcome is None:
                break  # it waits, and who waits is not asked whether it would still listen
            replies += b"".join(outcome.buffers)
    except ProtocolError as error:
        replies += error_line(f"ERR {error}")
    client.close()
    return bytes(replies)


# ---------------------------------------------------------------------- what is said


def conversation(one: Hostile, commands: int) -> list[bytes]:
    """Return commands with known replies, most of them plain, on keys of the client's own.

    Args:
        one: the client with these keys.
        commands: their number, without those that make the keys.
    """
    key, text = one.name + b":s", one.name + b":t"
    first = b"%d-0" % _AHEAD
    made = [
        pack("XADD", key, first, "n", "0"),
        pack("XGROUP", "CREATE", key, "g", first, "ENTRIESREAD", 1),
        pack("XGROUP", "CREATECONSUMER", key, "g", "a"),
        pack("XGROUP", "CREATECONSUMER", key, "g", "b"),
        pack("SET", text, "0"),
    ]
    if one.chance.random() < 0.1:
        made.append(pack("EVAL", _SCRIPT, 1, key, "7", first))
    while len(made) < commands + 5:
        made += _some(one.chance, key, text)
    return made


def _some(chance: random.Random, key: bytes, text: bytes) -> list[bytes]:
    """Return a command, or a few that belong together."""
    pick = chance.choice
    some = [b"%d-%d" % (_AHEAD, chance.randrange(1, 60)) for _ in range(pick((1, 1, 5)))]
    who, value = pick("ab"), bytes(pick((0, 1, 9, 40, 200, 3000)))
    kinds: tuple[tuple[tuple[bytes | str | int, ...], ...], ...] = (
        (("XADD", key, "*", "n", value),),
        (("XADD", key, "*", "n", "1", "m", "2"),) * pick((1, 7)),
        (("XREADGROUP", "GROUP", "g", who, "COUNT", 3, "STREAMS", key, ">"),),
        (("XACK", key, "g", *some),),
        (("XRANGE", key, "-", "+", "COUNT", 5), ("XREVRANGE", key, "+", some[0])),
        (("SET", text, value), ("GET", text)),
        (("XLEN", key), ("PING",), ("GET", key + b"none")),
        (("XPENDING", key, "g"), ("XPENDING", key, "g", "-", "+", 0)),
        (("XCLAIM", key, "g", who, 0, *some, "JUSTID"), ("XAUTOCLAIM", key, "g", who, 0, "0", "COUNT", 4)),
        (("XREAD", "COUNT", 2, "STREAMS", key, some[0]),),
        (("HELLO", pick((2, 3))),),
        (("MULTI",), ("XADD", key, "*", "n", "5"), ("XLEN", key), ("SET", text, "x"), ("EXEC",)),
        (("WATCH", text), ("MULTI",), ("SET", text, "y"), ("NOSUCH",), ("EXEC",)),
        (("XADD", key, "MAXLEN", 50, "*", "n", "3"), ("XDEL", key, some[0])),
        (("SET", text), ("XADD", key, "*", "n"), ("XACK", text, "g", "1"), ("XADD", key, "0-0", "f", "v")),
        (),
    )
    return [pack(*words) for words in pick(kinds)] or [b"PING\r\n", b"xlen " + key + b"\r\n"]


def damaged(data: bytes, chance: random.Random, places: list[int]) -> bytes:
    """Return the bytes with a few changed, left out or added, most often at the end of a part.

    Args:
        data: commands.
        chance: the random generator.
        places: approximate offsets of the changes.
    """
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 3))):
        at = min(max(chance.choice(places) + chance.randrange(-6, 7), 0), len(made) - 1)
        kind, byte = chance.randrange(4), chance.choice(b"\r\n*$-0129\x00\xff:+ag")
        if kind == 0:
            made[at] = byte
        elif kind == 1:
            made[at : at + 1] = b""
        elif kind == 2:
            made[at:at] = bytes((byte,))
        else:
            made[at : at + 9] = made[at : at + 9] * 2
    return bytes(made)


def ends(commands: list[bytes]) -> list[int]:
    """Return the ends of commands, and the ends of the server's reads, in bytes that come at once."""
    found, at = [], 0
    for command in commands:
        at += len(command)
        found.append(at)
    return found + list(range(_READ, at, _READ))


# ---------------------------------------------------------------------- what is done


async def talk(one: Hostile) -> None:
    """Send commands cut anywhere, which must have the usual replies."""
    commands = conversation(one, one.chance.choice((3, 30, 300)))
    data, places = b"".join(commands), ends(commands)
    await one.say(data, *(one.chance.choice(places) + one.chance.randrange(-3, 3) for _ in range(9)))


async def damage(one: Hostile) -> None:
    """Send damaged commands, cut at the damage."""
    commands = conversation(one, one.chance.choice((3, 30, 30, 300)))
    places = one.chance.sample(ends(commands), k=2)
    await one.say(damaged(b"".join(commands), one.chance, places), *(at + one.chance.randrange(-3, 3) for at in places))


async def drip(one: Hostile) -> None:
    """Send one byte at a time."""
    data = b"".join(conversation(one, 6))[:1500]
    await one.say(data, *range(len(data)))


async def break_rules(one: Hostile) -> None:
    """Send valid commands, then negative or huge lengths, arrays in arrays, or lines with anything in them."""
    before = b"".join(conversation(one, 5)) if one.chance.random() < 0.5 else b""
    await one.say(before + one.chance.choice(_BROKEN), len(before))


async def babble(one: Hostile) -> None:
    """Send random bytes, some of them after a mark of the protocol."""
    data = one.chance.choice((b"", b"*", b"*2\r\n", b"*2\r\n$", b"*1\r\n$4\r\n")) + one.chance.randbytes(300)
    await one.say(data)


async def break_off(one: Hostile) -> None:
    """Send a part of a command, or a transaction without EXEC."""
    data = b"".join(conversation(one, 20))
    if one.chance.random() < 0.5:
        data += pack("MULTI") + b"".join(conversation(one, 20))
    await one.send(data[: one.chance.randrange(1, len(data))])
    await one.leave()


async def promise(one: Hostile) -> None:
    """Announce words of half a gigabyte and two thousand million words, and mostly send none."""
    head = one.chance.choice((b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n", b"*2147483647\r\n$1\r\nx\r\n"))
    await one.send(head + bytes(one.chance.choice((0, 10, 200_000))), 5)
    await one.leave()


async def never_read(one: Hostile) -> None:
    """Request replies and read none, more than the server stores or less."""
    one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    many = one.chance.choice((2, 12))
    await one.send(pack("SET", one.name, bytes(1 << 20)) + pack("GET", one.name) * many + pack("PING") * 600)


async def run_away(one: Hostile) -> None:
    """Reset the connection while its commands run."""
    commands = conversation(one, 600)
    await one.send(b"".join(commands), len(commands[0]), _READ)
    one.reset()


async def wait_and_leave(one: Hostile) -> None:
    """Disconnect while blocked, with more commands sent behind or none."""
    key = one.name + b":s"
    wait = one.chance.choice(
        (
            pack("XREADGROUP", "GROUP", "g", "a", "BLOCK", 0, "STREAMS", key, ">"),
            pack("XREAD", "BLOCK", 0, "STREAMS", key, "$"),
        )
    )
    behind = b"".join(conversation(one, 3)) if one.chance.random() < 0.5 else b""
    await one.send(b"".join(conversation(one, 0)) + wait + behind)
    await one.leave()


async def kill(one: Hostile) -> None:
    """Kill the client's own connection by its id, among other commands."""
    await one.send(pack("CLIENT", "ID"))
    reply = await asyncio.get_running_loop().sock_recv(one.socket, 100)
    await one.send(in_the_midst(one, pack("CLIENT", "KILL", "ID", reply.strip()[1:], "SKIPME", "no")))
    await one.read()  # until it is closed
    one.close()


async def pause(one: Hostile) -> None:
    """Pause all clients for a moment, among other commands."""
    data = in_the_midst(one, pack("CLIENT", "PAUSE", 20, one.chance.choice(("ALL", "WRITE"))))
    await one.send(data + (pack("CLIENT", "UNPAUSE") if one.chance.random() < 0.5 else b""))
    await one.leave()


def in_the_midst(one: Hostile, words: bytes) -> bytes:
    """Return commands with this one among them, outside of transactions."""
    return b"".join((*conversation(one, 20), words, *conversation(one, 20)))


ACTS: tuple[tuple[Act, int], ...] = (
    (talk, 20),
    (damage, 30),
    (drip, 3),
    (break_rules, 10),
    (babble, 6),
    (break_off, 8),
    (promise, 5),
    (never_read, 2),
    (run_away, 4),
    (wait_and_leave, 6),
    (kill, 4),
)
PAUSES: tuple[tuple[Act, int], ...] = ((pause, 2),)
