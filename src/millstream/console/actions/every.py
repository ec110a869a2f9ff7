"""All actions, in the order in which a page and docs/changes.md list them."""

from millstream.console.actions import groups, letters, pending, streams, workers
from millstream.console.changes.actions import REGISTERED

_MODULES = (groups, pending, streams, letters, workers)
_NOUNS = ("group", "consumer", "pending", "stream", "audit", "dead", "worker")

BY_NAME = dict(sorted(REGISTERED.items(), key=lambda found: _NOUNS.index(found[1].noun)))
"""Name -> action."""

ACTIONS = tuple(BY_NAME.values())
