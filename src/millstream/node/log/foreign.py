"""Records that another server has sent: their checksums are right, whatever they hold.

A log of our own is believed, since a command of this program has made each record, and appliers look at nothing. A
primary may be somebody else: a key that is no bytes, or a time that is text, would be taken over and kept, and each
command that meets it would fail, after every start. So a transition must be of the types that its applier names, and
what comes of them all must be what this program can count with and write.

Whether a record tells the truth is not asked: a primary may have its replica hold anything.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from millstream.engine.collections import ZSetValue
from millstream.engine.history import EARLIER_MAX, NO_DATABASE, ReplicationState
from millstream.engine.ids import PACKED_SIZE
from millstream.engine.keyspace import DATABASES, OPS, Database, Keyspace, Value
from millstream.engine.streams.group import UNKNOWN
from millstream.engine.streams.stream import LLONG_MAX, Stream
from millstream.node.log import replay

Check = Callable[[Any], bool]

_NAME = re.compile("[0-9a-zA-Z]{40}")


def from_copy(payloads: Iterable[bytes]) -> Keyspace:
    """What these records give.

    Raises:
        Exception: of any class, where they are nothing that a Millstream writes.
    """
    space, kinds = Keyspace(), Kinds()
    for payload in payloads:
        replay.apply(space, payload, kinds.look)
    _look_at_history(space.history)
    for base in space.databases:
        _look_at_keys(base)
    return space


class Kinds:
    """Of what types transitions are; what was found out of some types is remembered for those that are alike."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], list[tuple[int, Check]]] = {}

    def look(self, step: Sequence[Any]) -> None:
        """Look at one transition.

        Raises:
            Exception: of any class, if it is not of the types that its applier names.
        """
        kinds = (step[0], *map(type, step))
        checks = self._found.get(kinds)
        if checks is None:
            checks = self._found[kinds] = _checks(step[0], kinds[2:])
        for at, check in checks:
            if not check(step[at]):
                raise TypeError(f"argument {at} of {step[0]}")


def _checks(op: str, kinds: Sequence[type]) -> list[tuple[int, Check]]:
    """What arguments of these types are to be looked at further, and how."""
    signature = inspect.signature(OPS[op], eval_str=True)
    given = list(signature.bind(None, *kinds).arguments.items())
    found = []
    for at, (name, kind) in enumerate(given[1:], 1):
        check = _check(kind, signature.parameters[name].annotation)
        if check is not None:
            found.append((at, check))
    return found


def _check(kind: type, hint: Any) -> Check | None:
    """How an argument of a type is looked at further for an applier that wants another or the same; None: not at all.

    Raises:
        TypeError: it does not want that.
    """
    for each in get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,):
        origin = get_origin(each)
        if each is kind:
            return None
        if origin is Annotated and kind is bytes:
            return _is_packed_id
        if origin in {list, Sequence} and kind is list:
            (element,) = get_args(each)
            return None if element is Any else partial(_are_all, {get_origin(element) or element})
    raise TypeError(f"{kind.__name__} in place of {hint}")


def _is_packed_id(value: bytes) -> bool:
    return len(value) == PACKED_SIZE


def _are_all(kinds: set[type], values: list[Any]) -> bool:
    return kinds.issuperset(map(type, values))


# ---------------------------------------------------------------------- what comes of them all


def _look_at_history(past: ReplicationState) -> None:
    names, seconds = past.earlier[::2], past.earlier[1::2]
    if not NO_DATABASE <= past.db < DATABASES:
        raise ValueError(f"database {past.db} is selected")
    if past.replid2 and not _NAME.fullmatch(past.replid2):
        raise ValueError(f"a history is called {past.replid2!r:.60}")
    if len(names) != len(seconds) or len(names) > EARLIER_MAX:
        raise ValueError(f"{len(past.earlier)} words about earlier histories")
    if not all(type(name) is str and _NAME.fullmatch(name) for name in names):
        raise ValueError("an earlier history has no name")
    if not (_are_all({int}, [*seconds, past.offset]) and all(map(_is_signed, (past.second, past.offset, *seconds)))):
        raise ValueError("an offset of a history is none")


def _is_signed(number: int) -> bool:
    return -LLONG_MAX <= number <= LLONG_MAX


def _look_at_keys(base: Database) -> None:
    if not all(map(_is_signed, base.expires.values())):
        raise ValueError("a time beyond 64 bits")
    for key, value in base.keys.items():
        if not _is_sound(value):
            raise ValueError(f"the {value.kind.decode()} at {key!r:.60}")


def _is_sound(value: Value) -> bool:
    if isinstance(value, Stream):
        memory = value.idempotence
        counters = (value.entries_added, memory.duration, memory.maxsize, memory.added, memory.duplicates)
        groups = value.groups.values()
        consumers = [each for group in groups for each in group.consumers.values()]
        return (
            all(0 <= number <= LLONG_MAX for number in counters)
            and value.entries.last_live_id <= value.last_id
            and all(group.entries_read >= UNKNOWN for group in groups)
            and _are_all({bytes}, [each.name for each in consumers])
            and _are_all({int}, [number for each in consumers for number in (each.seen, each.active)])
        )
    if isinstance(value, ZSetValue):
        return all(score == score for score in value.scores.values())  # noqa: PLR0124 - NaN has no place in an order
    return True
