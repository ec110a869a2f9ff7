"""Server parameters that clients see through CONFIG, with their checks and Redis's error texts.

Each parameter here is true: either it can be changed and has an effect, or it cannot and states a fact. Tools made for
Redis read such facts (``save``, ``appendonly``).

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/config/
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from millstream.commands.context.tier import NO_DIRECTORY, hot_bytes
from millstream.commands.table.args import read_integer
from millstream.commands.table.events import Flags, canonical
from millstream.errors import CommandError, ConfigError
from millstream.glob import Rules, retention
from millstream.times import bytes_of


@dataclass(frozen=True, slots=True)
class Parameter:
    """One CONFIG parameter."""

    name: str  # Name, as clients write it
    default: str  # Value at start
    parse: Callable[[str], object]  # Converts text to the value; raises ``ValueError`` with Redis's reason
    says: str  # Description for the table in docs/server.md
    mutable: bool = True  # CONFIG SET may change it
    is_given: bool = False  # The command line may set it, though CONFIG SET cannot change it


def integer(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for whole numbers in a range, both ends included."""

    def parse(text: str) -> int:
        value = read_integer(text.encode("utf-8", "surrogateescape"))
        if value is None:
            raise ValueError("argument couldn't be parsed into an integer")
        if not low <= value <= high:
            raise ValueError(f"argument must be between {low} and {high} inclusive")
        return value

    return parse


_PERCENT = re.compile(r"([0-9]{1,18})%")


