"""A replica's side of the handshake, the frame of a copy, and the stream split into units."""

import time

import pytest

from millstream.errors import ProtocolError
from millstream.replication.handshake import (
    Continues,
    CopyAwaited,
    CopyBegins,
    CopyBytes,
    CopyEnds,
    CopySize,
    Event,
    Handshake,
    Introduction,
    LinkRefused,
    Send,
    StreamBytes,
)
from millstream.replication.received import ReceivedStream, ReceivedUnit

ID = "a" * 40
MARK = b"0123456789" * 4
GREETING = [b"+PONG", b"+OK", b"+OK"]
COPY = b"REDIS0010" + b"\r\n\x00$5\r\n" * 9
REST = b"*1\r\n$4\r\nPING\r\n"


def events(data: bytes, pieces: int, me: Introduction) -> list[Event]:
    """Return the events of bytes that arrive in pieces; consecutive bytes of one kind are joined."""
    handshake, found = Handshake(me), []
    for at in range(0, len(data), pieces):
        for event in handshake.feed(data[at : at + pieces]):
            last = found[-1] if found else None
            if isinstance(event, CopyBytes | StreamBytes) and type(event) is type(last):
                found[-1] = type(event)(last.data + event.data)
            else:
                found.append(event)
    return found


def said(found: list[Event]) -> list[bytes]:
    """Return the commands that the replica sent."""
    return [b" ".join(event.data.split(b"\r\n")[2::2]) for event in found if isinstance(event, Send)]


@pytest.mark.parametrize("pieces", range(1, 40))
@pytest.mark.parametrize("frame", [b"$%d\r\n" % len(COPY) + COPY, b"$EOF:" + MARK + b"\r\n" + COPY + MARK])
def test_a_copy_and_the_stream_behind_it_are_found_wherever_bytes_are_cut(pieces: int, frame: bytes) -> None:
    """However the bytes are cut, the copy is whole and the stream begins at its first byte. Empty lines are ignored."""
    answers = b"".join(line + b"\r\n" for line in GREETING) + b"\n\n"
    data = answers + b"+FULLRESYNC %b 17\r\n\n\n" % ID.encode() + frame + REST
    found = events(data, pieces, Introduction(6400))
    assert said(found) == [
        b"REPLCONF listening-port 6400",
        b"REPLCONF capa eof capa psync2 capa millstream capa millstream-log-1",
        b"PSYNC ? -1",
    ]
    size = None if b"EOF" in frame else len(COPY)
    rest = [event for event in found if not isinstance(event, Send)]
    whole = [CopyBegins(ID, 17), CopySize(size), CopyBytes(COPY), CopyEnds(), StreamBytes(REST)]
    assert rest == [CopyAwaited(), *whole], "the first empty line tells that it is made"


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize(("answer", "name"), [(b"+CONTINUE", ID), (b"+CONTINUE " + b"b" * 40, "b" * 40)])
def test_it_goes_on_behind_what_it_holds(pieces: int, answer: bytes, name: str) -> None:
    """PSYNC requests the next byte after the replica's data, and the primary may rename the history from there on."""
    data = b"".join(line + b"\r\n" for line in [b"-NOAUTH no", b"+OK", b"-ERR what", *GREETING[:2], answer]) + REST
    me = Introduction(6400, ID, 99, "worker", "secret", "198.51.100.7")
    found = events(data, pieces, me)
    assert said(found) == [
        b"AUTH worker secret",
        b"REPLCONF listening-port 6400",
        b"REPLCONF ip-address 198.51.100.7",
        b"REPLCONF capa eof capa psync2 capa millstream capa millstream-log-1",
        b"PSYNC %b 100" % ID.encode(),
    ]
    assert [event for event in found if not isinstance(event, Send)] == [Continues(name), StreamBytes(REST)]


@pytest.mark.parametrize(
    ("lines", "reason", "is_passing"),
    [
        ([b"-LOADING Redis is loading"], "LOADING Redis is loading", True),
        ([b"-ERR max number of clients reached"], "ERR max number of clients reached", False),
        ([b"+PONG", b"-WRONGPASS invalid"], "WRONGPASS invalid", False),
        ([b"+PONG", b"+OK", b"+OK", b"+OK", b"-NOMASTERLINK wait"], "NOMASTERLINK wait", True),
        ([b"+PONG", b"+OK", b"+OK", b"+OK", b"+FULLRESYNC " + ID.encode() + b" 1", b"-no"], "no", False),
    ],
)
def test_what_the_primary_refuses_is_told_in_its_words(lines: list[bytes], reason: str, is_passing: bool) -> None:
    """A primary's refusal is reported in its own words, and the replica sends nothing more on the connection."""
    data = b"".join(line + b"\r\n" for line in lines)
    found = events(data + b"+OK\r\n", 7, Introduction(6400, password="secret"))
    assert found[-1] == LinkRefused(reason, is_passing)


