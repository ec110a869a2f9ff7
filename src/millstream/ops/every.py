"""All actions, in the order of the console's pages and docs/changes.md."""

from millstream.ops.actions import REGISTERED
from millstream.ops.groups import changes as groups
from millstream.ops.groups import removals
from millstream.ops.jobs import changes as jobs
from millstream.ops.later import changes as later
from millstream.ops.letters import changes as letters
from millstream.ops.limits import changes as limits
from millstream.ops.pending import changes as pending
from millstream.ops.pending import dead, undo
from millstream.ops.schedules import changes as schedules
from millstream.ops.streams import changes as streams
from millstream.ops.streams import repartitioning
from millstream.ops.workers import changes as workers

_CHANGES = (groups, removals, pending, dead, undo, streams, repartitioning, letters, workers)
_MODULES = (*_CHANGES, later, schedules, jobs, limits)
_NOUNS = ("group", "consumer", "pending", "stream", "audit", "dead", "worker", "later", "schedule", "job", "limit")

BY_NAME = dict(sorted(REGISTERED.items(), key=lambda found: _NOUNS.index(found[1].noun)))
"""Actions by name."""

ACTIONS = tuple(BY_NAME.values())
