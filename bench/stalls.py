"""Delay of other clients by one client's command: commands that an attacker would try, the worst first.

    python bench/stalls.py [--only WORD] [--seconds 40] [--program FILE]

For each case a separate server (``--memory``) is prepared; then a second process sends PING repeatedly while the
command runs. The measure is the processor time of the server's main thread between two replies: on an idle machine
that is the PING's delay, and on a busy one other work is not counted (Linux). A case that takes longer than
``--seconds`` is ended. ``--program`` names another ``millstream`` for a comparison.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import hiredis
import redis

Words = tuple[bytes | str | int, ...]
MANY = 100_000
WORDS = [b"w%d" % number for number in range(1_000_000)]


@dataclass
class Case:
    """One case.

    Attributes:
        name: Name of the case.
        command: Bytes to send.
        before: Function that yields the commands of the preparation, whose replies are awaited.
        options: More arguments for ``millstream serve``.
    """

    name: str
    command: Callable[[], bytes]
    before: Callable[[], Iterator[Words]] = field(default=lambda: iter(()))
    options: tuple[str, ...] = ()


def pack(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    return hiredis.pack_command(words)


def pairs(count: int) -> list[bytes]:
    """Return the words of so many pairs."""
    return WORDS[: 2 * count]


def pieces(*head: str, count: int, size: int = 1000) -> Iterator[Words]:
    """Yield commands that add so many words to one key, some at a time."""
    for at in range(0, count, size):
        yield (*head, *WORDS[at : at + size])


def keys(count: int) -> Iterator[Words]:
    """Yield commands that create so many keys."""
    for at in range(0, count, 1000):
        yield ("MSET", *WORDS[at : at + 1000])


def entries(count: int) -> Iterator[Words]:
    """Yield commands for a stream of so many entries."""
    source = "for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'f', i) end"
    for _ in range(0, count, 5000):
        yield ("EVAL", source, 1, "s", 5000)


def pending(count: int) -> Iterator[Words]:
    """Yield commands for a stream of so many entries, all pending."""
    yield from entries(count)
    yield ("XGROUP", "CREATE", "s", "g", "0")
    for _ in range(0, count, 5000):
        yield ("XREADGROUP", "GROUP", "g", "c", "COUNT", 5000, "STREAMS", "s", ">")


def grouped(count: int) -> Iterator[Words]:
    """Yield commands for a stream of so many entries, and a group that has read none."""
    yield from entries(count)
    yield ("XGROUP", "CREATE", "s", "g", "0")


def scored(numbers: range) -> list[bytes]:
    """Return scores and members."""
    return [word for number in numbers for word in (b"%d" % number, b"m%d" % number)]


def ranked(count: int) -> Iterator[Words]:
    """Yield commands for a sorted set of so many members."""
    for at in range(0, count, 1000):
        yield ("ZADD", "z", *scored(range(at, at + 1000)))


def numbers(count: int) -> Iterator[Words]:
    """Yield commands for a set of so many numbers."""
    for at in range(0, count, 1000):
        yield ("SADD", "k", *range(at, at + 1000))


def dying(count: int) -> Iterator[Words]:
    """Yield commands for so many keys that expire soon, at about the same time."""
    source = "for i = 1, 1000 do redis.call('SET', ARGV[1] .. i, '', 'PX', 1500) end"
    for at in range(0, count, 1000):
        yield ("EVAL", source, 0, f"k{at}-")


def single(*words: bytes | str | int) -> Callable[[], Iterator[Words]]:
    """Return a preparation of one command."""
    return lambda: iter([words])


def users(count: int) -> Iterator[Words]:
    """Yield commands that create so many users."""
    for number in range(count):
        yield ("ACL", "SETUSER", f"u{number}", "on", "+@read", "-get")


def ids(count: int) -> list[bytes]:
    """Return so many ids of entries."""
    return [b"%d-1" % number for number in range(1, count + 1)]


PATTERNS = [b"*%d*" % number for number in range(MANY)]
RULES = [b"~" + pattern for pattern in PATTERNS]


def restored(payload: bytes) -> bytes:
    """Encode RESTORE of a payload as from Redis, with a wrong checksum."""
    return pack("RESTORE", "k", 0, payload + b"\x0a\x00" + b"checksum")


MIB = 1 << 20
CASES = [
    # patterns
    Case("KEYS of 30,000 [^]", lambda: pack("KEYS", "[^]" * 30_000), lambda: keys(1000)),
    Case("KEYS of 500,000 *a", lambda: pack("KEYS", "*a" * 500_000), single("SET", "a" * 10_000, 1)),
    Case(
        "PUBLISH to a pattern of 500,000 *a",
        lambda: pack("PSUBSCRIBE", "*a" * 500_000) + pack("PING") + pack("UNSUBSCRIBE") + pack("PUNSUBSCRIBE"),
    ),
    Case("SCAN MATCH of 100,000 ?*", lambda: pack("SCAN", 0, "COUNT", MANY, "MATCH", "?*" * MANY), lambda: keys(MANY)),
    Case("CONFIG GET of 100,000 patterns", lambda: pack("CONFIG", "GET", *PATTERNS)),
    Case("CONFIG GET of one pattern of 10,000 *a", lambda: pack("CONFIG", "GET", "*a" * 10_000)),
    Case("PSUBSCRIBE of 100,000 patterns", lambda: pack("PSUBSCRIBE", *WORDS[:MANY])),
    Case(
        "PUBLISH past 100,000 patterns",
        lambda: pack("PSUBSCRIBE", *PATTERNS) + pack("RESET") + pack("PUBLISH", "c", "m"),
    ),
    # pending lists
    Case(
        "XAUTOCLAIM past 100,000",
        lambda: pack("XAUTOCLAIM", "s", "g", "d", 0, "0", "COUNT", MANY),
        lambda: pending(MANY),
    ),
    Case(
        "XINFO STREAM FULL COUNT 0 of 100,000",
        lambda: pack("XINFO", "STREAM", "s", "FULL", "COUNT", 0),
        lambda: pending(MANY),
    ),
    Case("XPENDING of 100,000", lambda: pack("XPENDING", "s", "g", "-", "+", MANY), lambda: pending(MANY)),
    Case("XCLAIM of 100,000 ids", lambda: pack("XCLAIM", "s", "g", "d", 0, *ids(MANY), "FORCE"), lambda: pending(5000)),
    Case("XACK of 100,000 ids", lambda: pack("XACK", "s", "g", *ids(MANY)), lambda: pending(5000)),
    Case(
        "XREADGROUP of 100,000",
        lambda: pack("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),
        lambda: grouped(MANY),
    ),
    # scripts
    Case("EVAL of 15,000 return redis.x(", lambda: pack("EVAL", "return redis.x(" * 15_000, 0)),
    Case("EVAL of 100,000 [[", lambda: pack("EVAL", "[[" * MANY, 0)),
    Case("EVAL of table.insert far below", lambda: pack("EVAL", "table.insert({},-2147483647,1)", 0)),
    Case(
        "EVAL of a long loop",
        lambda: pack("EVAL", "while true do end", 0),
        options=("--set", "busy-reply-threshold=2000"),
    ),
    # streams
    Case("XADD of 250,000 fields", lambda: pack("XADD", "s", "*", *pairs(250_000))),
    Case("XRANGE of 200,000 entries", lambda: pack("XRANGE", "s", "-", "+"), lambda: entries(200_000)),
    Case(
        "XREAD of one stream 50,000 times",
        lambda: pack("XREAD", "COUNT", 1, "STREAMS", *["s"] * 50_000, *["0"] * 50_000),
        lambda: entries(5000),
    ),
    Case("XREAD BLOCK on 100,000 streams", lambda: pack("XREAD", "BLOCK", 50, "STREAMS", *WORDS[:MANY], *["$"] * MANY)),
    Case("XDEL of 100,000 ids", lambda: pack("XDEL", "s", *ids(MANY)), lambda: entries(5000)),
    Case("XTRIM of 200,000 entries", lambda: pack("XTRIM", "s", "MAXLEN", 0), lambda: entries(200_000)),
    Case("DUMP of 200,000 entries", lambda: pack("DUMP", "s"), lambda: entries(200_000)),
    Case("COPY of 200,000 entries", lambda: pack("COPY", "s", "t"), lambda: entries(200_000)),
    Case("DEL of a stream of 200,000", lambda: pack("DEL", "s"), lambda: entries(200_000)),
    # strings, and what multiplies them
    Case("SETRANGE at 512 MiB", lambda: pack("SETRANGE", "k", 536_870_000, "x")),
    Case("ten times SETRANGE at 512 MiB", lambda: pack("SETRANGE", "k", 536_870_000, "x") * 10),
    Case(
        "APPEND to 200 MiB, ten times", lambda: pack("APPEND", "k", "x") * 10, single("SETRANGE", "k", 200 * MIB, "x")
    ),
    Case("MGET of 60 KiB 100,000 times", lambda: pack("MGET", *["k"] * MANY), single("SETRANGE", "k", 60_000, "x")),
    Case(
        "MGET of 4,000 bytes 1,000,000 times",
        lambda: pack("MGET", *["k"] * 1_000_000),
        single("SETRANGE", "k", 4_000, "x"),
    ),
    Case(
        "HMGET of 60 KiB 100,000 times",
        lambda: pack("HMGET", "h", *["f"] * MANY),
        single("HSET", "h", "f", b"x" * 60_000),
    ),
    Case("ECHO of 200 MiB", lambda: pack("ECHO", b"x" * (200 * MIB))),
    Case("SET of 200 MiB", lambda: pack("SET", "k", b"x" * (200 * MIB))),
    Case("INCRBYFLOAT of 5,000 digits", lambda: pack("INCRBYFLOAT", "k", b"9" * 5000) * 100),
    Case("INCRBYFLOAT of 1e-16000", lambda: pack("INCRBYFLOAT", "k", "1e-16000") * 100),
    Case("ZADD of a score of 10 MiB", lambda: pack("ZADD", "z", b"1" * (10 * MIB), "m")),
    Case("SETBIT-like integer of 10 MiB", lambda: pack("EXPIRE", "k", b"1" * (10 * MIB))),
    # collections
    Case("ZADD of 250,000 members", lambda: pack("ZADD", "z", *scored(range(250_000)))),
    Case(
        "ZADD one by one below 250,000",
        lambda: b"".join(pack("ZADD", "z", -n, f"n{n}") for n in range(5000)),
        lambda: ranked(250_000),
    ),
    Case("SADD of 500,000 members", lambda: pack("SADD", "k", *WORDS[:500_000])),
    Case("SMEMBERS of 500,000", lambda: pack("SMEMBERS", "k"), lambda: pieces("SADD", "k", count=500_000)),
    Case("SMEMBERS of 200,000 numbers", lambda: pack("SMEMBERS", "k"), lambda: numbers(200_000)),
    Case("HGETALL of 250,000", lambda: pack("HGETALL", "k"), lambda: pieces("HSET", "k", count=500_000)),
    Case(
        "HSCAN COUNT 10^9 of 250,000",
        lambda: pack("HSCAN", "k", 0, "COUNT", 10**9),
        lambda: pieces("HSET", "k", count=500_000),
    ),
    Case("LRANGE of 500,000", lambda: pack("LRANGE", "k", 0, -1), lambda: pieces("RPUSH", "k", count=500_000)),
    Case(
        "ZRANGE of 250,000 by score",
        lambda: pack("ZRANGEBYSCORE", "z", "-inf", "+inf", "WITHSCORES"),
        lambda: ranked(250_000),
    ),
    Case("ZREMRANGEBYRANK of 250,000", lambda: pack("ZREMRANGEBYRANK", "z", 0, -1), lambda: ranked(250_000)),
    # the keyspace
    Case("MSET of 250,000 keys", lambda: pack("MSET", *pairs(250_000))),
    Case("DEL of 500,000 keys", lambda: pack("DEL", *WORDS[:500_000]), lambda: keys(500_000)),
    Case("KEYS * of 500,000", lambda: pack("KEYS", "*"), lambda: keys(1_000_000)),
    Case("SCAN 0 of 500,000", lambda: pack("SCAN", 0), lambda: keys(1_000_000)),
    Case("SCAN COUNT 10^9 of 500,000", lambda: pack("SCAN", 0, "COUNT", 10**9), lambda: keys(1_000_000)),
    Case("RANDOMKEY of 500,000, 100 times", lambda: pack("RANDOMKEY") * 100, lambda: keys(1_000_000)),
    Case("FLUSHALL of 500,000", lambda: pack("FLUSHALL"), lambda: keys(1_000_000)),
    Case("100,000 keys expire at once", lambda: pack("PING"), lambda: dying(MANY)),
    Case("WATCH of 200,000 keys", lambda: pack("WATCH", *WORDS[:200_000]) + pack("UNWATCH")),
    Case("BLPOP of 200,000 keys", lambda: pack("BLPOP", *WORDS[:200_000], "0.05")),
    # transactions and pipelines
    Case("MULTI of 200,000 SET", lambda: pack("MULTI") + pack("SET", "k", "v") * 200_000 + pack("EXEC")),
    Case(
        "MULTI of 2,000 XRANGE of 5,000",
        lambda: pack("MULTI") + pack("XRANGE", "s", "-", "+") * 2000 + pack("EXEC"),
        lambda: entries(5000),
    ),
    Case("200,000 PING at once", lambda: pack("PING") * 200_000),
    Case("a wait, and 20 MiB of words behind it", lambda: pack("BLPOP", "k", "1") + pack("DEL", *[b""] * 3_000_000)),
    Case("1,000,000 unknown words", lambda: pack(*WORDS)),
    Case("inline commands of 60 KiB, quoted", lambda: (b'ECHO "' + rb"\x41" * 14_000 + b'"\r\n') * 20),
    Case("inline commands of 30,000 words", lambda: (b"DEL " + b"a " * 30_000 + b"\r\n") * 20),
    # about the server
    Case("COMMAND", lambda: pack("COMMAND") * 20),
    Case("COMMAND DOCS", lambda: pack("COMMAND", "DOCS") * 20),
    Case("COMMAND DOCS of 100,000 names", lambda: pack("COMMAND", "DOCS", *["xadd"] * MANY)),
    Case("COMMAND INFO of 100,000 names", lambda: pack("COMMAND", "INFO", *["xadd"] * MANY)),
    Case("COMMAND GETKEYS of 500,000", lambda: pack("COMMAND", "GETKEYS", "MSET", *WORDS[:1_000_000])),
    Case("COMMAND GETKEYSANDFLAGS of 500,000", lambda: pack("COMMAND", "GETKEYSANDFLAGS", "MSET", *WORDS[:1_000_000])),
    Case("COMMAND LIST FILTERBY PATTERN", lambda: pack("COMMAND", "LIST", "FILTERBY", "PATTERN", "*a" * 10_000)),
    Case("INFO of 100,000 sections", lambda: pack("INFO", *["all"] * MANY)),
    Case("CLIENT LIST ID of 500,000", lambda: pack("CLIENT", "LIST", "ID", *range(1, 500_000))),
    Case("CLIENT KILL of 200,000 filters", lambda: pack("CLIENT", "KILL", *["ID", "1000000000"] * 200_000)),
    Case("CONFIG SET of 100,000 parameters", lambda: pack("CONFIG", "SET", *["acllog-max-len", "1"] * MANY)),
    Case("SUBSCRIBE of 500,000", lambda: pack("SUBSCRIBE", *WORDS[:500_000]) + pack("UNSUBSCRIBE")),
    Case("PUBSUB NUMSUB of 500,000", lambda: pack("PUBSUB", "NUMSUB", *WORDS[:500_000])),
    # users
    Case("ACL SETUSER of 100,000 key patterns", lambda: pack("ACL", "SETUSER", "u", *RULES)),
    Case("ACL SETUSER of 5,000 selectors", lambda: pack("ACL", "SETUSER", "u", *["(~a +@all -@write)"] * 5000)),
    Case("ACL SETUSER of 50,000 +command", lambda: pack("ACL", "SETUSER", "u", *["+get", "-get"] * 25_000)),
    Case("ACL SETUSER of 20,000 +@all", lambda: pack("ACL", "SETUSER", "u", *["+@all", "-@all"] * 10_000)),
    Case("ACL GETUSER of 100,000 patterns", lambda: pack("ACL", "GETUSER", "u"), single("ACL", "SETUSER", "u", *RULES)),
    Case("ACL LIST of 5,000 users", lambda: pack("ACL", "LIST"), lambda: users(5000)),
    Case(
        "ACL DRYRUN past 100,000 patterns",
        lambda: pack("ACL", "DRYRUN", "u", "GET", b"x" * 100),
        single("ACL", "SETUSER", "u", "+get", *RULES),
    ),
    Case("AUTH of 10 MiB, ten times", lambda: pack("AUTH", "u", b"x" * (10 * MIB)) * 10),
    # payloads
    Case("RESTORE of 20 MiB, checksum wrong", lambda: restored(b"\x00" + b"x" * (20 * MIB))),
    Case("RESTORE of 10 MiB of LZF", lambda: restored(b"\x00\xc3" + b"x" * (10 * MIB))),
]


def used(process: int) -> float:
    """Return the processor time of a process's main thread in seconds."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def prober(url: str, process: int, pipe: Connection) -> None:
    """Send PING repeatedly; for each word on the pipe, report the maximum work between two replies since the last."""
    client = redis.Redis.from_url(url, socket_timeout=600)
    longest, before = 0.0, used(process)
    while True:
        client.ping()
        now = used(process)
        longest, before = max(longest, now - before), now
        if pipe.poll(0.001):
            if pipe.recv() == "end":
                return
            pipe.send(longest)
            longest = 0.0


