"""The text of INFO, made only from the requested sections and the facts.

Field names and units are Redis's, so that monitoring made for Redis reads them. Every value is true here. The server
has no cluster, and reports so in the fields that tools read.

A section is a generator of names and values; :data:`SECTIONS` has the sections in the order of the reply. Facts are
grouped by their source: the network shell, the operating system, the log, the scripts. A node without one of these
shows zeros, so the groups have defaults.

Source: https://redis.io/docs/latest/commands/info/
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from millstream import core
from millstream._version import __version__
from millstream.engine.history import text_of

REDIS_VERSION = "8.10.0"
"""The version of Redis that this server behaves like, as reported by HELLO and INFO."""

Rows = Iterable[tuple[str, object]]


@dataclass(slots=True)
class ShellFacts:
    """Facts that only the network shell knows and updates; an embedded node has none."""

    tcp_port: int = 0  # Port that the server listens on, 0 for none
    unix_socket: str = ""  # Path of the Unix socket, empty for none
    started: int = 0  # Wall milliseconds of the server's start
    run_id: str = "0" * 40  # Forty hex digits, new at each start
    event_loop: str = ""  # Name of the loop, such as ``uvloop``
    rejected_connections: int = 0  # Connections refused because of ``maxclients``
    denied_connections: int = 0  # Connections refused by protected mode
    protocol_errors: int = 0  # Connections closed for invalid RESP
    cross_protocol: int = 0  # Connections closed because they sent HTTP
    query_buffer_closed: int = 0  # Connections closed because too much input waited to be read
    output_buffer_closed: int = 0  # Connections closed because the client did not read its replies
    input_bytes: int = 0  # Bytes received
    output_bytes: int = 0  # Bytes sent
    repl_input_bytes: int = 0  # Bytes received from a primary, a part of ``input_bytes``
    repl_output_bytes: int = 0  # Bytes sent to replicas, a part of ``output_bytes``
    internal_errors: int = 0  # Commands that failed because of a defect in the server
    # Recent commands, input bytes and output bytes per second; None without measurements
    rates: tuple[float, float, float] | None = None

    def reset(self) -> None:
        """CONFIG RESETSTAT: set all counters to zero."""
        self.rejected_connections = self.denied_connections = self.protocol_errors = self.cross_protocol = 0
        self.query_buffer_closed = self.output_buffer_closed = self.internal_errors = 0
        self.input_bytes = self.output_bytes = self.repl_input_bytes = self.repl_output_bytes = 0


@dataclass(slots=True)
class MachineFacts:
    """The operating system's figures of the process; zero where it has none."""

    pid: int = 0  # Process id
    system: str = ""  # Operating system and release
    python: str = ""  # Version of Python
    memory: int = 0  # Resident memory in bytes
    memory_peak: int = 0  # Peak of the resident memory in bytes
    memory_total: int = 0  # Memory of the machine in bytes
    cpu_system: float = 0.0  # Processor seconds in the kernel
    cpu_user: float = 0.0  # Processor seconds outside the kernel
    cpu_system_children: float = 0.0  # Processor seconds in the kernel, of child processes that have ended
    cpu_user_children: float = 0.0  # Processor seconds outside the kernel, of child processes that have ended


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The counted bytes and their limits."""

    used: int = 0  # Counted bytes in total
    peak: int = 0  # Peak of the counted bytes, among the values that were measured
    startup: int = 0  # Bytes of the process before it had data
    dataset: int = 0  # Bytes of keys and values
    limit: int = 0  # ``maxmemory`` in bytes, 0 for no limit
    not_counted: int = 0  # Bytes that the limit ignores: data that replicas have not read, or that no file has yet
    clients: int = 0  # Bytes of all clients except replicas
    replicas: int = 0  # Bytes that wait to be sent to replicas
    evicted_clients: int = 0  # Clients disconnected for ``maxmemory-clients``


@dataclass(frozen=True, slots=True)
class RewriteFacts:
    """Facts about rewriting the log."""

    is_running: bool = False  # A rewrite is running
    is_ok: bool = True  # The last rewrite that ended was successful
    seconds: int = -1  # Seconds that the last rewrite took; -1 if none has ended
    current_seconds: int = -1  # Seconds that the present rewrite has taken so far; -1 if none is running
    started: int = 0  # Number of rewrites started
    failed_in_a_row: int = 0  # Number of failed rewrites since the last successful one
    lacking: str = ""  # Pack whose lack ended a rewrite, until another one finds all packs; empty for none
    pack_disagreements: int = 0  # Number of packs kept only because of the data in memory, which is a defect


@dataclass(slots=True)
class Loading:
    """The progress of reading the log."""

    started: int  # Wall milliseconds at the start of loading
    total: int = 0  # Bytes to read in total
    loaded: int = 0  # Bytes read so far


@dataclass(slots=True)
class LogFacts:
    """Facts about the log."""

    enabled: bool = False  # Changes are logged
    policy: str = ""  # ``always``, ``everysec`` or ``no``
    size: int = 0  # Bytes on disk
    base_size: int = 0  # Bytes of the snapshot, a part of ``size``
    appended: int = 0  # Position of the last record
    unwritten: int = 0  # Bytes of records that are not yet written
    durable: int = 0  # Last position that survives a power cut
    recovered: int = 0  # Number of records read at the start
    last_save: int = 0  # Wall seconds of the last moment when everything was on disk
    slow_syncs: int = 0  # Number of syncs that took longer than two seconds
    disk_state: str = "ok"  # ``ok``; ``low``: writes are refused; ``full``: changes also wait for space
    disk_since: int = 0  # Wall seconds of the last change of that state, 0 before the first
    disk_free: int = -1  # Bytes that may still be written, -1 if the system does not report it
    rewrite: RewriteFacts = field(default_factory=RewriteFacts)  # Facts about rewriting the log


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """Facts about scripts."""

    cached: int = 0  # Number of cached scripts
    source_bytes: int = 0  # Size of their sources in bytes
    lua_bytes: int = 0  # Size of the Lua runtime in bytes; 0 if no script has run


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """Facts about a copy of all data."""

    # Milliseconds. ``made``: from the request until sending could begin; ``taken``: from the first byte until the data
    # were in use
    took: int
    size: int  # Size in bytes


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """A replica's facts about its link to its primary."""

    host: str  # Name or address of the primary
    port: int  # Port of the primary
    state: str  # State of the link, as ROLE names it
    error: str  # Reason why the link is down or was down last; empty for none
    silent_for: int  # Seconds since the primary last sent something; -1 without a link
    down_for: int | None  # Seconds that the link has been down; None if it is up
    offset: int  # Offset in the primary's stream up to which everything has run
    copy_size: int | None  # Bytes of the copy being received; None if the primary did not report them
    copy_read: int  # Bytes of this copy received so far
    priority: str  # Priority with which Sentinel chooses the next primary
    divergences: int  # Number of units that failed on this replica
    full_syncs: int  # Number of copies received completely
    copied_for: int  # Seconds since the last complete copy; -1 for none since the start
    last_copy: CopyFacts | None  # Facts of the last copy; None for none
    kept: int  # Last offset reported to the primary that this replica's log has written; -1 for none
    durable: int  # Last offset reported to the primary that is on disk; -1 without a log
    is_announced: bool  # Sentinel lists this replica


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """One replica: its address, its own port, its stage, its offset, and the seconds since it reported that."""

    ip: str
    port: int
    stage: str
    offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class ReplicationFacts:
    """Facts about replicas."""

    replicas: list[ReplicaFacts] = field(default_factory=list)  # Facts of each replica
    good: int = 0  # Number of replicas that count for ``min-replicas-to-write``
    wanted: int = 0  # Number of replicas that must count; 0 for no such rule
    replid: str = ""  # Name of the history (replication id)
    replid2: str = ""  # Name of the history that it continues; empty for none
    offset: int = 0  # Length of the history, in bytes
    second: int = -1  # Offset up to which both histories are equal; -1 for none
    earlier: tuple[str | int, ...] = ()  # Names of the histories before these two, each followed by such an offset
    backlog_size: int = 0  # Size of the backlog in bytes, as configured
    backlog_first: int | None = None  # Offset of the first byte in the backlog; None while it is empty
    backlog_held: int = 0  # Bytes that the backlog holds
    full_syncs: int = 0  # Number of copies that replicas requested
    copies_made: int = 0  # Number of copies made; replicas that wait together share one
    last_copy: CopyFacts | None = None  # Facts of the last copy; None for none
    forks: int = 0  # Number of forks for copies
    fork_usec: int = 0  # Microseconds for which the last fork blocked the server
    partial_syncs: int = 0  # Number of replicas that continued from their offset
    refused_syncs: int = 0  # Number of replicas that could not continue from their offset
    failover: str = "no-failover"  # State of a failover
    diverged_records: int = 0  # Records that no new primary took over, saved to files since the start
    diverged_files: int = 0  # Number of pairs of files with such records in the data directory
    dialect: str = ""  # Redis version whose commands replicas receive
    annotate: str = ""  # Annotations that Millstream replicas are sent
    confirming: int = 0  # Number of replicas that must confirm a write before its reply; 0 for no such rule
    confirmed_by: int = 0  # Number of replicas that confirm writes
    is_short: bool = False  # Too few replicas confirm writes, so writes are refused
    unconfirmed: int = 0  # Number of changes that too few replicas have confirmed
    held_clients: int = 0  # Number of clients with replies that wait for the disk or for replicas


