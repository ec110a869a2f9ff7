"""The state of a server: its version, its memory, its log, its replicas, and its slow commands. Pure.

All figures come from INFO and SLOWLOG. A figure that the server's version does not report is None.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.ops.server.retention import RetentionStatus
from millstream.ops.words import text_of
from millstream.texts import plural

_TIER, _TEXT = 60, 100  # largest number of figures about cold entries, and characters of one

SILENT_SECONDS = 10
"""Seconds of silence after which a replica counts as gone; equal to Redis's ``min-replicas-max-lag``."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, as its primary reports it."""

    address: str  # Host and port
    state: str  # State, ``online`` if it follows
    lag_seconds: int | None  # Seconds since it last reported its offset; None if unknown
    behind_bytes: int | None  # Bytes of the primary's stream that it lacks; None if unknown

    @property
    def is_silent(self) -> bool:
        """True if it is online but silent for too long; a replica that waits for its copy sends nothing."""
        return self.state == "online" and (self.lag_seconds or 0) >= SILENT_SECONDS


@dataclass(frozen=True, slots=True)
class PrimaryLink:
    """A replica's link to its primary."""

    address: str  # Host and port of the primary
    state: str  # ``up`` or ``down``
    heard_seconds: int | None  # Seconds since the primary last sent anything; None while the link is down
    down_seconds: int | None  # Seconds since the link went down; None while it is up
    is_syncing: bool  # The primary is sending all its data
    read_only: bool  # Writes are refused
    # Reason why the link is down or was down last; empty if unknown or if it was never down
    error: str = ""
    divergences: int = 0  # Number of full copies that were necessary because the data differed from the primary's
    copies: int | None = None  # Number of full copies; None if not reported
    copied_seconds: int | None = None  # Seconds since the last full copy; None if there was none
    copy_bytes: int | None = None  # Size of that copy in bytes; None if unknown


@dataclass(frozen=True, slots=True)
class SyncReplicas:
    """The state of ``sync-replicas``."""

    is_refusing: bool  # Writes are refused because too few replicas confirm them
    asked: int  # Number of replicas that must confirm
    confirming: int  # Number of replicas that confirm


