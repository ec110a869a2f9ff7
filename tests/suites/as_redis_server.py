"""``millstream serve`` with the command line, the configuration file and the log of a redis-server, for test suites.

Redis's harness starts ``src/redis-server FILE`` in its own tree; ``scripts/redis_suites.py`` puts a program of that
name there, in a copy, which runs this. It reads the file, starts the server in this process, and logs the lines that
the harness waits for.

Two features are for suites only. Parameters that Millstream lacks are accepted without effect if they are on the list.
DEBUG has DIGEST, DIGEST-VALUE and POPULATE, by which suites compare and fill.
"""

import hashlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any, TextIO

from millstream.cli.main import main
from millstream.commands.context import config
from millstream.commands.context.context import Context
from millstream.commands.table.table import TABLE
from millstream.engine.collections import HashValue
from millstream.engine.keyspace import Value
from millstream.engine.serialization.dump import dump
from millstream.engine.streams.stream import Stream
from millstream.node.commands import debug, load_all
from millstream.replies import OK, Reply, Simple

# Parameters that suites set around a test, and that may then differ: name -> its value at the start
INERT = {
    "activedefrag": "no",
    "aof-load-truncated": "yes",
    "dynamic-hz": "yes",
    "hash-max-listpack-entries": "128",
    "hz": "10",
    "io-threads": "1",
    "key-load-delay": "0",
    "latency-monitor-threshold": "0",
    "loading-process-events-interval-bytes": "2097152",
    "loglevel": "notice",
    "no-appendfsync-on-rewrite": "no",
    "propagation-error-behavior": "ignore",
    "rdb-del-sync-files": "no",
    "rdb-key-save-delay": "0",
    "rdbcompression": "yes",
    "repl-diskless-load": "disabled",
    "repl-diskless-sync-delay": "5",
    "repl-diskless-sync-max-replicas": "0",
    "repl-rdb-channel": "no",
    "replica-lazy-flush": "no",
    "save": "",
    "set-max-intset-entries": "512",
    "set-max-listpack-entries": "128",
    "set-max-listpack-value": "64",
    "repl-diskless-sync": "no",
    "watchdog-period": "0",
    "zset-max-listpack-entries": "128",
    "zset-max-listpack-value": "64",
    "zset-max-ziplist-entries": "128",
    "zset-max-ziplist-value": "64",
}
# Options of the command line that are parameters in the file
OPTIONS = {"unixsocket": "--unixsocket", "requirepass": "--requirepass", "appendfsync": "--fsync"}
OPTIONS |= {"masterauth": "--masterauth", "masteruser": "--masteruser", "maxclients": "--maxclients"}
OPTIONS |= {name: f"--{name}" for name in ("tls-port", "tls-cert-file", "tls-key-file", "tls-ca-cert-file")}
OPTIONS |= {"tls-auth-clients": "--tls-auth-clients", "aclfile": "--aclfile"}


def assignments(words: list[str]) -> list[list[str]]:
    """Return the parameters of a command line: a file first, then ``--name value ...``."""
    found: list[list[str]] = []
    if words and not words[0].startswith("--"):
        for line in Path(words.pop(0)).read_text().splitlines():
            if each := shlex.split(line, comments=line.lstrip().startswith("#")):
                found.append(each)  # noqa: PERF401 - an assignment in a comprehension reads worse
    for word in words:
        if word.startswith("--"):
            found.append([word.removeprefix("--")])
        else:
            found[-1].append(word)
    return [[each[0].lower(), *each[1:]] for each in found]


def as_serve(found: list[list[str]], users: Path) -> list[str]:
    """Return the command line of ``millstream serve``.

    Args:
        found: Parameters with their values.
        users: File for the users among them.
    """
    given = {name: " ".join(values) for name, *values in found}
    words = ["serve", "--dir", "millstream-data", "--host", given.pop("bind", "127.0.0.1").split()[0].lstrip("-")]
    port = given.pop("port", "6379")
    words += ["--no-tcp"] if port == "0" else ["--port", port]
    for name in ("replicaof", "slaveof"):
        if name in given and given[name] != "no one":
            words += ["--replicaof", ":".join(given[name].split())]
    if accounts := [" ".join(each) for each in found if each[0] == "user"]:
        users.write_text("\n".join(accounts) + "\n")
        given["aclfile"] = str(users)
    given.setdefault("appendfsync", "everysec")
    for name, value in given.items():
        known = config.PARAMETERS.get(name)
        if name in OPTIONS:
            words += [OPTIONS[name], value] if value else []
        elif known is not None and (known.mutable or known.is_given):
            words += ["--set", f"{name}={value}"]
    return words