@dataclass(slots=True)
class CommandFacts:
    """One command's counters, in the form for :class:`InfoFacts`."""

    calls: int
    microseconds: float
    rejected: int
    failed: int


@dataclass(slots=True)
class DatabaseFacts:
    """One database: its number, keys, expiring keys, and their average time to live in milliseconds."""

    index: int
    keys: int
    expires: int
    average_ttl: int = 0


@dataclass(slots=True)
class InfoFacts:
    """All facts that INFO shows."""

    now: int = 0  # Wall milliseconds
    connected_clients: int = 0  # Open sessions
    blocked_clients: int = 0  # Sessions that wait inside a command or because of CLIENT PAUSE
    watching_clients: int = 0  # Sessions that watch a key
    watched_keys: int = 0  # Watched keys
    pubsub_clients: int = 0  # Sessions that are subscribed to channels or patterns
    pubsub_channels: int = 0  # Channels with subscribers
    pubsub_patterns: int = 0  # Patterns with subscribers
    blocking_keys: int = 0  # Keys that clients wait for
    blocking_keys_on_nokey: int = 0  # Keys whose deletion also wakes a client (XREADGROUP)
    max_clients: int = 0  # Largest number of clients
    dirty: int = 0  # Changes since the last save
    connections: int = 0  # Connections accepted since the start
    processed: int = 0  # Commands run since the start
    error_replies: int = 0  # Error replies in total
    expired_keys: int = 0  # Keys deleted because they expired
    retained_no_more: int = 0  # Entries that ``stream-retention`` removed
    removed_unread: int = 0  # Entries of ``retained_no_more`` that a group had not read
    hits: int = 0  # Lookups by reading commands that found their key
    misses: int = 0  # Lookups by reading commands that did not find their key
    refused: dict[str, int] = field(default_factory=dict)  # Number of refusals by ACL, for each reason
    commands: Mapping[str, CommandFacts] = field(default_factory=dict)  # Counters by full command name
    errors: Mapping[str, int] = field(default_factory=dict)  # Error replies by code
    databases: Iterable[DatabaseFacts] = ()  # Databases that hold keys; none while changes are held
    is_holding: bool = False  # Changes wait for space on the disk, and no figure may reveal them
    shell: ShellFacts = field(default_factory=ShellFacts)  # Facts about connections and the network
    machine: MachineFacts = field(default_factory=MachineFacts)  # Facts about the process and the machine
    memory: MemoryFacts = field(default_factory=MemoryFacts)  # Facts about counted memory
    log: LogFacts = field(default_factory=LogFacts)  # Facts about the log
    scripts: ScriptFacts = field(default_factory=ScriptFacts)  # Facts about scripts
    replication: ReplicationFacts = field(default_factory=ReplicationFacts)  # Facts about replicas
    link: LinkFacts | None = None  # Facts about the link to the primary; None without one
    shutdown_in: int | None = None  # Milliseconds that SHUTDOWN waits at most from now on; None if none was requested
    loading: Loading | None = None  # Progress of reading the log; None if none is being read
    has_tier: bool = False  # Entries may be moved to files
    tier: Iterable[tuple[str, object]] = ()  # Figures about entries in files


