"""The keys that the sink uses in the server.

::

    millstream:{orders}:staged:<writer>:<token>   hash, in the slot of the stream orders: rows that wait for the commit

    millstream:sink:<writer>                      string, JSON: the writer's last batch, and what is left to do of it

    millstream:sink:<writer>:staged               set: the keys of the first kind that its tasks have made

A writer is a streaming query, by its id, or a batch job.
"""

PREFIX = "millstream:sink:"
_STAGED = "millstream:{"


def record(writer: str) -> str:
    """Key of the record of a writer's last batch."""
    return PREFIX + writer


def register(writer: str) -> str:
    """Key of the set of the writer's staged rows."""
    return f"{PREFIX}{writer}:staged"


def staged(stream: str, writer: str, token: str) -> str:
    """Key of rows on their way to a stream, in the stream's slot.

    In one slot, so that one transaction of a cluster's node moves them into the stream.
    (A stream whose name has a ``}`` and no tag of its own cannot have a neighbour; then the slots differ.)
    """
    _, opened, rest = stream.partition("{")
    tag, closed, _ = rest.partition("}")
    found = tag if opened and closed and tag else stream
    return f"{_STAGED}{found}}}:staged:{writer}:{token}"


def is_staged(key: bytes, writer: str) -> bool:
    """True if a key can be one of :func:`staged`: asked before a removal, since others may have written the name."""
    return key.startswith(_STAGED.encode()) and f"}}:staged:{writer}:".encode() in key
