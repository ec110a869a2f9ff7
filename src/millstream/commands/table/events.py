"""Keyspace events: which kinds a server publishes (``notify-keyspace-events``) and on which channels.

Source: https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/
"""

from dataclasses import dataclass

# Letters in the order of CONFIG GET. "A" stands for the first group, and hides the second, as in Redis
_ALL = "g$lshzxetd"
_BESIDE = "noc"
_EXTRA = "KEm"


@dataclass(frozen=True, slots=True)
class Flags:
    """Kinds of events that are published."""

    letters: str  # Letters of the enabled kinds, in Redis's order, with ``A`` for the first group

    def __str__(self) -> str:
        """The flags as Redis shows them: ``A`` hides the second group, though it does not include it."""
        return "".join(letter for letter in self.letters if "A" not in self.letters or letter not in _BESIDE)


def canonical(flags: str) -> Flags:
    """Return the letters in order."""
    unknown = set(flags) - set(_ALL + _BESIDE + _EXTRA + "A")
    if unknown:
        raise ValueError("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
    kinds = "A" if "A" in flags or set(_ALL) <= set(flags) else "".join(kind for kind in _ALL if kind in flags)
    return Flags(kinds + "".join(kind for kind in _BESIDE + _EXTRA if kind in flags))


def messages(flags: str, kind: str, event: str, db: int, key: bytes) -> list[tuple[bytes, bytes]]:
    """Return the channels and texts to publish for one event."""
    if kind not in flags and not ("A" in flags and kind in _ALL):
        return []
    found: list[tuple[bytes, bytes]] = []
    name = event.encode()
    if "K" in flags:
        found.append((b"__keyspace@%d__:%b" % (db, key), name))
    if "E" in flags:
        found.append((b"__keyevent@%d__:%b" % (db, name), key))
    return found