def _server(facts: InfoFacts) -> Rows:
    """The server's identity; monitoring distinguishes servers by ``run_id``, which is new at each start."""
    shell, machine = facts.shell, facts.machine
    uptime = max(facts.now - shell.started, 0) // 1000 if shell.started else 0
    # Clients choose commands by this version, so report the Redis version whose behaviour the server has
    yield "redis_version", REDIS_VERSION
    yield "millstream_version", __version__
    yield "millstream_core", core.NAME
    yield "redis_mode", "standalone"
    yield "os", machine.system
    yield "arch_bits", 64
    yield "python_version", machine.python
    # Redis reports epoll or kqueue; the counterpart here is the event loop
    yield "multiplexing_api", shell.event_loop
    yield "process_id", machine.pid
    yield "run_id", shell.run_id
    yield "tcp_port", shell.tcp_port
    yield "server_time_usec", facts.now * 1000
    yield "uptime_in_seconds", uptime
    yield "uptime_in_days", uptime // 86400
    yield "executable", ""
    yield "config_file", ""
    if facts.shutdown_in is not None:
        yield "shutdown_in_milliseconds", facts.shutdown_in
    if shell.unix_socket:
        yield "unix_socket", shell.unix_socket


def _clients(facts: InfoFacts) -> Rows:
    """Connections, with the numbers that wait or watch."""
    yield "connected_clients", facts.connected_clients
    yield "cluster_connections", 0
    yield "maxclients", facts.max_clients
    yield "blocked_clients", facts.blocked_clients
    yield "tracking_clients", 0
    yield "pubsub_clients", facts.pubsub_clients
    yield "watching_clients", facts.watching_clients
    yield "total_watched_keys", facts.watched_keys
    yield "total_blocking_keys", facts.blocking_keys
    yield "total_blocking_keys_on_nokey", facts.blocking_keys_on_nokey


