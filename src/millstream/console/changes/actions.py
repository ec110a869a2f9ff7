"""Every change that a person can make, in the same words on a page and in the shell. Pure.

A page shows these names, the line of the shell beside each, and greys out what ``rights`` closes; a test compares them
with the subcommands there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """One change.

    Attributes:
        name: noun and verb, as they are typed: ``group rewind``.
        says: what it does, for a button's title and the list of commands.
        line: its command line; words in capitals are what it needs.
        commands: raw commands it runs at most, for what the user may not do.
        loses: something is gone afterwards that its undo does not bring back, or not all of it.
        undo: the action that undoes it; empty where there is none.
        needs_xnack: a part of it needs a server with XNACK.
        registry: it writes the registry of workers, and no stream.
    """

    name: str
    says: str
    line: str
    commands: tuple[str, ...] = ()
    loses: bool = False
    undo: str = ""
    needs_xnack: bool = False
    registry: bool = False

    @property
    def noun(self) -> str:
        """What it changes."""
        return self.name.partition(" ")[0]

    @property
    def verb(self) -> str:
        """What it does with it."""
        return self.name.partition(" ")[2]

    @property
    def needs(self) -> tuple[str, ...]:
        """What has to be known before it can be previewed, in the order of the line."""
        words = self.line.removeprefix("millstream ").split()
        return tuple(word.strip("[].").lower() for word in words if word.strip("[].").isupper())


def _row(name: str, says: str, line: str, *commands: str, loses: bool = False, undo: str = "") -> Action:
    registry = name.startswith("worker") and name != "worker reap"
    whole = f"millstream {name} {line}".strip()
    return Action(name, says, whole, commands, loses, undo, name == "pending nack", registry)


ACTIONS: tuple[Action, ...] = (
    _row("group rewind", "Set a group to another place: entries are delivered again, or skipped.",
         "STREAM GROUP --to PLACE", "XGROUP SETID", undo="group rewind"),
    _row("group create", "Make a group, at the start, the end, a time or an entry.",
         "STREAM GROUP --at PLACE", "XGROUP CREATE", undo="group rm"),
    _row("group rm", "Remove a group with its position and its pending entries.",
         "STREAM GROUP", "XGROUP DESTROY", loses=True, undo="group create"),
    _row("consumer rm", "Remove a consumer; its pending entries go with it, or are moved first.",
         "STREAM GROUP CONSUMER", "XGROUP DELCONSUMER", "XCLAIM", loses=True, undo="audit undo"),
    _row("pending ack", "Acknowledge pending entries: they count as processed.",
         "STREAM GROUP [ID]...", "XACK", undo="audit undo"),
    _row("pending claim", "Move pending entries to another consumer.",
         "STREAM GROUP [ID]... --to CONSUMER", "XCLAIM", undo="audit undo"),
    _row("pending nack", "Give pending entries back, for any consumer to take.",
         "STREAM GROUP [ID]...", "XNACK", undo="audit undo"),
    _row("pending dead", "Make dead letters of pending entries: nobody tries them again.",
         "STREAM GROUP [ID]...", "XACK", undo="dead retry"),
    _row("stream add", "Add entries.",
         "STREAM [NAME=VALUE]...", "XADD"),
    _row("stream trim", "Remove the oldest entries of a stream, after a look at who still needs them.",
         "STREAM --minid ID", "XTRIM", loses=True),
    _row("stream rm", "Remove a stream with its entries and its groups.",
         "STREAM", "DEL", loses=True),
    _row("audit undo", "Put back what a change acknowledged, moved, gave back or dropped.",
         "CHANGE", "XCLAIM"),
    _row("dead retry", "Put dead letters back on the streams they came from.",
         "STREAM [ID]...", "XDEL"),
    _row("dead edit", "Correct the entry of a dead letter, and put it back for the group that gave up.",
         "STREAM ID", "XDEL"),
    _row("dead rm", "Delete dead letters for good.",
         "STREAM [ID]...", "XDEL", loses=True),
    _row("worker quiet", "Let workers read nothing more; they stay.",
         "[ID]...", "HSET", undo="worker resume"),
    _row("worker drain", "Let workers finish what they have in hand, and end.",
         "[ID]...", "HSET", undo="worker resume"),
    _row("worker stop", "Stop workers as SIGTERM does.",
         "[ID]...", "HSET"),
    _row("worker pause", "Let no worker run anything for a group until it is resumed.",
         "STREAM GROUP --reason REASON", "HSET", undo="worker resume"),
    _row("worker resume", "End a pause: of a group, or of a worker that is quiet or drains.",
         "TARGET [GROUP]", "HDEL"),
    _row("worker reap", "Remove consumers of processes that are gone, idle and holding nothing.",
         "STREAM [GROUP]", "XGROUP DELCONSUMER"),
)  # fmt: skip
"""In the order in which a page lists them."""

BY_NAME = {action.name: action for action in ACTIONS}

_WORDS = {"STREAM": "key", "GROUP": "group", "CONSUMER": "consumer", "CHANGE": "change", "[GROUP]": "group"}
_FLAGS = frozenset(
    {"--all", "--unowned", "--gone", "--ahead", "--approx", "--all-groups", "--mkstream", "--even-if-moved"}
)


def form_of(line: Sequence[str]) -> dict[str, str] | None:
    """The words of a page's form for a command line of an action; None where it is no action's.

    Args:
        line: as words, ``millstream`` first.
    """
    action = BY_NAME.get(" ".join(line[1:3]))
    if action is None:
        return None
    found, names, rest = {"do": action.name}, list[str](), iter(line[3:])
    for word in rest:
        if word == "--":
            names += rest
        elif word in _FLAGS:
            found[_form_name(word)] = "1"
        elif word.startswith("--"):
            option, sign, value = word.partition("=")
            found[_form_name(option)] = value if sign else next(rest, "")
        else:
            names.append(word)
    if action.noun == "worker" and action.verb not in {"pause", "reap"} and len(names) == 1:
        return {**found, "worker": names[0]}
    places = [_WORDS[word] for word in action.line.replace("TARGET", "STREAM").split()[3:] if word in _WORDS]
    found |= dict(zip(places, names, strict=False))
    return found | ({"ids": " ".join(names[len(places) :])} if names[len(places) :] else {})


def _form_name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
