"""Routes of a cluster: the node of each key, and the meaning of a reply that redirects. No I/O.

Both asyncio lines and Spark's blocking connections use :class:`Routes`. They send CLUSTER SLOTS to its candidates in
turn and pass it the first reply. They send each command to the node that it names, and report errors to it.
"""

from dataclasses import dataclass
from typing import Any

from millstream.client.discovery.cluster import parse_cluster
from millstream.client.slots import Address, Slots, shown_key, slot_of


@dataclass(frozen=True, slots=True)
class Redirection:
    """A command that did not run must be sent again: to the node of its key, or once to ``ask`` after ASKING."""

    ask: Address | None = None


class Routes:
    """The owners of a cluster's slots, by its nodes' last report."""

    def __init__(self, url: str) -> None:
        self.cluster = parse_cluster(url)
        self.slots = Slots()
        self.known = False
        """True if ``slots`` can be relied on; if not, a node must be queried first."""
        self._moved: dict[int, Address] = {}  # slot owners from MOVED replies, newer than ``slots``

    @property
    def candidates(self) -> list[Address]:
        """The nodes to query in turn: those of the last report, then those of the URL."""
        return list(dict.fromkeys((*self.slots.primaries, *self.cluster.nodes)))

    def learn(self, rows: Any, asked: Address) -> None:
        """Store a node's reply to CLUSTER SLOTS; a cluster without any slots is queried again."""
        self.slots, self._moved = Slots.of_reply(rows, asked), {}
        self.known = bool(self.slots.ranges)

    def forget(self) -> None:
        """Have the slots read again before the next command, because a connection broke."""
        self.known = False

    def of(self, key: str | bytes) -> Address | None:
        """Return the node that has a key; None if its slot has no owner, and the slots are read again."""
        moved = self._moved.get(slot_of(key))
        nodes = self.slots.nodes(key) if moved is None else (moved,)
        if not nodes:
            self.forget()
            return None
        return nodes[0]

    def heed(self, code: str, rest: str) -> Redirection | None:
        """Learn from an error reply; return None if it is not a cluster's redirection."""
        if code == "TRYAGAIN":  # the command has several keys, and some of them have already moved
            return Redirection()
        if code == "CLUSTERDOWN":
            self.forget()
            return Redirection()
        if code not in {"MOVED", "ASK"}:
            return None
        slot, _, where = rest.partition(" ")
        host, _, port = where.rpartition(":")
        if not (host and port.isdecimal() and slot.isdecimal()):
            self.forget()  # an empty host means the node that replied, which is unknown here
            return Redirection()
        if code == "ASK":
            return Redirection((host, int(port)))
        self._moved[int(slot)] = (host, int(port))
        return Redirection()


def no_node(key: str | bytes) -> str:
    """Return the error text for a slot without an owner."""
    return f"no node of the cluster has slot {slot_of(key)}, of key {shown_key(key)!r}"