def human(size: float) -> str:
    """Format a number of bytes for people, as Redis does: ``1.50M``."""
    for unit in "BKMGT":
        if size < 1024 or unit == "T":
            break
        size /= 1024
    return f"{size:.0f}{unit}" if unit == "B" else f"{size:.2f}{unit}"


def _memory(facts: InfoFacts) -> Rows:
    """The counted memory, which ``maxmemory`` limits, and the resident memory of the process."""
    machine, scripts, counted = facts.machine, facts.scripts, facts.memory
    grown = max(counted.used - counted.startup, 1)
    yield "used_memory", counted.used
    yield "used_memory_human", human(counted.used)
    yield "used_memory_rss", machine.memory
    yield "used_memory_rss_human", human(machine.memory)
    yield "used_memory_rss_peak", machine.memory_peak
    yield "used_memory_peak", counted.peak
    yield "used_memory_peak_human", human(counted.peak)
    yield "used_memory_peak_perc", f"{100 * counted.used / max(counted.peak, 1):.2f}%"
    yield "used_memory_overhead", counted.used - counted.dataset
    yield "used_memory_startup", counted.startup
    yield "used_memory_dataset", counted.dataset
    yield "used_memory_dataset_perc", f"{min(100 * counted.dataset / grown, 100):.2f}%"
    yield "total_system_memory", machine.memory_total
    yield "total_system_memory_human", human(machine.memory_total)
    yield "used_memory_lua", scripts.lua_bytes
    yield "used_memory_vm_eval", scripts.lua_bytes
    yield "used_memory_lua_human", human(scripts.lua_bytes)
    yield "used_memory_scripts_eval", scripts.source_bytes
    yield "number_of_cached_scripts", scripts.cached
    yield "number_of_functions", 0
    yield "number_of_libraries", 0
    yield "maxmemory", counted.limit
    yield "maxmemory_human", human(counted.limit)
    yield "maxmemory_policy", "noeviction"
    yield "mem_fragmentation_ratio", f"{machine.memory / max(counted.used, 1):.2f}"
    yield "mem_fragmentation_bytes", machine.memory - counted.used
    yield "mem_not_counted_for_evict", counted.not_counted
    yield "mem_replication_backlog", facts.replication.backlog_held
    yield "mem_total_replication_buffers", facts.replication.backlog_held + counted.replicas
    yield "mem_clients_slaves", counted.replicas
    yield "mem_clients_normal", counted.clients
    yield "mem_aof_buffer", facts.log.unwritten
    yield "total_oom_rejected", facts.errors.get("OOM", 0)


