"""The registry of workers: each process's record of itself, and the orders for it, in a few keys.

Any client can read them.

::

    millstream:worker:<id>   string, JSON: host, pid, version, its present activity; expires soon after the last beat.
    While its event loop is blocked, a thread beats for it: state is ``blocked``, and
                             ``blocked`` has ``since_ms`` and ``where``
    millstream:workers       sorted set: ids by the wall milliseconds of their last beat; expires a day after the last
    millstream:workers:ended sorted set: JSON with id, order and handlers of workers that signed off, by the time
    millstream:control       hash: ``worker:<id>`` -> quiet, drain or stop; ``pause:["stream","group"]`` -> JSON with
                             reason, by and at_ms

A beat is one SET, one ZADD and one HMGET, and once an hour one PEXPIRE. A worker is alive while its key exists; the
index only finds it. Pauses do not expire: they hold until a person resumes them, whatever is restarted meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from redis.exceptions import NoPermissionError, ResponseError

from millstream.client.jsontext import parse_record
from millstream.client.later import schedule
from millstream.client.line import Command, Line, Reply
from millstream.errors import MillstreamError
from millstream.texts import said
from millstream.worker.model.pause import HandlerPause
from millstream.worker.registry import facts

PREFIX = "millstream:"
INDEX = f"{PREFIX}workers"
ENDED = f"{INDEX}:ended"
CONTROL = schedule.CONTROL

#: Seconds between two beats, and milliseconds for which a worker without a beat is still shown.
BEAT = 5.0
TTL_MS = 20_000

#: Milliseconds after which a worker that did not deregister is dropped from the index.
_FORGET_MS = 86_400_000

#: Milliseconds between two extensions of the index's expiry, to save a command in each beat.
RENEWAL_MS = 3_600_000

LARGEST = 1 << 20
"""Limit of one worker's record in bytes. Parsing takes a quarter of a second for each megabyte."""

LARGEST_ALL = 16 << 20
"""Limit of all records in one reading, in bytes; with records that are too large, about twice as many are read."""

_PARTS = (1 << 14, 1 << 17, LARGEST)  # bytes of a record that are read at first, and of a longer one after that

ENDS = 100
"""Number of ended workers that are kept, for a day."""

_LARGEST_END, _ENDED_HANDLERS = 16_000, 50  # limits of an ended worker's record, in bytes and handlers

Order = Literal["quiet", "drain", "stop"]
ORDERS: tuple[Order, ...] = ("quiet", "drain", "stop")

#: State of a worker that was ordered to end: still present, ordered to continue, ended, or gone without deregistering.
EndState = Literal["there", "resumed", "ended", "vanished"]


class RegistryError(MillstreamError):
    """The registry of workers cannot be read or written; the message is the server's.

    What to do: give the user the keys `millstream:worker*` and `millstream:control`, or use `App(registry=False)`.
    """


def worker_key(worker: str) -> str:
    """Return the key of a worker's record of itself."""
    return f"{PREFIX}worker:{worker}"


def order_field(worker: str) -> str:
    """Return the field of :data:`CONTROL` with the order for a worker."""
    return f"worker:{worker}"


def pause_field(stream: str, group: str) -> str:
    """Return the field of :data:`CONTROL` with the pause of a handler."""
    return f"pause:{json.dumps([stream, group], separators=(',', ':'))}"


def beat(
    worker: str, record: Mapping[str, object], now_ms: int, fields: Sequence[str], *, renews: bool = True
) -> list[Command]:
    """Return the commands of one beat; the last reply has the flag of schedules and ``fields`` of :data:`CONTROL`."""
    renewal: list[Command] = [("PEXPIRE", INDEX, _FORGET_MS)] if renews else []
    return [
        ("SET", worker_key(worker), json.dumps(record, separators=(",", ":")), "PX", TTL_MS),
        ("ZADD", INDEX, now_ms, worker),
        *renewal,
        ("HMGET", CONTROL, schedule.FLAG, *fields),
    ]


