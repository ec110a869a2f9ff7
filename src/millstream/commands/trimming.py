"""MAXLEN and MINID: reading the options, and deciding what goes, for XADD and XTRIM."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.commands.args import SYNTAX, entry_id, integer
from millstream.engine import ids
from millstream.engine.entries import Block
from millstream.errors import CommandError

if TYPE_CHECKING:
    from millstream.commands.context import Context
    from millstream.engine.stream import Stream

REFERENCE_POLICIES = (b"KEEPREF", b"DELREF", b"ACKED")


@dataclass(slots=True)
class Trim:
    """What was asked.

    Attributes:
        strategy: ``MAXLEN``, ``MINID`` or None.
        threshold: a length, or an id.
        approximate: ``~``: whole nodes only.
        limit: most entries to remove in one call; None if not given.
        policy: ``KEEPREF``, ``DELREF`` or ``ACKED``; None if not given.
    """

    strategy: str | None = None
    threshold: int = 0
    approximate: bool = False
    limit: int | None = None
    policy: bytes | None = None

    def take(self, argv: list[bytes], at: int) -> int:
        """Read one option at this position; how many words it took, 0 if it is none of ours.

        Raises:
            CommandError: the option is ours and wrong.
        """
        word = argv[at].upper()
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
        if self.strategy is not None:
            raise CommandError("ERR syntax error, MAXLEN and MINID options at the same time are not compatible")
        used = 2
        self.approximate = False
        if more >= 2 and argv[at + 1] in {b"~", b"="}:
            self.approximate = argv[at + 1] == b"~"
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

    def check(self) -> None:
        """Refuse a LIMIT that has nothing to limit."""
        if self.limit is None:
            return
        if self.limit and self.strategy is None:
            raise CommandError("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
        if not self.approximate:
            raise CommandError("ERR syntax error, LIMIT cannot be used without the special ~ option")

    def budget(self, node_max_entries: int) -> int:
        """Most entries to remove in this call; 0 for no bound."""
        if not self.approximate:
            return 0
        if self.limit is not None:
            return self.limit
        by_default = 100 * node_max_entries
        return 10_000 if by_default <= 0 else min(by_default, 1_000_000)


def parse_trim_options(argv: list[bytes], at: int) -> Trim:
    """XTRIM's options, from this position to the end, in any order."""
    trim = Trim()
    while at < len(argv):
        used = trim.take(argv, at)
        if not used:
            raise SYNTAX
        at += used
    trim.check()
    if trim.strategy is None:
        raise CommandError("ERR syntax error, XTRIM must be called with a trimming strategy")
    return trim


def run_trim(ctx: "Context", key: bytes, stream: "Stream", trim: Trim) -> int:
    """Remove what the options say; how many entries went."""
    budget = trim.budget(ctx.host.config.node_max_entries)
    if trim.policy == b"ACKED":
        gone = _unreferenced(stream, trim, budget)
        return ctx.commit(("xdrop", ctx.db.index, key, ids.pack_all(gone))) if gone else 0
    bound = _bound(stream, trim, budget)
    if bound is None or stream.length == 0 or bound <= stream.first_id:
        return 0
    packed = None if bound > ids.MAX_ID else ids.pack(bound)
    removed: int = ctx.commit(("xtrim", ctx.db.index, key, packed, trim.policy == b"DELREF"))
    return removed


def _droppable(block: Block, trim: Trim, length: int) -> bool:
    if trim.strategy == "MAXLEN":
        return length - block.live >= trim.threshold
    return block.ids[-1] < trim.threshold


def _bound(stream: "Stream", trim: Trim, budget: int) -> int | None:
    """The id below which everything goes, or None for nothing.

    Nodes go whole, from the oldest; the first that cannot ends it with ``~``, and is thinned out otherwise. DELREF
    thins it out even with ``~``.
    """
    length, removed = stream.length, 0
    bound = None
    blocks = stream.entries.blocks
    for index, block in enumerate(blocks):
        if trim.strategy == "MAXLEN" and length <= trim.threshold:
            break
        if budget and removed + block.live > budget:
            break
        if _droppable(block, trim, length):
            length -= block.live
            removed += block.live
            bound = blocks[index + 1].ids[0] if index + 1 < len(blocks) else ids.MAX_ID + 1
            continue
        if trim.approximate and trim.policy != b"DELREF":
            break
        if trim.strategy == "MINID":
            return trim.threshold
        surplus = length - trim.threshold
        live = [entry for at, entry in enumerate(block.ids) if at not in block.dead]
        return live[surplus] if surplus < len(live) else block.ids[-1] + 1
    return bound


def _unreferenced(stream: "Stream", trim: Trim, budget: int) -> list[int]:
    """Entries to remove one by one because no group needs them any more; others are passed over."""
    gone: list[int] = []
    length = stream.length
    for block in stream.entries.blocks:
        if trim.strategy == "MAXLEN" and length <= trim.threshold:
            break
        if budget and len(gone) + block.live > budget:
            break
        for at, entry in enumerate(block.ids):
            if at in block.dead:
                continue
            if length <= trim.threshold if trim.strategy == "MAXLEN" else entry >= trim.threshold:
                return gone
            if not stream.is_referenced(entry):
                gone.append(entry)
                length -= 1
    return gone