def _persistence(facts: InfoFacts) -> Rows:
    """The log, under the names of Redis's files for monitoring tools, and under its own names."""
    log = facts.log
    yield "loading", int(facts.loading is not None)
    yield "async_loading", 0
    yield "rdb_changes_since_last_save", facts.dirty
    yield "rdb_bgsave_in_progress", 0
    yield "rdb_last_save_time", log.last_save
    yield "rdb_last_bgsave_status", "ok"
    yield "aof_enabled", int(log.enabled)
    yield "aof_rewrite_in_progress", int(log.rewrite.is_running)
    yield "aof_rewrite_scheduled", 0
    yield "aof_last_rewrite_time_sec", log.rewrite.seconds
    yield "aof_current_rewrite_time_sec", log.rewrite.current_seconds
    yield "aof_last_bgrewrite_status", "ok" if log.rewrite.is_ok else "err"
    yield "aof_rewrites", log.rewrite.started
    yield "aof_rewrites_consecutive_failures", log.rewrite.failed_in_a_row
    if log.rewrite.lacking:
        yield "millstream_lacking_pack", log.rewrite.lacking
    # Monitoring tools made for Redis raise an alarm by this field, so it also reports a full disk
    yield "aof_last_write_status", "ok" if log.disk_state == "ok" else "err"
    if log.enabled:
        yield "aof_current_size", log.size
        yield "aof_base_size", log.base_size
        yield "aof_pending_rewrite", 0
        yield "aof_delayed_fsync", log.slow_syncs
        yield "millstream_fsync", log.policy
        yield "millstream_log_appended", log.appended
        yield "millstream_log_durable", log.durable
        yield "millstream_log_recovered", log.recovered
        yield "millstream_disk_state", log.disk_state
        yield "millstream_disk_state_since", log.disk_since
        yield "millstream_disk_free", log.disk_free
    if facts.loading is not None:
        yield from _loading(facts.loading, facts.now)


def _loading(loading: Loading, now: int) -> Rows:
    """Redis's fields for a server that is loading its data."""
    done, total = loading.loaded, loading.total
    yield "loading_start_time", loading.started // 1000
    yield "loading_total_bytes", total
    yield "loading_rdb_used_mem", 0
    yield "loading_loaded_bytes", done
    yield "loading_loaded_perc", f"{100 * done / total if total else 0:.2f}"
    yield "loading_eta_seconds", (now - loading.started) * (total - done) // (1000 * done) if done else 1


def _stats(facts: InfoFacts) -> Rows:
    """Counters since the start or the last CONFIG RESETSTAT."""
    shell = facts.shell
    yield "total_connections_received", facts.connections
    yield "total_commands_processed", facts.processed
    if shell.rates is not None:
        yield "instantaneous_ops_per_sec", round(shell.rates[0])
    yield "total_net_input_bytes", shell.input_bytes
    yield "total_net_output_bytes", shell.output_bytes
    yield "total_net_repl_input_bytes", shell.repl_input_bytes
    yield "total_net_repl_output_bytes", shell.repl_output_bytes
    if shell.rates is not None:
        yield "instantaneous_input_kbps", f"{shell.rates[1] / 1024:.2f}"
        yield "instantaneous_output_kbps", f"{shell.rates[2] / 1024:.2f}"
    yield "rejected_connections", shell.rejected_connections
    yield "sync_full", facts.replication.full_syncs
    yield "sync_partial_ok", facts.replication.partial_syncs
    yield "sync_partial_err", facts.replication.refused_syncs
    yield "expired_keys", facts.expired_keys
    # The server refuses writes when memory is full, and never evicts keys
    yield "evicted_keys", 0
    yield "evicted_clients", facts.memory.evicted_clients
    yield "retention_removed_entries", facts.retained_no_more
    yield "retention_removed_unread", facts.removed_unread
    yield "keyspace_hits", facts.hits
    yield "keyspace_misses", facts.misses
    yield "pubsub_channels", facts.pubsub_channels
    yield "pubsub_patterns", facts.pubsub_patterns
    yield "pubsubshard_channels", 0
    # Only copies for replicas use fork; a separate program rewrites the log
    yield "latest_fork_usec", facts.replication.fork_usec
    yield "total_forks", facts.replication.forks
    yield "total_error_replies", facts.error_replies
    for reason, word in (("auth", "auth"), ("command", "cmd"), ("key", "key"), ("channel", "channel")):
        yield f"acl_access_denied_{word}", facts.refused.get(reason, 0)
    yield "client_query_buffer_limit_disconnections", shell.query_buffer_closed
    yield "client_output_buffer_limit_disconnections", shell.output_buffer_closed
    yield "millstream_protocol_errors", shell.protocol_errors
    yield "millstream_cross_protocol_disconnections", shell.cross_protocol
    yield "millstream_denied_connections", shell.denied_connections
    yield "millstream_internal_errors", shell.internal_errors


