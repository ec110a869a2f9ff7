"""The cost of a stream command is that of the part it touches, however large the stream or its groups are."""

import pytest

from millstream.replies import Error
from support.inprocess import Client, World
from support.steps import steps

SMALL, LARGE = 1_000, 10_000
# "mid" and "end" stand for ids in the middle and at the end of the stream, each followed by nine more
IDS = 10
LINES = (
    "XPENDING s g",
    "XPENDING s g - + 10",
    "XPENDING s g mid + 10",
    "XPENDING s g mid + 10 a",
    "XPENDING s g IDLE 0 mid + 10 a",
    "XINFO STREAM s",
    "XINFO STREAM s FULL",
    "XINFO GROUPS s",
    "XINFO CONSUMERS s g",
    "XRANGE s mid + COUNT 10",
    "XREVRANGE s + - COUNT 10",
    "XREAD COUNT 10 STREAMS s mid",
    "XREAD STREAMS s +",
    "XREADGROUP GROUP g a COUNT 10 STREAMS s 0",
    "XREADGROUP GROUP g a COUNT 10 STREAMS s mid",
    "XREADGROUP GROUP g a COUNT 10 CLAIM 0 STREAMS s >",
    "XREADGROUP GROUP g2 a COUNT 10 STREAMS s >",
    "XREADGROUP GROUP g2 a COUNT 10 MAXSIZE 400 NOACK STREAMS s >",
    "XAUTOCLAIM s g b 0 mid COUNT 10",
    "XAUTOCLAIM s g b 999999999 mid COUNT 10",
    "XCLAIM s g c 0 mids",
    "XCLAIM s g c 0 mids IDLE 500",
    "XCLAIM s g c 0 mids TIME 1",
    "XCLAIM s g d 0 ends IDLE 700 JUSTID",
    "XNACK s g FAIL IDS 10 mids",
    "XCLAIM s g d 0 mids TIME 3",
    "XACK s g mids",
    "XPENDING s g - + 10 d",
    "XCLAIM s g d 0 mids TIME 5 FORCE",
    "XGROUP DELCONSUMER s g d",
    "XACKDEL s g KEEPREF IDS 10 mids",
    "XACKDEL s g DELREF IDS 10 ends",
    "XDELEX s KEEPREF IDS 10 mids",
    "XDELEX s DELREF IDS 10 ends",
    "XDELEX s ACKED IDS 10 mids",
    "XDEL s mids",
    "XTRIM s MAXLEN {LESS}",
    "XTRIM s MAXLEN {LESS} DELREF",
    "XTRIM s MINID 30",
    "XTRIM s MINID 40 ACKED",
    "XTRIM s MINID ~ 45 ACKED",
    "XADD s MINID 50 ACKED * f v",
    "XADD s MINID 60 * f v",
    "XADD s MAXLEN ~ 100000000 ACKED * f v",
    "XADD s NOMKSTREAM * f v",
    "XSETID s 99999999999999-1",
    "XGROUP CREATE s g3 $",
    "XGROUP SETID s g3 0",
    "XGROUP CREATECONSUMER s g3 x",
    "XGROUP DELCONSUMER s g3 x",
    "XGROUP DESTROY s g3",
    "XGROUP DESTROY s g",
    "XLEN s",
    "UNLINK s",
)


