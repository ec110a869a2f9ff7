"""The stream of a replica: its primary's bytes as they came, for replicas of its own, and to count how far it is."""

from millstream.engine.keyspace import Transition
from millstream.node.log.feeding import Feed


class Relay(Feed):
    """See the module's text. It relays changes in the primary's words, so it makes nothing of transitions.

    The primary is sent the offset after the kept bytes (``backlog.sendable``).
    """

    is_relay = True
    is_prompt = True  # the primary's log counts it, and it is there if this server comes back without it
    _has_more = False  # bytes came since the last record

    def note(self, step: Transition, soft: bool) -> None:
        """The primary has told of it."""

    def note_run(self, record: bytes) -> None:
        """The same."""

    def say(self, command: list[bytes]) -> None:
        """A replica adds nothing to the stream."""

    def take_in(self, data: bytes, db: int) -> None:
        """Bytes of the primary were run, as a part of the record at work."""
        self.extend(data)
        self.db, self._has_more = db, True

    def close(self) -> bool:
        """The record at work is through; whether bytes came with it."""
        had_more, self._has_more = self._has_more, False
        return had_more
