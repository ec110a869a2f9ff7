"""Any change of the wall clock: ids rise, idle times are never negative, and waits end on time."""

import pytest

from support.inprocess import WAITING, World
from support.resp import fields

YEAR = 31_536_000_000
JUMPS = [-1000, -86_400_000, -YEAR, 0, 1000, YEAR]


@pytest.mark.parametrize("jump", JUMPS)
def test_ids_strictly_rise_whatever_the_clock_does(jump: int) -> None:
    """Generated ids never repeat or fall, and follow the clock again as soon as it is ahead."""
    world = World()
    client = world.client()
    ids = []
    for step in range(6):
        ids.append(client.call("XADD", "s", "*", "f", "v"))
        world.clock.jump(jump if step == 2 else step % 2)
    numbers = [tuple(map(int, entry.split(b"-"))) for entry in ids]  # type: ignore[attr-defined] # bytes
    assert numbers == sorted(set(numbers))
    world.clock.wall = numbers[-1][0] + 5
    assert client.call("XADD", "s", "*", "f", "v") == b"%d-0" % world.clock.wall


@pytest.mark.parametrize("wall", [1, 2**48, 2**53, 2**62])
def test_ids_of_any_time(wall: int) -> None:
    """Ids are right at any clock time: soon after 1970, past 48 bits, and past the precision of a float."""
    world = World()
    world.clock.wall = wall
    client = world.client()
    assert client.call("XADD", "s", "*", "f", "v") == b"%d-0" % wall
    assert client.call("XADD", "s", "*", "f", "v") == b"%d-1" % wall
    client.call("XGROUP", "CREATE", "s", "g", 0)
    assert client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">") is not None
    assert client.call("XPENDING", "s", "g", "-", "+", 1) == [[b"%d-0" % wall, b"c", 0, 1]]
    assert world.recovered().keyspace.databases[0].keys[b"s"].length == 2  # type: ignore[attr-defined] # a stream


@pytest.mark.parametrize("jump", JUMPS)
def test_idle_times_are_never_negative(jump: int) -> None:
    """An entry delivered at a future time is shown with an idle time of 0 milliseconds."""
    world = World()
    client = world.client()
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.jump(jump)
    idle = max(jump, 0)
    assert client.call("XPENDING", "s", "g", "-", "+", 1) == [[b"1-0", b"c", idle, 1]]
    row = fields(client.call("XINFO", "CONSUMERS", "s", "g")[0])  # type: ignore[index] # a list
    assert (row[b"idle"], row[b"inactive"]) == (idle, idle)
    claimed = client.call("XREADGROUP", "GROUP", "g", "d", "CLAIM", 0, "STREAMS", "s", ">")
    assert claimed == [[b"s", [[b"1-0", [b"f", b"v"], idle, 1]]]]


CLAIMS = {
    "XCLAIM s g d {} 1-0 JUSTID": [b"1-0"],
    "XAUTOCLAIM s g d {} 0 JUSTID": [b"0-0", [b"1-0"], []],
    "XREADGROUP GROUP g d CLAIM {} STREAMS s >": [[b"s", [[b"1-0", [b"f", b"v"], 0, 1]]]],
}


@pytest.mark.parametrize("line", CLAIMS)
def test_an_entry_of_the_future_can_be_claimed_whatever_its_idle_time(line: str) -> None:
    """After the clock was set back, an entry can be claimed at once with min-idle-time 0, as in Redis.

    With another idle time it can be claimed once it is that idle.
    """
    world = World()
    client = world.client()
    client.call("XADD", "s", "1-0", "f", "v")
    client.call("XGROUP", "CREATE", "s", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.jump(-YEAR)
    client.call(*line.format(1).split())
    assert client.call("XPENDING", "s", "g", "-", "+", 1) == [[b"1-0", b"c", 0, 1]]
    assert client.call(*line.format(0).split()) == CLAIMS[line]


def test_a_claim_from_the_future_is_due_when_its_time_comes() -> None:
    """After the clock was set back, a blocked CLAIM waits for the wall time at which the entry is idle long enough."""
    world = World()
    holder, waiter = world.client(), world.client()
    holder.call("XADD", "s", "1-0", "f", "v")
    holder.call("XGROUP", "CREATE", "s", "g", "0")
    holder.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    world.clock.jump(-1000)
    sent = waiter.send("XREADGROUP", "GROUP", "g", "d", "BLOCK", 0, "CLAIM", 50, "STREAMS", "s", ">")
    assert sent is WAITING
    world.advance(1049)
    assert waiter.waits
    world.advance(1)
    assert waiter.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], 50, 1]]]]]


@pytest.mark.parametrize("jump", [1000, YEAR])
def test_a_claim_is_due_soon_after_the_clock_has_jumped_forward(jump: int) -> None:
    """After the clock jumped forward, a blocked CLAIM that is now due gets its entry within 100 ms."""
    world = World()
    holder, waiter, later = world.client(), world.client(), world.client()
    for key in ("s", "t"):
        holder.call("XADD", key, "1-0", "f", "v")
        holder.call("XGROUP", "CREATE", key, "g", "0")
        holder.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", key, ">")
    assert waiter.send("XREADGROUP", "GROUP", "g", "d", "BLOCK", 0, "CLAIM", 1000, "STREAMS", "s", ">") is WAITING
    assert later.send("XREADGROUP", "GROUP", "g", "d", "BLOCK", 900, "CLAIM", 2 * YEAR, "STREAMS", "t", ">") is WAITING
    world.advance(50)
    world.clock.jump(jump)
    for _ in range(100):
        if not waiter.waits:
            break
        due = world.node.next_deadline(world.clock.now())
        assert due is not None
        world.advance(max(due - world.clock.mono, 0))
    assert waiter.inbox == [[[b"s", [[b"1-0", [b"f", b"v"], jump + world.clock.mono, 1]]]]]
    assert world.clock.mono <= 50 + 100 + 1
    assert later.waits
    world.advance(900 - world.clock.mono)
    assert later.inbox == [None]
    assert world.node.next_deadline(world.clock.now()) is None


def test_a_frozen_clock_stops_nothing() -> None:
    """While the clock stands still, ids count up within one millisecond, and reads and claims work."""
    world = World()
    client = world.client()
    for seq in range(300):
        assert client.call("XADD", "s", "*", "f", "v") == b"%d-%d" % (world.clock.wall, seq)
    client.call("XGROUP", "CREATE", "s", "g", "0")
    reply = client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    assert len(reply[0][1]) == 300  # type: ignore[index] # a list
    assert client.call("XAUTOCLAIM", "s", "g", "d", 0, 0, "COUNT", 400, "JUSTID")[0] == b"0-0"  # type: ignore[index] # a list