def filled(count: int) -> Client:
    """Return a client with ``count`` entries in a stream, all pending in ``g``, some for a second consumer."""
    client = World().client()
    for number in range(1, count + 1):
        client.raw("XADD", "s", f"{number}-1", "f", "v")
    client.raw("XGROUP", "CREATE", "s", "g", "0")
    client.raw("XGROUP", "CREATE", "s", "g2", "0")
    for time in range(count // 10):
        client.world.clock.advance(1)
        client.raw("XREADGROUP", "GROUP", "g", "a" if time % 3 else "other", "COUNT", "10", "STREAMS", "s", ">")
    return client


def words(line: str, count: int) -> list[str]:
    many = {"mids": count // 2, "ends": count - IDS - 1}
    one = {"mid": f"{count // 2}-0", "{LESS}": str(count - 40)}
    found: list[str] = []
    for word in line.split():
        if word in many:
            found += [f"{many[word] + step}-1" for step in range(IDS)]
        else:
            found.append(one.get(word, word))
    return found


def costs(client: Client, count: int) -> dict[str, int]:
    """Return the steps that each line takes, run in order."""
    found = {}
    for line in LINES:
        argv = words(line, count)
        replies: list[object] = []
        found[line] = steps(lambda argv=argv, replies=replies: replies.append(client.call(*argv)))
        assert not isinstance(replies[0], Error), (line, replies)
    return found


def test_a_command_costs_what_it_touches() -> None:
    """A command on ten pending entries takes as many steps when ten thousand are pending as when one thousand are."""
    small, large = costs(filled(SMALL), SMALL), costs(filled(LARGE), LARGE)
    assert {line: (small[line], large[line]) for line in LINES if large[line] > 1.5 * small[line] + 50} == {}


def test_ten_times_as_much_is_ten_times_the_steps() -> None:
    """The steps of commands that touch every entry grow in proportion to the number of entries."""
    lines = (
        "XPENDING s g - + 100000",
        "XPENDING s g IDLE 999999999 - + 100000",
        "XINFO STREAM s FULL COUNT 0",
        "XREADGROUP GROUP g a STREAMS s 0",
        "XAUTOCLAIM s g b 0 - COUNT 100000",
        "XAUTOCLAIM s g b 0 - COUNT 100000 JUSTID",
        "XREADGROUP GROUP g c CLAIM 0 STREAMS s >",
        "XREADGROUP GROUP g2 c STREAMS s >",
        "XTRIM s MAXLEN 10 ACKED",
        "XGROUP DELCONSUMER s g c",
        "XTRIM s MAXLEN 10 DELREF",
    )
    small, large = filled(SMALL), filled(LARGE)
    for line in lines:
        argv = line.split()
        cheap, dear = (steps(lambda client=client, argv=argv: client.raw(*argv)) for client in (small, large))
        assert dear < 15 * cheap, line


@pytest.mark.parametrize("options", ["IDLE 5000", "TIME 1", "IDLE 5000 JUSTID", "FORCE TIME 7"])
def test_claims_into_the_past_find_their_place_at_once(options: str) -> None:
    """XCLAIM with IDLE or TIME moves a record before all later deliveries in a constant number of steps."""
    found = []
    for count in (SMALL, LARGE):
        client = filled(count)
        line = words(f"XCLAIM s g c 0 ends {options}", count)
        found.append(steps(lambda client=client, line=line: client.raw(*line)))
    assert found[1] < 1.5 * found[0]


def test_ids_that_come_back_in_descending_order_are_put_in_at_once() -> None:
    """Making each of a thousand old ids pending again (FORCE) costs the same in a short list as in a long one."""
    client = filled(LARGE)
    old = [f"{number}-1" for number in range(2000, 1000, -1)]
    client.call("XACK", "s", "g", *old)
    first = steps(lambda: client.call("XCLAIM", "s", "g", "c", "0", *old[:100], "FORCE"))
    rest = steps(lambda: client.call("XCLAIM", "s", "g", "c", "0", *old[100:], "FORCE"))
    assert rest < 11 * first


def test_a_walk_passes_over_nothing_that_was_acknowledged() -> None:
    """Pending entries around ten thousand acknowledged ones are found without a step for each acknowledged entry."""
    found = []
    for count in (SMALL, LARGE):
        client = filled(count)
        client.call("XACK", "s", "g", *[f"{number}-1" for number in range(6, count * 4 // 10)])
        found.append(steps(lambda client=client: client.call("XPENDING", "s", "g", "-", "+", "10")))
    assert found[1] < 1.5 * found[0]


def test_claiming_an_entry_twice_in_one_command_counts_twice() -> None:
    """XCLAIM claims an id once for each time that the command repeats it, and counts each claim as a delivery."""
    client = filled(100)
    client.call("XCLAIM", "s", "g", "c", "0", "5-1", "6-1", "5-1", "7-1", "5-1", "6-1")
    rows = client.call("XPENDING", "s", "g", "5-1", "7-1", "10")
    assert isinstance(rows, list)
    assert [(row[0], row[1], row[3]) for row in rows] == [(b"5-1", b"c", 4), (b"6-1", b"c", 3), (b"7-1", b"c", 2)]
    client.call("XDEL", "s", "8-1", "9-1")
    assert client.call("XCLAIM", "s", "g", "c", "0", "8-1", "9-1", "8-1", "10-1", "JUSTID") == [b"10-1"]
    assert client.call("XPENDING", "s", "g", "8-1", "9-1", "10") == []
    assert client.call("XACK", "s", "g", "8-1") == 0
