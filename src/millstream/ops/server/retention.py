"""Retention as the server applies it: the rules, the streams that each rule matches, and what it removed. Pure.

Only Millstream has retention. Pages of other servers show nothing about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from millstream.glob import Rule, Rules, retention
from millstream.ops.words import Facts, picked, size, span, text_of
from millstream.times import bytes_of

SETTINGS = ("CONFIG", "GET", "stream-retention*")
"""Command that reads the rules; a server without retention returns nothing."""


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """The retention of a server."""

    text: str | None = None  # Rules as the server has them; None if they were not read or this user may not read them
    holds: bool = False  # Entries stay until every group has acknowledged them
    removed: int | None = None  # Entries that it removed since the server's start
    removed_unread: int | None = None  # Entries among them that a group had not read

    @property
    def rules(self) -> Rules:
        """The rules; none if they are not known, or from a version with another form."""
        try:
            return retention(bytes_of)(self.text or "")
        except ValueError:
            return Rules()


def settings_of(reply: Any) -> RetentionStatus | None:
    """Return the retention in the reply to :data:`SETTINGS`; None if the server has none, or refuses."""
    if not isinstance(reply, list) or len(reply) % 2 or not all(isinstance(word, bytes) for word in reply):
        return None
    found = dict(zip(map(text_of, reply[::2]), map(text_of, reply[1::2]), strict=True))
    text = found.get("stream-retention")
    return None if text is None else RetentionStatus(text, found.get("stream-retention-groups") == "hold")


Matched: TypeAlias = Sequence[tuple[Rule, Sequence[str]]]
"""Each rule with the streams to which it applies."""


@lru_cache(maxsize=4)  # pages with many rules and streams ask again and again, and these seldom change
def matched(text: str, keys: tuple[str, ...]) -> Matched:
    """Return each rule with the streams to which it applies: for each stream, the first rule that matches.

    This can take a second. An event loop calls it in a thread.
    """
    rules = RetentionStatus(text).rules
    found = {id(rule): list[str]() for rule in rules.rules}
    for key in keys:
        name = key.encode(errors="surrogateescape")
        rule = next((each for each in rules.rules if each.takes(name)), None)  # also one without bounds
        if rule is not None:
            found[id(rule)].append(key)
    return tuple((rule, found[id(rule)]) for rule in rules.rules)


def rule_facts(rule: Rule) -> Facts:
    """Return a rule as data; null for no bound."""
    return {"pattern": text_of(rule.pattern), "age_ms": rule.age or None, "max_bytes": rule.size or None}


def rule_text(rule: Rule, *, holds: bool) -> str:
    """Return the bounds of a rule in words."""
    bounds = [f"for {span(rule.age)}"] * bool(rule.age) + [f"up to {size(rule.size)}"] * bool(rule.size)
    kept = " and ".join(bounds)
    return f"kept {kept}" + ", and until all groups acknowledge" * holds if kept else "kept"


def retention_facts(found: RetentionStatus | None, ruled: Matched) -> Facts | None:
    """Return the retention of a server as data, with the number of streams that each rule matches."""
    if found is None:
        return None
    return {
        **picked(found, "text holds removed removed_unread"),
        "rules": [{**rule_facts(rule), "streams": len(there)} for rule, there in ruled],
    }
