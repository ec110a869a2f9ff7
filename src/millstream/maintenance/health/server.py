"""Diagnosis of a running server, Millstream or Redis: reachability, settings that lose entries, streams in trouble."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import redis

from millstream import core
from millstream.client.capabilities import Capabilities, find_sync
from millstream.client.connect import sync_client
from millstream.client.line import wrong_reply
from millstream.client.url import check_remote, remedy
from millstream.engine.ids import is_timed, parse
from millstream.glob import Rules, retention
from millstream.maintenance.health import replication
from millstream.maintenance.health.findings import Finding, Level, note, ok, problem, warning
from millstream.maintenance.health.pairs import PAIR_SETTINGS, ServerWords, diagnose_pairs
from millstream.maintenance.health.tier import diagnose_tier
from millstream.printable import without_password
from millstream.texts import plural
from millstream.times import bytes_of

_TIMEOUT = 10.0  # seconds for one reply
_VERY_LARGE = 1_000_000  # number of entries from which an untrimmed stream causes a warning
_SAMPLE = 1.0  # seconds during which written bytes are counted, if there are replicas
_SHOWN = 20  # findings of one kind that are listed; further ones are only counted


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds above which a figure becomes a finding."""

    # Idle milliseconds from which a pending entry, or a consumer that holds one, counts as abandoned
    pending_ms: int = 3_600_000
    streams: int = 1000  # Number of streams that are examined
    large: int = 100_000  # Number of entries from which an untrimmed stream causes a note