def take_inert(fsync: str) -> None:
    """Accept the parameters on the list without effect, and those of the log with fixed values."""
    fixed = {"appendonly": "yes", "appendfsync": fsync, "client-query-buffer-limit": "1073741824"}
    for name, value in fixed.items():
        config.PARAMETERS[name] = config.Parameter(name, value, lambda _, value=value: value, "taken for suites")
    for name, value in INERT.items():
        config.PARAMETERS[name] = config.Parameter(name, value, config.text, "taken for suites")


def rewrite(ctx: Context, argv: list[bytes]) -> Reply:
    """Run CONFIG REWRITE: append the changeable parameters to the file, where they outrank earlier lines."""
    given, host = config.Config(), ctx.host
    with Path(sys.argv[1]).open("a") as file:
        for name, value in host.config.texts().items():
            if config.PARAMETERS[name].mutable and value != given.texts()[name]:
                file.write(f"{name} {shlex.quote(value)}\n")
    return OK


def digest_of(value: Value, expires: int | None) -> bytes:
    """Return a digest that is equal for equal values; of a stream, its entries count as in Redis."""
    if isinstance(value, Stream):
        content = repr([e for node in value.entries.nodes() for e in node.entries() if not e[1]]).encode()
    elif isinstance(value, HashValue):
        content = repr(sorted(value.fields.items())).encode()
    else:
        content = dump(value)
    return hashlib.sha1(content + repr(expires is not None).encode()).digest()


def digest(ctx: Context, words: list[bytes]) -> Reply:
    """Run DEBUG DIGEST: one digest of all databases, zero if they are empty."""
    total = 0
    for base in ctx.host.keyspace.databases:
        for key, value in base.keys.items():
            own = digest_of(value, base.expires.get(key))
            total ^= int.from_bytes(hashlib.sha1(b"%d %d %b" % (base.index, len(key), key) + own).digest())
    return Simple(b"%040x" % total)


def digest_value(ctx: Context, words: list[bytes]) -> Reply:
    """Run DEBUG DIGEST-VALUE for one key."""
    value = ctx.lookup(words[0])
    return [Simple(b"0" * 40 if value is None else digest_of(value, None).hex().encode())]


def populate(ctx: Context, words: list[bytes]) -> Reply:
    """Run DEBUG POPULATE count [prefix] [size]."""
    prefix, size = (words[1:2] or [b"key"])[0], int((words[2:3] or [b"0"])[0])
    for number in range(int(words[0])):
        key = b"%b:%d" % (prefix, number)
        if ctx.lookup(key) is None:
            ctx.commit(("set", ctx.db.index, key, (b"value:%d" % number).ljust(size, b"\0")[: size or None], None))
    return OK


def own_debug(ctx: Context, argv: list[bytes]) -> Reply:
    """Run DEBUG with the suites' subcommands."""
    run = {b"DIGEST": digest, b"DIGEST-VALUE": digest_value, b"POPULATE": populate}.get(argv[1].upper())
    return debug.debug(ctx, argv) if run is None else run(ctx, argv[2:])


class Log:
    """Standard output that adds the line that the harness waits for."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        if text.startswith("ready"):
            text = f" PID: {os.getpid()}\nServer initialized\nReady to accept connections\n# {text}"
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def run() -> None:
    """Run as a redis-server."""
    words = sys.argv[1:]
    if "--version" in words or "-v" in words:
        sys.stdout.write("Redis server v=8.8.0 sha=00000000:0 malloc=libc bits=64 build=0\n")
        return
    found = assignments(words)
    given = {name: values for name, *values in found}
    sys.argv[1] = str(Path(sys.argv[1]).absolute())
    os.chdir(given.get("dir", ["."])[0])
    if given.get("logfile", [""])[0]:
        log = os.open(given["logfile"][0], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
    os.dup2(1, 2)  # the harness looks for lines of the log in standard output
    load_all()
    object.__setattr__(TABLE[b"config"].subcommands[b"rewrite"], "handler", rewrite)
    object.__setattr__(TABLE[b"debug"], "handler", own_debug)
    line = as_serve(found, Path("users.acl"))
    take_inert(line[line.index("--fsync") + 1])
    sys.stdout = Log(sys.stdout)  # type: ignore[assignment] # what print() needs of it
    try:
        main(line)
    except SystemExit as ended:
        if ended.code:
            sys.stdout.write("Failed listening on port, or else something that is above\n")
        raise


if __name__ == "__main__":
    run()