@dataclass(frozen=True, slots=True)
class Replication:
    """The role of a server in replication, from INFO's section."""

    # Id of the history of changes, which a replica shares with its primary; None if not reported
    id: str | None
    offset: int | None  # Length of that history in bytes
    backlog_bytes: int | None  # Size in bytes of the backlog for replicas that reconnect; None if there is none
    failover: str | None  # State of a failover, ``no-failover`` for none; None before Redis 6.2
    primary: PrimaryLink | None  # Link to the primary; None for a primary
    # Oldest Redis version that may follow, as configured; None if not reported
    dialect: str | None = None
    good_replicas: int | None = None  # Replicas that count for ``min-replicas-to-write``; None if it is not set
    needs_replicas: int | None = None  # Value of that setting; None if it was not read or is not reported
    sync: SyncReplicas | None = None  # State of ``sync-replicas``; None if it is not set

    def refusals(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield the reasons why a primary refuses writes for missing replicas, with their data; none for a replica."""
        if self.primary is not None:
            return
        sync, good, needs = self.sync, self.good_replicas, self.needs_replicas
        if sync is not None and sync.is_refusing:
            verb = "confirms" if sync.confirming == 1 else "confirm"
            says = f"writes are refused: sync-replicas {sync.asked}, {sync.confirming} {verb}"
            yield says, {"sync_replicas": sync.asked, "confirming": sync.confirming}
        if good is not None and good < (1 if needs is None else needs):
            setting = "min-replicas-to-write" if needs is None else f"min-replicas-to-write {needs}"
            says = f"writes are refused: {setting}, {plural(good, 'replica')} heard from recently"
            yield says, {"min_replicas_to_write": needs, "good_replicas": good}


@dataclass(frozen=True, slots=True)
class CommandCost:
    """The cost of one command since the server's start or the last reset of its figures."""

    name: str  # Name of the command, with its subcommand after ``|``
    calls: int  # Number of calls
    microseconds: int  # Total duration in microseconds
    failed: int | None  # Number of calls that ended in an error

    @property
    def each(self) -> float:
        """Average duration of one call, in microseconds."""
        return self.microseconds / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """One row of SLOWLOG."""

    id: int  # Number in the server's list
    at_ms: int  # Start time, wall milliseconds
    microseconds: int  # Duration in microseconds
    words: tuple[bytes, ...]  # Command and arguments; the server shortens long ones
    client: str = ""  # Address of the client; empty before Redis 4
    name: str = ""  # Name of the client, as set by itself


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server at one moment."""

    at_ms: int  # Wall milliseconds of the reading
    product: str  # Name that the server reports: ``millstream``, ``redis``, ``valkey`` or another
    version: str  # Version of the product
    redis_version: str  # Version of Redis that it emulates
    role: str | None  # ``master`` or ``slave``, as the server reports it
    uptime_seconds: int | None  # Seconds since the start
    clients: int | None  # Number of connections
    blocked_clients: int | None  # Number of clients that wait for entries
    memory_bytes: int | None  # Memory in use
    memory_limit: int | None  # Memory limit above which writes are refused; 0 for none
    commands_per_second: int | None  # Present rate
    log_enabled: bool | None  # True if it keeps a log on disk
    log_bytes: int | None  # Size of that log
    log_status: str | None  # ``ok``, or the error of the last write to the log
    memory_beside: int = 0  # Part of the memory in use that the limit ignores
    disk_free: int | None = None  # Bytes free on the log's disk; None if not reported
    replicas: tuple[ReplicaStatus, ...] = ()  # Replicas that follow it
    primary_link: str | None = None  # ``up`` or ``down``, the link of a replica to its primary; None for a primary
    replication: Replication | None = None  # Details of its replication; None if not reported
    retention: RetentionStatus | None = None  # Retention of streams; None if the server has none
    # Figures about entries in packs on disk, from INFO's section ``tier``; empty if the server has none
    tier: Mapping[str, int | str] = field(default_factory=dict)
    costs: tuple[CommandCost, ...] = ()  # Cost by command, the highest total first
    slow: tuple[SlowCommand, ...] = ()  # Slow commands, the longest first
    # Name of a figure that the server did not report -> reason, in words
    missing: Mapping[str, str] = field(default_factory=dict)


def parse_info(text: str) -> dict[str, str]:
    """Parse INFO's lines to values by name."""
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, mark, value in pairs if mark}


def server_status(info: Mapping[str, str], at_ms: int) -> ServerStatus:
    """Return the state of a server from its INFO, whatever sections that has."""
    behaves = info.get("redis_version", "")
    other = next(((name, info[f"{name}_version"]) for name in _PRODUCTS if f"{name}_version" in info), None)
    product, version = other or (info.get("server_name", "redis"), behaves)
    enabled = info.get("aof_enabled")
    return ServerStatus(
        at_ms=at_ms,
        product=product,
        version=version,
        redis_version=behaves,
        role=info.get("role"),
        uptime_seconds=_count(info, "uptime_in_seconds"),
        clients=_count(info, "connected_clients"),
        blocked_clients=_count(info, "blocked_clients"),
        memory_bytes=_count(info, "used_memory"),
        memory_limit=_count(info, "maxmemory"),
        memory_beside=_count(info, "mem_not_counted_for_evict") or 0,
        commands_per_second=_count(info, "instantaneous_ops_per_sec"),
        log_enabled=None if enabled is None else enabled == "1",
        log_bytes=_count(info, "aof_current_size"),
        log_status=info.get("aof_last_write_status"),
        disk_free=_count(info, "millstream_disk_free"),
        replicas=tuple(_replicas(info)),
        primary_link=info.get("master_link_status"),
        replication=_replication(info) if "role" in info else None,
        retention=_retention(info),
        tier=_tier(info),
        costs=tuple(sorted(_costs(info), key=lambda cost: -cost.microseconds)),
    )


_PRODUCTS = ("millstream", "valkey", "dragonfly", "keydb")


def slow_commands(reply: Any) -> tuple[SlowCommand, ...] | None:
    """Return the rows of SLOWLOG GET, the longest first; None if the reply has another shape."""
    try:
        return tuple(sorted(map(slow_command, reply), key=lambda each: (-each.microseconds, -each.id)))
    except (TypeError, ValueError, AttributeError):
        return None


