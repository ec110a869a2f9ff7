"""Watched keys and their watchers: EXEC runs only if these keys have not changed.

Source: https://redis.io/docs/latest/commands/watch/
"""

from collections.abc import Iterator

from millstream.commands.context.session import Session


class Watches:
    """The keys that sessions watch; each session has its own in ``watched`` as well.

    A missing key can be watched, so watches are stored here and not with the keys.
    """

    __slots__ = ("by_place",)

    def __init__(self) -> None:
        self.by_place: dict[tuple[int, bytes], set[Session]] = {}  # Sessions by database and watched key; read only.

    def add(self, session: Session, db: int, key: bytes) -> None:
        """WATCH one key for a session; a second time changes nothing."""
        session.watched.add((db, key))
        self.by_place.setdefault((db, key), set()).add(session)

    def drop(self, session: Session) -> None:
        """Drop all watches of a session, and their breaks."""
        for place in session.watched:
            watchers = self.by_place[place]
            watchers.discard(session)
            if not watchers:
                del self.by_place[place]
        session.watched.clear()
        session.watch_broken = False

    def breaks(self, db: int, key: bytes) -> None:
        """Note a change of a key: EXEC fails for the sessions that watch it."""
        if self.by_place:
            for session in self.by_place.get((db, key), ()):
                session.watch_broken = True

    def __len__(self) -> int:
        return len(self.by_place)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Every watched key with its database."""
        return iter(self.by_place)
