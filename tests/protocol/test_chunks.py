"""Bytes that arrive while commands wait: the same commands by either decoder, with the fast one used if possible."""

import random

import pytest

from millstream.errors import ProtocolError
from millstream.protocol.reader import CommandReader
from millstream.protocol.split import Splitter
from support.wire import pack

USUAL = pack("XADD", "s", "*", "field", "value")


def some(rng: random.Random) -> tuple[bytes, list[bytes]]:
    """Return a random command as bytes and as words, mostly in the usual form."""
    kind = rng.randrange(40)
    if kind == 0:
        word = b"x" * rng.randrange(1, 9)
        return b"inline " + word + b"\r\n", [b"inline", word]
    if kind == 1:
        return pack("SET", "k", "line\r\nend"), [b"SET", b"k", b"line\r\nend"]
    if kind == 2:
        word = b"v" * rng.choice((3000, 9000, 70_000, 300_000))
        return pack("SET", "k", word), [b"SET", b"k", word]
    words = [b"w" * rng.randrange(12) for _ in range(rng.choice((1, 3, 3, 5, 9, 200)))]
    return pack(*words), words


def given(rng: random.Random, count: int) -> tuple[bytes, list[list[bytes]]]:
    """Return many commands as bytes and as words."""
    made = [some(rng) for _ in range(count)]
    return b"".join(written for written, _ in made), [words for _, words in made]


def taken(reader: CommandReader, rng: random.Random) -> list[list[bytes]]:
    """Take commands as a connection does: some together from the chunk, others one by one."""
    found: list[list[bytes]] = []
    for _ in range(rng.choice((0, 1, 3, 50, 2000))):
        if reader.chunk and rng.randrange(2):
            splitter = Splitter(reader.chunk, reader.at)
            for _ in range(rng.choice((1, 40))):
                words = splitter.next()
                if words is not None:
                    found.append(words)
            reader.advance(splitter.at)
        words = reader.next()
        if words is None and not reader.has_more:
            break
        found += [] if words is None else [words]
    return found


@pytest.mark.parametrize("seed", range(30))
def test_commands_are_the_same_however_they_wait(seed: int) -> None:
    """Commands that arrive in pieces while others wait are each taken once and in order."""
    rng = random.Random(seed)
    data, commands = given(rng, 600)
    reader = CommandReader()
    found: list[list[bytes]] = []
    at = 0
    while at < len(data):
        size = rng.choice((1, 50, 1000, 9000, 70_000, 200_000))
        reader.feed(data[at : at + size])
        at += size
        found += taken(reader, rng)
        assert reader.buffered <= len(data)
    while (words := reader.next()) is not None or reader.has_more:
        found += [] if words is None else [words]
    assert found == commands
    assert reader.buffered == 0


def test_what_waits_is_counted_once() -> None:
    """The number of buffered bytes counts each waiting byte once."""
    reader = CommandReader()
    sent = 0
    for _ in range(9):
        reader.feed(USUAL * 5000)
        sent += 5000
        for _ in range(4000):
            assert reader.next() is not None
        sent -= 4000
        assert reader.buffered == sent * len(USUAL)


def test_many_commands_stay_on_the_fast_way() -> None:
    """Plain commands can always be taken from the chunk, however many arrive while others wait."""
    reader = CommandReader()
    reader.feed(USUAL * 1200 + USUAL[:20])
    for _ in range(500):
        reader.next()
    for _ in range(10):
        reader.feed(USUAL[20:] + USUAL * 3000 + USUAL[:20])
    slow = 0
    for _ in range(1200 + 10 * 3001 - 500):
        slow += not reader.chunk
        assert reader.next() == [b"XADD", b"s", b"*", b"field", b"value"]
    assert slow == 0
    assert reader.next() is None


def test_the_fast_way_goes_on_behind_what_is_unusual() -> None:
    """After an inline command among thousands, at most half of the buffered commands take the slow path."""
    reader = CommandReader()
    reader.feed(USUAL * 200 + b"PING\r\n" + USUAL * 800)
    slow = 0
    for _ in range(1001):
        slow += not reader.chunk
        assert reader.next() is not None
    assert 0 < slow < 450


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_splitter_cuts_no_more_than_is_asked_of_it(size: int) -> None:
    """The splitter finds every command with its position, wherever its windows end."""
    rng = random.Random(size)
    commands = [[b"x" * rng.randrange(size) for _ in range(rng.randrange(1, 9))] for _ in range(400)]
    data = b"".join(pack(*words) for words in commands)
    splitter, at = Splitter(b"ignored" + data + b"*1\r\n$4\r\nPING", 7), 7
    for words in commands:
        assert splitter.next() == words
        at += len(pack(*words))
        assert splitter.at == at
    assert splitter.next() is None
    assert splitter.at == at


def test_trust_that_ends_is_seen_by_the_next_command() -> None:
    """After a session loses its trust, commands that wait in a chunk have the smaller limits."""
    reader = CommandReader()
    reader.feed(USUAL + pack(*[b"word"] * 20))
    assert reader.next() is not None
    reader.trusted = False
    with pytest.raises(ProtocolError, match="unauthenticated multibulk length"):
        reader.next()
