"""The commands that replicas send, and REPLICAOF, FAILOVER and ROLE.

PSYNC (SYNC in old Redis) turns a connection into a replica's. From then on it gets the stream, and replies to nothing
but REPLCONF ACK. The shell sends the copy before the stream.

Sources: https://redis.io/docs/latest/commands/psync/, sync/, replconf/, role/
"""

import re

from millstream.commands.context.context import LEADS_ALREADY, Context
from millstream.commands.table.args import SYNTAX, keyword, read_integer
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.node.host import NodeHost
from millstream.printable import printable
from millstream.replication.handshake import HAVE_PACKS, READS_LOG, READS_PACKS
from millstream.replies import OK, Many, Reply, Simple

log = logger("millstream.server")

_LARGEST_PORT = 65535
# Other characters would end a field or a line in INFO
_ADDRESS = re.compile(rb"[!-+\--<>-~]{0,255}")


@SERVER.command("psync", -3, "admin noscript no_async_loading no_multi", acl="admin dangerous")
def psync(ctx: Context, argv: list[bytes]) -> Reply:
    """CONTINUE and the missing bytes, or FULLRESYNC and a copy of all data; then the stream.

    With FAILOVER, it comes from this replica's primary, and makes this replica the new primary.
    """
    offset, replid = read_integer(argv[2]), argv[1].decode("utf-8", "replace")
    if offset is None:
        raise CommandError("ERR value is not an integer or out of range")
    if len(argv) > 3:
        if keyword(argv[3]) != b"FAILOVER":
            raise SYNTAX
        _lead(ctx, replid)
    return NodeHost.of(ctx).replication.sync(ctx.session, replid, offset, ctx.now)


def _lead(ctx: Context, replid: str) -> None:
    """Become the primary at the request of this replica's primary."""
    following = NodeHost.of(ctx).following
    if not following.is_replica:
        raise CommandError(LEADS_ALREADY)
    if NodeHost.of(ctx).failover.is_under_way:  # this server itself may send it, from an address of its own
        raise CommandError("ERR PSYNC FAILOVER not allowed while failing over.")
    if replid.lower() != ctx.host.keyspace.history.replid:
        raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
    _take_the_lead(ctx, "PSYNC FAILOVER, its primary hands over")


def _take_the_lead(ctx: Context, why: str) -> None:
    """Make a replica a primary, and log the reason; do nothing on a primary."""
    was_replica = ctx.host.is_replica
    NodeHost.of(ctx).following.lead(ctx.now)
    if was_replica:
        log.info(
            "%s: this server is a primary from offset %d on (by %s)",
            why,
            NodeHost.of(ctx).replication.offset,
            _who(ctx),
        )


def _who(ctx: Context) -> str:
    """The client's user and address, for the log."""
    user = (ctx.session.user or b"").decode("utf-8", "surrogateescape")
    return printable(f"{user} at {ctx.session.addr}").replace("\n", " ")