def sign_off(worker: str, now_ms: int, order: Order | None, handlers: Sequence[tuple[str, str, str]]) -> list[Command]:
    """Return the commands that remove a worker from the registry, and keep its handlers, streams and groups."""
    record = {"id": worker, "order": order, "handlers": handlers[:_ENDED_HANDLERS]}
    return [
        *(("DEL", worker_key(worker)), ("ZREM", INDEX, worker), ("HDEL", CONTROL, order_field(worker))),
        ("ZADD", ENDED, now_ms, json.dumps(record, separators=(",", ":"))),
        ("ZREMRANGEBYRANK", ENDED, 0, -ENDS - 1),
        ("PEXPIRE", ENDED, _FORGET_MS),
    ]


def parse_end(text: bytes) -> tuple[str, Order | None, tuple[tuple[str, str, str], ...]] | None:
    """Return id, order and handlers of an ended worker; None if no worker wrote the record."""
    try:
        record = parse_record(text) if len(text) <= _LARGEST_END else {}
        handlers = tuple((handler, stream, group) for handler, stream, group in record["handlers"])
        worker, order = record["id"], parse_order((record["order"] or "").encode())
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    texts = all(isinstance(one, str) for one in (worker, *(name for row in handlers for name in row)))
    return (worker, order, handlers) if texts else None


def parse_order(value: bytes | None) -> Order | None:
    """Return the order of a worker; None for no order, and for an order that this version does not support."""
    text = (value or b"").decode(errors="replace")
    return next((order for order in ORDERS if order == text), None)


def pause_record(pause: HandlerPause) -> str:
    """Return a pause as text for its field of :data:`CONTROL`."""
    return json.dumps({"reason": pause.reason, "by": pause.by, "at_ms": pause.at_ms})


