"""Allocation failures amid plain commands: completed changes are in the record, and nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest

from millstream.commands.context.config import Config
from millstream.engine.ids import pack as pack_id
from millstream.engine.streams.stream import Stream
from millstream.node.log import codec
from millstream.persistence.frame import FileHeader, py_encode_records
from support import needs
from support.inprocess import World
from support.state import check, snapshot
from support.wire import pack

pytestmark = pytest.mark.usefixtures("alone")
_testcapi = needs.package("_testcapi")  # makes allocations fail
native = needs.native_core(at_work=True)

WALL = 1_700_000_000_000
SETUP = (
    *("XADD s 1-1 a b", "XADD s 2-1 a b", "XADD s 3-1 a b", "XADD t 5-5 a b c d", "SET str v", "XADD full 1-1 a b"),
    *("XGROUP CREATE s g 1-1 ENTRIESREAD 1", "XGROUP CREATECONSUMER s g c", "XGROUP CREATE t g 0 ENTRIESREAD 0"),
    *("XADD full 1-2 a b", "XGROUP CREATECONSUMER t g d", "XREADGROUP GROUP g d STREAMS t >"),
    *("XADD p 5-5 a b", "XADD p 6-6 c d", "XGROUP CREATE p g 0", "XREADGROUP GROUP g c STREAMS p >"),
    *("XCLAIM p g c 0 5-5 6-6 IDLE 5000", "XGROUP CREATECONSUMER p g d"),  # nobody waits for this one
)
CASES = {
    "get": ("GET str", "GET missing"),
    "set": ("SET str w", "SET new value"),
    "add": ("XADD s * a b", "XADD s * c d"),
    "add what somebody waits for": ("XADD t * a b",),
    "add to a new node": ("XADD full * a b",),
    "add much": ("XADD s * " + " ".join(f"f{at} {'v' * 200}" for at in range(40)),),
    "length": ("XLEN s", "PING"),
    "range": ("XRANGE s - +", "XRANGE s 1 2 COUNT 1"),
    "range backwards": ("XREVRANGE s + -",),
    "read": ("XREAD STREAMS s 1-1", "XREAD COUNT 1 STREAMS s 0"),
    "read as a group": ("XREADGROUP GROUP g c COUNT 1 STREAMS s >", "XREADGROUP GROUP g c STREAMS s >"),
    "read without acknowledgement": ("XREADGROUP GROUP g c NOACK STREAMS s >",),
    "acknowledge": ("XACK t g 5-5 6-6", "XACK t g 5-5"),
    "pending": ("XPENDING s g", "XPENDING t g - + 10", "XPENDING t g IDLE 0 - + 10 d"),
    "claim": ("XCLAIM p g d 5000 5-5", "XCLAIM p g d 5000 5-5", "XCLAIM p g d 0 5-5 6-6 JUSTID"),
    "claim what is there": ("XAUTOCLAIM p g d 5000 0 COUNT 1", "XAUTOCLAIM p g d 5000 0 JUSTID"),
    "all of them": ("SET str w", "XADD s * a b", "XREADGROUP GROUP g c STREAMS s >", "XACK s g 2-1", "XRANGE s - +"),
    "what is not plain": ("XADD s * a b", "XDEL s 1-1", "SET str w"),
}


def made(runner: Any) -> tuple[World, Any]:
    """Return a node with some values, and a runner for it."""
    world = World({"stream-node-max-entries": "2"})
    client = world.client()
    for line in SETUP:
        client.call(*line.split())
    return world, runner(Config({"stream-node-max-entries": "2"}), {(0, b"t"): None}, {(0, b"t"): None}, True)


def taken(world: World, runner: Any, data: bytes) -> tuple[bytes, list[bytes]]:
    """Run all bytes, those that a run leaves by their handlers; return replies and records."""
    session, logged = world.client().session, len(world.log.payloads)
    at, replies, records = 0, b"", []
    while at < len(data):
        run = runner.run(world.node.keyspace.databases[0], data, at, WALL, 2)
        replies += run.replies
        records += [run.record] * (run.record is not None)
        if run.words is not None:
            outcome = world.node.execute(session, run.words, world.clock.now())
            replies += b"" if outcome is None else b"".join(outcome.buffers)
            records += world.log.payloads[logged:]
            logged = len(world.log.payloads)
        at = run.at
    return replies, records


def replayed(world: World, records: list[bytes]) -> None:
    """Apply records to a node, step by step."""
    for record in records:
        for step in codec.unpack(record)[1]:
            world.node.keyspace.apply(tuple(step))


@pytest.mark.parametrize("case", CASES)
def test_what_is_changed_is_in_the_record_whichever_allocation_fails(case: str) -> None:
    """A plain command without memory is left to its handler unchanged, and earlier commands are done and recorded."""
    data = b"".join(pack(*line.split()) for line in CASES[case])
    expected = taken(*made(native.PlainRunner), data)
    world, runner = made(native.PlainRunner)
    whole = runner.run(world.node.keyspace.databases[0], data, 0, WALL, 2)
    allocation, succeeded = 0, 0
    while succeeded < 5:
        (world, runner), (twin, _) = made(native.PlainRunner), made(native.PlainRunner)
        db = world.node.keyspace.databases[0]
        before = snapshot(world.node)
        run = None
        _testcapi.set_nomemory(allocation, allocation + 1)
        try:
            run = runner.run(db, data, 0, WALL, 2)
        except MemoryError:
            succeeded = 0  # nobody can say what was done: the node ends
        finally:
            _testcapi.remove_mem_hooks()
        allocation += 1
        if run is None:
            continue
        replayed(twin, [run.record] * (run.record is not None))
        assert snapshot(twin.node) == snapshot(world.node), allocation
        assert run.commands or snapshot(world.node) == before
        check(world.node)
        done = run.at - len(pack(*run.words)) if run.words else run.at
        replies, records = taken(world, runner, data[done:])
        replayed(twin, records)
        assert run.replies + replies == expected[0], allocation
        assert snapshot(twin.node) == snapshot(world.node), allocation
        succeeded = succeeded + 1 if (run.commands, run.words) == (whole.commands, whole.words) else 0
    assert allocation > 5


ADDED = [("xadd", 0, b"s", pack_id(at << 64), [b"f", b"v" * 900], at == 8, None) for at in (7, 8)]
RECORD = codec.pack(5, ADDED)
HEADER = FileHeader(b"mark", 7, 1, b"magic")
PAYLOADS = [b"", b"x" * 9, b"y" * 5000]
FRAMES = b"".join(py_encode_records(HEADER, PAYLOADS, 3, 3))
FUNCTIONS: dict[str, Callable[[], object]] = {
    "encode": lambda: b"".join(native.encode_records(HEADER, PAYLOADS, 3, 3)),
    "decode": lambda: native.decode_run(HEADER, FRAMES, 3),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_frames_that_find_no_memory_say_so(what: str) -> None:
    """If a frame cannot be allocated, MemoryError is raised, and the next try writes or reads all frames."""
    expected = FUNCTIONS[what]()
    allocation, succeeded = 0, 0
    while succeeded < 5:
        _testcapi.set_nomemory(allocation, allocation + 1)
        try:
            found = FUNCTIONS[what]()
        except MemoryError:
            succeeded, found = 0, FUNCTIONS[what]()
        else:
            succeeded += 1
        finally:
            _testcapi.remove_mem_hooks()
        assert found == expected, allocation
        allocation += 1
    assert allocation > 5


def test_a_record_that_finds_no_memory_is_applied_up_to_a_step() -> None:
    """If memory ends while a record is applied, recovery ends with the error after a whole step."""
    states = []
    for count in range(len(ADDED) + 1):
        world, _ = made(native.PlainRunner)
        replayed(world, [codec.pack(5, ADDED[:count])])
        states.append(snapshot(world.node))
    allocation, succeeded = 0, 0
    while succeeded < 5:
        world, _ = made(native.PlainRunner)
        _testcapi.set_nomemory(allocation, allocation + 1)
        try:
            wall = native.apply_plain(world.node.keyspace.databases, Stream, RECORD, world.node.keyspace.history)
        except MemoryError:
            succeeded, wall = 0, None
        else:
            succeeded += 1
        finally:
            _testcapi.remove_mem_hooks()
        allocation += 1
        assert snapshot(world.node) in ({5: states[-1:], -1: states[:1]}.get(wall, states)), allocation
        check(world.node)
    assert allocation > 3


@pytest.mark.parametrize("case", CASES)
def test_a_scripts_commands_are_whole_or_not_done_whichever_allocation_fails(case: str) -> None:
    """In a script, a command without memory is left to its handler, and a missing value ends the script.

    Lua sees no error.
    """
    *lines, last = [pack(*line.split()) for line in CASES[case]]
    allocation, succeeded = 0, 0
    while succeeded < 5:
        (world, runner), (twin, _) = made(native.PlainRunner), made(native.PlainRunner)
        faults: list[BaseException] = []
        runner.begin(world.node.keyspace.databases[0], WALL, -1, list, faults)
        for line in lines:
            runner.call(line)
        before = snapshot(world.node)
        _testcapi.set_nomemory(allocation, allocation + 1)
        try:
            value = runner.call(last)
        finally:
            _testcapi.remove_mem_hooks()
        if value is None and not faults:
            assert snapshot(world.node) == before, allocation
        run = runner.end()
        replayed(twin, [run.record] * (run.record is not None))
        assert snapshot(twin.node) == snapshot(world.node), allocation
        check(world.node)
        plain = runner.run(twin.node.keyspace.databases[0], last, 0, WALL, 2).commands
        succeeded = succeeded + 1 if value is not None or not plain else 0
        allocation += 1


@pytest.mark.parametrize("case", CASES)
def test_what_a_script_has_changed_is_never_taken_for_not_done_where_memory_stays_away(case: str) -> None:
    """A script's change is never treated as undone after a failed allocation: an error ends the script."""
    *lines, last = [pack(*line.split()) for line in CASES[case]]
    for allocation in range(60):
        world, runner = made(native.PlainRunner)
        faults: list[BaseException] = []
        database = world.node.keyspace.databases[0]
        runner.begin(database, WALL, -1, list, faults)
        for line in lines:
            runner.call(line)
        before = snapshot(world.node)
        _testcapi.set_nomemory(allocation, 0)
        try:
            value = runner.call(last)
        finally:
            _testcapi.remove_mem_hooks()
        if value is not None or faults or snapshot(world.node) == before:
            runner.end()
        else:
            assert runner.call(last) is None
            with pytest.raises(TypeError):
                runner.end()
        runner.begin(database, WALL, -1, list, faults)
        assert runner.end().record is None
