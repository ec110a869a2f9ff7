"""The command reader: grammar, limits with their errors, and independence of the network's pieces."""

import random
import tracemalloc

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import ProtocolError
from millstream.protocol import limits
from millstream.protocol.reader import CommandReader, QueryBufferError
from millstream.protocol.split import WORDS_MAX
from support import campaign

Outcome = tuple[list[list[bytes]], str | None]


def read(pieces: list[bytes], *, trusted: bool = True) -> Outcome:
    """Feed pieces and take commands after each; return the commands and the error's text."""
    reader = CommandReader(trusted=trusted)
    commands: list[list[bytes]] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (command := reader.next()) is not None:
                commands.append(command)
    except ProtocolError as error:
        return commands, str(error)
    return commands, None


def whole(data: bytes, *, trusted: bool = True) -> Outcome:
    return read([data], trusted=trusted)


def singly(data: bytes, *, trusted: bool = True) -> Outcome:
    return read([data[at : at + 1] for at in range(len(data))], trusted=trusted)


def packed(*words: bytes) -> bytes:
    return hiredis.pack_command(words)


@pytest.mark.parametrize(
    ("data", "commands"),
    [
        (packed(b"PING"), [[b"PING"]]),
        (packed(b"SET", b"k", b"a\r\nb\0c"), [[b"SET", b"k", b"a\r\nb\0c"]]),
        (packed(b"ECHO", b"") * 3, [[b"ECHO", b""]] * 3),
        (packed(b"XADD", b"k", b"*", b"f", b"\r\n*1\r\n"), [[b"XADD", b"k", b"*", b"f", b"\r\n*1\r\n"]]),
        (b"PING\r\n", [[b"PING"]]),
        (b"PING\n", [[b"PING"]]),
        (b"  set  k   v \r\n", [[b"set", b"k", b"v"]]),
        (b"\r\n\r\nPING\r\n", [[b"PING"]]),
        (b"*0\r\n*-1\r\n*-5\r\nPING\r\n", [[b"PING"]]),
        (b'set k "a\\x41\\n\\"b"\r\n', [[b"set", b"k", b'aA\n"b']]),
        (b"set k 'it\\'s \\n' \"\"\r\n", [[b"set", b"k", b"it's \\n", b""]]),
        (b"set k a\0b c\r\n", [[b"set", b"k", b"a"]]),
        (b"*1\rX$4\rXPINGXX", [[b"PING"]]),  # as in Redis, only the CR is looked for
        (packed(b"A", b"B") + b"inline 1\r\n" + packed(b"C"), [[b"A", b"B"], [b"inline", b"1"], [b"C"]]),
        (packed(b"BIG", b"x" * 300_000) + packed(b"PING"), [[b"BIG", b"x" * 300_000], [b"PING"]]),
    ],
)
def test_commands_are_read(data: bytes, commands: list[list[bytes]]) -> None:
    """Every valid form of a command is read, whole or byte by byte."""
    assert whole(data) == (commands, None)
    assert singly(data) == (commands, None)


def test_unfinished_command_full_of_stars() -> None:
    """A chunk whose end does not show the end of a command is read correctly."""
    word = b"\r\n*x" * 20
    whole_, cut = packed(b"PING"), packed(b"SET", b"k", word)
    assert read([whole_ + cut[:-3], cut[-3:]]) == ([[b"PING"], [b"SET", b"k", word]], None)
    assert read([whole_ + cut[:-60], cut[-60:] + whole_]) == ([[b"PING"], [b"SET", b"k", word], [b"PING"]], None)


