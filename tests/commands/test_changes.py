"""The number of changes that a command counts (INFO, rdb_changes_since_last_save).

Tools and Redis's test suites use it.
"""

import pytest

from millstream.replies import Error
from support.inprocess import Client, World

LINE = b"rdb_changes_since_last_save:"

COUNTS = {
    "XADD s 9-0 f v": 1,
    "XADD s 9-0 f v MAXLEN": 0,
    "XADD s MAXLEN 1 9-0 f v": 1,
    "XADD s IDMP p m * f v": 1,
    "XADD s IDMP p known * f v": 1,
    "XADD s NOMKSTREAM 0-0 f v": 0,
    "XTRIM s MAXLEN 1": 3,
    "XTRIM s MAXLEN 9": 0,
    "XDEL s 1-0 2-0 2-0 8-0": 2,
    "XDELEX s IDS 3 1-0 2-0 8-0": 2,
    "XACK s g 1-0 2-0 8-0": 2,
    "XACKDEL s g IDS 3 1-0 2-0 8-0": 2,
    "XACKDEL s g DELREF IDS 1 1-0": 1,
    "XNACK s g FAIL IDS 3 1-0 2-0 2-0": 3,
    "XNACK s g FAIL IDS 1 8-0": 0,
    "XSETID s 9-0": 1,
    "XCFGSET s IDMP-MAXSIZE 7": 1,
    "XCFGSET s IDMP-MAXSIZE 100": 0,
    "XIDMPRECORD s p new 1-0": 1,
    "XIDMPRECORD s p known 3-0": 0,
    "XGROUP CREATE s new 0": 1,
    "XGROUP CREATE other new 0 MKSTREAM": 1,
    "XGROUP SETID s g 0": 1,
    "XGROUP DESTROY s g": 1,
    "XGROUP DESTROY s nog": 0,
    "XGROUP CREATECONSUMER s g new": 1,
    "XGROUP CREATECONSUMER s g c": 0,
    "XGROUP DELCONSUMER s g c": 1,
    "XGROUP DELCONSUMER s g nobody": 0,
    "XREADGROUP GROUP g c STREAMS s >": 1,
    "XREADGROUP GROUP g new STREAMS s >": 2,
    "XREADGROUP GROUP g c NOACK STREAMS s >": 1,
    "XREADGROUP GROUP g c CLAIM 0 STREAMS s >": 1,
    "XREADGROUP GROUP g c STREAMS s 0": 0,
    "XREADGROUP GROUP g new STREAMS s 0": 1,
    "XCLAIM s g c 0 1-0 2-0": 2,
    "XCLAIM s g new 0 1-0 2-0": 3,
    "XCLAIM s g c 0 8-0": 0,
    "XCLAIM s g c 0 8-0 LASTID 5-0": 1,
    "XCLAIM s g c 0 1-0 LASTID 5-0": 1,
    "XAUTOCLAIM s g c 0 0": 2,
    "XAUTOCLAIM s g new 0 0 COUNT 1": 2,
    "XPENDING s g": 0,
}


def changes(client: Client) -> int:
    text = client.call("INFO", "persistence")
    assert isinstance(text, bytes)
    return next(int(line.removeprefix(LINE)) for line in text.splitlines() if line.startswith(LINE))


@pytest.mark.parametrize("line", COUNTS)
def test_a_command_counts_as_many_changes_as_in_redis(line: str) -> None:
    """A command counts one change for each entry, pending record and consumer that it changes, else none."""
    client = World().client()
    for before in (
        *(f"XADD s {number}-0 f v" for number in range(1, 5)),
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
        "XIDMPRECORD s p known 3-0",
    ):
        client.call(*before.split())
    start = changes(client)
    client.call(*line.split())
    assert changes(client) - start == COUNTS[line]


@pytest.mark.parametrize("word", ["x", "", "1_0", " 5", "+5", "007", "1.5", "9223372036854775808", "\u0665"])
def test_a_parameter_takes_numbers_as_redis_reads_them(word: str) -> None:
    """A value that is not a canonical 64-bit number is refused, and the parameter stays unchanged."""
    client = World().client()
    told = client.call("CONFIG", "SET", "stream-node-max-entries", word)
    assert told == Error(
        "ERR CONFIG SET failed (possibly related to argument 'stream-node-max-entries') - argument couldn't be parsed "
        "into an integer"
    )
    assert client.call("CONFIG", "GET", "stream-node-max-entries") == [b"stream-node-max-entries", b"100"]