def diagnose_server(url: str, limits: Limits, replicas: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Yield the findings about a server. This only reads, so it is safe on a server in trouble."""
    client = _client(url)
    with client:
        try:
            begun, info = time.monotonic(), client.info()
        except Exception as error:  # noqa: BLE001 - a server that is not Redis may reply anything
            yield _unseen(error, url)
            return
        try:
            for section in _sections(client, url, info, begun, limits, replicas):
                yield from _unless_refused(*section)
        except redis.RedisError as error:
            yield problem("server", f"stopped looking: {error}", "the rest is not known", "fix this, then try again")
        except Exception as error:  # noqa: BLE001 - as above
            yield _unread(error, url)


def _sections(
    client: Any, url: str, info: dict[str, Any], begun: float, limits: Limits, replicas: tuple[str, ...]
) -> Iterator[tuple[str, Iterator[Finding]]]:
    """Yield the title and the findings of each section, in order."""
    yield "server", _server(client, info)
    yield "settings", _settings(client, info)
    yield "tier", diagnose_tier(info)
    settings = _settings_of(client, replication.ROLE_SETTINGS) if "min_slaves_good_slaves" in info else {}
    yield "replication", replication.diagnose_replication(info, settings)
    now_ms = int(info.get("server_time_usec", 0)) // 1000
    growth = _Growth(_rules(client), is_tiered=bool(info.get("tier_enabled")), now_ms=now_ms)
    yield "streams", _streams(client, limits, growth)
    if replication.has_replicas(info):
        settings = _settings_of(client, replication.STREAM_SETTINGS)
        yield "replication", replication.diagnose_stream(info, settings, _rate(client, info, begun))
    if replicas:
        yield "replication", _pairs(client, url, replicas)


def _unless_refused(check: str, section: Iterator[Finding]) -> Iterator[Finding]:
    """Yield a section's findings. A refusal by the server becomes one more finding."""
    try:
        yield from section
    except redis.ResponseError as error:
        advice = "fix the other findings, or use a user with more rights, then try again"
        yield problem(check, f"not looked at: {error}", "problems there are unknown", advice)


def _pairs(client: Any, url: str, replicas: tuple[str, ...]) -> Iterator[Finding]:
    """Yield findings about the server and its replicas."""
    unseen: list[Finding] = []
    yield from diagnose_pairs(_words_of(client, url), list(_others(replicas, unseen)))
    yield from unseen


def _client(url: str) -> Any:
    return sync_client(
        check_remote(url),
        socket_timeout=_TIMEOUT,
        socket_connect_timeout=_TIMEOUT,
        decode_responses=True,
        encoding_errors="surrogateescape",  # names may contain any bytes; see _raw
    )


def _rate(client: Any, before: Mapping[str, Any], begun: float) -> float:
    """Return the growth of the replication stream in bytes a second, measured over a second at least."""
    time.sleep(max(begun + _SAMPLE - time.monotonic(), 0))  # a rate needs two samples a second apart
    grown = int(client.info("replication").get("master_repl_offset", 0)) - int(before.get("master_repl_offset", 0))
    return max(grown, 0) / (time.monotonic() - begun)


def _settings_of(client: Any, names: tuple[str, ...]) -> dict[str, str | None]:
    """Return settings, None for those that the server lacks; empty if it refuses CONFIG GET."""
    try:
        return {name: client.config_get(name).get(name) for name in names}
    except redis.ResponseError:  # :func:`_settings` has reported it
        return {}


def _words_of(client: Any, url: str) -> ServerWords:
    info = {**client.info(), **client.info("commandstats")}
    begun = time.time()
    seconds, micros = client.time()
    ended = time.time()
    clock = (seconds + micros / 1e6 - (begun + ended) / 2) * 1000
    return ServerWords(without_password(url), info, _settings_of(client, PAIR_SETTINGS), clock, (ended - begun) * 500)


def _others(urls: tuple[str, ...], unseen: list[Finding]) -> Iterator[ServerWords]:
    for url in urls:
        try:
            with _client(url) as client:
                yield _words_of(client, url)
        except Exception as error:  # noqa: BLE001 - a server that is not Redis may reply anything
            unseen.append(_unseen(error, url))


def _unseen(error: Exception, url: str) -> Finding:
    if not isinstance(error, redis.RedisError):
        return _unread(error, url)
    return problem(
        "reachable",
        f"{without_password(url)}: {error}",
        "nothing else can be checked",
        f"{remedy(url, error)}, or correct the URL",
    )


def _unread(error: Exception, url: str) -> Finding:
    advice = "check which program listens there; if it is Redis, report this"
    return problem("replies", str(wrong_reply(error, url)), "the rest is not known", advice)


def _server(client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    """Yield the server's type and abilities, found by trying commands, since forks and proxies report any version.

    A missing field of INFO is not a failure, since Redis, Valkey and Millstream have different fields.
    """
    name = f"Millstream {info['millstream_version']}" if "millstream_version" in info else "a server of Redis Streams"
    yield ok("reachable", f"{name}, Redis {info.get('redis_version', 'of unknown version')}")
    if "millstream_core" in info:
        yield _core(info["millstream_core"])
    can = find_sync(client)
    names = [field.name for field in fields(Capabilities) if field.name != "unknown" and field.name not in can.unknown]
    has = [name for name in names if getattr(can, name)]
    lacks = [name for name in names if not getattr(can, name)]
    if can.unknown:
        yield note(
            "capabilities",
            f"does not report {', '.join(sorted(can.unknown))}" + (f"; has {', '.join(has)}" if has else ""),
            "it refuses writes now, which this check needs",
            "repeat the check when it accepts writes, if that matters",
        )
    elif lacks:
        yield note(
            "capabilities",
            f"lacks {', '.join(lacks)}" + (f"; has {', '.join(has)}" if has else ""),
            "the worker makes up for it with more commands",
        )
    else:
        yield ok("capabilities", f"has {', '.join(has)}")
    if pack := info.get("millstream_lacking_pack"):
        yield problem(
            "packs",
            f"{pack} is missing or cut short",
            "the log cannot be rewritten, and after a stop a start is refused",
            "put the file back before the server stops; its log has the command to go on without the pack",
        )
    # If one of these is not ok, Redis continues to serve, but acknowledged data may exist only in memory
    for field in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if info.get(field, "ok") != "ok" and not (pack and field == "aof_last_bgrewrite_status"):
            yield problem(
                field,
                f"{field}:{info[field]}",
                "the server could not write to its disk",
                "check its log, and the free space on its disk",
            )


def _core(name: str) -> Finding:
    if name == core.NATIVE:
        return ok("core", name)
    return note(
        "core",
        name,
        "the native core is faster",
        f"on the server's machine {core.REMEDY}; nothing, if {core.VARIABLE} chose this one",
    )


def _settings(client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings about settings that can lose an acknowledged entry.

    Hosted servers often refuse CONFIG, which is a note.
    """
    if unread := int(info.get("retention_removed_unread", 0)):
        yield warning(
            "stream-retention",
            f"{plural(unread, 'entry', 'entries')} removed before a group had read them",
            "their consumers never receive them",
            "start the consumers, lengthen the rules, or CONFIG SET stream-retention-groups hold",
        )
    try:
        config = {name: client.config_get(name).get(name) for name in _SETTINGS}
    except redis.ResponseError as error:
        yield note(
            "settings",
            f"CONFIG GET is refused: {error}",
            "settings that lose events go unnoticed",
            "use a user with that right",
        )
        return
    yield _eviction(config, info)
    yield _persistence(config)


# Requested one by one: a server without one of them replies with nothing, and the others still count
_SETTINGS = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync")


def _eviction(config: dict[str, str | None], info: dict[str, Any]) -> Finding:
    """Report the eviction policy. Eviction removes whole keys, so a stream loses all its entries and groups.

    The volatile-* policies are safe: they remove only keys with a time to live. Without a memory limit nothing is
    evicted yet, so the finding is a warning. Source: https://redis.io/docs/latest/develop/reference/eviction/
    """
    policy, limit = config["maxmemory-policy"] or "noeviction", int(config["maxmemory"] or 0)
    if policy.startswith("allkeys"):
        level: Level = "problem" if limit else "warning"
        return Finding(
            level,
            "maxmemory-policy",
            f"{policy}, maxmemory {limit or 'not set'}",
            "when memory is full the server removes whole streams, without a notice",
            "CONFIG SET maxmemory-policy noeviction (and in the configuration file)",
        )
    used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    if limit and used > 0.9 * limit:
        return warning(
            "memory",
            f"{100 * used // limit} % of maxmemory are used",
            "when it is full, XADD is refused",
            "trim streams, or raise maxmemory",
        )
    resident = int(info.get("used_memory_rss", 0))
    if limit and resident > 1.25 * limit:
        return warning(
            "memory",
            f"the process takes {100 * resident // limit} % of maxmemory",
            "the limit is about data that is counted, and the system may end the process before it is met",
            "lower maxmemory, or restart the server to give freed memory back",
        )
    return ok("maxmemory-policy", policy)


def _persistence(config: dict[str, str | None]) -> Finding:
    """Report the data that a crash or a power loss can lose.

    Source: https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/
    """
    if config["appendonly"] != "yes":
        return problem(
            "appendonly",
            "no",
            "acknowledged entries are gone after a crash: all, or those since the last RDB file",
            "CONFIG SET appendonly yes (Redis), or start Millstream without --memory",
        )
    sync = config["appendfsync"]
    if sync == "always":
        return ok("appendfsync", "always")
    return warning(
        "appendfsync",
        str(sync),
        "a power loss can lose acknowledged entries of about the last second"
        if sync == "everysec"
        else "a power loss can lose acknowledged entries that the kernel had not written, often of half a minute",
        "appendfsync always (Redis), --fsync always (Millstream), if those must not be lost",
    )


@dataclass(frozen=True, slots=True)
class _Growth:
    """The server's ways to bound the memory of streams that no command trims."""

    rules: Rules  # Rules of ``stream-retention``; none for Redis
    is_tiered: bool  # Old entries go to packs on disk
    now_ms: int  # The server's clock, in milliseconds

    def finding(self, name: str, length: int) -> Finding | None:
        """Return a finding for a stream of which nothing was ever removed; none if a rule will remove entries."""
        if self.rules.find(_raw(name)) is not None:
            return None
        trim = f"XADD {name} MAXLEN ~ N ..., or XTRIM {name} MINID ~ ID, once readers are past it"
        return Finding(
            "warning" if length >= _VERY_LARGE else "note",
            "untrimmed",
            f"{name}: {plural(length, 'entry', 'entries')}, and none was ever removed",
            f"it grows until {self._place} is full",
            f"a rule for it in stream-retention; or {trim}" if self.is_tiered else trim,
        )

    def ageless(self, name: str, newest: str) -> Finding | None:
        """Return a finding for a stream whose ids are not times, so that the age of its rule removes nothing."""
        rule = self.rules.find(_raw(name))
        if rule is None or not rule.age or is_timed(parse(newest.encode()) or 0, self.now_ms):
            return None
        return Finding(
            "note" if rule.size else "warning",
            "stream-retention",
            f"{name}: its newest id, {newest}, is not a time, so the age of its rule removes nothing",
            "its size alone bounds it" if rule.size else f"it grows until {self._place} is full",
            "add entries with ids of the server (`*`), or give the rule a size",
        )

    @property
    def _place(self) -> str:
        return "the disk" if self.is_tiered else "memory"


def _rules(client: Any) -> Rules:
    """Return the rules of ``stream-retention``; none if the server has no such parameter or refuses CONFIG GET."""
    try:
        text = client.config_get("stream-retention").get("stream-retention", "")
        return retention(bytes_of)(text)
    except (redis.ResponseError, ValueError):  # :func:`_settings` reports a refusal
        return Rules()


def _streams(client: Any, limits: Limits, growth: _Growth) -> Iterator[Finding]:
    """Yield findings about streams, at most :data:`_SHOWN` of a kind."""
    names = list(islice(client.scan_iter(count=1000, _type="stream"), limits.streams + 1))
    counts: dict[str, int] = {}
    for name in names[: limits.streams]:
        for finding in _stream(client, name, limits, growth):
            counts[finding.check] = counts.get(finding.check, 0) + 1
            if counts[finding.check] <= _SHOWN:
                yield finding
    for check, count in counts.items():
        if count > _SHOWN:
            yield note(check, f"and {count - _SHOWN} more findings of this kind")
    more = "; more were not looked at (see --streams)" if len(names) > limits.streams else ""
    yield ok("streams", f"{min(len(names), limits.streams)} in this database{more}")


def _stream(client: Any, name: str, limits: Limits, growth: _Growth) -> Iterator[Finding]:
    """Yield findings about one stream and its groups.

    The counters reveal a stream that is never trimmed: its length equals the number of entries ever added. Servers
    before 7.0 lack these counters.
    """
    try:
        facts = client.xinfo_stream(_raw(name))
        groups = client.xinfo_groups(_raw(name))
    except redis.ResponseError:  # removed meanwhile
        return
    length, added = facts["length"], facts.get("entries-added")
    if length >= limits.large and added == length:
        found = growth.finding(name, length)
        if found is not None:
            yield found
    newest = facts.get("last-entry")
    if newest and (found := growth.ageless(name, newest[0])) is not None:
        yield found
    for group in groups:
        yield from _group(client, name, group, limits)


def _raw(name: str) -> bytes:
    """Return the exact bytes of a name. redis-py decoded it to text that it would encode differently."""
    return name.encode(errors="surrogateescape")


def _group(client: Any, stream: str, group: dict[str, Any], limits: Limits) -> Iterator[Finding]:
    """Yield findings about a group's lag and about entries that stay pending too long.

    One entry that is idle too long is enough for a finding. Counting all of them would read the whole pending list,
    which may have millions of entries.
    """
    name = group["name"]
    if "lag" in group and group["lag"] is None:
        yield note(
            "lag unknown",
            f"{stream} {name}: the server cannot tell how far behind it is",
            "entries in front of it were deleted, or it was created in the midst of the stream",
            f"it is known again once the group has read to the end; or XGROUP SETID {stream} {name} ID ENTRIESREAD N",
        )
    if not group["pending"]:
        return
    # IDLE makes the server filter by id, not by age, so the first result need not be the oldest
    oldest = client.xpending_range(_raw(stream), _raw(name), "-", "+", 1, idle=limits.pending_ms)
    if oldest:
        yield warning(
            "pending",
            f"{stream} {name}: {group['pending']} pending; {oldest[0]['message_id']} and perhaps others idle too long",
            "they were delivered and never acknowledged: no consumer handles them until one claims them",
            f"start workers with min_idle_time, or XAUTOCLAIM {stream} {name} CONSUMER {limits.pending_ms} 0",
            place=(stream, name),
        )
    for consumer in client.xinfo_consumers(_raw(stream), _raw(name)):
        if consumer["pending"] and consumer["idle"] >= limits.pending_ms:
            yield warning(
                "dead consumer",
                f"{stream} {name} {consumer['name']}: idle for {consumer['idle'] // 1000} s with {consumer['pending']} "
                "pending",
                "it has probably ended; deleting it now would drop its entries",
                f"claim its entries (XAUTOCLAIM {stream} {name} ...), then XGROUP DELCONSUMER {stream} {name} "
                f"{consumer['name']}",
                place=(stream, name),
            )