def test_header_cut_by_the_network() -> None:
    """A command whose header the network cuts is read correctly, also by the fast path."""
    long = packed(b"DEL", *[b"key"] * 9)
    assert read([long[:3], long[3:], packed(b"PING")[:-3], b"G\r\n"]) == ([[b"DEL", *[b"key"] * 9], [b"PING"]], None)
    assert read([b"*", packed(b"PING")[1:], b"\r\nPING\r\n"]) == ([[b"PING"], [b"PING"]], None)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"*3000000000\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*blabla\r\n", "invalid multibulk length"),
        (b"*+3\r\n", "invalid multibulk length"),
        (b"*03\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", "expected '$', got 'f'"),
        (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-10\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$blabla\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b'set """test-key""" test-value\r\n', "unbalanced quotes in request"),
        (b"set 'a\r\n", "unbalanced quotes in request"),
        (b'set "a\\x4\r\n', "unbalanced quotes in request"),
        (b"a" * (limits.INLINE_MAX + 1), "too big inline request"),
        (b"*" + b"1" * limits.INLINE_MAX, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * limits.INLINE_MAX, "too big bulk count string"),
    ],
)
def test_broken_input_has_redis_text(data: bytes, text: str) -> None:
    """Each kind of invalid input gets Redis's error after the valid commands, whole or byte by byte."""
    head = packed(b"PING")
    assert whole(head + data) == ([[b"PING"]], f"Protocol error: {text}")
    assert singly(head + data) == ([[b"PING"]], f"Protocol error: {text}")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"*11\r\n", "Protocol error: unauthenticated multibulk length"),
        (b"*1\r\n$16385\r\n", "Protocol error: unauthenticated bulk length"),
        (b"*1\r\n$16384\r\n" + b"x" * (limits.QUERY_BUFFER_MAX_UNAUTHENTICATED + 1), "query buffer limit reached"),
    ],
)
def test_limits_before_auth(data: bytes, text: str) -> None:
    """Before AUTH, a client may send ten words of 16 KiB and buffer 1 MiB. After AUTH the limits are larger."""
    assert whole(data, trusted=False)[1] == text
    assert whole(data)[1] != text


def test_limits_before_auth_allow_hello() -> None:
    """Authentication commands fit within the limits before AUTH."""
    hello = packed(b"HELLO", b"3", b"AUTH", b"default", b"x" * 16384, b"SETNAME", b"me")
    assert singly(hello, trusted=False) == ([hiredis_words(hello)], None)


