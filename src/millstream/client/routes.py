"""Routes of a cluster: the node of each key, and the meaning of a reply that redirects. No I/O.

Asyncio lines and Spark's blocking connections drive :class:`Routes` alike. They ask its candidates in turn for CLUSTER
SLOTS, give it the first answer to learn, send each command to the node that it names, and have it heed errors.
"""

from dataclasses import dataclass
from typing import Any

from millstream.client.discovery.cluster import parse_cluster
from millstream.client.slots import Address, Slots, shown_key, slot_of


@dataclass(frozen=True, slots=True)
class Redirection:
    """A command did not run, and is to be sent again: to the node of its key, or once to ``ask`` after ASKING."""

    ask: Address | None = None


class Routes:
    """The owners of one cluster's slots, as its nodes reported last."""

    def __init__(self, url: str) -> None:
        self.cluster = parse_cluster(url)
        self.slots = Slots()
        self.known = False
        """True if ``slots`` can be relied on; else a node is to be asked first."""
        self._moved: dict[int, Address] = {}  # newer than ``slots``

    @property
    def candidates(self) -> list[Address]:
        """The nodes to ask in turn: those that were seen last, then those of the URL."""
        return list(dict.fromkeys((*self.slots.primaries, *self.cluster.nodes)))

    def learn(self, rows: Any, asked: Address) -> None:
        """Take the reply of a node to CLUSTER SLOTS; a cluster without any slots is asked again."""
        self.slots, self._moved = Slots.of_reply(rows, asked), {}
        self.known = bool(self.slots.ranges)

    def forget(self) -> None:
        """Have a node asked before the next command: a connection broke."""
        self.known = False

    def of(self, key: str | bytes) -> Address | None:
        """The node that has a key; None if its slot has no owner, which another look may change."""
        moved = self._moved.get(slot_of(key))
        nodes = self.slots.nodes(key) if moved is None else (moved,)
        if not nodes:
            self.forget()
            return None
        return nodes[0]

    def heed(self, code: str, rest: str) -> Redirection | None:
        """Learn from an error reply; None if it is not one of a cluster that redirects."""
        if code == "TRYAGAIN":  # a command of several keys, some of them already moved
            return Redirection()
        if code == "CLUSTERDOWN":
            self.forget()
            return Redirection()
        if code not in {"MOVED", "ASK"}:
            return None
        slot, _, where = rest.partition(" ")
        host, _, port = where.rpartition(":")
        if not (host and port.isdecimal() and slot.isdecimal()):
            self.forget()  # without a host it is the node that was asked, and that one is not known here
            return Redirection()
        if code == "ASK":
            return Redirection((host, int(port)))
        self._moved[int(slot)] = (host, int(port))
        return Redirection()


def no_node(key: str | bytes) -> str:
    """The sentence for a slot without an owner."""
    return f"no node of the cluster has slot {slot_of(key)}, of key {shown_key(key)!r}"
