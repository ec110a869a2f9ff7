"""Problems of a server that need a person: its link to a primary, its replicas, writes that it refuses. Pure.

A replica that is behind by bytes may be about to take them. So it counts as slow only by the offset that its primary
had some seconds before.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from millstream.console.model.advice import Advice, Level
from millstream.console.model.server import SILENT_SECONDS, Replication, ServerStatus
from millstream.console.words import DASH, brief, span

_TEXT = 200  # letters of a reason


def servers_advice(nodes: Sequence[ServerStatus], before: Sequence[ServerStatus] = ()) -> list[Advice]:
    """Everything there is to say of some servers."""
    earlier = before if len(before) == len(nodes) else ()
    return [
        advice
        for number, (node, was) in enumerate(zip_longest(nodes, earlier), 1)
        for advice in _server(node, was, "server" if len(nodes) == 1 else f"node {number}")
    ]


def _server(node: ServerStatus, was: ServerStatus | None, name: str) -> Iterable[Advice]:
    """The findings about one server."""
    if node.log_status not in {None, "ok"}:
        says = "the last write to its disk failed, so writes are refused until one succeeds"
        yield _advice(name, "writes-refused", "problem", says, {"log_on_disk": node.log_status})
    state = node.replication
    if state is None:
        return
    yield from _link(state, name)
    yield from _refusals(state, name)
    yield from _replicas(node, was, name)


def _advice(name: str, code: str, level: Level, says: str, evidence: dict[str, object]) -> Advice:
    """A finding."""
    return Advice(code, level, "", None, says, evidence, ("millstream", "doctor"), server=name)


def _link(state: Replication, name: str) -> Iterable[Advice]:
    link = state.primary
    if link is None or link.state == "up":
        return
    evidence: dict[str, object] = {"primary": link.address, "offset": state.offset}
    if link.is_syncing:
        says = f"all data of its primary {link.address} are being copied; until then it shows what it had before"
        yield _advice(name, "copy-under-way", "hint", says, evidence)
        return
    down_ms = None if link.down_seconds is None else link.down_seconds * 1000
    why = f": {brief(link.error, _TEXT)}" if link.error else ""
    says = f"its link to its primary {link.address} has been down for {DASH if down_ms is None else span(down_ms)}{why}"
    says += "; what it shows is that old, and it must not take over"
    yield _advice(name, "lost-link", "problem", says, evidence | {"link_down_ms": down_ms})


def _refusals(state: Replication, name: str) -> Iterable[Advice]:
    for says, evidence in state.refusals():
        yield _advice(name, "writes-refused", "problem", says, evidence)


def _replicas(node: ServerStatus, was: ServerStatus | None, name: str) -> Iterable[Advice]:
    """Those that follow, and are silent or slow; one that waits for its copy is neither."""
    for each in node.replicas:
        if each.state != "online":
            continue
        silent = each.lag_seconds or 0
        evidence: dict[str, object] = {"replica": each.address, "silent_ms": silent * 1000}
        evidence |= {"behind_bytes": each.behind_bytes}
        if each.is_silent:
            says = f"its replica {each.address} was last heard of {span(silent * 1000)} ago"
            yield _advice(name, "silent-replica", "warning", f"{says}, and lacks what was written since", evidence)
        elif (late_ms := _late(node, was, each.behind_bytes)) is not None:
            says = f"its replica {each.address} has not taken yet what was written {span(late_ms)} ago"
            yield _advice(name, "slow-replica", "warning", says, evidence)


def _late(node: ServerStatus, was: ServerStatus | None, behind: int | None) -> int | None:
    """Milliseconds by which a replica is late at least; None where it is not known to be too many."""
    now, then = node.replication, None if was is None else was.replication
    if now is None or then is None or was is None or behind is None or now.id != then.id:
        return None
    if now.offset is None or then.offset is None or now.offset - behind >= then.offset:
        return None
    apart = node.at_ms - was.at_ms
    return apart if apart >= SILENT_SECONDS * 1000 else None
