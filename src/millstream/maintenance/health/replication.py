"""Diagnosis of replication, from one server's report of its primary and its replicas. This module does no I/O."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from millstream.maintenance.health.findings import LEVELS, Finding
from millstream.texts import plural

_ok, _note, _warning, _problem = (partial(Finding, level, "replication") for level in LEVELS)
_SILENT = 10
"""Seconds of silence after which a replica does not count; Redis's default ``min-replicas-max-lag``."""


ROLE_SETTINGS = ("min-replicas-to-write",)
"""Settings that :func:`diagnose_replication` uses if INFO has ``min_slaves_good_slaves``."""


def diagnose_replication(info: Mapping[str, Any], settings: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield findings about a primary's replicas, or a replica's link; none for a server without either."""
    if info.get("role") == "slave":
        yield from _link(info)
    else:
        yield from _refusals(info, settings)
    kept = int(info.get("millstream_diverged_files", 0))
    if kept:
        yield _warning(
            f"{plural(kept, 'file in the data directory holds', 'files in the data directory hold')} changes that "
            "only this server accepted, as a primary",
            "another server was the primary already, and its data replaced them here",
            "read them, restore the changes you need as in docs/replication.md, then remove the files (diverged-*)",
        )
    yield from _replicas(info, settings)


def _refusals(info: Mapping[str, Any], settings: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield findings about writes that a primary refuses for lack of replicas, with the responsible setting."""
    start = "start its replicas, and check that they reach it"
    if info.get("millstream_sync_state") == "refused":
        asked, confirming = (int(info.get(f"millstream_sync_{name}", 0)) for name in ("asked", "confirming"))
        held, waiting = (int(info.get(f"millstream_{name}", 0)) for name in ("sync_held", "replicas_waiting"))
        yield _problem(
            f"writes are refused: sync-replicas {asked}, {confirming} {'confirms' if confirming == 1 else 'confirm'}",
            f"too few replicas have the writes; changes that wait for that: {held}, clients: {waiting}",
            f"{start}; CONFIG SET sync-replicas {confirming} accepts writes, and releases the waiting ones",
        )
    good, needs = info.get("min_slaves_good_slaves"), settings.get("min-replicas-to-write")
    if good is not None and int(good) < int(needs or 1):
        yield _problem(
            f"writes are refused: {_setting(needs)}, {good} heard from recently",
            "too few replicas would have the writes",
            f"{start}; or CONFIG SET min-replicas-to-write {good}",
        )


def _link(info: Mapping[str, Any]) -> Iterator[Finding]:
    place = f"{info.get('master_host')}:{info.get('master_port')}"
    differed = int(info.get("millstream_link_divergences", 0))
    if differed:
        yield _warning(
            f"its data differed from those of {place} {plural(differed, 'time')} since it was started",
            "the data was copied again each time; readers saw the differences meanwhile",
            "compare both with `millstream compare`; report it with the log of this server",
        )
    if info.get("master_link_status") == "up":
        yield _ok(f"follows {place}, and the link is up")
    elif int(info.get("master_sync_in_progress", 0)):
        yield _note(f"all data of {place} are being copied", "until then it serves its former data")
    else:
        reason = _text(info.get("millstream_link_error"))
        yield _problem(
            f"the link to {place} has been down for {info.get('master_link_down_since_seconds', '?')} s"
            + (f": {reason}" if reason else ""),
            "its data is that old, so do not promote it",
            _advice(reason),
        )


def _advice(reason: str) -> str:
    """Return the next step for a link that is down, given the server's reason."""
    if any(word in reason for word in ("WRONGPASS", "NOAUTH", "NOPERM", "invalid password")):
        return "set masteruser and masterauth here to a user of the primary that may REPLCONF, PSYNC and PING"
    if "that the primary has sent is damaged" in reason:
        return "run `millstream log check` on the data directory of the primary: a file there is damaged"
    if "primary's copy in " in reason:
        return "free space in that directory of this server, or check its disk; the copy is retried automatically"
    if any(word in reason for word in ("refused", "timed out", "unreachable", "No route")):
        return "check that the primary runs at that address, and the network between the two"
    return "check that the primary runs and accepts its login; if the text names a command, follow docs/replication.md"


def _text(value: Any) -> str:
    """Return a sentence of INFO as the server wrote it.

    redis-py converts a text that looks like a list, map or number.
    """
    if isinstance(value, dict):
        return ",".join(name if each is True else f"{name}={each}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _replicas(info: Mapping[str, Any], settings: Mapping[str, str | None]) -> Iterator[Finding]:
    replicas = [value for name, value in info.items() if _is_replica(name) and isinstance(value, Mapping)]
    if not replicas:
        return
    bad = 0
    for each in replicas:
        place, state, lag = f"{each.get('ip')}:{each.get('port')}", each.get("state"), int(each.get("lag", 0))
        if state != "online":
            yield _note(f"replica {place} is {state}: its copy is not complete yet")
        elif lag >= _SILENT:
            bad += 1
            yield _warning(
                f"replica {place} was last heard from {lag} s ago",
                "it misses the writes since then, and WAIT does not count it",
                "check that it runs, and the network between the two",
            )
    if len(replicas) == 1 and info.get("role") == "master":
        yield _note(
            "one replica only",
            "while it is away, " + _while_away(info, settings),
            "add a second one if writes must survive the loss of two machines",
        )
    elif not bad:
        yield _ok(plural(len(replicas), "replica"))


def _setting(needs: str | None) -> str:
    """Return the setting that makes a primary need replicas, with its value if the server reports it."""
    return f"min-replicas-to-write {needs}" if needs else "min-replicas-to-write"


def _while_away(info: Mapping[str, Any], settings: Mapping[str, str | None]) -> str:
    """Return the fate of writes while the only replica is away, given the current settings."""
    if "millstream_sync_asked" in info:
        return f"all writes are refused (sync-replicas {info['millstream_sync_asked']})"
    if "min_slaves_good_slaves" in info:
        return f"all writes are refused ({_setting(settings.get('min-replicas-to-write'))})"
    return "no other server has the writes"


def diagnose_stream(info: Mapping[str, Any], settings: Mapping[str, str | None], rate: float) -> Iterator[Finding]:
    """Yield findings about a primary's buffers for its replicas; none if it has no replicas."""
    if not has_replicas(info):
        return
    size, silence = int(info.get("repl_backlog_size", 0)), settings.get("repl-timeout")
    if size and silence is not None and rate * int(silence) > size:
        yield _warning(
            f"the backlog holds {size / rate:.1f} s of the present writes, and repl-timeout is {silence} s",
            "a replica that is cut off needs a copy of all data before it is known to be gone",
            f"CONFIG SET repl-backlog-size {int(rate * int(silence) * 2)}",
        )
    limits = (settings.get("client-output-buffer-limit") or "").split()
    for name, hard, soft, _seconds in zip(*[iter(limits)] * 4, strict=False):
        below = [int(limit) for limit in (hard, soft) if 0 < int(limit) < size]
        if name in {"slave", "replica"} and below:
            yield _note(
                f"client-output-buffer-limit replica is {below[0]}, below repl-backlog-size, {size}",
                "a limit below the backlog size counts as that size: a replica may be further behind than the limit",
                "raise the limit, or take a smaller backlog",
            )


STREAM_SETTINGS = ("repl-timeout", "client-output-buffer-limit")
"""Settings that :func:`diagnose_stream` uses."""


def has_replicas(info: Mapping[str, Any]) -> bool:
    """Return True if the server is a primary with replicas."""
    return info.get("role") == "master" and any(map(_is_replica, info))


def _is_replica(name: str) -> bool:
    return name.startswith("slave") and name[5:].isdecimal()
