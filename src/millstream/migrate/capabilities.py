"""A target's abilities, found by asking it; versions say little, since forks and proxies report any."""

from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.migrate.connection import Command, Link, Reply, refusal


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """The commands and options that carry more than entries."""

    counters: bool = True  # XSETID with ENTRIESADDED and MAXDELETEDID (Redis 7.0)
    entries_read: bool = True  # XGROUP SETID with ENTRIESREAD (Redis 7.0)
    release: bool = True  # XNACK, which makes pending entries without an owner (Redis 8.8)
    idempotence: bool = True  # XCFGSET (Redis 8.6)


#: Versions of files of commands, by the version of Redis that reads them.
VERSIONS = {
    "6.2": TargetFeatures(counters=False, entries_read=False, release=False, idempotence=False),
    "7.0": TargetFeatures(release=False, idempotence=False),
    "7.2": TargetFeatures(release=False, idempotence=False),
    "8.8": TargetFeatures(),
}

# Must not exist at any server that is asked
_NO_KEY = b"millstream:moving:no-such-key"

# None of them creates a key: a server that knows the option misses the key, another one does not know the words
_PROBES: tuple[Command, ...] = (
    ("XSETID", _NO_KEY, "1-1", "ENTRIESADDED", 1, "MAXDELETEDID", "1-1"),
    ("XGROUP", "SETID", _NO_KEY, "g", "1-1", "ENTRIESREAD", 1),
    ("XNACK", _NO_KEY, "g", "FAIL", "IDS", 1, "1-1", "RETRYCOUNT", 1, "FORCE"),
    ("XCFGSET", _NO_KEY, "IDMP-DURATION", 100),
)


def find_features(link: Link) -> TargetFeatures:
    """Ask a server, in one round trip and without making a key: a refusal shows its abilities."""
    return TargetFeatures(*(_misses_key(reply) for reply in link.ask(_PROBES)))


def _misses_key(reply: Reply) -> bool:
    """True if a refusal is about the key that is not there, not about the words."""
    text = refusal(reply).lower() if isinstance(reply, ResponseError) else ""
    return "no such key" in text or "requires the key to exist" in text