def slow_command(row: Sequence[Any]) -> SlowCommand:
    """Parse one row of SLOWLOG GET."""
    number, at, micros, words, *client = row
    address, name = (text_of(part) for part in (*client, b"", b"")[:2])
    return SlowCommand(number, at * 1000, micros, tuple(words), address, name)


def _retention(info: Mapping[str, str]) -> RetentionStatus | None:
    removed, unread = _count(info, "retention_removed_entries"), _count(info, "retention_removed_unread")
    return None if removed is None else RetentionStatus(removed=removed, removed_unread=unread)


def _tier(info: Mapping[str, str]) -> dict[str, int | str]:
    """Return the figures whose names begin with ``tier_``, without that prefix; none without entries in packs."""
    if not (_count(info, "tier_enabled") or _count(info, "tier_packs")):
        return {}
    names = [name for name in info if name.startswith("tier_")][:_TIER]
    return {
        name.removeprefix("tier_"): info[name][:_TEXT] if (number := _count(info, name)) is None else number
        for name in names
    }


def _replication(info: Mapping[str, str]) -> Replication:
    primary = None
    if "master_host" in info:
        down = _count(info, "master_link_down_since_seconds")
        primary = PrimaryLink(
            address=f"{info['master_host']}:{info.get('master_port', '?')}",
            state=info.get("master_link_status", "?"),
            heard_seconds=_count(info, "master_last_io_seconds_ago"),
            down_seconds=down,
            is_syncing=info.get("master_sync_in_progress") == "1",
            read_only=info.get("slave_read_only") != "0",
            error=info.get("millstream_link_error", ""),
            divergences=_count(info, "millstream_link_divergences") or 0,
            copies=_count(info, "millstream_full_syncs_taken"),
            copied_seconds=_count(info, "millstream_last_full_sync_seconds_ago"),
            copy_bytes=_count(info, "millstream_last_full_sync_taken_bytes"),
        )
    offset = "slave_repl_offset" if primary is not None else "master_repl_offset"
    kept = _count(info, "repl_backlog_size") if info.get("repl_backlog_active") == "1" else None
    return Replication(
        info.get("master_replid"),
        _count(info, offset),
        kept,
        info.get("master_failover_state"),
        primary,
        info.get("millstream_dialect"),
        good_replicas=_count(info, "min_slaves_good_slaves"),
        sync=_sync(info),
    )


def _sync(info: Mapping[str, str]) -> SyncReplicas | None:
    asked = _count(info, "millstream_sync_asked")
    if asked is None:
        return None
    confirming = _count(info, "millstream_sync_confirming") or 0
    return SyncReplicas(info.get("millstream_sync_state") == "refused", asked, confirming)


def _replicas(info: Mapping[str, str]) -> list[ReplicaStatus]:
    """Parse the replicas in the lines ``slave0:ip=...,port=...,state=...,offset=...,lag=...``."""
    found = []
    offset = _count(info, "master_repl_offset")
    for name, value in info.items():
        if not (name.startswith("slave") and name[5:].isdecimal()):
            continue
        parts = _parts(value)
        at = _count(parts, "offset")
        behind = None if at is None or offset is None else max(offset - at, 0)
        address = f"{parts.get('ip', '?')}:{parts.get('port', '?')}"
        found.append(ReplicaStatus(address, parts.get("state", "?"), _count(parts, "lag"), behind))
    return found


def _costs(info: Mapping[str, str]) -> list[CommandCost]:
    """Parse the costs in the lines ``cmdstat_xadd:calls=...,usec=...,failed_calls=...``."""
    found = []
    for name, value in info.items():
        if name.startswith("cmdstat_"):
            parts = _parts(value)
            calls, micros = _count(parts, "calls"), _count(parts, "usec")
            if calls is not None and micros is not None:
                found.append(CommandCost(name.removeprefix("cmdstat_"), calls, micros, _count(parts, "failed_calls")))
    return found


def _parts(value: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in value.split(","))
    return {name: text for name, _, text in pairs}


def _count(values: Mapping[str, str], name: str) -> int | None:
    """Return a whole number by name; None if it is missing or not a plausible number."""
    text = values.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None
