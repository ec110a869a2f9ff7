"""Logs as a broken or hostile primary sends them: valid records with changes, and the outcome of each.

``python -m node.hostile_logs FIRST COUNT`` prints a line for each seed: ``refused``, or a digest of the accepted data.
It raises if a rewriting, or a start after one, turns accepted data into anything else.
"""

import random
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from itertools import chain
from typing import Any

import msgpack

from millstream.clock import ManualClock
from millstream.commands.context.config import Config
from millstream.engine import transitions
from millstream.engine.keyspace import OPS, Keyspace
from millstream.engine.serialization import dump
from millstream.node.log import codec, copied_log
from millstream.node.log.foreign import from_copy
from millstream.node.log.replay import read_back
from millstream.node.log.snapshot import payloads
from millstream.node.node import Node
from millstream.persistence.log import Log
from node.test_copied_log import Whole, sent
from persistence.reference import HOME, entropy
from replication.replicated import Changes
from support.simdisk import SimDisk

assert transitions.MODULES

Steps = list[list[Any]]

COMMANDS = 60
NUMBERS = [0, 1, -1, 5, 15, 16, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
ODD: list[Any] = [
    None,
    True,
    False,
    b"",
    b"k",
    "text",
    1.5,
    [],
    [b"a"],
    [1],
    [[]],
    bytes(16),
    struct.pack(">d", float("nan")),
]


@cache
def recorded(seed: int) -> tuple[list[Steps], list[Steps]]:
    """Return the transitions of a log's records, and of the records of its snapshot."""
    log, _ = Log.open(HOME, SimDisk(), entropy=entropy(1))
    clock, node = ManualClock(), Node(Config({}), log)
    session = node.sessions.open(clock.now())
    for words in Changes(seed, clock.now().wall, newest=True).some(COMMANDS):
        clock.advance(3)
        node.execute(session, list(words), clock.now())
    node.journal.flush(clock.now().wall)
    log.write()
    records = list(copied_log.payloads(Whole(sent(log.files(log.appended))).read_at))
    whole = list(payloads(node.keyspace, 0))
    return tuple([codec.unpack(each)[1] for each in part] for part in (records, whole))  # type: ignore[return-value]  # of two


class Hostile:
    """Random changes of a log, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        records, whole = recorded(seed % 20)
        begin, behind = self.random.choice([([], records), (whole, []), (whole, records[-5:]), ([], records)])
        # One step a record where a change of one is not to be lost among others
        self.log: list[Steps] = msgpack.unpackb(msgpack.packb([*begin, *behind]))
        if self.random.random() < 0.5:
            self.log = [[step] for steps in self.log for step in steps]
        self.other: list[Steps] = msgpack.unpackb(msgpack.packb(recorded((seed + 7) % 20)[0]))

    def payloads(self) -> list[bytes]:
        """Return the log, changed in a few places."""
        kinds: list[Callable[[], None]] = [self.twice, self.gone, self.moved, self.spliced, self.swapped]
        for _ in range(self.random.randint(1, 3)):
            self.random.choice([*kinds, *[self.changed] * 8])()
        made = [codec.pack(0, [tuple(step) for step in steps]) for steps in self.log]
        if self.random.random() < 0.05:
            at = self.random.randrange(len(made))
            made[at] = self.damaged(made[at])
        return made

    def twice(self) -> None:
        """Repeat a record or a step, at the same place or later."""
        at = self.random.randrange(len(self.log))
        self.log.insert(self.random.choice([at, self.random.randint(at, len(self.log))]), self.log[at])

    def gone(self) -> None:
        """Remove a record or a step."""
        if len(self.log) > 1:
            del self.log[self.random.randrange(len(self.log))]

    def moved(self) -> None:
        """Change the order."""
        self.log.insert(self.random.randrange(len(self.log)), self.log.pop(self.random.randrange(len(self.log))))

    def spliced(self) -> None:
        """Insert records of another log."""
        first = self.random.randrange(len(self.other))
        at = self.random.randint(0, len(self.log))
        self.log[at:at] = self.other[first : first + self.random.randint(1, 8)]

    def swapped(self) -> None:
        """Exchange two databases, or reverse the steps of a record."""
        self.random.choice(self.log).reverse()

    def changed(self) -> None:
        """Change one argument of one step."""
        steps = self.random.choice(self.log)
        if not steps:
            return
        at = self.random.randrange(len(steps))
        step = steps[at] = list(steps[at])
        kind = self.random.random()
        if kind < 0.05:
            step[0] = self.random.choice(sorted(OPS))
        elif kind < 0.1:
            step.append(self.random.choice(ODD))
        elif kind < 0.15:
            step.pop()
        else:
            place = self.random.randrange(1, len(step)) if len(step) > 1 else 0
            step[place] = self.other_than(step[place])

    def other_than(self, value: Any) -> Any:
        """Return a value to replace another one, mostly of its type."""
        if self.random.random() < 0.15:
            return self.random.choice([*ODD, *NUMBERS])
        if type(value) is int:
            near = [value + 1, value - 1, -value]
            return self.random.choice([*NUMBERS, *(each for each in near if -(2**63) <= each < 2**64)])
        if type(value) is bytes:
            return self.damaged(value)
        if type(value) is list and value:
            made = list(value)
            at = self.random.randrange(len(made))
            how = self.random.random()
            if how < 0.6:
                made[at] = self.other_than(made[at])
            elif how < 0.75:
                made.insert(at, made[at])
            elif how < 0.9:
                del made[at]
            else:
                made.reverse()
            return made
        return self.random.choice([*ODD, *NUMBERS])

    def damaged(self, value: bytes) -> bytes:
        """Return bytes with some changed, cut or repeated."""
        if not value:
            return b"x"
        at = self.random.randrange(len(value))
        how = self.random.randrange(5)
        if how == 0:
            return value[:at] + bytes([self.random.randrange(256)]) + value[at + 1 :]
        if how == 1:
            return value[:at]
        if how == 2:
            return value + value[-16:]
        if how == 3:
            return bytes(len(value))
        number = (int.from_bytes(value[-16:], "big") + self.random.choice([1, -1, 1 << 64, -(1 << 64)])) % (1 << 128)
        return value[:-16] + number.to_bytes(16, "big")[-min(16, len(value)) :]


def image(space: Keyspace) -> str:
    """Return a digest of everything that a command can show."""
    parts = []
    for base in space.databases:
        parts += [
            repr((base.index, key, base.expires.get(key), dump.dump(base.keys[key]))) for key in sorted(base.keys)
        ]
    return sha256("\n".join([*parts, repr(space.history)]).encode()).hexdigest()[:16]


def outcome(seed: int) -> str:
    """Try one log; return the digest of the data, or ``refused``."""
    made = Hostile(seed).payloads()
    try:
        taken = from_copy(made)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the replica keeps what it has, and reports it
        return "refused"
    before = image(taken)
    started, again = Keyspace(), Keyspace()
    _, wall = read_back(started, made)  # as a rewriting does, and a start before one
    assert image(started) == before, f"seed {seed}: a start has made something else of it"
    read_back(again, payloads(started, wall))
    assert image(again) == before, f"seed {seed}: a start after a rewriting has made something else of it"
    assert image(from_copy(payloads(again, wall))) == before, f"seed {seed}: another replica does not take it"
    return before


def outcomes(first: int, count: int) -> Iterator[str]:
    for seed in range(first, first + count):
        yield f"{seed} {outcome(seed)}"


if __name__ == "__main__":
    for line in chain(outcomes(*map(int, sys.argv[1:]))):
        print(line)  # noqa: T201 - this is a program
