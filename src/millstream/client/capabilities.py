"""The abilities of a server, found by trying them, never by its version: Valkey reports 7.2.4, Dragonfly 7.4.0.

Commands are looked up with COMMAND INFO. Options are tried on a key that does not exist, in a form that changes
nothing. A server with the option refuses because of the missing group, one without it because of the syntax.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from redis.exceptions import ResponseError

from millstream.client.line import Command, Line, Reply, passes
from millstream.client.slots import beside

if TYPE_CHECKING:
    import redis

#: Key to use if a caller has no stream.
NOWHERE = "millstream"


def probes(near: str = NOWHERE) -> tuple[Command, ...]:
    """Return the commands to send in this order; :func:`capabilities_of` reads the replies. None creates a key."""
    key = beside(near, "probe", "no-such-key")
    return (
        ("COMMAND", "INFO", "XNACK", "XACKDEL", "XDELEX"),
        ("XREADGROUP", "GROUP", "g", "c", "CLAIM", "0", "STREAMS", key, ">"),
        ("XADD", key, "NOMKSTREAM", "IDMPAUTO", "p", "*", "f", "v"),
    )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The newer stream commands and options that a server has."""

    xnack: bool = False  # XNACK (Redis 8.8): give an entry back, with or without charging the delivery
    xackdel: bool = False  # XACKDEL (Redis 8.2)
    xdelex: bool = False  # XDELEX (Redis 8.2)
    claim: bool = False  # XREADGROUP ... CLAIM (Redis 8.4): one command reads new entries and claims stale ones.
    idmp: bool = False  # XADD ... IDMP (Redis 8.6): the server drops a repeated publish.
    # Capabilities that cannot be determined now, because the server refuses writes; they count as absent
    unknown: frozenset[str] = frozenset()


def capabilities_of(replies: Sequence[Reply]) -> Capabilities:
    """Return the capabilities that the replies to :func:`probes` show.

    A reply that proves nothing (no permission for COMMAND, for example) counts as absent: the older way works
    everywhere.
    """
    info, claim, idmp = replies
    rows = info if isinstance(info, list) and len(info) == 3 else [None, None, None]
    xnack, xackdel, xdelex = (bool(row) for row in rows)
    return Capabilities(
        xnack=xnack,
        xackdel=xackdel,
        xdelex=xdelex,
        claim=isinstance(claim, Exception) and str(claim).startswith("NOGROUP"),
        idmp=idmp is None,
        unknown=frozenset(name for name, reply in (("claim", claim), ("idmp", idmp)) if _passes(reply)),
    )


def _passes(reply: Reply) -> bool:
    return isinstance(reply, Exception) and passes(reply)


async def find(line: Line, near: str = NOWHERE, limit: float | None = None) -> Capabilities:
    """Query the server at the other end of ``line``, in one round trip; on a cluster, the node of the key ``near``."""
    return capabilities_of(await line.near(near).calls(probes(near), timeout=limit))


_known: WeakKeyDictionary[Any, Capabilities] = WeakKeyDictionary()


def find_sync(client: "redis.Redis") -> Capabilities:
    """Query the server of a blocking client; complete results are cached for its connection pool."""
    pool = client.connection_pool
    if pool in _known:
        return _known[pool]
    connection = pool.get_connection()
    try:
        found = capabilities_of([_ask(connection, command) for command in probes()])
    finally:
        pool.release(connection)
    if not found.unknown:
        _known[pool] = found
    return found


def _ask(connection: Any, command: Command) -> Reply:
    connection.send_command(*command)
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as refused:
        return refused