def hiredis_words(data: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(data)
    words = reader.gets()
    assert isinstance(words, list)
    return words


def test_query_buffer_counts_words_as_they_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query buffer's limit counts the memory of a command's words, not their bytes on the wire."""
    monkeypatch.setattr(limits, "QUERY_BUFFER_MAX", 100_000)
    reader = CommandReader()
    reader.feed(b"*2147483647\r\n")

    def pour() -> None:
        for _ in range(10_000):
            reader.feed(b"$2\r\nab\r\n" * 10)
            assert reader.next() is None

    with pytest.raises(QueryBufferError):
        pour()
    assert reader.buffered <= 101_000


@pytest.mark.parametrize("header", [b"*2147483647\r\n", b"*1\r\n$536870912\r\n", b"*1048576\r\n$536870912\r\n$1\r\n"])
def test_hostile_headers_cost_nothing(header: bytes) -> None:
    """A thousand connections that announce gigabytes take no memory before the bytes arrive."""
    tracemalloc.start()
    readers = [CommandReader() for _ in range(1000)]
    for reader in readers:
        reader.feed(packed(b"PING") + header)
        assert reader.next() == [b"PING"]
        assert reader.next() is None
    used, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 4 * 1024 * 1024


def test_large_word_is_held_twice_at_most() -> None:
    """Receiving a large word takes at most twice its size, plus the buffer's free space."""
    size = 32 * 1024 * 1024
    piece = b"x" * 65536
    reader = CommandReader()
    tracemalloc.start()
    reader.feed(b"*1\r\n$%d\r\n" % size)
    for _ in range(size // len(piece)):
        reader.feed(piece)
        assert reader.next() is None
    reader.feed(b"\r\n")
    command = reader.next()
    _used, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert command is not None
    assert len(command[0]) == size
    assert peak < 2.3 * size


words = st.lists(st.binary(max_size=30) | st.sampled_from([b"*", b"\r\n*1\r\n", b"$", b"XADD"]), min_size=1, max_size=6)
commands = st.lists(words, min_size=1, max_size=8)


@given(commands, st.data())
@settings(max_examples=300, deadline=None)
def test_any_commands_in_any_pieces(batch: list[list[bytes]], data: st.DataObject) -> None:
    """Commands of any arguments are read as sent, however the network cuts them."""
    wire = b"".join(packed(*command) for command in batch)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert read(pieces) == (batch, None)
    assert whole(wire) == (batch, None)
    assert singly(wire) == (batch, None)


SEEDS = [
    packed(b"XADD", b"k", b"*", b"f", b"v") * 3,
    packed(b"PING") + b"PING\r\n" + packed(b"SET", b"k", b"v" * 40),
    b"set 'a b' \"c\\x41\"\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n",
    b"*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n",
]
FILL = [b"*", b"$", b"\r\n", b"\r", b"\n", b"-1", b"0", b"99999", b'"', b"'", b"\0", b"+", b":1\r\n", b"*3\r\n", b"\\x"]


def mutated(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            data[at:at] = rng.choice(FILL)
        elif kind == 1:
            del data[at : at + rng.randint(1, 5)]
        elif kind == 2 and at < len(data):
            data[at] = rng.randrange(256)
        else:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:20]
        if not data:
            data[:] = b"*"
    return bytes(data)


def test_mutated_input_raises_nothing_else() -> None:
    """A hundred thousand mutated inputs each give commands or a ProtocolError, never another exception."""
    rng = random.Random(1)
    broken = sum(whole(mutated(rng))[1] is not None for _ in range(100_000))
    assert 20_000 < broken < 95_000


@pytest.mark.parametrize("trusted", [True, False])
def test_mutated_input_whole_equals_bytewise(trusted: bool) -> None:
    """A mutated input gives the same commands and error, whole or byte by byte."""
    rng = random.Random(2)
    for _ in range(4000):
        data = mutated(rng)
        assert whole(data, trusted=trusted) == singly(data, trusted=trusted), data


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Cut bytes into random pieces."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(1, 6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def damaged_inputs(seed: int) -> None:
    """Check 20,000 inputs: whole; a tenth in random pieces, byte by byte and untrusted; a tenth for their memory."""
    rng = random.Random(seed)
    for number in range(20_000):
        data = mutated(rng)
        wanted = whole(data)
        if number % 10 == 0:
            assert wanted == singly(data) == read(cut(data, rng)), data
            assert whole(data, trusted=False) == singly(data, trusted=False), data
        elif number % 10 == 1:
            assert weight(data) < 256 * 1024, data


def weight(data: bytes) -> int:
    """Return the peak memory of reading some bytes."""
    tracemalloc.start()
    try:
        whole(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_whatever_the_damage() -> None:
    """No mutated input of some hundred bytes takes more memory than a hiredis list of 9,999 elements."""
    rng = random.Random(3)
    heaviest = max(weight(mutated(rng)) for _ in range(1000))
    assert 1000 < heaviest < 256 * 1024


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_million_mutated_inputs() -> None:
    """A million damaged inputs cause only protocol errors, give the same result however cut, and take little memory."""
    campaign.run("parser", damaged_inputs, range(1, 51))


def test_a_command_of_very_many_words_is_read_in_turns() -> None:
    """A command of very many words is read in several turns, each of a limited number of words."""
    words = [b"w"] * (WORDS_MAX + 4)  # more than the fast way takes
    reader = CommandReader(words_at_once=WORDS_MAX // 2)
    reader.feed(packed(*words) + packed(b"PING"))
    turns = 0
    while (found := reader.next()) is None:
        assert reader.has_more
        turns += 1
    assert (found, turns) == (words, 2)
    assert reader.next() == [b"PING"]
    assert reader.next() is None
    assert not reader.has_more
