"""Check a worker's record that was read from the registry, since any client may have written it. Pure."""

from typing import Any

from millstream.client.jsontext import parse_record
from millstream.texts import can_be_name

_TEXT, _COUNT = (str,), (int,)
#: Whole numbers have this limit, as on the server: a larger number is not a usable time.
_HIGHEST = 2**63
_MAYBE_TEXT = (str, type(None))
_WORKER: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("host", "version", "state"), _TEXT),
    **dict.fromkeys(("pid", "started_ms", "beat_ms"), _COUNT),
    "subscribers": (list,),
    "last_error": (dict, type(None)),
}
_SUBSCRIBER: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("handler", "stream", "group", "consumer"), _TEXT),
    **dict.fromkeys(("slots", "running", "buffered", "handled", "failed", "dead"), _COUNT),
    "paused": _MAYBE_TEXT,
    "jobs": (list,),
}
_LIMIT: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("in_use", "granted", "refused", "waiting"), _COUNT),
    "name": _TEXT,
    "rate": _MAYBE_TEXT,
    "running": (int, type(None)),
    "by_key": (bool,),
}
_HELD: dict[str, tuple[type, ...]] = {
    "stream": _TEXT,
    "key": _TEXT,
    "id": _TEXT,
    "waiting": _COUNT,
    "since_ms": (int, type(None)),
    "error": _MAYBE_TEXT,
}
_BLOCKED: dict[str, tuple[type, ...]] = {"since_ms": _COUNT, "where": _TEXT}
_JOB: dict[str, tuple[type, ...]] = {"id": _TEXT, "since_ms": _COUNT, "deliveries": _COUNT}
_RECENT: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("over_ms", "handled", "failed", "retried", "dead"), _COUNT),
    "runs": (list,),
}
_BUCKETS = 64  # largest number of buckets in a histogram
_ERROR: dict[str, tuple[type, ...]] = {"error": _TEXT, "at_ms": _COUNT, "entry": _TEXT}


def parse(worker: str, record: bytes) -> dict[str, Any] | None:
    """Return a worker's record; None if it does not have the form that workers write.

    Fields that this version does not support are kept: a newer worker may write more.
    """
    try:
        parsed = parse_record(record)
    except ValueError:
        return None
    if not _fits(parsed, _WORKER) or parsed.get("id") != worker:  # any client of the server may write such a record
        return None
    if parsed["last_error"] is not None and not _fits(parsed["last_error"], _ERROR):
        return None
    if parsed.setdefault("blocked", None) is not None and not _fits(parsed["blocked"], _BLOCKED):
        return None
    bounds = parsed["bounds_ms"] = _bounds(parsed.get("bounds_ms"))
    for subscriber in parsed["subscribers"]:
        if not _fits(subscriber, _SUBSCRIBER) or not all(_fits(job, _JOB) for job in subscriber["jobs"]):
            return None
        for name, shape in (("limits", _LIMIT), ("held_up", _HELD)):
            rows = subscriber.setdefault(name, [])
            if not isinstance(rows, list) or not all(_fits(one, shape) for one in rows):
                return None
        for one in subscriber["limits"]:  # a worker of an earlier version does not report it
            one["refused_ms"] = age if _is_one_of(age := one.get("refused_ms"), _COUNT) else None
        subscriber["recent"] = _recent(subscriber.get("recent"), len(bounds))
        subscriber["retried"] = retried if _is_one_of(retried := subscriber.get("retried"), _COUNT) else None
        names = [subscriber[name] for name in ("stream", "group", "consumer")]
        if not all(map(can_be_name, [*names, *(one["stream"] for one in subscriber["held_up"])])):
            return None
    found: dict[str, Any] = parsed
    return found


def _bounds(value: Any) -> list[float]:
    """Return the upper bounds of a worker's buckets in milliseconds; none from a worker of an earlier version."""
    if not isinstance(value, list) or len(value) >= _BUCKETS:
        return []
    if not all(type(bound) in (int, float) and 0 < bound < _HIGHEST for bound in value):
        return []
    return list(map(float, value)) if sorted(set(value)) == value else []


def _recent(value: Any, bounds: int) -> dict[str, Any] | None:
    """Return the runs of the last minutes; None for a worker of an earlier version, or for another form."""
    if not bounds or not _fits(value, _RECENT) or len(value["runs"]) > bounds + 1:
        return None
    figures = [*(value[name] for name in _RECENT if name != "runs"), *value["runs"]]
    found: dict[str, Any] = value
    return found if all(type(one) is int and 0 <= one < _HIGHEST for one in figures) else None


def _fits(value: Any, shape: dict[str, tuple[type, ...]]) -> bool:
    """Report whether a value is an object with these fields, each of one of its types."""
    if not isinstance(value, dict):
        return False
    return all(_is_one_of(value.get(name, ...), kinds) for name, kinds in shape.items())


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not (isinstance(value, int) and not -_HIGHEST <= value < _HIGHEST)
