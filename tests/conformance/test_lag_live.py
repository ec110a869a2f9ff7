"""Positions, counts and lags after random changes: equal to those of a running redis-server.

Redis 8 counts in another way than 7.0 did. Millstream has the rules of 8; beside an older server the stream gets the
older rules, which are defined here. So each difference between the two is a rule, or else this fails.
"""

import random
from collections.abc import Callable

import pytest

from conformance.pipe import Pipe
from millstream.engine.streams.group import UNKNOWN, Group
from millstream.engine.streams.stream import Stream
from support import campaign
from support.inprocess import Client, World
from support.resp import fields
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

RUN = 300
"""Commands from one empty database."""
FIGURES = (b"length", b"last-generated-id", b"max-deleted-entry-id", b"entries-added", b"recorded-first-entry-id")
OF_GROUP = (b"name", b"pending", b"last-delivered-id", b"entries-read", b"lag")
Command = list[bytes]


class Before8(Stream):
    """The rules of 7.0 to 7.4, for the methods of these names."""

    __slots__ = ()

    def _advance(self, group: Group, ids: list[int]) -> None:
        for entry_id in ids:
            if group.entries_read != UNKNOWN and not self.has_gap_after(entry_id):
                group.entries_read += 1
            elif self.entries_added:
                distance = self.distance(entry_id)
                group.entries_read = UNKNOWN if distance is None else distance
            group.last_id = entry_id

    def has_gap_after(self, position: int) -> bool:
        """Return True for a deletion after the position; one before the first entry does not count."""
        return self.length > 0 and self.first_id <= self.max_deleted and position <= self.max_deleted != 0

    def distance(self, entry_id: int) -> int | None:
        """Return the number of entries up to the id.

        A deletion after it does not matter at the first entry or before.
        """
        if self.entries_added == 0:
            return 0
        if (self.length == 0 and entry_id <= self.last_id) or entry_id == self.last_id:
            return self.entries_added
        if entry_id > self.last_id or (self.max_deleted and self.max_deleted >= self.first_id):
            return None
        before = self.entries_added - self.length
        return before if entry_id < self.first_id else before + 1 if entry_id == self.first_id else None

    def lag(self, group: Group) -> int | None:
        """Return the lag, unknown for an empty stream and for a group before the first entry."""
        if self.entries_added == 0:
            return 0
        if group.entries_read != UNKNOWN and not self.has_gap_after(group.last_id):
            return self.entries_added - group.entries_read
        distance = self.distance(group.last_id)
        return None if distance is None else self.entries_added - distance


