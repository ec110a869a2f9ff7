"""Keys as plain text: what clients can see of them, and the commands that make them again on any server."""

import json
import lzma
import time
from pathlib import Path
from typing import Any

import redis

TEXT = {"decode_responses": True, "encoding": "utf-8", "encoding_errors": "surrogateescape", "protocol": 2}
"""Options of a client whose replies can be written as JSON, whatever bytes are in them."""


def shown(client: redis.Redis) -> dict[str, Any]:
    """Everything in the client's database that commands show, idle times left out (they pass)."""
    found: dict[str, Any] = {}
    for key in sorted(client.keys("*")):
        kind = client.type(key)
        if kind == "none":  # its time to live ended since
            continue
        found[key] = {"type": kind, "expires_ms": client.pexpiretime(key), "value": _value(client, key, kind)}
    return json.loads(json.dumps(found))  # tuples as lists, as in a fixture


def _value(client: redis.Redis, key: str, kind: str) -> Any:
    if kind == "string":
        return client.get(key)
    if kind == "hash":
        return dict(sorted(client.hgetall(key).items()))
    if kind == "set":
        return sorted(client.smembers(key))
    if kind == "zset":
        return client.zrange(key, 0, -1, withscores=True)
    if kind == "list":
        return client.lrange(key, 0, -1)
    return stream_shown(client, key)


def _named(flat: list[Any]) -> dict[str, Any]:
    """Names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def stream_shown(client: redis.Redis, key: str) -> dict[str, Any]:
    """All of a stream, without what depends on the server's make."""
    reply: Any = client.execute_command("XINFO", "STREAM", key, "FULL", "COUNT", 0)
    found = {name: value for name, value in _named(reply).items() if not name.startswith("radix-tree-")}
    found["groups"] = [_named(group) for group in found["groups"]]
    for group in found["groups"]:
        group["consumers"] = [_named(who) for who in group["consumers"]]
    return found


def kept(client: redis.Redis) -> dict[str, Any]:
    """Every key as the commands that make it, with milliseconds to live and of idleness, at one moment."""
    now = _now(client)
    keys = [
        {"key": key, "lives_ms": client.pttl(key), "commands": _commands(client, key, now)}
        for key in sorted(client.keys("*"))
    ]
    return {"keys": keys}


def _now(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _commands(client: redis.Redis, key: str, now: int) -> list[list[Any]]:
    kind = client.type(key)
    value = _value(client, key, kind)
    if kind == "string":
        return [["SET", key, value]]
    if kind == "hash":
        return [["HSET", key, *(word for pair in value.items() for word in pair)]]
    if kind == "set":
        return [["SADD", key, *value]]
    if kind == "list":
        return [["RPUSH", key, *value]]
    if kind == "zset":
        return [["ZADD", key, *(word for member, score in value for word in (score, member))]]
    made: list[list[Any]] = [["XADD", key, ident, *fields] for ident, fields in value["entries"]]
    if not made:
        made = [["XADD", key, "0-1", "x", "x"], ["XDEL", key, "0-1"]]
    last, deleted = value["last-generated-id"], value["max-deleted-entry-id"]
    made.append(["XSETID", key, last, "ENTRIESADDED", value["entries-added"], "MAXDELETEDID", deleted])
    for group in value["groups"]:
        read = [] if group["entries-read"] is None else ["ENTRIESREAD", group["entries-read"]]
        made.append(["XGROUP", "CREATE", key, group["name"], group["last-delivered-id"], *read])
        made += [["XGROUP", "CREATECONSUMER", key, group["name"], who["name"]] for who in group["consumers"]]
        for ident, owner, at, count in group["pending"]:
            how = ["IDLE", max(now - at, 0), "RETRYCOUNT", count, "FORCE", "JUSTID"]
            made.append(["XCLAIM", key, group["name"], owner, 0, ident, *how])
    return made


def put(client: redis.Redis, found: dict[str, Any]) -> None:
    """Make the keys again, with as long to live as they had."""
    with client.pipeline(transaction=False) as pipe:
        for each in found["keys"]:
            pipe.delete(each["key"])
            for words in each["commands"]:
                pipe.execute_command(*words)
            if each["lives_ms"] > 0:
                pipe.pexpire(each["key"], each["lives_ms"])
        pipe.execute()


def write(path: Path, value: Any) -> None:
    """A fixture: JSON, by its name plain or compressed."""
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    path.write_bytes(lzma.compress(text.encode(), preset=9) if path.suffix == ".xz" else text.encode())


def read(path: Path) -> Any:
    """What :func:`write` wrote."""
    raw = path.read_bytes()
    return json.loads(lzma.decompress(raw) if path.suffix == ".xz" else raw)


def shape(value: Any, at: str = "") -> set[str]:
    """The names in a JSON value, as paths: ``letters[].error``."""
    if isinstance(value, dict):
        return {place for name, each in value.items() for place in {f"{at}.{name}", *shape(each, f"{at}.{name}")}}
    if isinstance(value, list):
        return {place for each in value for place in shape(each, f"{at}[]")}
    return set()


def now_ms() -> int:
    """Wall milliseconds."""
    return time.time_ns() // 1_000_000
