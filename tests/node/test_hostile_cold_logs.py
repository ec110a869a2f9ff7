"""Logs with cold entries as a broken or hostile primary sends them are refused, or come back from a snapshot."""

from functools import cache
from hashlib import sha256

import pytest

from millstream import core
from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.engine.keyspace import Keyspace
from millstream.node.log import codec
from millstream.node.log.foreign import from_copy
from millstream.node.log.replay import read_back
from millstream.node.log.snapshot import payloads
from millstream.node.node import Node
from millstream.persistence.frame import HEADER_SIZE
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry, pack_name
from node import hostile_logs
from node.hostile_logs import COMMANDS, Hostile, Steps
from persistence.reference import HOME, entropy
from replication.replicated import Changes
from support.coldness import IS_COLD, MemoryPacks, chill
from support.simdisk import SimDisk

if IS_COLD:
    pytest.skip("its streams have packs of their own", allow_module_level=True)
if core.native is None:
    pytest.skip("the Python core takes no packs of others", allow_module_level=True)

PACK = PackEntry(pack_name(1, "a" * 16), 1, "a" * 16, 1 << 30, sealed=True)


@cache
def recorded(seed: int) -> tuple[list[Steps], list[Steps]]:
    """Return the transitions of a log whose sealed nodes are cold, and those of its snapshot."""
    log, _ = Log.open(HOME, SimDisk(), entropy=entropy(1))
    clock, node, packs = ManualClock(), Node(Config({"stream-node-max-entries": "2"}), log), MemoryPacks()
    packs.files[1] += bytes(HEADER_SIZE)
    node.keyspace.reads.source = packs
    session = node.sessions.open(clock.now())
    for words in Changes(seed, clock.now().wall, newest=True).some(COMMANDS):
        clock.advance(3)
        node.execute(session, list(words), clock.now())
        for db, base in enumerate(node.keyspace.databases):
            for key in list(base.keys):
                if (step := chill(node.keyspace, packs, db, key)) is not None:
                    ctx = node.context(session, clock.now())
                    ctx.commit(step, soft=True)
                    node.close(ctx)
    node.journal.flush(clock.now().wall)
    log.write()
    parts = list(log.replay()), list(payloads(node.keyspace, 0))
    return tuple([codec.unpack(each)[1] for each in part] for part in parts)  # type: ignore[return-value]  # of two


def image(space: Keyspace) -> str:
    """Return a digest of everything that a snapshot has."""
    return sha256(b"".join(payloads(space, 0))).hexdigest()


def outcome(seed: int) -> bool:
    """Try one log; return True if it is accepted."""
    made = Hostile(seed).payloads()
    try:
        taken = from_copy(made, lambda: [PACK])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the replica keeps what it has, and reports it
        return False
    before = image(taken)
    started, again = Keyspace(), Keyspace()
    _, wall = read_back(started, made)
    assert image(started) == before, f"seed {seed}: a start has made something else of it"
    read_back(again, payloads(started, wall))
    assert image(again) == before, f"seed {seed}: a start after a rewriting has made something else of it"
    assert image(from_copy(payloads(again, wall), lambda: [PACK])) == before, f"seed {seed}: a replica does not take it"
    return True


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_logs, "recorded", recorded)


def test_a_log_with_cold_entries_is_taken() -> None:
    """Without a change each log is taken, and most of them have cold entries."""
    cold = 0
    for seed in range(5):
        for steps in recorded(seed):
            assert from_copy([codec.pack(0, [tuple(step) for step in each]) for each in steps], lambda: [PACK])
            cold += any(step[0] == "tcold" for each in steps for step in each)
    assert cold > 5


def test_a_changed_log_is_refused_or_comes_back_from_a_snapshot() -> None:
    """A changed log is refused, or has equal data after a start, and after a rewriting and a start."""
    assert 20 < sum(map(outcome, range(300))) < 280