def memory(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for sizes such as ``512mb``, in bytes."""

    def parse(text: str) -> int:
        value = bytes_of(text)
        if not low <= value <= high:
            raise ValueError(f"argument must be between {low} and {high} inclusive")
        return value

    return parse


def limit(text: str) -> int:
    """Parse a size in bytes without an upper limit; the error text is Redis's."""
    value = bytes_of(text or "0")
    if value > LLONG_MAX:
        raise ValueError("argument must be greater or equal to 0")  # as in Redis 8.2, where the number becomes negative
    return value


@dataclass(frozen=True, slots=True)
class Share:
    """A number of bytes, or a percentage of another number."""

    number: int  # Bytes or a percentage
    is_percent: bool = False  # ``number`` is a percentage

    def __str__(self) -> str:
        return f"{self.number}%" if self.is_percent and self.number else str(self.number)

    def of(self, whole: int) -> int:
        """Return the number of bytes."""
        return whole * self.number // 100 if self.is_percent else self.number


def share(text: str) -> Share:
    """Parse a size or a percentage."""
    if percent := _PERCENT.fullmatch(text):
        if int(percent[1]) > 100:
            raise ValueError("percentage argument must be less or equal to 100")
        return Share(int(percent[1]), is_percent=True)
    try:
        return Share(limit(text))
    except ValueError:
        raise ValueError("argument must be a memory or percent value") from None


def hot(text: str) -> Share:
    """Parse ``tier-hot``. An empty text does not mean 0 here, as it does for the limits that Redis has too."""
    if not text:
        raise ValueError("argument must be a memory or percent value")
    return share(text)


def policy(text: str) -> str:
    """Parse the name of the only supported policy."""
    if text.partition("\0")[0].lower() != "noeviction":
        raise ValueError(
            "argument must be noeviction: this server removes no data by itself. Set maxmemory, and stream-retention."
        )
    return "noeviction"


def choice(*words: str) -> Callable[[str], str]:
    """Return a parser for one of a few names."""

    def parse(text: str) -> str:
        word = text.partition("\0")[0].lower()
        if word not in words:
            raise ValueError("argument(s) must be one of the following: " + ", ".join(words))
        return word

    return parse


def text(value: str) -> str:
    """Accept any text."""
    return value


def yes_no(text: str) -> str:
    """Parse ``yes`` or ``no``."""
    word = text.partition("\0")[0].lower()
    if word not in {"yes", "no"}:
        raise ValueError("argument must be 'yes' or 'no'")
    return word


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The limits of reply bytes that a client may leave unread."""

    hard: int  # Bytes at which the client is disconnected at once, 0 for no limit
    soft: int  # Bytes above which the client is disconnected after ``seconds``, 0 for no limit
    seconds: int  # Seconds that the client may stay above ``soft``

    def __str__(self) -> str:
        return f"{self.hard} {self.soft} {self.seconds}"


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """The limits of unread replies, by class of client."""

    normal: OutputLimit = OutputLimit(256 * 2**20, 64 * 2**20, 60)  # Ordinary clients
    # Replicas. Data that was not yet sent counts; a limit below the backlog's size counts as the backlog's size
    slave: OutputLimit = OutputLimit(256 * 2**20, 64 * 2**20, 60)
    pubsub: OutputLimit = OutputLimit(32 * 2**20, 8 * 2**20, 60)  # Clients that are subscribed to channels

    def __str__(self) -> str:
        return f"normal {self.normal} slave {self.slave} pubsub {self.pubsub}"


def output_limits(text: str) -> dict[str, OutputLimit]:
    """Parse ``<class> <hard> <soft> <seconds>``, once or several times; other classes keep their limits."""
    words = text.split()
    if len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    found: dict[str, OutputLimit] = {}
    size, seconds = memory(0, LLONG_MAX), integer(0, LLONG_MAX)
    for at in range(0, len(words), 4):
        name = words[at].lower().replace("replica", "slave")
        if name not in {"normal", "slave", "pubsub"}:
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        try:
            found[name] = OutputLimit(size(words[at + 1]), size(words[at + 2]), seconds(words[at + 3]))
        except ValueError:
            raise ValueError("Error in hard, soft or soft_seconds setting in buffer limit configuration.") from None
    return found


LLONG_MAX = 2**63 - 1
NEVER = LLONG_MAX
"""More nanoseconds than any command takes."""

# Parsers that several parameters share
_COUNT, _POSITIVE = integer(0, 2**31 - 1), integer(1, 2**31 - 1)
_LONG, _BYTES = integer(0, LLONG_MAX), memory(0, LLONG_MAX)


def seconds(text: str) -> int:
    """Parse a number of seconds; the error names the unit, since other settings take a duration such as 7d."""
    try:
        return _COUNT(text)
    except ValueError:
        raise ValueError(f"argument must be a whole number of seconds from 0 to {2**31 - 1}, without a unit") from None


def _fixed(name: str, default: str, parse: Callable[[str], object], says: str) -> Parameter:
    """A parameter that CONFIG SET cannot change."""
    return Parameter(name, default, parse, says, mutable=False)


_ROWS = (
    # streams
    Parameter("stream-node-max-bytes", "4096", _BYTES, "bytes of one block of a stream, 0 for no limit"),
    Parameter("stream-node-max-entries", "100", _LONG, "entries of one block, 0 for no limit; `~` trims whole blocks"),
    Parameter(
        "stream-idmp-duration",
        "100",
        integer(1, 86400),
        "seconds for which a message of an idempotent producer is remembered",
    ),
    Parameter("stream-idmp-maxsize", "100", integer(1, 10000), "messages remembered for each producer"),
    Parameter(
        "stream-retention",
        "",
        retention(limit),
        "one or more rules, each a key pattern, a maximum age and a maximum size, such as `orders:* 7d 50gb * 30d 0`; "
        "0 for no bound; empty keeps all",
    ),
    Parameter(
        "stream-retention-groups",
        "ignore",
        choice("ignore", "hold"),
        "`hold`: remove only entries that every group has read and acknowledged; `ignore`: groups do not matter",
    ),
    Parameter(
        "notify-keyspace-events", "", canonical, "published events, in Redis's letters, including `m`, `n`, `o` and `c`"
    ),
    # replicas; each old name is an alias of its parameter
    Parameter(
        "repl-backlog-size",
        "16mb",
        memory(1, LLONG_MAX),
        "bytes of the replication stream to keep for replicas that return; 16 kB at least",
    ),
    Parameter(
        "repl-backlog-ttl", "3600", _COUNT, "seconds without a replica after which the backlog is dropped; 0 for never"
    ),
    Parameter(
        "repl-timeout",
        "60",
        _POSITIVE,
        "seconds of silence, or without reading a copy, after which a replica is disconnected",
    ),
    Parameter("repl-ping-replica-period", "10", _POSITIVE, "seconds from one PING of replicas to the next"),
    Parameter(
        "min-replicas-to-write",
        "0",
        _COUNT,
        "replicas that must follow, or writes are refused (`NOREPLICAS`); 0 for none",
    ),
    Parameter(
        "min-replicas-max-lag",
        "10",
        _COUNT,
        "seconds of silence after which a replica does not count for that; 0 always accepts writes",
    ),
    Parameter(
        "sync-replicas",
        "0",
        _COUNT,
        "replicas that must hold a write before any client sees it, or writes are refused (`NOREPLICAS`)",
    ),
    Parameter(
        "shutdown-timeout",
        "10",
        _COUNT,
        "seconds that SHUTDOWN and SIGTERM wait at most for replicas that lag; 0 for no wait",
    ),
    Parameter(
        "repl-dialect",
        "7.0",
        choice("7.0", "8.2", "8.6", "8.8"),
        "version of the oldest Redis that may follow: replicas receive commands of this version only",
    ),
    Parameter(
        "repl-annotate",
        "lossy",
        choice("lossy", "always", "never"),
        "additional data for Millstream replicas: `lossy` sends what these commands lose, `always` also the times "
        "of consumers, `never` nothing",
    ),
    Parameter("masteruser", "", text, "user of a replica at its primary; empty for the default user"),
    Parameter("masterauth", "", text, "password of that user; empty for none"),
    Parameter(
        "replica-serve-stale-data",
        "yes",
        yes_no,
        "`yes`: a replica without a link to its primary answers reads; `no`: it replies `MASTERDOWN`",
    ),
    _fixed("replica-read-only", "yes", choice("yes"), "a replica takes no writes"),
    Parameter("replica-priority", "100", _COUNT, "for Sentinel: the lowest is preferred, 0 never"),
    Parameter(
        "replica-announce-ip",
        "",
        text,
        "address of a replica for its primary and Sentinel; empty for that of its connection",
    ),
    Parameter("replica-announce-port", "0", integer(0, 65535), "port for that; 0 for the server's own"),
    Parameter("replica-announced", "yes", yes_no, "list this replica in Sentinel"),
    _fixed("repl-diskless-sync", "no", choice("no"), "with a data directory, a replica's copy is made in a file"),
    Parameter(
        "replica-keep-diverged",
        "5",
        _POSITIVE,
        "newest pairs of files to keep of writes that only this server had as a primary (`diverged-...`)",
    ),
    Parameter(
        "key-load-delay", "0", _COUNT, "microseconds to wait before each record while the log is read; for tests"
    ),
    # access, and limits of one connection
    Parameter("requirepass", "", text, "the default user's password, for connections made later"),
    _fixed("aclfile", "", text, "file of users (`--aclfile`)"),
    Parameter("acllog-max-len", "128", _LONG, "refusals that ACL LOG keeps"),
    Parameter("protected-mode", "yes", yes_no, "without a password, answer only clients on the same machine"),
    Parameter("maxclients", "10000", integer(1, 2**32 - 1), "connections at a time"),
    Parameter(
        "client-output-buffer-limit",
        "normal 268435456 67108864 60 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        output_limits,
        "bytes of replies a client may leave unread: at once, or for the given seconds; 0 for no limit",
    ),
    _fixed("client-query-buffer-limit", "1gb", _BYTES, "bytes received from a client and not yet run"),
    _fixed("proto-max-bulk-len", "512mb", _BYTES, "bytes of one word of a command"),
    _fixed("tcp-keepalive", "300", _COUNT, "seconds after which an idle connection is probed"),
    Parameter(
        "enable-debug-command",
        "no",
        choice("no", "yes", "local"),
        "allow DEBUG: `no`, `local` (clients on the same machine) or `yes`; given by `--set` only",
        mutable=False,
        is_given=True,
    ),
    _fixed("timeout", "0", integer(0, 0), "idle clients are never closed"),
    # script time limit in milliseconds, 0 for none; the two names are aliases
    Parameter("busy-reply-threshold", "5000", _COUNT, "milliseconds a Lua script may take; 0 for no limit"),
    # SLOWLOG's threshold in microseconds (-1 for never), and its number of commands
    Parameter(
        "slowlog-log-slower-than",
        "10000",
        integer(-1, LLONG_MAX),
        "microseconds from which SLOWLOG keeps a command; 0 for every command, -1 for none",
    ),
    Parameter("slowlog-max-len", "128", _LONG, "latest commands that SLOWLOG keeps"),
    # addresses of the server
    _fixed("bind", "", text, "address of the server (`--host`)"),
    _fixed("port", "0", integer(0, 65535), "TCP port (`--port`); 0 without unencrypted TCP"),
    _fixed("unixsocket", "", text, "path of the unix socket (`--unixsocket`)"),
    _fixed("tls-port", "0", integer(0, 65535), "TCP port for TLS (`--tls-port`)"),
    _fixed("tls-cert-file", "", text, "the server's certificate"),
    _fixed("tls-key-file", "", text, "its key"),
    _fixed("tls-ca-cert-file", "", text, "certificates of the authorities that sign the clients'"),
    _fixed("tls-auth-clients", "yes", choice("no", "optional", "yes"), "require a certificate from clients"),
    _fixed("tls-replication", "no", yes_no, "follow a primary over TLS (`--tls-replication`)"),
    _fixed("databases", "16", integer(16, 16), "number of databases"),
    # location of the data
    _fixed("dir", "", text, "the data directory, an absolute path"),
    _fixed("appendonly", "no", yes_no, "`yes` with a data directory"),
    _fixed(
        "appendfsync", "always", choice("always", "everysec", "no"), "time at which writes reach the disk (`--fsync`)"
    ),
    Parameter(
        "disk-free-floor",
        "32mb",
        _BYTES,
        "bytes to keep free on the disk, or writes are refused; 0 for none; by default at most 1/16 of the disk",
    ),
    # The log is rewritten at this size, if it has grown by this percentage since the last time. Redis's 100 would be
    # too much: writers continue meanwhile, and 50 keeps a busy log below 2.2 times its live data.
    Parameter(
        "auto-aof-rewrite-percentage",
        "50",
        _COUNT,
        "growth in percent since the last rewrite that starts another; 0 for never",
    ),
    Parameter("auto-aof-rewrite-min-size", "64mb", _BYTES, "bytes below which the log is not rewritten"),
    _fixed("aof-use-rdb-preamble", "no", choice("no"), "the log has its own format"),
    _fixed("save", "", text, "no snapshots by the clock: the log is always on"),
    # memory
    Parameter(
        "maxmemory",
        "0",
        limit,
        "bytes of `used_memory` above which commands that add data are refused (`OOM`); 0 for no limit (`--maxmemory`)",
    ),
    Parameter("maxmemory-policy", "noeviction", policy, "no data is ever evicted; there is no other policy"),
    Parameter(
        "maxmemory-clients",
        "0",
        share,
        "bytes of all clients together, or percent of `maxmemory`, above which the largest are disconnected; 0 for "
        "no limit",
    ),
    # cold entries, which are in packs
    Parameter("tier-cache", "8mb", _BYTES, "bytes of tables and nodes of packs to keep that were read lately"),
    Parameter(
        "tier-readahead",
        "4mb",
        _BYTES,
        "bytes to read ahead at most for a client that reads a stream's packs in order; 0 for none",
    ),
    Parameter(
        "tier-threads", "0", integer(0, 64), "threads that read packs; 0: as many as processors, but at most four"
    ),
    Parameter("tier-read-rate", "0", _BYTES, "bytes a second that these threads read at most; 0 for no bound"),
    Parameter(
        "tier-vacuum-rate",
        "16mb",
        _BYTES,
        "bytes a second at which extents of packs that are mostly deleted are written anew; 0 for never",
    ),
    Parameter("tier-scrub", "1mb", _BYTES, "bytes of packs a second to read for damage while idle; 0 for none"),
    _fixed("replica-ignore-maxmemory", "yes", choice("yes"), "a replica holds all that its primary has"),
    # entries in files
    Parameter("tier", "no", yes_no, "`yes`: move the oldest entries of streams to files; needs a data directory"),
    Parameter(
        "tier-hot",
        "25%",
        hot,
        "bytes of full blocks of streams to keep in memory, or a percentage of `maxmemory`, which gives 256mb at most",
    ),
    Parameter(
        "tier-after", "0", seconds, "seconds after which a full block goes to a file even if there is room; 0 for never"
    ),
    Parameter("tier-max-bytes", "0", _BYTES, "bytes of all files of entries; 0 for no limit"),
    Parameter(
        "tier-stall-ms",
        "1000",
        _COUNT,
        "milliseconds for which a write above `maxmemory` waits for entries to go to files before it is refused",
    ),
)

OLD_NAMES = {
    "busy-reply-threshold": "lua-time-limit",
    "repl-ping-replica-period": "repl-ping-slave-period",
    "min-replicas-to-write": "min-slaves-to-write",
    "min-replicas-max-lag": "min-slaves-max-lag",
    "replica-serve-stale-data": "slave-serve-stale-data",
    "replica-read-only": "slave-read-only",
    "replica-priority": "slave-priority",
    "replica-ignore-maxmemory": "slave-ignore-maxmemory",
    "replica-announce-ip": "slave-announce-ip",
    "replica-announce-port": "slave-announce-port",
}
"""Second names of parameters."""


def _with_old_names() -> Iterator[Parameter]:
    """Every parameter, under each of its names."""
    for row in _ROWS:
        yield row
        if row.name in OLD_NAMES:
            yield replace(row, name=OLD_NAMES[row.name], says="the same parameter under its old name")


PARAMETERS = {row.name: row for row in _with_old_names()}

_SAME = {name: pair for pair in OLD_NAMES.items() for name in pair}


class Config:
    """Present values of the parameters."""

    def __init__(self, given: dict[str, str] | None = None) -> None:
        # Expired keys are also deleted without access to them (DEBUG SET-ACTIVE-EXPIRE changes this)
        self.expires_unasked = True
        # Returns how many clients, up to the given number, have file descriptors; the shell replaces it
        self.clients_possible: Callable[[int], int] = lambda wanted: wanted
        self.no_replicas = ""  # Reason why there can be no replicas; empty if there can be
        self.has_files = False  # There is a data directory; the shell sets it
        self.on_change: Callable[[], None] = lambda: None  # Called after CONFIG SET has changed something
        self.values: dict[str, object] = {}
        for parameter in PARAMETERS.values():
            self._put(parameter.name, parameter.parse(parameter.default))
        for name, value in (given or {}).items():
            self._give(name.lower(), value)
        self._cache()

    def _give(self, name: str, value: str) -> None:
        """Set a value at the start, also of a parameter that CONFIG SET cannot change."""
        if name not in PARAMETERS:
            raise ConfigError(
                f"there is no parameter {name!r}; the parameters are: {', '.join(sorted(row.name for row in _ROWS))}"
            )
        if name == "maxmemory" and not value:  # CONFIG SET takes it as 0, as Redis does
            raise ConfigError("parameter maxmemory cannot be empty. Give a size such as 512mb, or 0 for no limit.")
        try:
            self._put(name, PARAMETERS[name].parse(value))
        except ValueError as reason:
            raise ConfigError(f"parameter {name} cannot be {value!r}: {reason}") from None

    def _cache(self) -> None:
        """Copy values that each command reads into attributes.

        This saves a dictionary lookup and a type check each time.
        """
        self.node_max_bytes = self._int("stream-node-max-bytes")
        self.node_max_entries = self._int("stream-node-max-entries")
        self.idmp_duration = self._int("stream-idmp-duration")
        self.idmp_maxsize = self._int("stream-idmp-maxsize")
        events = self.values["notify-keyspace-events"]
        assert isinstance(events, Flags)
        self.events = events.letters
        self.require_pass = str(self.values["requirepass"]).encode("utf-8", "surrogateescape")
        self.acl_file = str(self.values["aclfile"])
        self.acl_log_max = self._int("acllog-max-len")
        self.max_clients = self._int("maxclients")
        self.is_protected = self.values["protected-mode"] == "yes"
        limits = self.values["client-output-buffer-limit"]
        assert isinstance(limits, OutputLimits)
        self.output_limits = limits
        self.tier_cache, self.tier_readahead = self._int("tier-cache"), self._int("tier-readahead")
        self.tier_threads = self._int("tier-threads") or min(os.cpu_count() or 1, 4)
        self.tier_read_rate = self._int("tier-read-rate")
        self.tier_vacuum_rate, self.tier_scrub = self._int("tier-vacuum-rate"), self._int("tier-scrub")
        self.script_limit = self._int("busy-reply-threshold")
        slower = self._int("slowlog-log-slower-than")
        self.slow_from = NEVER if slower < 0 else min(slower * 1000, NEVER)
        self.slowlog_max = self._int("slowlog-max-len")
        self.disk_floor = self._int("disk-free-floor")
        self.rewrite_percentage = self._int("auto-aof-rewrite-percentage")
        self.rewrite_min_size = self._int("auto-aof-rewrite-min-size")
        self.backlog_size = max(self._int("repl-backlog-size"), 16 * 1024)
        self.backlog_ttl = self._int("repl-backlog-ttl")
        self.dialect = str(self.values["repl-dialect"])
        self.annotate = str(self.values["repl-annotate"])
        self.repl_timeout = self._int("repl-timeout")
        self.ping_period = self._int("repl-ping-replica-period")
        self.most_lag = self._int("min-replicas-max-lag")
        self.min_replicas = self._int("min-replicas-to-write") if self.most_lag else 0
        self.sync_replicas = self._int("sync-replicas")
        self.shutdown_timeout = self._int("shutdown-timeout")
        rules = self.values["stream-retention"]
        assert isinstance(rules, Rules)
        self.retention, self.retention_holds = rules, self.values["stream-retention-groups"] == "hold"
        self.max_memory = self._int("maxmemory")
        clients = self.values["maxmemory-clients"]
        assert isinstance(clients, Share)
        self.clients_memory = clients.of(self.max_memory)
        self.tier = self.values["tier"] == "yes"
        hot = self.values["tier-hot"]
        assert isinstance(hot, Share)
        self.tier_hot = hot_bytes(hot.number, is_percent=hot.is_percent, limit=self.max_memory)
        self.tier_after = self._int("tier-after")
        self.tier_max_bytes = self._int("tier-max-bytes")
        self.tier_stall = self._int("tier-stall-ms")

    def _int(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def texts(self) -> dict[str, str]:
        """Every parameter as CONFIG GET shows it."""
        return {name: str(self.values[name]) for name in PARAMETERS}

    def expect_files(self) -> None:
        """Raise if a parameter needs a data directory and there is none."""
        if self.tier and not self.has_files:
            raise ConfigError(f"parameter tier cannot be 'yes': {NO_DIRECTORY}")

    def has(self, name: str, value: str) -> bool:
        """True if a parameter has this value."""
        return self._is_already(PARAMETERS[name], value)

    def _is_already(self, parameter: Parameter, value: str) -> bool:
        """True if a parameter has this value already; tools write values back that they have read."""
        try:
            return parameter.parse(value) == self.values[parameter.name]
        except ValueError:
            return False

    def set(self, changes: list[tuple[str, str]]) -> None:
        """Change several parameters, all or none."""
        chosen: dict[str, tuple[str, str]] = {}
        for name, value in changes:
            parameter = PARAMETERS.get(name.lower())
            if parameter is None:
                raise CommandError(
                    f"ERR Unknown option or number of arguments for CONFIG SET - '{name.partition(chr(0))[0]}'"
                )
            if not parameter.mutable:
                if self._is_already(parameter, value):
                    continue
                raise _refused(name, "can't set immutable config")
            if parameter.name in chosen:
                raise _refused(name, "duplicate parameter")
            chosen[parameter.name] = (name, value)
        parsed: dict[str, object] = {}
        for key, (name, value) in chosen.items():
            try:
                parsed[key] = PARAMETERS[key].parse(value)
            except ValueError as reason:
                raise _refused(name, str(reason)) from None
        self._check_clients(chosen, parsed)
        if self.no_replicas and parsed.get("sync-replicas"):
            raise _refused(chosen["sync-replicas"][0], self.no_replicas)
        if parsed.get("tier") == "yes" and not self.has_files:
            raise _refused(chosen["tier"][0], NO_DIRECTORY)
        for key, found in parsed.items():
            self._put(key, found)
        self._cache()
        self.on_change()

    def _check_clients(self, chosen: dict[str, tuple[str, str]], parsed: dict[str, object]) -> None:
        """Refuse more clients than the system has descriptors for; the error gives the possible number."""
        wanted = parsed.get("maxclients")
        if isinstance(wanted, int) and (room := self.clients_possible(wanted)) < wanted:
            raise _refused(
                chosen["maxclients"][0],
                f"The operating system is not able to handle the specified number of clients, try with {room}",
            )

    def _put(self, name: str, value: object) -> None:
        """Set a value under each name of the parameter."""
        if isinstance(value, dict):  # only some classes of clients were given; the others stay as they are
            known = self.values.get(name, OutputLimits())
            assert isinstance(known, OutputLimits)
            value = replace(known, **value)
        for same in _SAME.get(name, (name,)):
            self.values[same] = value


def _refused(name: str, reason: str) -> CommandError:
    return CommandError(f"ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
