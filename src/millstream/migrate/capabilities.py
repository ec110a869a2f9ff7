"""The features of a target, found by sending commands. Versions prove little, since forks and proxies report any."""

from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.migrate.connection import Command, Link, Reply, refusal


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """The target's commands and options for facts other than entries."""

    counters: bool = True  # XSETID with ENTRIESADDED and MAXDELETEDID (Redis 7.0)
    entries_read: bool = True  # XGROUP SETID with ENTRIESREAD (Redis 7.0)
    release: bool = True  # XNACK, which creates pending entries without an owner (Redis 8.8)
    idempotence: bool = True  # XCFGSET (Redis 8.6)


#: Features of a file of commands, by the Redis version that reads it.
VERSIONS = {
    "6.2": TargetFeatures(counters=False, entries_read=False, release=False, idempotence=False),
    "7.0": TargetFeatures(release=False, idempotence=False),
    "7.2": TargetFeatures(release=False, idempotence=False),
    "8.8": TargetFeatures(),
}

# A key that must not exist on any server
_NO_KEY = b"millstream:moving:no-such-key"

# None of these creates a key: a server with the option reports the missing key, another one rejects the syntax
_PROBES: tuple[Command, ...] = (
    ("XSETID", _NO_KEY, "1-1", "ENTRIESADDED", 1, "MAXDELETEDID", "1-1"),
    ("XGROUP", "SETID", _NO_KEY, "g", "1-1", "ENTRIESREAD", 1),
    ("XNACK", _NO_KEY, "g", "FAIL", "IDS", 1, "1-1", "RETRYCOUNT", 1, "FORCE"),
    ("XCFGSET", _NO_KEY, "IDMP-DURATION", 100),
)


def find_features(link: Link) -> TargetFeatures:
    """Find a server's features in one round trip, without creating a key. Its error replies show them."""
    return TargetFeatures(*(_misses_key(reply) for reply in link.ask(_PROBES)))


def _misses_key(reply: Reply) -> bool:
    """Return True if an error reply is about the missing key, not about the arguments."""
    text = refusal(reply).lower() if isinstance(reply, ResponseError) else ""
    return "no such key" in text or "requires the key to exist" in text
