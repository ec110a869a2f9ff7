"""Words for changes: the label of the button that begins one, and of the button that makes it."""

import re

from millstream.ops.every import ACTIONS, BY_NAME
from millstream.ops.plan import ChangePlan

LOSING = frozenset(one.name for one in ACTIONS if one.loses)
"""Actions whose undo does not restore everything."""

LABELS = {
    "group rewind": "Move the group's position",
    "group create": "Create a group",
    "consumer rm": "Remove a consumer",
    "pending ack": "Acknowledge entries",
    "pending claim": "Claim entries for a consumer",
    "pending nack": "Release entries",
    "pending dead": "Make dead letters",
    "stream repartition": "Change the number of partitions",
    "stream unseal": "Withdraw the change of partitions",
    "stream add": "Publish an entry",
    "stream trim": "Delete the oldest entries",
    "stream partition": "Divide into partitions",
    "audit undo": "Undo the change",
    "dead retry": "Put the letters back",
    "dead edit": "Put the corrected entry back",
    "worker quiet": "Stop reading",
    "worker pause": "Pause the group",
    "worker resume": "Resume",
    "worker reap": "Remove consumers of ended processes",
    "later fire": "Publish the entry now",
    "schedule fire": "Fire the schedule now",
    "limit set": "Set the rate",
    "limit rm": "Take back the rate",
}
"""Labels of actions that :func:`label` does not make of noun and verb."""

_NOUNS = {"later": "schedule", "dead": "letters"}
_SHORT = {
    "pending ack": "Acknowledge",
    "pending nack": "Release",
    "pending dead": "Make dead letter",
    "dead retry": "Put back",
    "limit rm": "Take back",
}
_COUNTED = re.compile(
    r"Repair the lag|[A-Z][a-z]+(?: back| dead letters of| more than)? [\d,]+ (?:dead )?[a-z]+(?: again)?"
)


def label(action: str) -> str:
    """Return the words of an action, for the button that begins it; any text may come from the audit stream."""
    if action in LABELS or (known := BY_NAME.get(action)) is None:
        return LABELS.get(action, action.capitalize())
    return f"{'Delete' if known.verb == 'rm' else known.verb.capitalize()} the {_NOUNS.get(known.noun, known.noun)}"


def short(action: str) -> str:
    """Return one word for an action, for a button beside its object."""
    return _SHORT.get(action) or {"rm": "Delete"}.get(verb := action.partition(" ")[2], verb.capitalize())


def deed(plan: ChangePlan) -> str:
    """Return the words of a planned change, for the button that makes it: ``Claim 10,000 entries``."""
    counted = _COUNTED.match(plan.question)
    words = counted[0] if counted else label(plan.action)
    return re.sub(r"\d{4,}", lambda found: f"{int(found[0]):,}", words)
