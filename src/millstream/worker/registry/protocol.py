"""The registry of workers: what each process writes about itself, and what it is to do, in a few keys.

Any client can read them.

::

    millstream:worker:<id>   string, JSON: host, pid, version, its present activity; gone soon after the last beat.
    While its event loop is blocked, a thread beats for it: state is ``blocked``, and
                             ``blocked`` has ``since_ms`` and ``where``
    millstream:workers       sorted set: ids by the wall milliseconds of their last beat; gone a day after the last
    millstream:control       hash: ``worker:<id>`` -> quiet, drain or stop; ``pause:["stream","group"]`` -> JSON with
                             reason, by and at_ms

A beat is one SET, one ZADD and one HMGET, and once an hour one PEXPIRE. A worker lives as long as its key; the index
only finds it. Pauses have no time to live: they hold until somebody resumes, whatever is restarted meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from redis.exceptions import ResponseError

from millstream.client.jsontext import parse_record
from millstream.client.later import schedule
from millstream.client.line import Command, Line, Reply
from millstream.errors import MillstreamError
from millstream.texts import said
from millstream.worker.model.pause import HandlerPause
from millstream.worker.registry import facts

PREFIX = "millstream:"
INDEX = f"{PREFIX}workers"
CONTROL = schedule.CONTROL

#: Seconds between two beats, and milliseconds a worker that beats no more is still shown.
BEAT = 5.0
TTL_MS = 20_000

#: Milliseconds after which a worker that did not sign off is dropped from the index.
_FORGET_MS = 86_400_000

#: Milliseconds after which the index is made to last another day; with each beat would be one command more for nothing.
RENEWAL_MS = 3_600_000

Order = Literal["quiet", "drain", "stop"]
ORDERS: tuple[Order, ...] = ("quiet", "drain", "stop")

#: The end of a worker that was ordered to end: still there, ordered to go on since, gone, or gone without signing
#: off.
EndState = Literal["there", "resumed", "ended", "vanished"]


class RegistryError(MillstreamError):
    """The registry of workers cannot be read or written; the message is the server's.

    What to do: give the user the keys `millstream:worker*` and `millstream:control`, or use `App(registry=False)`.
    """


def worker_key(worker: str) -> str:
    """Key under which a worker tells about itself."""
    return f"{PREFIX}worker:{worker}"


def order_field(worker: str) -> str:
    """Field of :data:`CONTROL` with what a worker is to do."""
    return f"worker:{worker}"


def pause_field(stream: str, group: str) -> str:
    """Field of :data:`CONTROL` with the pause of a handler."""
    return f"pause:{json.dumps([stream, group], separators=(',', ':'))}"


def beat(
    worker: str, record: Mapping[str, object], now_ms: int, fields: Sequence[str], *, renews: bool = True
) -> list[Command]:
    """The commands of one beat; the last one's reply is the flag of schedules, and ``fields`` of :data:`CONTROL`."""
    renewal: list[Command] = [("PEXPIRE", INDEX, _FORGET_MS)] if renews else []
    return [
        ("SET", worker_key(worker), json.dumps(record, separators=(",", ":")), "PX", TTL_MS),
        ("ZADD", INDEX, now_ms, worker),
        *renewal,
        ("HMGET", CONTROL, schedule.FLAG, *fields),
    ]


def sign_off(worker: str) -> list[Command]:
    """The commands that take a worker out of the registry."""
    return [("DEL", worker_key(worker)), ("ZREM", INDEX, worker), ("HDEL", CONTROL, order_field(worker))]


def parse_order(value: bytes | None) -> Order | None:
    """The order a worker has; None for no order, and for one that this version does not know."""
    text = (value or b"").decode(errors="replace")
    return next((order for order in ORDERS if order == text), None)


def pause_record(pause: HandlerPause) -> str:
    """A pause as its field of :data:`CONTROL` has it."""
    return json.dumps({"reason": pause.reason, "by": pause.by, "at_ms": pause.at_ms})


def parse_pause(stream: str, group: str, value: bytes | None) -> HandlerPause | None:
    """The pause of a handler."""
    if value is None:
        return None
    try:
        record = parse_record(value)
        return HandlerPause(stream, group, str(record["reason"]), str(record["by"]), int(record["at_ms"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        return HandlerPause(stream, group, value.decode(errors="replace"), "", 0)


# -- the other side: whoever looks and commands ------------------------------------------------------------------------


async def workers(line: Line) -> list[dict[str, Any]]:
    """The record of every living worker, oldest first; records that no worker wrote are passed over."""
    return (await read_workers(line))[0]


async def read_workers(line: Line) -> tuple[list[dict[str, Any]], list[str]]:
    """The same, and the keys of records that cannot be read: somebody else wrote there."""
    ids = [worker.decode(errors="surrogateescape") for worker in await _ask(line, "ZRANGE", INDEX, 0, -1)]
    if not ids:
        return [], []
    # one GET each: on a cluster an MGET of many keys is refused
    replies = await line.calls([("GET", worker_key(worker)) for worker in ids])
    found, strange = [], []
    for worker, reply in zip(ids, replies, strict=True):
        if reply is None:
            continue
        wrong_type = isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")
        record = None if wrong_type else facts.parse(worker, _checked(reply))
        if record is None:
            strange.append(worker_key(worker))
        else:
            found.append(record)
    return sorted(found, key=lambda record: (record["started_ms"], record["id"])), strange


async def orders(line: Line) -> dict[str, Order]:
    """Orders that workers have not carried out yet, by the worker's id; those of workers that are gone included."""
    fields = await _control(line)
    left = {name.removeprefix("worker:"): parse_order(value) for name, value in fields if name.startswith("worker:")}
    return {worker: order for worker, order in left.items() if order is not None}


async def end_states(line: Line, ids: Sequence[str]) -> dict[str, EndState]:
    """The states of workers that were ordered to end."""
    ordered = await orders(line)  # first: whoever signs off takes its order away as well
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
    """Every pause there is. A field that names no handler pauses none, and is passed over."""
    found = []
    for name, value in await _control(line):
        handler = _handler(name.removeprefix("pause:")) if name.startswith("pause:") else None
        pause = None if handler is None else parse_pause(*handler, value)
        if pause is not None:
            found.append(pause)
    return sorted(found, key=lambda pause: (pause.stream, pause.group))


def _handler(text: str) -> tuple[str, str] | None:
    """Stream and group in the name of a pause's field."""
    try:
        stream, group = parse_record(text)
    except (ValueError, TypeError):
        return None
    return (stream, group) if isinstance(stream, str) and isinstance(group, str) else None


async def tidy(line: Line, now_ms: int) -> None:
    """Drop what workers left behind that are gone: their places in the index and orders they never saw."""
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
