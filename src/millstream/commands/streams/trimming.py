"""MAXLEN and MINID: parsing the options, and choosing the entries to remove, for XADD and XTRIM.

Choosing is separate from removing. This module finds the entries to remove by reading the stream, and one transition
has the result: the id below which all entries go, or for ACKED the entries themselves. So recovery needs neither the
options nor the configured limits, and ``~`` in the log is exact.

Clients can see which entries ``~`` removes (XLEN, the reply of XTRIM), so they are the same as Redis's. This follows
from nodes of the same sizes, see :mod:`millstream.engine.streams.entries`.

Source: https://redis.io/docs/latest/commands/xtrim/ and, where it differs, the server's behaviour.
"""

from dataclasses import dataclass
from itertools import takewhile

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, entry_id, integer, keyword
from millstream.engine import ids
from millstream.engine.cold import each_extent, want
from millstream.engine.streams.cold import ColdNode
from millstream.engine.streams.entries import EntryStore
from millstream.engine.streams.nodes import Block
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError

REFERENCE_POLICIES = (b"KEEPREF", b"DELREF", b"ACKED")
# Redis 8.6 made ~ exact for these (redis#14623); earlier versions removed nothing in that case
_EXACT = (b"DELREF", b"ACKED")


@dataclass(slots=True)
class Trim:
    """The trimming options of a command."""

    strategy: str | None = None  # ``MAXLEN``, ``MINID`` or None
    threshold: int = 0  # Length or lowest id
    approximate: bool = False  # ``~``: whole nodes only
    limit: int | None = None  # Largest number of entries to remove in one call; None if not given
    policy: bytes | None = None  # ``KEEPREF``, ``DELREF`` or ``ACKED``; None if not given

    def take(self, argv: list[bytes], at: int) -> int:
        """Parse one option at this position.

        Returns:
            Its number of arguments, 0 if it is another option.
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
        """Parse MAXLEN or MINID, its operator and its threshold; return their number of arguments.

        A second strategy has the error about both at the same time, even if it repeats the first, as in Redis.
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
        """Refuse a LIMIT without a strategy or without ``~``, and for XTRIM (``alone``) a missing strategy.

        A primary sends ``=`` for ``~`` to its replicas and leaves the LIMIT, which is then ignored. The order is
        Redis's: ``LIMIT 0`` passes the first check and fails the last, with the text about ``~``.
        """
        if self.limit and self.strategy is None:
            raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
        if alone and self.strategy is None:
            raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
        if self.limit is not None and not self.approximate and not obeys:
            raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")

    def budget(self, node_max_entries: int) -> int:
        """Largest number of entries to remove in this call; 0 for no limit.

        Without LIMIT, ``~`` stops after a hundred full nodes, so that trimming millions of entries blocks no other
        client. If nodes have no largest number of entries, it stops after 10,000. The next XADD continues.
        """
        if not self.approximate:
            return 0
        if self.limit is not None:
            return self.limit
        by_default = 100 * node_max_entries
        return 10_000 if by_default <= 0 else min(by_default, 1_000_000)


def parse_trim_options(argv: list[bytes], at: int, *, obeys: bool) -> Trim:
    """Parse XTRIM's options, from this position to the end, in any order."""
    trim = Trim()
    while at < len(argv):
        used = trim.take(argv, at)
        if not used:
            raise SYNTAX
        at += used
    trim.check(alone=True, obeys=obeys)
    return trim


def run_trim(ctx: Context, key: bytes, stream: Stream, trim: Trim) -> int:
    """Remove entries by the options; return their number.

    Nodes without a live entry may go even if no entry does; that is logged, but has no other effect.
    """
    budget = trim.budget(ctx.host.config.node_max_entries)
    entries, db, removed = stream.entries, ctx.db.index, 0
    bound = _bound(stream, trim, budget)
    if trim.policy == b"ACKED" and bound > stream.needed_from():
        gone, floor = _unreferenced(stream, trim, budget)
        below = takewhile(lambda node: node.last < floor, entries.nodes())
        if gone or not all(node.live for node in below):
            removed = ctx.commit(("xdrop", db, key, ids.pack_all(gone), packed_bound(floor)))
        return removed
    if _ends_below(entries, bound):
        if trim.policy == b"DELREF" and (referenced := _referenced(stream, bound)):
            if entries.extent_count:
                entries.plan_cut(bound)  # damage stops the command now, or not at all
            ctx.commit(("xunref", db, key, ids.pack_all(referenced)))
        removed = ctx.commit(("xtrim", db, key, packed_bound(bound), False, True))
    return removed


