"""Replies to simultaneous clients, operation by operation, and a check for one order that explains them.

Each operation is known by its times of request and reply; the server did it at some moment between. Every order of
events must keep these rules, and only they are required:

- additions: ids ascend in time, and the same message has one id. A view of the stream has every entry added before and
  none added after. Each entry has the fields it was given;
- deliveries: an entry is new to one consumer only. A later delivery of new entries has later ones. A delivery that was
  not full took everything;
- claims: a claimant of an entry has it alone until it has been idle as long as another claim requires, or is released;
- acknowledgements: one for each entry is counted, and later requests never have that entry again.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

NEVER = 1 << 80
MILLISECOND = 1_000_000


@dataclass(slots=True)
class Operation:
    """One command and its reply.

    Attributes:
        kind: ``add``, ``see`` (the newest entries), ``length``, ``take`` (new entries), ``claim``, ``again`` (a
            consumer's own entries), ``ack`` or ``release``.
        who: the client, a consumer of the group.
        begin: nanoseconds at the request.
        end: nanoseconds at the reply.
        ids: of its entries, ascending.
        tokens: the fields of those entries, for ``add`` and ``see``.
        wanted: for ``see`` and ``take`` the COUNT, for ``claim`` the idle milliseconds.
        reply: the number replied, for ``length``, ``ack`` and ``release``.
        message: of an idempotent addition.
    """

    kind: str
    who: bytes
    begin: int
    end: int
    ids: list[int] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    wanted: int = 0
    reply: int = 0
    message: bytes = b""


class History:
    """All operations, by kind.

    Args:
        operations: in any order.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._kinds: dict[str, list[Operation]] = defaultdict(list)
        for each in operations:
            self._kinds[each.kind].append(each)
        self.added: dict[int, Operation] = {}
        self.tokens: dict[int, set[bytes]] = defaultdict(set)
        for each in self.of("add"):
            entry = each.ids[0]
            first = self.added.get(entry, each)
            self.added[entry] = replace(each, begin=min(first.begin, each.begin), end=min(first.end, each.end))
            self.tokens[entry].add(each.tokens[0])
        self.grants: dict[int, list[Operation]] = defaultdict(list)
        for each in sorted([*self.of("take"), *self.of("claim")], key=lambda one: one.begin):
            for entry in each.ids:
                self.grants[entry].append(each)
        self.acknowledged = {each.ids[0]: each for each in self.of("ack") if each.reply}

    def of(self, *kinds: str) -> list[Operation]:
        """Return the operations of these kinds."""
        return [each for kind in kinds for each in self._kinds[kind]]

    def check(self) -> None:
        """Raise AssertionError for the first fact that no order of events explains."""
        self.messages_have_one_id()
        in_order((each.ids[0], each.begin, each.end) for each in self.added.values())
        self.sights_are_whole()
        self.lengths_are_possible()
        self.new_to_one()
        self.nothing_was_left_behind()
        self.leases_hold()
        self.own_only()
        self.acknowledged_once()
        self.acknowledged_for_good()

    def messages_have_one_id(self) -> None:
        """Check that additions with one message share an id, and others have ids of their own."""
        found: dict[bytes, int] = {}
        holders: dict[int, bytes] = {}
        for each in self.of("add"):
            entry = each.ids[0]
            if each.message:
                assert found.setdefault(each.message, entry) == entry, f"one message added twice: {each}"
            else:
                assert entry not in holders, f"one id given twice: {each}"
            assert holders.setdefault(entry, each.message) == each.message, f"one id given twice: {each}"

    def sights_are_whole(self) -> None:
        """Check that views of the newest entries are contiguous, with every earlier entry and no later one."""
        ids = sorted(self.added)
        before = Latest((each.end, each.ids[0]) for each in self.of("add"))
        for each in self.of("see"):
            newest = each.ids[-1] if each.ids else 0
            assert newest >= before.at(each.begin), f"an entry added before is not seen: {each}"
            stop = bisect_right(ids, newest)
            assert each.ids == ids[max(stop - each.wanted, 0) : stop], f"entries missing among those seen: {each}"
            for entry, token in zip(each.ids, each.tokens, strict=True):
                assert self.added[entry].begin <= each.end, f"seen before it was added: {each}"
                assert token in self.tokens[entry], f"other fields than given: {each}"

    def lengths_are_possible(self) -> None:
        """Check that a length lies between the entries certainly added and those possibly added; none are removed."""
        begins = sorted(each.begin for each in self.added.values())
        ends = sorted(each.end for each in self.added.values())
        for each in self.of("length"):
            low, high = bisect_left(ends, each.begin), bisect_right(begins, each.end)
            assert low <= each.reply <= high, f"between {low} and {high} entries, not {each}"

    def new_to_one(self) -> None:
        """Check that no entry is new twice or claimed before it was new, and that new entries come in order."""
        taken: dict[int, Operation] = {}
        for each in self.of("take"):
            assert each.ids == sorted(set(each.ids)), f"out of order: {each}"
            for entry in each.ids:
                assert entry not in taken, f"new to two: {each} and {taken[entry]}"
                taken[entry] = each
                assert self.added[entry].begin <= each.end, f"delivered before it was added: {each}"
        in_order((entry, each.begin, each.end) for entry, each in taken.items())
        for entry, grants in self.grants.items():
            assert entry in taken, f"claimed, and never delivered: {entry}"
            assert taken[entry].begin <= min(one.end for one in grants), f"claimed before it was delivered: {entry}"

    def nothing_was_left_behind(self) -> None:
        """Check that after a delivery with fewer entries than COUNT every entry added before it is delivered."""
        taken = {entry: each for each in self.of("take") for entry in each.ids}
        # For every moment, the latest that an entry added by then was asked for
        latest = Latest(
            (each.end, taken[entry].begin if entry in taken else NEVER) for entry, each in self.added.items()
        )
        for each in self.of("take"):
            if len(each.ids) < each.wanted:
                assert latest.at(each.begin) <= each.end, f"an entry added before was left behind: {each}"

    def leases_hold(self) -> None:
        """Check that the required idle time, or a release, lies between two owners of an entry."""
        released = defaultdict(list)
        for each in self.of("release"):
            released[each.ids[0]].append(each)
        for entry, grants in self.grants.items():
            for first, second in pairwise(grants):
                is_free = any(one.end >= first.begin and one.begin <= second.end for one in released[entry])
                may_follow = second.end - first.begin >= lease(second) or first.end - second.begin >= lease(first)
                assert is_free or may_follow, f"two owners at a time: {first} and {second}"

    def own_only(self) -> None:
        """Check that a reader of its own entries sees none that was never delivered to it."""
        for each in self.of("again"):
            for entry in each.ids:
                given = any(one.who == each.who and one.begin <= each.end for one in self.grants[entry])
                assert given, f"another's entry: {each}"

    def acknowledged_once(self) -> None:
        """Check that exactly one acknowledgement of an entry is counted, the first after its delivery."""
        tries = defaultdict(list)
        for each in self.of("ack"):
            tries[each.ids[0]].append(each)
        for entry, found in tries.items():
            counted = [one for one in found if one.reply]
            assert len(counted) <= 1, f"acknowledged twice: {counted}"
            grants = self.grants.get(entry, [])
            delivered = min((one.end for one in grants), default=NEVER)
            counts = counted[0].begin if counted else NEVER
            for one in found:
                is_lost = one.begin >= delivered and one.end < counts
                assert one.reply or not is_lost, f"an acknowledgement was not counted: {one}"
            if counted:
                assert grants, f"acknowledged and never delivered: {counted}"
                assert counted[0].end >= grants[0].begin, f"acknowledged before it was delivered: {counted}"

    def acknowledged_for_good(self) -> None:
        """Check that acknowledged entries are neither delivered nor released afterwards."""
        for each in self.of("take", "claim", "again", "release"):
            if each.kind == "release" and not each.reply:
                continue
            for entry in each.ids:
                ack = self.acknowledged.get(entry)
                assert ack is None or ack.end >= each.begin, f"acknowledged, and there again: {ack} and {each}"

    def check_end(self, entries: list[tuple[int, bytes]], pending: dict[int, bytes]) -> None:
        """Compare the data after all clients have ended.

        Args:
            entries: ids and tokens of the whole stream.
            pending: owners by id, ``b""`` for none.
        """
        assert [entry for entry, _ in entries] == sorted(self.added), "the stream is not what was added"
        for entry, token in entries:
            assert token in self.tokens[entry], f"other fields than given: {entry}"
        assert set(pending) == set(self.grants) - set(self.acknowledged), "pending is what was given, less acknowledged"
        released = {one.ids[0] for one in self.of("release") if one.reply}
        for entry, owner in pending.items():
            grants = self.grants[entry]
            last = max(one.begin for one in grants)
            owners = {one.who for one in grants if one.end >= last} | ({b""} if entry in released else set())
            assert owner in owners, f"{entry} belongs to {owner!r}, not to one of {owners}"


class Latest:
    """The largest value known at a moment.

    Args:
        pairs: moments and values.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._moments: list[int] = []
        self._values: list[int] = []
        for moment, value in sorted(pairs):
            self._moments.append(moment)
            self._values.append(max(value, self._values[-1] if self._values else 0))

    def at(self, moment: int) -> int:
        """Return the largest value before a moment; 0 if there is none."""
        index = bisect_left(self._moments, moment)
        return self._values[index - 1] if index else 0


def in_order(windows: Iterable[tuple[int, int, int]]) -> None:
    """Raise AssertionError if something with a larger id ended before something with a smaller one began.

    Args:
        windows: ids, begins and ends.
    """
    ended, last = NEVER, 0
    for entry, begin, end in sorted(windows, reverse=True):
        assert begin <= ended, f"{entry} was made after {last} had been"
        if end < ended:
            ended, last = end, entry


def lease(grant: Operation) -> int:
    """Return the nanoseconds for which an entry must have been idle before this delivery.

    The server counts in whole milliseconds of another clock; a tenth more allows for corrections of it.
    """
    return (grant.wanted - 1) * MILLISECOND * 9 // 10 if grant.kind == "claim" else NEVER