@pytest.mark.parametrize(
    ("me", "answer"),
    [
        (Introduction(6400), b"+CONTINUE"),
        (Introduction(6400), b"+CONTINUE " + b"b" * 40),
        (Introduction(6400, ID, 99), b"+CONTINUE \xff\xfe"),
        (Introduction(6400, ID, 99), b"+CONTINUE " + b"b" * 39),
        (Introduction(6400, ID, 99), b" "),
        (Introduction(6400, ID, 99), b"+FULLRESYNC " + b"b" * 41 + b" 1"),
        (Introduction(6400, ID, 99), b"+FULLRESYNC " + b"b" * 40 + b" 9223372036854775808"),
        (Introduction(6400, ID, 99), b"+FULLRESYNC " + b"b" * 40 + b" " + b"9" * 5000),
        (Introduction(6400, ID, 99), b"+FULLRESYNC " + b"b" * 40 + b" 1\r\n$" + b"9" * 5000),
    ],
)
def test_an_answer_that_is_none_is_refused(me: Introduction, answer: bytes) -> None:
    """An invalid reply to PSYNC is refused: a bad history name, a number over 64 bits, or CONTINUE without data."""
    data = b"".join(line + b"\r\n" for line in [*GREETING, answer, *GREETING])
    found = events(data, 1000, me)
    assert isinstance(found[-1], LinkRefused)
    assert not any(isinstance(event, Continues | CopySize | StreamBytes) for event in found)


@pytest.mark.parametrize("lines", [[], [b"+PONG"], [*GREETING, b"+FULLRESYNC " + ID.encode() + b" 1"]])
def test_a_line_without_an_end_is_given_up(lines: list[bytes]) -> None:
    """A reply line without an end is given up after a limited number of bytes."""
    handshake = Handshake(Introduction(6400))
    list(handshake.feed(b"".join(line + b"\r\n" for line in lines)))
    found = [event for _ in range(50) for event in handshake.feed(b"$" * 4096)]
    assert len(found) == 1
    assert isinstance(found[0], LinkRefused)
    assert "without an end" in found[0].reason


def test_empty_lines_cost_next_to_nothing() -> None:
    """A million empty lines at once cost next to nothing, so that other clients are served."""
    handshake = Handshake(Introduction(6400))
    began = time.process_time()
    assert not list(handshake.feed(b"\n" * 1_000_000))
    assert time.process_time() - began < 0.2


def packed(*words: bytes) -> bytes:
    """Return a command as Redis sends it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


UNITS = [
    [packed(b"SELECT", b"0")],
    [packed(b"SET", b"k", b"a\r\n$3\r\nb"), packed(b"XADD", b"s", b"1-1", b"f", b"")],
    [packed(b"PING")],
    [packed(b"DEL", *(b"k%d" % at for at in range(20)))],
    [],
    [packed(b"REPLCONF", b"GETACK", b"*")],
]


@pytest.mark.parametrize("pieces", [*range(1, 60), 100_000])
def test_units_are_whole_and_their_sizes_are_those_of_their_bytes(pieces: int) -> None:
    """However the bytes are cut, the same units come out, each when its last byte is there, with their true sizes."""
    raw = [unit[0] if len(unit) == 1 else packed(b"multi") + b"".join(unit) + packed(b"EXEC") for unit in UNITS]
    stream, data, found = ReceivedStream(), b"".join(raw), []
    for at in range(0, len(data), pieces):
        stream.feed(data[at : at + pieces])
        while (unit := stream.next()) is not None:
            found.append(unit)
            assert stream.taken(unit.size) == raw[len(found) - 1]
            stream.drop()
    assert [unit.size for unit in found] == list(map(len, raw))
    assert [len(unit.commands) for unit in found] == list(map(len, UNITS))
    assert found[1].commands[0] == [b"SET", b"k", b"a\r\n$3\r\nb"]
    assert found[1].in_multi
    assert stream.waiting == 0


def test_an_open_transaction_is_no_unit() -> None:
    """An open transaction is not a unit: a link that is cut inside one continues before its MULTI."""
    stream = ReceivedStream()
    stream.feed(packed(b"PING") + packed(b"MULTI") + packed(b"SET", b"k", b"v"))
    assert stream.next() == ReceivedUnit([[b"PING"]], len(packed(b"PING")))
    assert stream.next() is None
    assert stream.waiting == len(packed(b"MULTI") + packed(b"SET", b"k", b"v"))


@pytest.mark.parametrize("data", [b"SET k v\r\n", b"*1\r\n:4\r\nPING", b"*x\r\n", b"*1\r\n$-1\r\n", b"*" + b"1" * 40])
def test_what_is_no_command_is_refused(data: bytes) -> None:
    """Bytes that are not a command end the link, since neither they nor later ones count in the offset."""
    stream = ReceivedStream()
    stream.feed(data)
    with pytest.raises(ProtocolError, match="the primary has sent"):
        stream.next()