def _replication(facts: InfoFacts) -> Rows:
    """The replicas, and the history with its offset."""
    known = facts.replication
    yield "role", "slave" if facts.link else "master"
    if facts.link is not None:
        yield from _link(facts.link)
    yield "connected_slaves", len(known.replicas)
    if known.wanted:
        yield "min_slaves_good_slaves", known.good
    for at, each in enumerate(known.replicas):
        place = f"ip={each.ip},port={each.port},state={each.stage}"
        yield f"slave{at}", f"{place},offset={each.offset},lag={each.lag}"
    if known.confirming:
        yield "millstream_sync_state", "refused" if known.is_short else "ok"
        yield "millstream_sync_asked", known.confirming
        yield "millstream_sync_confirming", known.confirmed_by
        yield "millstream_replicas_waiting", known.held_clients
        yield "millstream_sync_held", known.unconfirmed
    yield "master_failover_state", known.failover
    yield "master_replid", known.replid
    yield "master_replid2", known.replid2 or "0" * 40
    yield "master_repl_offset", known.offset
    yield "second_repl_offset", known.second
    yield "repl_backlog_active", int(known.backlog_first is not None)
    yield "repl_backlog_size", known.backlog_size
    yield "repl_backlog_first_byte_offset", known.backlog_first or 0
    yield "repl_backlog_histlen", known.backlog_held
    yield "millstream_earlier_histories", text_of(known.earlier)
    yield "millstream_diverged_records", known.diverged_records
    yield "millstream_diverged_files", known.diverged_files
    yield "millstream_full_syncs_made", known.copies_made
    yield from _copy("made", known.last_copy)
    yield "millstream_dialect", known.dialect
    yield "millstream_annotate", known.annotate


def _link(link: LinkFacts) -> Rows:
    """Redis's fields of a replica in their order, then Millstream's own."""
    yield "master_host", link.host
    yield "master_port", link.port
    yield "master_link_status", "up" if link.down_for is None else "down"
    yield "master_last_io_seconds_ago", link.silent_for
    yield "master_sync_in_progress", int(link.state == "sync")
    yield "slave_read_repl_offset", link.offset
    yield "slave_repl_offset", link.offset
    if link.state == "sync":
        size = link.copy_size or 0
        yield "master_sync_total_bytes", size
        yield "master_sync_read_bytes", link.copy_read
        yield "master_sync_left_bytes", max(size - link.copy_read, 0)
        yield "master_sync_perc", f"{100 * link.copy_read / size:.2f}" if size else "0.00"
        yield "master_sync_last_io_seconds_ago", max(link.silent_for, 0)
    if link.down_for is not None:
        yield "master_link_down_since_seconds", link.down_for
    yield "slave_priority", link.priority
    yield "slave_read_only", 1
    yield "replica_announced", int(link.is_announced)
    yield "millstream_link_state", link.state
    yield "millstream_link_error", link.error.replace("\r", " ").replace("\n", " ")
    yield "millstream_link_divergences", link.divergences
    yield "millstream_link_kept_offset", link.kept
    yield "millstream_link_durable_offset", link.durable
    yield "millstream_full_syncs_taken", link.full_syncs
    yield "millstream_last_full_sync_seconds_ago", link.copied_for
    yield from _copy("taken", link.last_copy)


