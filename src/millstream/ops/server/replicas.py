"""The tree of primaries and replicas, from the reports of some servers. Pure.

A server reports the addresses of its primary and its replicas. So the tree also has servers that were not queried, with
the data that their neighbours report.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millstream.ops.server.status import PrimaryLink, ReplicaStatus, ServerStatus
from millstream.texts import plural


@dataclass(frozen=True, slots=True)
class AskedServer:
    """A server that was queried, with its report or error."""

    address: str  # Host and port
    status: ServerStatus | None  # Status as the server itself reports it; None if it did not reply
    error: str = ""  # Reason why it did not reply


@dataclass(frozen=True, slots=True)
class ReplicationPlace:
    """One server in the replication tree, with its link and offset."""

    address: str  # Host and port
    depth: int  # Depth in the tree; 0 for a server without a known primary
    role: str | None = None  # ``primary`` or ``replica``; None if unknown
    follows: str | None = None  # Address of its primary
    # State of that link: ``up``, ``down``, ``sync`` during a copy, ``silent`` if it has sent its primary nothing for
    # ten seconds; otherwise the state that the primary reports
    link: str | None = None
    behind_bytes: int | None = None  # Bytes of the primary's stream that the server lacks; None if unknown
    # Seconds since it last sent anything to its primary, or if unknown, since its primary last sent anything
    silent_seconds: int | None = None
    down_seconds: int | None = None  # Seconds since its link went down; None while it is up
    id: str | None = None  # Id of the history of its data
    offset: int | None = None  # Its offset in that history
    copies: int | None = None  # Full copies since it started; None if it does not report them
    copied_seconds: int | None = None  # Seconds since the last full copy; None if there was none
    copy_bytes: int | None = None  # Size of that copy in bytes; None if unknown
    dialect: str | None = None  # Redis version of the commands that it sends to replicas; None if not reported
    problem: str = ""  # The problem in words; may be empty


def addresses(asked: Sequence[AskedServer]) -> set[str]:
    """Return the addresses of these servers, and all that they name."""
    found = {one.address for one in asked}
    for one in asked:
        if one.status is not None:
            found |= {each.address for each in one.status.replicas}
            link = _link(one.status)
            found |= set() if link is None else {link.address}
    return found


def standings(asked: Sequence[AskedServer], names: Mapping[str, str]) -> list[ReplicationPlace]:
    """Return the tree as a list, each server after its primary."""
    tree = _Tree(names)
    for one in asked:
        tree.add(one)
    return _split(list(tree.walk()))


def _split(found: list[ReplicationPlace]) -> list[ReplicationPlace]:
    """Mark primaries with different histories as a problem: a service must have only one primary."""
    leading = {one.address for one in found if one.role == "primary" and one.id is not None}
    if len({one.id for one in found if one.address in leading}) < 2:
        return found
    return [
        replace(one, problem="; ".join(filter(None, (one.problem, _others(leading - {one.address})))))
        if one.address in leading
        else one
        for one in found
    ]


def _others(leading: set[str]) -> str:
    verb = "leads" if len(leading) == 1 else "lead"
    return f"{', '.join(sorted(leading))} {verb} too, with another history: if they are of one service, one must follow"


@dataclass(slots=True)
class _Place:
    """A server in the tree; ``seen`` is its primary's report about it."""

    address: str
    asked: AskedServer | None = None
    parent: str | None = None
    seen: ReplicaStatus | None = None
    children: list[str] = field(default_factory=list)


