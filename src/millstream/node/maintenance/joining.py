"""The tier of a node: a spiller and the care of its packs, joined with the other parts of the node."""

from typing import Protocol

from millstream.node.clients.sessions import Sessions
from millstream.node.facts import Surroundings
from millstream.node.host import NodeHost
from millstream.node.maintenance.vacuum import Vacuum
from millstream.node.tiering.figures import reading_rows, rows_of
from millstream.node.tiering.reading import ColdRunner
from millstream.node.tiering.spilling import Spiller
from millstream.persistence.log import Log
from millstream.persistence.manifest import PackEntry


class TierOwner(Protocol):
    """The parts of a node that know of its tier; :class:`millstream.node.node.Node` has them."""

    cold: ColdRunner
    host: NodeHost
    sessions: Sessions
    surroundings: Surroundings


def join_tier(node: TierOwner, opened: Log, spiller: Spiller) -> Vacuum:
    """Let a node read and report what its spiller writes. Return the care of the packs, which takes the spare turns."""
    cold, host, sessions = node.cold, node.host, node.sessions

    def begin_reading(entry: PackEntry) -> None:
        if entry.number not in cold.packs.names:
            cold.add_pack(entry.number, entry.name, opened.open_pack(entry.name))

    def reclaim(at_once: bool) -> bool:
        return host.rewriter is not None and host.rewriter.reclaim(at_once=at_once)

    def disagreements() -> int:
        return 0 if host.rewriter is None else host.rewriter.facts.pack_disagreements

    vacuum = Vacuum(spiller, opened, on_damage=cold.report_damage, on_idle=reclaim)
    vacuum.scrubber.on_return = cold.forget_removal
    spiller.on_pack = begin_reading
    sessions.stalls.may_help, host.vacuum = spiller.may_help, vacuum.ask
    node.surroundings.tier += [
        rows_of(opened, spiller, sessions, disagreements),
        vacuum.rows,
        lambda wall: reading_rows(cold, sessions),  # noqa: ARG005 - one signature
    ]
    return vacuum