def parse_pause(stream: str, group: str, value: bytes | None) -> HandlerPause | None:
    """Return the pause in a field of :data:`CONTROL`; None without one."""
    if value is None:
        return None
    try:
        record = parse_record(value)
        return HandlerPause(stream, group, str(record["reason"]), str(record["by"]), int(record["at_ms"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        return HandlerPause(stream, group, value.decode(errors="replace"), "", 0)


# -- for programs that read the registry and send orders ---------------------------------------------------------------


async def workers(line: Line) -> list[dict[str, Any]]:
    """Return the record of every living worker, oldest first; records that no worker wrote are skipped."""
    return (await read_workers(line))[0]


async def read_workers(line: Line) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of :func:`workers`, and the keys of records that no worker wrote or that are too large."""
    ids = [worker.decode(errors="surrogateescape") for worker in await _ask(line, "ZRANGE", INDEX, 0, -1)]
    if not ids:
        return [], []
    texts = await _texts(line, ids)
    records = {worker: facts.parse(worker, texts[worker] or b"") for worker in ids if worker in texts}
    found = [record for record in records.values() if record is not None]
    strange = [worker_key(worker) for worker, record in records.items() if record is None]
    return sorted(found, key=lambda record: (record["started_ms"], record["id"])), strange


async def _texts(line: Line, ids: Sequence[str]) -> dict[str, bytes | None]:
    """Return the text of each record that exists; None for one of another type or above the limits.

    The first part of every record is read at once. A longer record is read again, so that short ones come first.
    """
    found: dict[str, bytes | None] = {}
    left, unread = LARGEST_ALL, 2 * LARGEST_ALL
    for part in _PARTS:
        waiting, ids = ids, []
        while waiting and left > 0 and unread > 0:
            size = max(unread // (part + 1), 1)
            page, waiting = waiting[:size], waiting[size:]
            for worker, text in zip(page, await _starts(line, page, part), strict=True):
                unread -= len(text or b"")
                if text is None or len(text) <= part:
                    is_kept = text is not None and len(text) <= left
                    left -= len(text or b"") if is_kept else 0
                    if text != b"":
                        found[worker] = text if is_kept else None
                else:
                    ids = [*ids, worker]
        found |= dict.fromkeys(waiting)
    return found | dict.fromkeys(ids)


async def _starts(line: Line, ids: Sequence[str], part: int) -> list[bytes | None]:
    """Return the first bytes of records, one more than ``part`` of a longer one; None for a key of another type."""
    # A command for each: on a cluster, an MGET of keys in several slots is refused
    replies = await line.calls([("GETRANGE", worker_key(worker), 0, part) for worker in ids])
    if any(isinstance(reply, NoPermissionError) for reply in replies):  # rights of earlier versions have GET alone
        replies = [reply or b"" for reply in await line.calls([("GET", worker_key(worker)) for worker in ids])]
    wrong_type = [isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE") for reply in replies]
    return [None if is_wrong else _checked(reply) for is_wrong, reply in zip(wrong_type, replies, strict=True)]


async def orders(line: Line) -> dict[str, Order]:
    """Return orders that are not carried out yet, by worker id, including those for workers that are gone."""
    return _orders(await _control(line))


async def orders_and_pauses(line: Line) -> tuple[dict[str, Order], list[HandlerPause]]:
    """Return what :func:`orders` and :func:`pauses` return, in one request."""
    fields = await _control(line)
    return _orders(fields), _pauses(fields)


def _orders(fields: Sequence[tuple[str, bytes]]) -> dict[str, Order]:
    left = {name.removeprefix("worker:"): parse_order(value) for name, value in fields if name.startswith("worker:")}
    return {worker: order for worker, order in left.items() if order is not None}


async def end_states(line: Line, ids: Sequence[str]) -> dict[str, EndState]:
    """Return the states of workers that were ordered to end."""
    ordered = await orders(line)  # read first, since a worker that deregisters deletes its order
    replies = await line.calls(
        [word for worker in ids for word in (("EXISTS", worker_key(worker)), ("ZSCORE", INDEX, worker))]
    )
    found: dict[str, EndState] = {}
    for worker, there, place in zip(ids, replies[::2], replies[1::2], strict=True):
        if _checked(there):
            found[worker] = "there" if worker in ordered else "resumed"
        else:
            found[worker] = "ended" if _checked(place) is None else "vanished"
    return found


async def pauses(line: Line) -> list[HandlerPause]:
    """Return every pause; a field that does not name a handler is skipped."""
    return _pauses(await _control(line))


def _pauses(fields: Sequence[tuple[str, bytes]]) -> list[HandlerPause]:
    found = []
    for name, value in fields:
        handler = _handler(name.removeprefix("pause:")) if name.startswith("pause:") else None
        pause = None if handler is None else parse_pause(*handler, value)
        if pause is not None:
            found.append(pause)
    return sorted(found, key=lambda pause: (pause.stream, pause.group))


def _handler(text: str) -> tuple[str, str] | None:
    """Return stream and group from the name of a pause's field; None if it cannot be parsed."""
    try:
        stream, group = parse_record(text)
    except (ValueError, TypeError):
        return None
    return (stream, group) if isinstance(stream, str) and isinstance(group, str) else None


async def tidy(line: Line, now_ms: int) -> None:
    """Remove index members and unread orders of workers that are gone."""
    ids = [worker.decode(errors="surrogateescape") for worker in await _ask(line, "ZRANGE", INDEX, 0, -1)]
    ids += [worker for worker in await orders(line) if worker not in ids]
    if not ids:
        return
    there = await line.calls([("EXISTS", worker_key(worker)) for worker in ids])
    gone = [worker for worker, found in zip(ids, there, strict=True) if found == 0]
    if gone:
        await _ask(line, "HDEL", CONTROL, *map(order_field, gone))
    await _ask(line, "ZREMRANGEBYSCORE", INDEX, "-inf", now_ms - _FORGET_MS)


async def _control(line: Line) -> list[tuple[str, bytes]]:
    flat = await _ask(line, "HGETALL", CONTROL)
    return [(name.decode(errors="surrogateescape"), value) for name, value in zip(flat[::2], flat[1::2], strict=True)]


async def _ask(line: Line, *command: bytes | str | int) -> Reply:
    return _checked((await line.calls((command,)))[0])


def _checked(reply: Reply) -> Reply:
    if isinstance(reply, ResponseError):
        raise RegistryError(f"the registry of workers ({PREFIX}*): {said(reply)}")
    return reply