def stalled(case: Case, program: str, seconds: float) -> tuple[float, str]:
    """Return the seconds of work that the longest PING waited for, and the outcome: empty, ``ended`` or ``gone``."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s.sock"
        words = [program, "serve", "--memory", "--no-tcp", "--unixsocket", path, *case.options]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            assert server.stdout is not None
            server.stdout.readline()
            try:
                return measured(case, path, seconds, server)
            finally:
                server.kill()


def measured(case: Case, path: str, seconds: float, server: "subprocess.Popen[bytes]") -> tuple[float, str]:
    """Measure a case on a running server; see :func:`stalled`."""
    url = f"unix://{path}"
    client = redis.Redis.from_url(url, socket_timeout=600)
    for start in case.before():
        client.execute_command(*start)
    command = case.command()
    ours, theirs = multiprocessing.Pipe()
    asking = multiprocessing.Process(target=prober, args=(url, server.pid, theirs), daemon=True)
    asking.start()
    try:
        time.sleep(0.3)  # some PINGs of the idle server come first
        ours.send("read")
        ours.recv()
        start = used(server.pid)
        sender = multiprocessing.Process(target=send, args=(path, command), daemon=True)
        began = time.perf_counter()
        sender.start()
        sender.join(seconds)
        # what a command leaves behind is asked for too: keys expire in the second after it
        time.sleep(2.0 if "expire" in case.name else 0.2)
        ours.send("read")
        if not ours.poll(max(seconds - (time.perf_counter() - began), 1)):
            return used(server.pid) - start, "ended" if server.poll() is None else "gone"
        try:
            return ours.recv(), "" if server.poll() is None else "gone"
        except EOFError:
            return 0, "gone"
    finally:
        asking.kill()


def send(path: str, command: bytes) -> None:
    """Send the command and an ECHO, and read until the ECHO's reply or the end of the connection."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        end = b"$9\r\nlast-word\r\n"

        def write() -> None:
            with contextlib.suppress(OSError):
                sock.sendall(command + pack("RESET") + pack("ECHO", "last-word"))

        threading.Thread(target=write, daemon=True).start()
        seen = b""
        while end not in seen:
            try:
                data = sock.recv(1 << 20)
            except OSError:
                return
            if not data:
                return
            seen = seen[-len(end) :] + data


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--program", default=str(Path(sys.executable).with_name("millstream")))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = []
    for case in CASES:
        if options.only in case.name:
            took, fate = stalled(case, options.program, options.seconds)
            found.append((took, fate, case.name))
            print(f"{took:9.3f} s  {fate:6} {case.name}", file=sys.stderr, flush=True)
    print(f"\nload average {load:.1f} before, {os.getloadavg()[0]:.1f} after\n")
    print("| command | work before another is answered, s |\n|---|---|")
    for took, fate, name in sorted(found, reverse=True):
        print(f"| {name} | {f'{took:.2f} ({fate})' if fate else f'{took:.3f}'} |")


if __name__ == "__main__":
    main()
