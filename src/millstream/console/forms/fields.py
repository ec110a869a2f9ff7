"""What a person is asked for before a change can be shown. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FormField:
    """One word of a form.

    Attributes:
        name: of the word.
        title: what stands before it.
        hint: an example of it.
        needed: the change cannot be planned without it.
        flag: it is said or not, without more words; the hint says what it means.
    """

    name: str
    title: str
    hint: str
    needed: bool = False
    flag: bool = False


_IDS = FormField("ids", "ids", "1763721600000-0")
_HELD_BY = FormField("consumer", "or held by", "web-2")

_LETTERS = (
    FormField("ids", "letters", "1763721600000-0"),
    FormField("error", "or with this error", "timeout"),
    FormField("reason", "of this reason", "overdue"),
)
_WORKER = (FormField("worker", "worker", "web-1-4711", needed=True),)

FIELDS: Mapping[str, tuple[FormField, ...]] = {
    "group rewind": (
        FormField("to", "to", "1h-ago, a time, an id, start, end, -100", needed=True),
        FormField("even_if_moved", "even if moved", "also if the group reads on meanwhile", flag=True),
    ),
    "group create": (
        FormField("group", "name", "billing", needed=True),
        FormField("at", "at", "start, end, 1h-ago, an id", needed=True),
    ),
    "group rm": (),
    "consumer rm": (
        FormField("consumer", "consumer", "web-2", needed=True),
        FormField("claim_to", "its entries to", "web-1"),
    ),
    "pending ack": (
        _IDS,
        _HELD_BY,
        FormField("gone", "gone", "only what is trimmed or deleted from the stream", flag=True),
    ),
    "pending claim": (
        FormField("consumer", "from", "web-2"),
        FormField("idle", "idle for", "10m"),
        FormField("ids", "or ids", "1763721600000-0"),
        FormField("to", "to", "web-1", needed=True),
    ),
    "pending nack": (_IDS, _HELD_BY),
    "pending dead": (
        _IDS,
        FormField("deliveries", "or delivered so often", "10"),
        FormField("reason", "reason", "it crashes every worker"),
    ),
    "stream add": (FormField("fields", "fields", 'item=tea amount=3, or {"item": "tea"}', needed=True),),
    "stream trim": (
        FormField("maxlen", "so many stay", "100000"),
        FormField("minid", "or from this id on", "1763721600000-0"),
        FormField("before", "or what is older goes", "7d-ago"),
    ),
    "stream rm": (),
    "audit undo": (FormField("change", "change", "8f3c01a94b7e", needed=True),),
    "dead retry": (*_LETTERS, FormField("rate", "at most a second", "100")),
    "dead edit": (
        FormField("ids", "letter", "1763721600000-0", needed=True),
        FormField("document", "fields", '{"item": "tea"}', needed=True),
    ),
    "dead rm": _LETTERS,
    "worker quiet": _WORKER,
    "worker drain": _WORKER,
    "worker stop": _WORKER,
    "worker pause": (FormField("reason", "reason", "the card provider is down", needed=True),),
    "worker resume": (),
    "worker reap": (FormField("idle", "idle for", "1h"),),
}
"""Action -> what is asked of a person, beside the stream and the group it is about."""