class Changes:
    """Random changes of one stream and its two groups.

    Args:
        seed: Seed of all random choices.
        client: Client that has applied the earlier changes.
    """

    def __init__(self, seed: int, client: Client) -> None:
        self.random = random.Random(seed)
        self.client = client
        self.next = 1

    def begin(self) -> list[Command]:
        """Return commands that create an empty database and groups."""
        return [words.split() for words in (b"FLUSHALL", b"XGROUP CREATE s g 0 MKSTREAM", b"XGROUP CREATE s h $")]

    def one(self) -> Command:
        """Return the next change."""
        pick = self.random.choice
        makers: list[tuple[int, Callable[[], Command]]] = [
            (12, self._add),
            (4, lambda: [b"XDEL", b"s", *(self._id() for _ in range(pick((1, 1, 4))))]),
            (2, lambda: [b"XTRIM", b"s", b"MAXLEN", pick((b"=", b"~")), b"%d" % pick((0, 1, 3, 8))]),
            (2, lambda: [b"XTRIM", b"s", b"MINID", pick((b"=", b"~")), self._id()]),
            (12, self._read),
            (2, self._set_group),
            (1, self._set_stream),
            (1, lambda: [b"XGROUP", b"DESTROY", b"s", pick((b"g", b"h"))]),
            (2, lambda: [b"XGROUP", b"CREATE", b"s", pick((b"g", b"h")), self._place(), *self._read_so_far()]),
            (1, lambda: [b"XCLAIM", b"s", b"g", b"c", b"0", self._id(), b"LASTID", self._id()]),
            (1, lambda: [b"XACK", b"s", pick((b"g", b"h")), self._id()]),
            (1, lambda: pick(([b"COPY", b"s", b"t", b"REPLACE"], [b"RENAME", b"t", b"s"]))),
        ]
        return self.random.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]()

    def _id(self) -> bytes:
        return b"%d-%d" % (self.random.randint(max(self.next - 12, 0), self.next + 1), self.random.choice((0, 0, 1)))

    def _place(self) -> bytes:
        return self.random.choice((b"0", b"$", self._id(), self._id()))

    def _add(self) -> Command:
        self.next += self.random.choice((0, 1, 1, 2))
        some = [b"MAXLEN", b"=", b"%d" % self.random.randrange(4)] if self.random.random() < 0.1 else []
        return [b"XADD", b"s", *some, b"%d-*" % self.next, b"f", b"v"]

    def _read(self) -> Command:
        who = self.random.choice((b"g", b"h"))
        noack = [b"NOACK"] if self.random.random() < 0.2 else []
        count = b"%d" % self.random.choice((1, 1, 2, 5))
        return [b"XREADGROUP", b"GROUP", who, b"c", b"COUNT", count, *noack, b"STREAMS", b"s", b">"]

    def _set_group(self) -> Command:
        return [b"XGROUP", b"SETID", b"s", self.random.choice((b"g", b"h")), self._place(), *self._read_so_far()]

    def _read_so_far(self) -> Command:
        """Return an ENTRIESREAD of at most the added entries, since Redis 8.2 reduces a larger one."""
        if self.random.random() < 0.5:
            return []
        found = self.client.call("XINFO", "STREAM", "s")
        added = fields(found)[b"entries-added"] if isinstance(found, list) else 0
        assert isinstance(added, int)
        return [b"ENTRIESREAD", b"%d" % self.random.choice((-1, 0, added, self.random.randint(0, added)))]

    def _set_stream(self) -> Command:
        self.next += self.random.choice((0, 1, 3))
        words = [b"XSETID", b"s", b"%d-9" % self.next]
        if self.random.random() < 0.6:
            words += [b"ENTRIESADDED", b"%d" % self.random.randint(0, 40), b"MAXDELETEDID", self._id()]
        return words


LOOKS = ([b"XINFO", b"STREAM", b"s"], [b"XINFO", b"GROUPS", b"s"])


def shown(reply: object) -> object:
    """Return the figures in a reply of XINFO."""
    if not isinstance(reply, list):
        return reply
    if reply and isinstance(reply[0], list):
        return [[(name, fields(row)[name]) for name in OF_GROUP] for row in reply]
    return [(name, fields(reply)[name]) for name in FIGURES] if reply else reply


def compare(pipe: Pipe, seed: int) -> int:
    """Run one seed on both servers and return the number of changes."""
    client = World(logged=False).client(2)
    changes = Changes(seed, client)
    made, ours = changes.begin(), []
    for words in made:
        client.call(*words)
    for _ in range(RUN):
        made.append(changes.one())
        ours.append((client.call(*made[-1]), [shown(client.call(*look)) for look in LOOKS]))
    theirs = pipe.ask(made[:3] + [words for change in made[3:] for words in (change, *LOOKS)])[3:]
    for number, (reply, figures) in enumerate(ours):
        wanted = [shown(found) for found in theirs[3 * number + 1 : 3 * number + 3]]
        told = f"seed {seed}: " + "; ".join(b" ".join(words).decode() for words in made[3 : number + 4])
        assert figures == wanted, f"{told}\n  redis: {wanted}\n  here:  {figures}"
        assert type(reply) is type(theirs[3 * number]), told
    return RUN


def run(server: ServerProcess, seeds: range, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run these seeds by the rules of the server's release."""
    if server.release() < (8, 0):
        for name in ("_advance", "has_gap_after", "distance", "lag"):
            monkeypatch.setattr(Stream, name, getattr(Before8, name))
    pipe = Pipe(server.port)
    try:
        return sum(compare(pipe, seed) for seed in seeds)
    finally:
        pipe.close()


def test_counts_and_lags_are_those_of_redis(each_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of 6,000 random changes of a stream, its counts and lags equal those of redis-server."""
    run(each_redis, range(20), monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_counts_and_lags_are_those_of_redis(each_redis: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of 600,000 random changes of a stream, its counts and lags equal those of redis-server."""
    name = f"lag-{each_redis.release()[0]}"
    campaign.run(
        name, lambda n: run(each_redis, range(n * 20, n * 20 + 20), monkeypatch), range(1, 101), unit="changes"
    )
