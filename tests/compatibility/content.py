"""The recorded content of a fixture: the commands that create it, and those whose replies must stay the same.

A later version must read the data as the recording version did. So the recorder keeps the replies, and the test sends
the same commands to the present server. Replies hold no age: idle times and remaining times grow.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Word = bytes | str | int
Words = tuple[Word, ...]

BEGIN_MS = 1_780_000_000_000
"""Wall time at the start of each recording, in milliseconds."""

FAR_MS = 4_102_444_800_000
"""Expiry time in 2100, for all that expires in the fixture."""

STREAM = "orders"
COPY = "orders:copy"
ENTRIES = 60


MESSAGE_ID = f"{BEGIN_MS}-0".encode()
"""Id of the entry that stream ``small`` has recorded as a message of its producer."""


def entry_id(number: int) -> str:
    """Return the id of an entry of the fixture's streams."""
    return f"{BEGIN_MS + number}-0"


def entry(number: int) -> Words:
    """Return the fields of an entry; some have other names, binary values, or a name twice."""
    fields: Words = ("item", ("tea", "rice", "salt")[number % 3], "qty", number)
    if number % 7 == 0:
        fields += ("note", b"\xff\r\n\x00", "note", "again")
    return fields


def first_commands() -> Iterator[Words]:
    """Yield the commands before the snapshot and the backup."""
    for number in range(1, ENTRIES + 1):
        yield ("XADD", STREAM, entry_id(number), *entry(number))
    yield ("XGROUP", "CREATE", STREAM, "billing", 0)
    yield ("XGROUP", "CREATE", STREAM, "mailing", entry_id(50), "ENTRIESREAD", 50)
    yield ("XGROUP", "CREATECONSUMER", STREAM, "billing", "idle")
    yield ("XREADGROUP", "GROUP", "billing", "alice", "COUNT", 20, "STREAMS", STREAM, ">")
    yield ("XACK", STREAM, "billing", *map(entry_id, range(1, 11)))
    yield ("XREADGROUP", "GROUP", "billing", b"b\xf6b", "COUNT", 10, "STREAMS", STREAM, ">")
    yield ("XCLAIM", STREAM, "billing", "alice", 0, entry_id(25), "TIME", BEGIN_MS, "RETRYCOUNT", 7, "FORCE")
    yield ("XNACK", STREAM, "billing", "FAIL", "IDS", 2, entry_id(11), entry_id(12))
    yield ("XDEL", STREAM, entry_id(3), entry_id(30), entry_id(60))
    yield ("XADD", "small", "MAXLEN", "~", 100, "1-1", "a", "")
    yield ("XSETID", "small", "9-9", "ENTRIESADDED", 12, "MAXDELETEDID", "3-3")
    yield ("XADD", "small", "IDMP", "producer", "message", "*", "a", "b")
    yield ("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")
    yield ("SET", "text", b"\x00value\xff")
    yield ("SET", "number", 42)
    yield ("SET", "dies", "late", "PXAT", FAR_MS)
    yield ("HSET", "hash", "a", 1, b"\xff", "two", "long", "x" * 200)
    yield ("RPUSH", "list", *range(20), b"\xff")
    yield ("SADD", "numbers", *range(30))
    yield ("SADD", "set", "a", b"\xff", 3)
    yield ("ZADD", "sorted", 1, "a", "1.5", "b", "-inf", "low", "+inf", b"\xff")
    yield ("SETBIT", "bits", 77, 1)
    yield ("SELECT", 3)
    yield ("XADD", "other", "5-5", "database", "three")
    yield ("SELECT", 0)


def later_commands() -> Iterator[Words]:
    """Yield the commands after the snapshot and the backup, which a log holds as records of changes."""
    yield ("MULTI",)
    yield ("XADD", "small", "*", "in", "a transaction")
    yield ("HSET", "hash", "later", 1)
    yield ("EXEC",)
    yield ("XACK", STREAM, "billing", entry_id(13))
    yield ("XREADGROUP", "GROUP", "mailing", "carol", "COUNT", 5, "STREAMS", STREAM, ">")
    yield ("XTRIM", STREAM, "MINID", entry_id(6))
    yield ("INCR", "number")
    yield ("ZADD", "sorted", "2.5", "a")
    yield ("LPOP", "list", 2)
    yield ("RENAME", "text", "renamed")
    yield ("COPY", "set", "copied")
    yield ("PEXPIREAT", "copied", FAR_MS + 1)
    yield ("DEL", "bits")


def run(wire: Wire, commands: Iterator[Words]) -> None:
    """Send commands and raise an error for an error reply."""
    for words, reply in ((words, wire.ask(*words)) for words in list(commands)):
        assert not isinstance(reply, Exception), f"{words}: {reply}"


def copying(spark: "SparkSession", url: str, checkpoint: Path | str) -> "StreamingQuery":
    """Run a query that copies the fixture's stream to ``orders:copy`` in batches of 25."""
    frame = (
        spark.readStream.format("millstream").option("url", url).option("stream", STREAM)
        .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", "25").load()
    )  # fmt: skip
    return (
        frame.select("fields", frame.id.alias("origin"))
        .selectExpr("origin", "fields['qty'] as qty")
        .writeStream.format("millstream").queryName("copy").option("url", url).option("stream", COPY)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip


_OF_TYPE: dict[bytes, tuple[Words, ...]] = {
    b"stream": (("XRANGE", "", "-", "+"), ("XINFO", "STREAM", "", "FULL", "COUNT", 0)),
    b"string": (("GET", ""),),
    b"hash": (("HGETALL", ""),),
    b"list": (("LRANGE", "", 0, -1),),
    b"set": (("SMEMBERS", ""),),
    b"zset": (("ZRANGE", "", 0, -1, "WITHSCORES"),),
}


def content(wire: Wire) -> dict[str, Any]:
    """Return all databases as a server shows them, in JSON values."""
    found: dict[str, Any] = {}
    for database in range(16):
        wire.ask("SELECT", database)
        for key in sorted(wire.ask("KEYS", "*")):
            kind = wire.ask("TYPE", key)
            replies = [wire.ask("PEXPIRETIME", key)]
            for words in _OF_TYPE[kind.encode() if isinstance(kind, str) else kind]:
                reply = wire.ask(*(key if word == "" else word for word in words))
                replies.append(sorted(reply) if words[0] == "SMEMBERS" else reply)
            found[f"{database}:{plain(key)}"] = plain(replies)
    wire.ask("SELECT", 0)
    return found


_NODES = ("radix-tree-keys", "radix-tree-nodes")
"""Figures about memory, which may change with a version."""


def plain(value: Any) -> Any:
    """Convert a reply to JSON values: a byte becomes a character, and figures about memory are left out."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        parts = [plain(part) for part in value]
        for name in _NODES:
            if name in parts[::2]:
                at = parts.index(name)
                del parts[at : at + 2]
        return parts
    return value
