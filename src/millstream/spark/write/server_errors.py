"""The meaning of a server's error reply to a write, and its remedy, in one line."""

from collections.abc import Iterable

from millstream.client.partitions.layout import is_sealed
from millstream.errors import ConfigError, UsageError
from millstream.spark.connection.connection import ErrorReply, Reply
from millstream.spark.options.write import SinkOptions

_ONE_NODE = "option 'url' names one node of a Redis Cluster: write redis+cluster://host:port,host:port"
_CURES = {
    "OOM": "it is out of memory: raise its maxmemory, or keep fewer entries by option 'maxLen' or 'retention'",
    "MISCONF": "it cannot write to its disk: make room there, then start this again",
    "READONLY": "option 'url' names a replica: give the URL of the primary",
    "NOAUTH": "option 'url' needs a user and a password: redis://user:password@host:port/0",
    "WRONGPASS": "correct the user and password in option 'url'",
    "NOPERM": (
        "the user in option 'url' may not do this; the sink needs +ping +xadd +xtrim +xinfo +type +time +multi +exec "
        "+watch +get +set +del +hset +hmget +hdel +hlen +pexpire +persist +unlink +sadd +srem +smembers on the streams "
        "and on the keys millstream:*"
    ),
    "WRONGTYPE": (
        "option 'stream' names a key that is not a stream, or another client wrote to a key of the sink "
        "(millstream:*): name another stream, or delete that key"
    ),
    "MOVED": _ONE_NODE,
    "CROSSSLOT": _ONE_NODE,
    "NOREPLICAS": "too few of its replicas are up (min-replicas-to-write, sync-replicas): start them, then this again",
}


def refused(reason: Reply, options: SinkOptions) -> UsageError:
    """Return the error to raise for an error reply: a ``ConfigError`` if an option must be changed."""
    text = str(reason)
    cure = _CURES.get(text.split(" ", 1)[0])
    if cure is None and is_sealed(UsageError(text)):
        cure = "a stream was sealed after the batch was decided upon: unseal it, start this again, and then seal it"
    if cure is None:
        return UsageError(f"the server at {options.shown_url} refused a write: {text}")
    kind = ConfigError if cure.startswith(("option", "correct")) else UsageError
    return kind(f"the server at {options.shown_url} refused a write ({text}): {cure}")


def raise_refused(replies: Iterable[Reply], options: SinkOptions) -> None:
    """Raise for the first error among replies."""
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise refused(reply, options)


def sealed(stream: str, options: SinkOptions) -> UsageError:
    """Return the error for a target that accepts no more entries."""
    return UsageError(
        f"stream {stream!r} on {options.shown_url} is sealed, and this batch added nothing: the number of partitions "
        "was changed. Start the query again: partition(...) then chooses among the new partitions"
    )


def wrong_type(stream: str, kind: bytes, options: SinkOptions) -> ConfigError:
    """Return the error for a target that is not a stream."""
    what = f"{stream!r} on {options.shown_url} is a {kind.decode()} and no stream"
    return ConfigError(f"option 'stream': {what}: name another key, or delete that one")