def _copy(name: str, copy: CopyFacts | None) -> Rows:
    """The rows of the last copy since the start; -1 for none."""
    yield f"millstream_last_full_sync_{name}_seconds", -1 if copy is None else f"{copy.took / 1000:.3f}"
    yield f"millstream_last_full_sync_{name}_bytes", -1 if copy is None else copy.size


def _cpu(facts: InfoFacts) -> Rows:
    """Processor time in seconds; that of children is of processes that rewrote the log."""
    yield "used_cpu_sys", f"{facts.machine.cpu_system:.6f}"
    yield "used_cpu_user", f"{facts.machine.cpu_user:.6f}"
    yield "used_cpu_sys_children", f"{facts.machine.cpu_system_children:.6f}"
    yield "used_cpu_user_children", f"{facts.machine.cpu_user_children:.6f}"


def _modules(facts: InfoFacts) -> Rows:  # noqa: ARG001 - all sections share one signature
    """No rows; the section exists for tools that request it."""
    return ()


def _commandstats(facts: InfoFacts) -> Rows:
    """Counters of each command that was called; a rejected call never ran, a failed one ran and replied an error."""
    for name, counts in facts.commands.items():
        average = counts.microseconds / counts.calls if counts.calls else 0.0
        yield (
            f"cmdstat_{name}",
            (
                f"calls={counts.calls},usec={counts.microseconds:.0f},usec_per_call={average:.2f},"
                f"rejected_calls={counts.rejected},failed_calls={counts.failed}"
            ),
        )


def _errorstats(facts: InfoFacts) -> Rows:
    """Error replies by their first word."""
    for code, count in facts.errors.items():
        yield f"errorstat_{code}", f"count={count}"


def _cluster(facts: InfoFacts) -> Rows:  # noqa: ARG001 - all sections share one signature
    """The row that cluster mode is off, which cluster clients read first."""
    yield "cluster_enabled", 0


def _tier(facts: InfoFacts) -> Rows:
    """Entries in files."""
    yield "tier_enabled", int(facts.has_tier)
    yield from facts.tier


def _keyspace(facts: InfoFacts) -> Rows:
    """Databases with keys; empty ones are left out."""
    if facts.is_holding:
        yield "millstream_keyspace_held", 1  # the figures could reveal changes that may yet be lost
    for base in facts.databases:
        if base.keys:
            yield (f"db{base.index}", f"keys={base.keys},expires={base.expires},avg_ttl={base.average_ttl},subexpiry=0")


SECTIONS: dict[str, tuple[str, Callable[[InfoFacts], Rows]]] = {
    "server": ("Server", _server),
    "clients": ("Clients", _clients),
    "memory": ("Memory", _memory),
    "persistence": ("Persistence", _persistence),
    "tier": ("Tier", _tier),
    "stats": ("Stats", _stats),
    "replication": ("Replication", _replication),
    "cpu": ("CPU", _cpu),
    "modules": ("Modules", _modules),
    "commandstats": ("Commandstats", _commandstats),
    "errorstats": ("Errorstats", _errorstats),
    "cluster": ("Cluster", _cluster),
    "keyspace": ("Keyspace", _keyspace),
}

# As in Redis, counters of each command are shown only on request.
_BY_DEFAULT = [name for name in SECTIONS if name != "commandstats"]
_SETS = {"default": _BY_DEFAULT, "all": [name for name in SECTIONS if name != "modules"], "everything": list(SECTIONS)}


def render(sections: list[str], facts: InfoFacts) -> str:
    """Return the text of INFO.

    Returns:
        Lines ended by CR LF, sections with a blank line between, in one fixed order.
    """
    wanted: set[str] = set()
    for name in sections or ["default"]:
        wanted.update(_SETS.get(name.lower(), [name.lower()]))
    texts = []
    for name, (title, rows) in SECTIONS.items():
        if name in wanted:
            texts.append(f"# {title}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in rows(facts)))
    return "\r\n".join(texts)