def _ends_below(entries: EntryStore, bound: int) -> bool:
    """True if an entry or a whole node lies below an id. The choice of the id has read what this reads."""
    if not bound or 0 < entries.first_id < bound:
        return bool(bound)
    first = next(iter(entries.nodes()), None)
    return first is not None and first.last < bound


def _referenced(stream: Stream, bound: int) -> list[int]:
    """Entries below an id that are pending in some group."""
    walks = (takewhile(lambda record: record.id < bound, group.pending.walk()) for group in stream.groups.values())
    pending = {record.id for walk in walks for record in walk}
    want(stream.entries, pending)
    return [entry for entry in sorted(pending) if entry in stream.entries]


def packed_bound(bound: int) -> bytes | None:
    """Pack an id for a transition; None means "above every id", for which 16 bytes have no value."""
    return None if bound > ids.MAX_ID else ids.pack(bound)


def _droppable(node: Block | ColdNode, trim: Trim, length: int) -> bool:
    """True if a node may be removed as a whole, while ``length`` entries are left."""
    if trim.strategy == "MAXLEN":
        return length - node.live >= trim.threshold
    return node.last < trim.threshold


def _bound(stream: Stream, trim: Trim, budget: int) -> int:
    """The id below which all entries go.

    Nodes go whole, from the oldest; extents of cold nodes go whole if each of their nodes would. The first node that
    cannot ends this with ``~``; otherwise its oldest entries are removed one by one. DELREF and ACKED remove them even
    with ``~``.
    """
    length, removed = stream.length, 0
    if trim.strategy == "MAXLEN" and length <= trim.threshold:
        return 0  # no pack is read for XADD to a stream that is short enough
    extents = 0
    for live, last, *_ in each_extent(stream.entries):
        goes = length - live > trim.threshold if trim.strategy == "MAXLEN" else last < trim.threshold
        if not goes or (budget and removed + live > budget):
            break
        length -= live
        removed += live
        extents += 1
    for node in stream.entries.nodes(extents):
        if trim.strategy == "MAXLEN" and length <= trim.threshold:
            return node.first
        if budget and removed + node.live > budget:
            return node.first
        if _droppable(node, trim, length):
            length -= node.live
            removed += node.live
            continue
        if trim.approximate and trim.policy not in _EXACT:
            return node.first
        if trim.strategy == "MINID":
            return trim.threshold
        return node.live_ids()[length - trim.threshold]
    return ids.MAX_ID + 1


def _unreferenced(stream: Stream, trim: Trim, budget: int) -> tuple[list[int], int]:
    """Choose entries that no group needs any more, to remove one by one; others are skipped.

    The walk ends with the first node that could not go whole even if no group needed its entries.

    Returns:
        The ids, and the id below which nodes without a live entry then go.
    """
    gone: list[int] = []
    length = stream.length
    hindmost = min((group.last_id for group in stream.groups.values()), default=ids.MAX_ID)
    for node in stream.entries.nodes():
        if trim.strategy == "MAXLEN" and length <= trim.threshold:
            return gone, node.first
        if budget and len(gone) + node.live > budget:
            return gone, node.first
        is_last = not _droppable(node, trim, length)
        for entry in node.live_ids() if node.first <= hindmost else ():  # some group needs all that follow
            if length <= trim.threshold if trim.strategy == "MAXLEN" else entry >= trim.threshold:
                break
            if not stream.is_referenced(entry):
                gone.append(entry)
                length -= 1
        if is_last:
            return gone, node.first
    return gone, ids.MAX_ID + 1
