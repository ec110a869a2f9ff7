"""The keys that the sink uses on the server.

::

    millstream:{orders}:staged:<writer>:<token>   hash, in the slot of the stream orders: rows that wait for the commit

    millstream:sink:<writer>                      string, JSON: the writer's last batch, and its parts left to publish

    millstream:sink:<writer>:staged               set: the keys of staged rows that its tasks have made

A writer is a streaming query, by its id, or a batch job.
"""

PREFIX = "millstream:sink:"
_STAGED = "millstream:{"


def record(writer: str) -> str:
    """Return the key of the record of a writer's last batch."""
    return PREFIX + writer


def register(writer: str) -> str:
    """Return the key of the set of the writer's staged rows."""
    return f"{PREFIX}{writer}:staged"


def staged(stream: str, writer: str, token: str) -> str:
    """Return the key of rows on their way to a stream, in the stream's slot.

    One slot lets one transaction of a cluster's node move them into the stream.
    (A stream whose name has a ``}`` and no hash tag cannot have such a key; then the slots differ.)
    """
    _, opened, rest = stream.partition("{")
    tag, closed, _ = rest.partition("}")
    found = tag if opened and closed and tag else stream
    return f"{_STAGED}{found}}}:staged:{writer}:{token}"


def is_staged(key: bytes, writer: str) -> bool:
    """Return True if a key can be one of :func:`staged`, before a removal: others may have written the name."""
    return key.startswith(_STAGED.encode()) and f"}}:staged:{writer}:".encode() in key
