"""SLOWLOG in process: it has every command that INFO counts, hides secrets, and costs little for any input.

The comparison with Redis is in tests/conformance/test_slowlog.py.
"""

from typing import Any

import pytest

from millstream.protocol.reader import CommandReader
from support.inprocess import WAITING, Client, World
from support.plain import answered
from support.wire import pack

EVERY = {"slowlog-log-slower-than": "0", "slowlog-max-len": "100000", "enable-debug-command": "yes"}


def client(**more: str) -> Client:
    """Return a client of a node that logs every command as slow."""
    return World({**EVERY, **more}).client()


def as_connection(found: Client, *lines: str) -> None:
    """Run commands as a connection does: consecutive plain ones together."""
    reader = CommandReader()
    reader.feed(b"".join(pack(*line.split(" ")) for line in lines))
    for _ in answered(found.world.node, found.session, reader, found.world.clock.now()):
        pass


def rows(found: Client) -> list[Any]:
    """Return the rows of the slow log, oldest first."""
    listed = found.call("SLOWLOG", "GET", -1)
    assert isinstance(listed, list)
    return listed[::-1]


def lines(found: Client) -> list[str]:
    """Return the commands in the slow log."""
    return [b" ".join(row[3]).decode() for row in rows(found)]


WORK = ("SET a b", "XADD s * f v", "XADD s * f v", "XADD s * f w", "GET a", "TYPE a", "XRANGE s - +", "XLEN s", "PING")


@pytest.mark.parametrize("around", [(), ("MULTI", "EXEC")])
def test_plain_commands_are_kept_as_others_are(around: tuple[str, ...]) -> None:
    """Plain commands that run together have a row each, with their own words, in order."""
    found = client()
    found.call("XADD", "s", "1-1", "f", "v")
    as_connection(found, *around[:1], *WORK, *around[1:])
    assert lines(found) == ["XADD s 1-1 f v", *around[:1], *WORK]


