"""The stream of a replica: its primary's bytes unchanged, for its own replicas and for its offset."""

from millstream.engine.keyspace import Transition
from millstream.node.log.feeding import Feed


class Relay(Feed):
    """Relays the primary's bytes unchanged, so it ignores transitions.

    The primary gets the offset after the kept bytes (``backlog.sendable``).
    """

    is_relay = True
    is_prompt = True  # the primary's log counts it, so it is there even if this server restarts without it
    _has_more = False  # bytes arrived since the last record

    def note(self, step: Transition, soft: bool) -> None:
        """Ignore a transition, since the primary's bytes already contain it."""

    def note_run(self, record: bytes) -> None:
        """Ignore a run, since the primary's bytes already contain it."""

    def say(self, command: list[bytes]) -> None:
        """Ignore a command, since a replica adds nothing to the stream."""

    def take_in(self, data: bytes, db: int) -> None:
        """Append bytes of the primary that were run as a part of the current record."""
        self.extend(data)
        self.db, self._has_more = db, True

    def close(self) -> bool:
        """Close the current record; report whether bytes came with it."""
        had_more, self._has_more = self._has_more, False
        return had_more