@SERVER.command("sync", 1, "admin noscript no_async_loading no_multi", acl="admin dangerous")
def sync(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """A copy of all data, then the stream; such a replica never reports its offset."""
    return NodeHost.of(ctx).replication.sync(ctx.session, "?", -1, ctx.now, is_old=True)


@SERVER.command("replconf", -1, "admin noscript loading stale", acl="admin dangerous")
def replconf(ctx: Context, argv: list[bytes]) -> Reply:
    """OK for known options and for capabilities that have no effect here. ACK has no reply."""
    if len(argv) > 1 and keyword(argv[1]).lower() == HAVE_PACKS:
        NodeHost.of(ctx).replication.note_packs(ctx.session, argv[2:])
        return OK
    if not len(argv) & 1:
        raise SYNTAX
    for at in range(1, len(argv), 2):
        name, value = keyword(argv[at]).lower(), argv[at + 1]
        if name == b"ack":
            return _acknowledge(ctx, argv[at:])
        if name == b"getack":  # a primary sends it to its replica
            return Many([])
        _announce(ctx, name, value)
    return OK


def _announce(ctx: Context, name: bytes, value: bytes) -> None:
    known = NodeHost.of(ctx).replication.announced(ctx.session)
    if name == b"listening-port":
        port = read_integer(value)
        if port is None:
            raise CommandError("ERR value is not an integer or out of range")
        if not 0 <= port <= _LARGEST_PORT:
            raise CommandError("ERR REPLCONF listening-port is not a port")
        known.port = port
    elif name == b"ip-address":
        if not _ADDRESS.fullmatch(value):
            raise CommandError("ERR REPLCONF ip-address is not an address")
        known.ip = value.decode("utf-8", "replace")
    elif name == b"rdb-only":
        known.copy_only = value == b"1"
    elif name == b"rdb-filter-only":
        known.keyless = True  # it filters data other than keys, and there are none here
    elif name == b"capa":
        known.is_ours = known.is_ours or value == b"millstream"
        known.reads_log = known.reads_log or value == READS_LOG
        known.reads_packs = known.reads_packs or value == READS_PACKS
    elif name not in {b"version", b"rdb-no-compress", b"rdb-no-checksum"}:
        raise CommandError(f"ERR Unrecognized REPLCONF option: {name.decode('utf-8', 'surrogateescape')}")


def _acknowledge(ctx: Context, words: list[bytes]) -> Reply:
    """``ACK offset [FACK offset]``; an argument that is not a number is skipped, as in Redis."""
    offset = read_integer(words[1])
    durable = read_integer(words[3]) if len(words) > 3 and keyword(words[2]) == b"FACK" else None
    if ctx.session.is_replica and offset is not None:
        NodeHost.of(ctx).replication.acknowledge(ctx.session, offset, durable, ctx.now)
    return Many([])


@SERVER.command("replicaof", 3, "admin noscript stale no_async_loading", acl="admin dangerous")
def replicaof(ctx: Context, argv: list[bytes]) -> Reply:
    """OK; another server's data will replace this server's. With NO ONE the data stay, and the server takes writes.

    The data are replaced once the other server's data have arrived completely and were read without an error. Until
    then, and without a link, the present data are shown (``replica-serve-stale-data``).
    """
    return _follow(ctx, argv)


@SERVER.command("slaveof", 3, "admin noscript stale no_async_loading", acl="admin dangerous")
def slaveof(ctx: Context, argv: list[bytes]) -> Reply:
    """The old name of REPLICAOF."""
    return _follow(ctx, argv)


def _follow(ctx: Context, argv: list[bytes]) -> Reply:
    following = NodeHost.of(ctx).following
    if NodeHost.of(ctx).failover.is_under_way:
        raise CommandError("ERR REPLICAOF not allowed while failing over.")
    if keyword(argv[1]) == b"NO" and keyword(argv[2]) == b"ONE":
        _take_the_lead(ctx, "REPLICAOF NO ONE")
        return OK
    if ctx.session.is_replica:
        raise CommandError("ERR Command is not valid when client is a replica.")
    port = read_integer(argv[2])
    if port is None or not 0 <= port <= _LARGEST_PORT:
        raise CommandError("ERR Invalid master port")
    if not argv[1] or not _ADDRESS.fullmatch(argv[1]):
        raise CommandError("ERR Invalid master host")
    if ctx.dirty:  # a transaction has changed data that would be neither logged nor sent to replicas
        raise CommandError("ERR REPLICAOF is not allowed after changes in the same transaction.")
    host = argv[1].decode("ascii")
    if following.follow(host, port, ctx.now):
        log.info("REPLICAOF: this server follows %s:%d from here on (by %s)", host, port, _who(ctx))
        return OK
    return Simple(b"OK Already connected to specified master")


@SERVER.command("failover", -1, "admin noscript stale", acl="admin dangerous")
def failover(ctx: Context, argv: list[bytes]) -> Reply:
    """OK; writers then wait until a replica has all data and becomes the primary, which this server follows.

    INFO shows the progress (``master_failover_state``). ABORT keeps the role. So does TIMEOUT when it is over; with
    FORCE the named replica becomes the primary even if it lacks data.
    """
    wanted = _Wanted()
    at = 1
    while at < len(argv):
        at = wanted.take(argv, at)
    if wanted.aborts:
        if len(argv) > 2:
            raise SYNTAX
        NodeHost.of(ctx).failover.abort(ctx.now)
        log.info("FAILOVER ABORT (by %s)", _who(ctx))
    else:
        NodeHost.of(ctx).failover.begin(wanted.target, wanted.timeout, ctx.now, by_force=wanted.by_force)
        place = "a replica" if wanted.target is None else printable(":".join(map(str, wanted.target)))
        log.info("FAILOVER: writers wait until %s has caught up (by %s)", place, _who(ctx))
    return OK


class _Wanted:
    """The arguments of FAILOVER."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.timeout: int | None = None
        self.by_force = self.aborts = False

    def take(self, argv: list[bytes], at: int) -> int:
        """Read one option; return the position of the next one."""
        match keyword(argv[at]):
            case b"TIMEOUT" if self.timeout is None and at + 1 < len(argv):
                self.timeout = read_integer(argv[at + 1])
                if self.timeout is None:
                    raise CommandError("ERR value is not an integer or out of range")
                if self.timeout <= 0:
                    raise CommandError("ERR FAILOVER timeout must be greater than 0")
                return at + 2
            case b"ABORT" if not self.aborts:
                self.aborts = True
                return at + 1
            case b"TO" if self.target is None and at + 2 < len(argv):
                port = read_integer(argv[at + 2])
                if port is None:
                    raise CommandError("ERR value is not an integer or out of range")
                self.target = (argv[at + 1].decode("utf-8", "surrogateescape"), port)
                return at + 3
            case b"FORCE" if not self.by_force and self.target is not None:
                self.by_force = True
                return at + 1
        raise SYNTAX


@SERVER.command("role", 1, "noscript loading stale fast", acl="admin dangerous")
def role(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """``master``, the offset of its stream, and the address, port and offset of each replica.

    A replica replies ``slave``, its primary's host and port, the state of the link, and its offset, -1 if there is
    none.
    """
    followed = NodeHost.of(ctx).following.role()
    if followed is not None:
        return followed
    replication = NodeHost.of(ctx).replication
    return [b"master", replication.offset, replication.rows()]