def test_the_same_is_counted_and_kept() -> None:
    """Each command has as many calls in the slow log as in INFO, and not more time."""
    found = client()
    found.call("XADD", "s", "1-1", "f", "v")
    as_connection(found, *WORK, *WORK, "MULTI", *WORK, "EXEC", *WORK)
    found.call("EVAL", "for at = 1, 9 do redis.call('XADD', 's', '*', 'f', at) end return redis.call('TYPE', 's')", 0)
    kept: dict[str, tuple[int, int]] = {}
    for row in rows(found):
        name = row[3][0].decode().lower()
        calls, micros = kept.get(name, (0, 0))
        kept[name] = calls + 1, micros + row[2]
    stats = found.world.node.stats
    stats.collect()
    counted = {name: each for name, each in stats.commands.items() if name not in {"exec", "slowlog|get"}}
    assert {name: calls for name, (calls, _) in kept.items()} == {name: each.calls for name, each in counted.items()}
    assert all(micros <= counted[name].nanoseconds // 1000 for name, (_, micros) in kept.items())


def test_many_commands_of_a_script_are_kept_in_order() -> None:
    """The slow log has all commands of a long script in order, plain ones and others."""
    found = client()
    script = "for at = 1, 1300 do redis.call('SET', 'k', at) if at % 200 == 0 then redis.call('TYPE', at) end end"
    found.call("EVAL", script, 0)
    expected = []
    for at in range(1, 1301):
        expected += [f"SET k {at}", *([f"TYPE {at}"] if at % 200 == 0 else [])]
    kept = rows(found)
    assert [b" ".join(row[3]).decode() for row in kept[:-1]] == expected
    assert {(row[4], row[5]) for row in kept[:-1]} == {(b"", b"")}
    assert kept[-1][3][0] == b"EVAL"


@pytest.mark.parametrize("count", [9, 10_001])
def test_a_long_range_is_kept_whichever_way_it_goes(count: int) -> None:
    """A long range command is in the slow log whether it runs as a plain command, for few entries, or not."""
    found = client()
    as_connection(found, *["XADD s * f v"] * count)
    found.call("SLOWLOG", "RESET")
    as_connection(found, "XRANGE s - +")
    assert lines(found) == ["SLOWLOG RESET", "XRANGE s - +"]


def test_what_takes_less_is_not_kept() -> None:
    """A command faster than the threshold is not logged, and a threshold of -1 logs none."""
    found = client()
    for value in ("3600000000", "-1", "9223372036854775807"):
        found.call("CONFIG", "SET", "slowlog-log-slower-than", value)
        found.call("SLOWLOG", "RESET")
        as_connection(found, *WORK)
        found.call("EVAL", "return redis.call('PING')", 0)
        assert rows(found) == []
    found.call("CONFIG", "SET", "slowlog-log-slower-than", 1000)
    found.call("DEBUG", "SLEEP", "0.001")
    ((_, _, took, words, _, _),) = rows(found)
    assert took >= 1000
    assert words == [b"DEBUG", b"SLEEP", b"0.001"]


def test_waiting_does_not_count() -> None:
    """The duration of a blocked command excludes the wait for the entry and the time of other commands."""
    found = client()
    found.call("CONFIG", "SET", "slowlog-log-slower-than", 100_000)
    found.call("SLOWLOG", "RESET")
    waiting = found.world.client()
    assert waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    found.call("DEBUG", "SLEEP", "0.1")
    found.world.advance(3_600_000)
    found.call("XADD", "s", "*", "f", "v")
    assert waiting.inbox
    assert lines(found) == ["DEBUG SLEEP 0.1"]


@pytest.mark.parametrize("slower", [0, 100_000])
def test_a_wait_that_is_over_unserved_is_kept_without_its_length(slower: int) -> None:
    """A blocked command that times out is logged with the time of its one look at the key, as in Redis 8."""
    found = client()
    found.call("CONFIG", "SET", "slowlog-log-slower-than", slower)
    found.call("SLOWLOG", "RESET")
    waiting = found.world.client()
    assert waiting.send("BLPOP", "l", "200") is WAITING
    found.world.advance(200_000)
    assert waiting.inbox
    kept = [row for row in rows(found) if row[3] == [b"BLPOP", b"l", b"200"]]
    assert [row[2] < 100_000 for row in kept] == ([] if slower else [True])
    assert [row[1] for row in kept] == [found.world.clock.wall // 1000] * len(kept)


def test_it_is_told_when_a_command_ended() -> None:
    """A row of the slow log has the time at which the command ended, by the server's clock, in seconds."""
    found = client()
    found.call("PING")
    assert rows(found)[0][1] == found.world.clock.wall // 1000


SECRETS = (
    "AUTH a b c",
    "HELLO 4 AUTH user secret",
    "HELLO x AUTH user secret",
    "HELLO 2 SETNAME a\nb AUTH user secret",
    "HELLO 2 AUTH secret",
    "ACL GETUSER secret",
    "ACL DELUSER secret secret",
    "ACL SETUSER user >secret",
    "CONFIG SET masterauth secret",
    "CONFIG SET nosuch 1 masteruser secret",
    "CONFIG SET tls-key-file-pass secret",
)


@pytest.mark.parametrize("line", SECRETS)
def test_no_secret_is_kept_though_the_command_is_refused(line: str) -> None:
    """The slow log hides secrets also of refused commands. Redis shows those of a refused HELLO or AUTH."""
    found = client()
    found.call(*line.split(" "))
    ((*_, words, _, _),) = rows(found)
    assert b"(redacted)" in words
    assert b"secret" not in b" ".join(words)
    assert len(words) == len(line.split(" "))


def test_words_are_kept_as_bytes_and_cut() -> None:
    """The slow log keeps words as bytes, also invalid UTF-8 and NUL, and cuts long ones.

    Names and addresses may be any bytes.
    """
    found = client()
    found.session.addr = "/tmp/\udcff:0"
    found.session.name = b"\xff\x1b[2J"
    words = [b"SET", b"\xff\x00\r\n\x1b[2J<b>", bytes(10_000_000)]
    found.call(*words)
    ((_, _, _, kept, addr, name),) = rows(found)
    assert kept == [*words[:2], bytes(128) + b"... (9999872 more bytes)"]
    assert (addr, name) == (b"/tmp/\xff:0", b"\xff\x1b[2J")


def test_no_more_are_kept_than_the_parameter_says() -> None:
    """The slow log keeps the latest rows up to ``slowlog-max-len``. Row numbers continue after SLOWLOG RESET."""
    found = client(**{"slowlog-max-len": "3"})
    as_connection(found, *[f"GET {at}" for at in range(9)])
    assert [(row[0], row[3][1]) for row in rows(found)] == [(6, b"6"), (7, b"7"), (8, b"8")]
    found.call("SLOWLOG", "RESET")
    assert [row[0] for row in rows(found)] == [10]  # SLOWLOG GET was 9


def test_a_name_of_ours_is_refused_to_others_by_acl() -> None:
    """A user without the admin category cannot read SLOWLOG, which shows the commands of other users."""
    found = client()
    found.call("ACL", "SETUSER", "worker", "on", "nopass", "~*", "+@all", "-@admin")
    worker = found.world.client()
    worker.call("AUTH", "worker", "x")
    assert "NOPERM" in repr(worker.call("SLOWLOG", "GET"))


def test_nothing_is_counted_where_nothing_is_kept() -> None:
    """With ``slowlog-max-len`` 0 the slow log is off, as in Redis 8, and uses no row numbers."""
    found = client(**{"slowlog-max-len": "0"})
    as_connection(found, *WORK)
    found.call("CONFIG", "SET", "slowlog-max-len", "9")
    found.call("PING")
    assert [row[0] for row in rows(found)] == [0, 1]
