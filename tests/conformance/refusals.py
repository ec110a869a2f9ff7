"""Commands that are sent without free memory, and their replies as recorded from Redis 8.0.2.

A Redis of October 2024 (4f8cdc2a1) gives the same.

    python -m conformance.refusals SERVER

records them again from another redis-server, in ``refusals.json``. Each place begins with :data:`READY`.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.servers import redis_server
from support.wire import Wire

OOM = "OOM command not allowed when used memory > 'maxmemory'."
FULL, FREE = "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"
PLACES: dict[str, tuple[str, ...]] = {
    "errors come first": ("SET", "SET a", "XADD s", "NOSUCH", "XGROUP NOSUCH"),
    "before the arguments": ("SET a b NX EX 1 nonsense", "XADD k * f v", "XADD s 0-0 f v", "RESTORE k x y"),
    "in a transaction": (
        *("MULTI", "PING", "GET k", "XADD s * f v", "EXEC"),
        *("MULTI", "DISCARD", "MULTI", "EXEC", "MULTI", "DEL k", "XLEN s", "EXEC"),
    ),
    "in a transaction, as bytes": ("MULTI", "SET a 1", "SET a 2", "DISCARD"),
    "queued before": ("other MULTI", "other XADD s * f v", "other GET k", FULL, "other EXEC", "XLEN s"),
    "queued before, and nothing adds": ("other MULTI", "other GET k", "other DEL k", FULL, "other EXEC"),
    "a script queued before": ("other MULTI", "other DEL k", "other EVAL $set 0", FULL, "other EXEC", "EXISTS x"),
    "a flagged script queued before": ("other MULTI", "other EVAL $flags 0", FULL, "other EXEC", "EXISTS x"),
    "a flagged script is not queued": ("MULTI", "EVAL $flags 0", "EVAL $allowed 0", "EXEC"),
    "scripts": (
        *("EVAL $set 0", "EVAL $pcall 0", "EVAL $after 0", "EVAL $reads 0", "EVAL $flags 0", "EVAL $allowed 0"),
        *("EVAL $read_only 0", "EVAL_RO $reads 0", "EVAL $read_only_allowed 0", "EVAL_RO $flags 0", "EVAL $wrong 0"),
        *("SCRIPT LOAD $set", "EVALSHA 8b2ae6dd76cda7fc3e27f97431ae27d7b08a221d 0", "EVAL $stream 0", "EVAL $acked 0"),
    ),
    "rights come first": (
        "ACL SETUSER u on nopass ~a* &* +@all -set",
        *("other AUTH u x", "other SET b 1", "other APPEND a 1", "other AUTH default x"),
    ),
    "before subscriptions": ("other SUBSCRIBE c", "other SET a 1", "other GET a", "other UNSUBSCRIBE c"),
    "before the count of replicas": (
        *("CONFIG SET min-replicas-to-write 3", "SET a 1", "DEL a", "CONFIG SET min-replicas-to-write 0"),
    ),
    "not on a replica": ("REPLICAOF 127.0.0.1 1", "SET a 1", "REPLICAOF NO ONE", "SET a 1"),
    "it is over": ("SET a 1", FREE, "SET a 1", FULL, "SET a 1", "CONFIG SET maxmemory 100gb", "SET a 1"),
    "reads and deletions": (
        *("XLEN s", "XREADGROUP GROUP g c STREAMS s >", "XACK s g 1-1", "XCLAIM s g c 0 1-1", "XDEL s 1-1"),
        *(
            "XTRIM s MAXLEN 0",
            "XGROUP CREATE s h 0",
            "XGROUP CREATECONSUMER s g d",
            "XGROUP SETID s g 0",
            "EXPIRE s 100",
        ),
        *("XGROUP DESTROY s g", "RENAME s t", "COPY t s", "XSETID t 5-5", "MOVE t 1", "PUBLISH c x", "DEL k"),
    ),
}
SCRIPTS = {
    "$set": "return redis.call('set','x','1')",
    "$pcall": "return redis.pcall('set','x','1')",
    "$after": "redis.call('del','nosuch') return redis.call('set','x','1')",
    "$acked": "redis.call('xack','s','nosuch','1-1') return #redis.call('xadd','s','*','f','v') > 0",
    "$stream": "return #redis.call('xadd','s','*','f','v')",
    "$reads": "return redis.call('get','x')",
    "$flags": "#!lua\nreturn redis.call('set','x','1')",
    "$allowed": "#!lua flags=allow-oom\nreturn redis.call('set','y','1')",
    "$read_only": "#!lua flags=no-writes\nreturn redis.call('get','x')",
    "$read_only_allowed": "#!lua flags=no-writes,allow-oom\nreturn redis.call('set','x','1')",
    "$wrong": "#!lua flags=nosuch\nreturn 1",
}
READY = ("XADD s 1-1 f v", "XADD s 1-2 f v", "XGROUP CREATE s g 0", "SET k v")
OVER = (FREE, "CONFIG RESETSTAT", "SCRIPT FLUSH", "ACL DELUSER u", "FLUSHALL")
"""Commands that undo what a place has changed."""
RECORDED = Path(__file__).with_name("refusals.json")


class Both:
    """Two connections to one server."""

    def __init__(self, url: str) -> None:
        self.one, self.other = Wire(url), Wire(url)

    def ask(self, line: str) -> Any:
        """Send one line, by the second connection if it begins with ``other``."""
        wire = self.other if line.startswith("other ") else self.one
        reply = wire.ask(*(SCRIPTS.get(word, word) for word in line.removeprefix("other ").split(" ")))
        return f"{type(reply).__name__} {reply}"

    def close(self) -> None:
        """End the connections."""
        for wire in (self.one, self.other):
            wire.socket.close()


def lines_of(place: str) -> tuple[str, ...]:
    """Return the commands of a place, of which one takes the memory away."""
    lines = PLACES[place]
    return lines if FULL in lines[:5] else (FULL, *lines)


def replies(both: Both, place: str) -> Iterator[tuple[str, str]]:
    """Run the commands of a place, and yield each with its reply."""
    for line in READY:
        both.ask(line)
    for line in lines_of(place):
        yield line, both.ask(line)
    for line in OVER:
        both.ask(line)


def main() -> None:
    """Record all places."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder), path=sys.argv[1]) as server:
        for place in PLACES:
            both = Both(server.url)
            found[place] = list(replies(both, place))
            both.close()
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
