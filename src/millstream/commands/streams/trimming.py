"""MAXLEN and MINID: reading the options, and deciding what goes, for XADD and XTRIM.

Deciding is apart from doing. This module finds the entries to remove by reading the stream, and one transition carries
the result: the id below which all entries go, or for ACKED the entries themselves. So recovery needs neither the
options nor the limits they were read with, and ``~`` in the log is exact.

Clients can see which entries ``~`` removes (XLEN, the reply of XTRIM), so they are the same as Redis's. This follows
from nodes of the same sizes, see :mod:`millstream.engine.streams.entries`.

Source: https://redis.io/docs/latest/commands/xtrim/ and, where it differs, the server's behaviour.
"""

from dataclasses import dataclass
from itertools import takewhile

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, entry_id, integer, keyword
from millstream.engine import ids
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError

REFERENCE_POLICIES = (b"KEEPREF", b"DELREF", b"ACKED")


@dataclass(slots=True)
class Trim:
    """The trimming options of a command."""

    strategy: str | None = None  # ``MAXLEN``, ``MINID`` or None
    threshold: int = 0  # A length, or an id
    approximate: bool = False  # ``~``: whole nodes only
    limit: int | None = None  # Most entries to remove in one call; None if not given
    policy: bytes | None = None  # ``KEEPREF``, ``DELREF`` or ``ACKED``; None if not given

    def take(self, argv: list[bytes], at: int) -> int:
        """Read one option at this position.

        Returns:
            The number of words it took, 0 if the word is another option.
        """
        word = keyword(argv[at])
        more = len(argv) - at - 1
        if word in {b"MAXLEN", b"MINID"} and more:
            return self._take_strategy(word.decode(), argv, at, more)
        if word == b"LIMIT" and more:
            self.limit = integer(argv[at + 1])
            if self.limit < 0:
                raise CommandError("ERR The LIMIT argument must be >= 0.")
            return 2
        if word in REFERENCE_POLICIES and self.policy is None:
            self.policy = word
            return 1
        return 0

    def _take_strategy(self, word: str, argv: list[bytes], at: int, more: int) -> int:
        """Read MAXLEN or MINID, its operator and its threshold; how many words these are.

        A second one is refused with the text about both at the same time, even if it is the same word again, as in
        Redis.
        """
        if self.strategy is not None:
            raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
        used = 2
        self.approximate = False
        if more >= 2 and keyword(argv[at + 1]) in {b"~", b"="}:
            self.approximate = keyword(argv[at + 1]) == b"~"
            used = 3
        value = argv[at + used - 1]
        if word == "MAXLEN":
            self.threshold = integer(value)
            if self.threshold < 0:
                raise CommandError("ERR The MAXLEN argument must be >= 0.")
        else:
            self.threshold = entry_id(value)
        self.strategy = word
        return used

    def check(self, *, alone: bool = False, obeys: bool = False) -> None:
        """Refuse a LIMIT with nothing to limit, and no strategy at all where trimming is all that is done (XTRIM).

        A primary has made ``=`` of ``~`` for its replicas and leaves the LIMIT there, which then means nothing. In
        Redis's order. ``LIMIT 0`` passes the first test and fails the last, with the text about ``~``.
        """
        if self.limit and self.strategy is None:
            raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
        if alone and self.strategy is None:
            raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
        if self.limit is not None and not self.approximate and not obeys:
            raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")

    def budget(self, node_max_entries: int) -> int:
        """Most entries to remove in this call; 0 for no bound.

        Without LIMIT, ``~`` stops after a hundred full nodes, so that no client waits for another's trimming of
        millions; where nodes have no largest number of entries, after 10,000. The rest goes with the next XADD.
        """
        if not self.approximate:
            return 0
        if self.limit is not None:
            return self.limit
        by_default = 100 * node_max_entries
        return 10_000 if by_default <= 0 else min(by_default, 1_000_000)


