"""Numbers at the ends of every width, and in odd spellings, in each numeric option of the stream commands."""

import pytest

from conformance.pipe import Pipe
from millstream.replies import Error
from support.inprocess import World, to_words
from support.servers import ServerProcess

NUMBERS = (
    *("0", "1", "-1", "2", "-2", "10", "2147483646", "2147483647", "2147483648", "-2147483648", "-2147483649"),
    *("4294967295", "4294967296", "9223372036854775806", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775807", "-9223372036854775808", "-9223372036854775809", "18446744073709551615"),
    *("18446744073709551616", "922337203685477580", "922337203685477581", "576460752303423487", "576460752303423488"),
    *("01", "00", "-0", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "-", "+", "x", "", "1\0", "\t1", "1_0", "\u0661"),
)
SETUP = (
    *("FLUSHALL", "XADD s 5-1 f v", "XADD s 6-1 f v", "XADD s 7-1 f v", "XGROUP CREATE s g 0"),
    "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
)
# On both servers
LINES = (
    "XRANGE s - + COUNT N",
    "XREVRANGE s + - COUNT N",
    "XREAD COUNT N STREAMS s 0",
    "XREADGROUP GROUP g c COUNT N STREAMS s 0",
    "XREADGROUP GROUP g c COUNT N STREAMS s >",
    "XPENDING s g - + N",
    "XPENDING s g IDLE N - + 10",
    "XPENDING s g IDLE 0 - + N",
    "XCLAIM s g d N 5-1 JUSTID",
    "XCLAIM s g d 0 5-1 IDLE N JUSTID",
    "XCLAIM s g d 0 5-1 TIME N JUSTID",
    "XCLAIM s g d 0 5-1 RETRYCOUNT N JUSTID",
    "XAUTOCLAIM s g d N 0 JUSTID",
    "XAUTOCLAIM s g d 0 0 COUNT N JUSTID",
    "XADD s MAXLEN N 9-1 f v",
    "XADD s MAXLEN ~ N 9-1 f v",
    "XADD s MAXLEN ~ 2 LIMIT N 9-1 f v",
    "XADD s MINID N 9-1 f v",
    "XADD s N f v",
    "XADD s N-1 f v",
    "XADD s 9-N f v",
    "XADD s N-* f v",
    "XTRIM s MAXLEN N",
    "XTRIM s MAXLEN ~ 1 LIMIT N",
    "XTRIM s MINID N",
    "XDEL s N",
    "XDEL s 5-N",
    "XACK s g N",
    "XSETID s N",
    "XSETID s 9-N",
    "XSETID s 9-1 ENTRIESADDED N",
    "XSETID s 9-1 ENTRIESADDED 9 MAXDELETEDID N",
    "XGROUP CREATE s g2 N",
    "XGROUP CREATE s g2 0 ENTRIESREAD N",
    "XGROUP SETID s g N",
    "XGROUP SETID s g 0 ENTRIESREAD N",
    "XINFO STREAM s FULL COUNT N",
    "XREAD BLOCK N STREAMS s 0",
    "XRANGE s N +",
    "XRANGE s (N +",
    "XRANGE s - N",
    "XREVRANGE s N -",
    "XREAD STREAMS s N",
)
STATE = ("XRANGE s - +", "XPENDING s g", "XLEN s")
# The number stands in these words
PLACES = frozenset({"N", "N-1", "9-N", "5-N", "N-*", "(N"})
# Commands for which a few milliseconds of idle time on the one server would show
BY_IDLE_TIME = ("XPENDING s g IDLE N", "XCLAIM s g d N", "XAUTOCLAIM s g d N")
NEEDS_MEMORY = frozenset({"576460752303423487", "4294967295", "4294967296", "2147483646", "2147483647", "2147483648"})
SHORT = frozenset({"1", "2", "10"})


def put(line: str, number: str) -> list[bytes]:
    return to_words([word.replace("N", number) if word in PLACES else word for word in line.split()])


def shown(line: str, reply: object) -> object:
    """Return a reply without idle times and without the XINFO fields that later versions added."""
    if line.startswith("XPENDING s g ") and isinstance(reply, list):
        return [[row[0], row[1], row[3]] for row in reply]
    if line.startswith("XINFO") and not isinstance(reply, Error):
        return "a reply"
    return reply


@pytest.mark.realserver
def test_numbers_at_their_ends_are_taken_or_refused_as_redis_does(each_redis: ServerProcess) -> None:
    """Each number in each numeric option gets the reply of Redis, and leaves the same stream and pending entries."""
    cases = [
        (line, number)
        for line in LINES
        for number in NUMBERS
        if not (line.startswith(BY_IDLE_TIME) and number in SHORT)
    ]
    setup, state = [to_words(line.split()) for line in SETUP], [to_words(line.split()) for line in STATE]
    pipe = Pipe(each_redis.port)
    try:
        flat = pipe.ask([words for line, number in cases for words in (*setup, put(line, number), *state)])
    finally:
        pipe.close()
    size = len(setup) + 1 + len(state)
    client, found, wanted = World(logged=False).client(), {}, {}
    for at, (line, number) in enumerate(cases):
        for words in setup:
            client.call(*words)
        ours = [client.call(*put(line, number)), *(client.call(*words) for words in state)]
        theirs = flat[at * size + len(setup) : (at + 1) * size]
        found[line, number] = [shown(line, ours[0]), *ours[1:]]
        wanted[line, number] = [shown(line, theirs[0]), *theirs[1:]]
    differing = {case: (found[case], wanted[case]) for case in found if found[case] != wanted[case]}
    assert {case: both for case, both in differing.items() if not changed_since(*case)} == {}


def changed_since(line: str, number: str) -> bool:
    """Return True if Redis 7.0 differs from later versions for this line and number.

    In 7.0, XAUTOCLAIM allocates 16 bytes for each unit of COUNT, and XREAD does not support ``+``, the last entry. A
    BLOCK that overflows the clock is accepted.
    """
    if line.startswith("XAUTOCLAIM s g d 0 0 COUNT"):
        return number in NEEDS_MEMORY
    if line.startswith("XREAD BLOCK"):
        return number in {"9223372036854775806", "9223372036854775807"}
    return line == "XREAD STREAMS s N" and number == "+"


def test_what_redis_keeps_in_an_int_is_refused_above_it() -> None:
    """XNACK refuses a number of ids from 2^31 on, since Redis stores it in an int. XACKDEL and XDELEX use a long."""
    client = World().client()
    for words in SETUP:
        client.call(*words.split())
    for number in NUMBERS:
        value = int(number) if number.lstrip("-").isdecimal() and number.isascii() and str(int(number)) == number else 0
        not_positive = not 0 < value < 2**63
        nack = client.call("XNACK", "s", "g", "FAIL", "IDS", number, "9-9")
        if not 0 < value < 2**31:
            assert nack == Error("ERR numids must be a positive integer")
        elif value != 1:
            assert nack == Error("ERR number of IDs doesn't match numids")
        for words in (["XACKDEL", "s", "g"], ["XDELEX", "s"]):
            reply = client.call(*words, "IDS", number, "9-9")
            if not_positive:
                assert reply == Error("ERR Number of IDs must be a positive integer")
            elif value != 1:
                assert reply == Error("ERR The `numids` parameter must match the number of arguments")