class _Tree:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._places: dict[str, _Place] = {}

    def _place(self, address: str) -> tuple[str, _Place]:
        name = self._names.get(address, address)
        return name, self._places.setdefault(name, _Place(address))

    def add(self, one: AskedServer) -> None:
        name, place = self._place(one.address)
        place.address, place.asked = one.address, one
        if one.status is None:
            return
        for each in one.status.replicas:
            child, found = self._place(each.address)
            found.seen = each
            self._join(child, name)
        if (link := _link(one.status)) is not None:
            self._join(name, self._place(link.address)[0])

    def _join(self, child: str, parent: str) -> None:
        """Attach a replica to its primary.

        The first report counts: reports agree unless the primary has just changed.
        """
        if self._places[child].parent is None and child != parent:
            self._places[child].parent = parent
            self._places[parent].children.append(child)

    def walk(self) -> Iterator[ReplicationPlace]:
        shown: set[str] = set()
        roots = [name for name, place in self._places.items() if place.parent is None]
        for name in [*roots, *self._places]:  # only servers in a cycle remain after the roots
            yield from self._walk(name, 0, shown)

    def _walk(self, name: str, depth: int, shown: set[str]) -> Iterator[ReplicationPlace]:
        if name in shown:
            return
        shown.add(name)
        place = self._places[name]
        above = None if place.parent is None else self._places[place.parent]
        yield self._with_ring(name, _standing(place, above, depth))
        for child in place.children:
            yield from self._walk(child, depth + 1, shown)

    def _with_ring(self, name: str, found: ReplicationPlace) -> ReplicationPlace:
        """Mark a server that follows itself through other servers: such a ring does not have a primary."""
        ring = [name]
        while (above := self._places[ring[-1]].parent) is not None and above not in ring:
            ring.append(above)
        if above != name:
            return found
        members = ", ".join(sorted(self._places[one].address for one in ring))
        return replace(
            found, problem="; ".join(filter(None, (found.problem, f"there is no primary: {members} {_RING}")))
        )


_RING = "follow each other"


def _link(status: ServerStatus) -> PrimaryLink | None:
    return None if status.replication is None else status.replication.primary


def _standing(place: _Place, above: _Place | None, depth: int) -> ReplicationPlace:
    asked, seen = place.asked, place.seen
    follows = None if above is None else above.address
    if asked is None or asked.status is None:
        problem = "not queried: give its URL too" if asked is None else f"does not answer: {asked.error}"
        role = "primary" if above is None and asked is None else "replica" if above is not None else None
        known = ReplicationPlace(place.address, depth, role, follows, problem=problem)
        if seen is None:
            return known
        word = "silent" if seen.is_silent else seen.state
        said = "; ".join(filter(None, (_silence(seen), problem)))
        return ReplicationPlace(
            place.address, depth, role, follows, word, seen.behind_bytes, seen.lag_seconds, problem=said
        )
    state, link = asked.status.replication, _link(asked.status)
    return ReplicationPlace(
        address=place.address,
        depth=depth,
        role=None if state is None else "primary" if link is None else "replica",
        follows=None if link is None else link.address,
        link=None if link is None else _state(link, seen),
        behind_bytes=_behind(asked.status, seen, above),
        silent_seconds=seen.lag_seconds if seen is not None else link.heard_seconds if link is not None else None,
        down_seconds=None if link is None else link.down_seconds,
        id=None if state is None else state.id,
        offset=None if state is None else state.offset,
        copies=None if link is None else link.copies,
        copied_seconds=None if link is None else link.copied_seconds,
        copy_bytes=None if link is None else link.copy_bytes,
        dialect=None if state is None else state.dialect,
        problem=_problem(asked.status, seen, above),
    )


def _state(link: PrimaryLink, seen: ReplicaStatus | None) -> str:
    """Return the state of a link from the reports of both ends."""
    if link.is_syncing:
        return "sync"
    return "silent" if link.state == "up" and seen is not None and seen.is_silent else link.state


def _silence(seen: ReplicaStatus | None) -> str:
    if seen is None or not seen.is_silent:
        return ""
    return f"its primary has not heard from it for {seen.lag_seconds} s: it is blocked, or cannot be reached"


def _behind(status: ServerStatus, seen: ReplicaStatus | None, above: _Place | None) -> int | None:
    """Return the bytes that a replica lacks, from both offsets if reported, otherwise from the primary's report."""
    there = None if above is None or above.asked is None else above.asked.status
    if there is not None and there.replication is not None and status.replication is not None:
        ends, offset = there.replication, status.replication.offset
        if ends.id == status.replication.id and ends.offset is not None and offset is not None:
            return max(ends.offset - offset, 0)
    return None if seen is None else seen.behind_bytes


def _problem(status: ServerStatus, seen: ReplicaStatus | None, above: _Place | None) -> str:
    link = _link(status)
    if link is None:
        if status.replication is None:
            return status.missing.get("info", "")
        return "; ".join(says for says, _ in status.replication.refusals())
    said = []
    if link.error:
        said.append(link.error)
    if link.divergences:
        said.append(f"its data differed from its primary's {plural(link.divergences, 'time')}, and was copied again")
    if silence := _silence(seen):
        said.append(silence)
    answered = above is not None and above.asked is not None and above.asked.status is not None
    if seen is None and answered and link.state == "up":  # a primary does not list a replica whose link is down
        said.append("its primary does not list it, though the link is up")
    return "; ".join(said)