def parse_trim_options(argv: list[bytes], at: int, *, obeys: bool) -> Trim:
    """XTRIM's options, from this position to the end, in any order."""
    trim = Trim()
    while at < len(argv):
        used = trim.take(argv, at)
        if not used:
            raise SYNTAX
        at += used
    trim.check(alone=True, obeys=obeys)
    return trim


def run_trim(ctx: Context, key: bytes, stream: Stream, trim: Trim) -> int:
    """Remove what the options say; how many entries went.

    Nodes without a live entry may go although no entry does: that is logged, and otherwise as if nothing had happened.
    """
    budget = trim.budget(ctx.host.config.node_max_entries)
    entries, db, removed = stream.entries, ctx.db.index, 0
    if trim.policy == b"ACKED":
        gone, floor = _unreferenced(stream, trim, budget)
        if gone or entries.emptied(floor):
            removed = ctx.commit(("xdrop", db, key, ids.pack_all(gone), packed_bound(floor)))
        return removed
    bound = _bound(stream, trim, budget)
    if entries.ends_below(bound):
        if trim.policy == b"DELREF" and (referenced := _referenced(stream, bound)):
            ctx.commit(("xunref", db, key, ids.pack_all(referenced)))
        removed = ctx.commit(("xtrim", db, key, packed_bound(bound), False, True))
    return removed


def _referenced(stream: Stream, bound: int) -> list[int]:
    """Entries below an id that are pending in some group."""
    walks = (takewhile(lambda record: record.id < bound, group.pending.walk()) for group in stream.groups.values())
    pending = {record.id for walk in walks for record in walk}
    return [entry for entry in stream.entries.ids(0, bound - 1) if entry in pending] if pending else []


def packed_bound(bound: int) -> bytes | None:
    """An id for a transition; None means "above every id", which 16 bytes cannot hold."""
    return None if bound > ids.MAX_ID else ids.pack(bound)


def _droppable(node: Block, trim: Trim, length: int) -> bool:
    """True if a node may go as a whole, ``length`` entries being left before it does."""
    if trim.strategy == "MAXLEN":
        return length - node.live >= trim.threshold
    return node.last < trim.threshold


def _bound(stream: Stream, trim: Trim, budget: int) -> int:
    """The id below which everything goes; nothing may lie below it.

    Nodes go whole, from the oldest; the first that cannot ends it with ``~``, and is thinned out otherwise. DELREF
    thins it out even with ``~``.
    """
    length, removed = stream.length, 0
    for node in stream.entries.nodes():
        if trim.strategy == "MAXLEN" and length <= trim.threshold:
            return node.first
        if budget and removed + node.live > budget:
            return node.first
        if _droppable(node, trim, length):
            length -= node.live
            removed += node.live
            continue
        # Redis 8.6 made ~ exact for DELREF and ACKED (redis#14623): before, they removed nothing with it
        if trim.approximate and trim.policy != b"DELREF":
            return node.first
        if trim.strategy == "MINID":
            return trim.threshold
        return node.live_ids()[length - trim.threshold]
    return ids.MAX_ID + 1


def _unreferenced(stream: Stream, trim: Trim, budget: int) -> tuple[list[int], int]:
    """Entries to remove one by one because no group needs them any more; others are passed over.

    The first node that could not go whole, whoever needs its entries, is the last one looked at.

    Returns:
        The ids, and the id below which nodes go that have no live entry then.
    """
    gone: list[int] = []
    length = stream.length
    for node in stream.entries.nodes():
        if trim.strategy == "MAXLEN" and length <= trim.threshold:
            return gone, node.first
        if budget and len(gone) + node.live > budget:
            return gone, node.first
        is_last = not _droppable(node, trim, length)
        for entry in node.live_ids():
            if length <= trim.threshold if trim.strategy == "MAXLEN" else entry >= trim.threshold:
                break
            if not stream.is_referenced(entry):
                gone.append(entry)
                length -= 1
        if is_last:
            return gone, node.first
    return gone, ids.MAX_ID + 1
