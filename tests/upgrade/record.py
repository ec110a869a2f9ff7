"""Records what version 0.1 stores and says: ``python tests/upgrade/record.py [part ...]`` from the root of the project.

Everything is made by 0.1 itself, at work on real servers, from the source in ``fixtures/millstream-0.1.tar.xz``; so it
can be made again when the present code is another. Parts, in their order: ``source`` (packs the source: only in a
checkout of 0.1), ``log``, ``worker``, ``names``. Needs redis-server, and Java for ``log``.

What is recorded, and what is not: ``tests/upgrade/README.md``.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

import redis  # noqa: E402 - the path comes first

from support.servers import ServerProcess, redis_server  # noqa: E402 - as above
from support.versions import FIXTURES, SOURCE, Version, old  # noqa: E402 - as above
from support.waiting import eventually  # noqa: E402 - as above
from upgrade import kept  # noqa: E402 - as above

HERE = Path(__file__).parent


def pack(target: Path, folder: Path, prefix: str) -> None:
    """A folder's files as ``.tar.xz``, with nothing in it of who packed them and when."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if info.name.endswith((".pyc", "__pycache__", "LOCK", ".crc")):
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(target, "w:xz", preset=9) as packed:
        packed.add(folder, prefix, filter=plain)


def source(_: Version, __: Path) -> None:
    """The source of 0.1."""
    sys.path.insert(0, str(ROOT / "src"))
    ask = [sys.executable, "-c", "import millstream; print(millstream.__version__)"]
    version = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    assert version == "0.1.0", f"this is {version}: the fixture is of 0.1"
    pack(SOURCE, ROOT / "src", ".")


# -- workers ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def worker(version: Version, url: str, app: Path, *, supervised: bool = False) -> Iterator[int]:
    """The app in one process, or in one that is started again (``supervised``); its process id. Killed at the end."""
    run = [*version.entry, "run", "app:app", "--app-dir", str(app.parent)]
    words = run if supervised else version.python(str(app))
    process = subprocess.Popen(words, env=version.environment(MILLSTREAM_URL=url, MIN_IDLE="300"))
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM if supervised else signal.SIGKILL)
        process.wait()


def jobs(client: redis.Redis, *kinds: str, first: int = 1) -> None:
    """An entry of each kind, numbered."""
    for number, kind in enumerate(kinds, first):
        client.xadd("orders", {"n": str(number), "kind": kind})


def work(version: Version, url: str, folder: Path) -> None:
    """Have 0.1's workers leave behind everything that workers leave in a server.

    Dead letters of every reason, one of an entry that had died before; a failure on record that waits for its retry;
    what a killed worker had in hand, of a first crash, and of a second one, that runs alone; heartbeats; a pause; marks
    of ``once`` and of publishing.
    """
    app = Path(shutil.copy(HERE / "app.py", folder))  # its place is in tracebacks
    with redis.Redis.from_url(url, **kept.TEXT) as client:

        def dead() -> list[str]:
            return [each["_dead.reason"] for _, each in client.xrange("orders:dead")]

        jobs(client, "ok", "once", "error", "reject", "nack", "poison")
        client.xadd("orders", {"n": "no number", "kind": "ok"})
        with worker(version, url, app, supervised=True):
            eventually(lambda: len(dead()) == 5, 90, what="five dead letters")
        assert set(dead()) == {"error", "reject", "nack", "invalid", "overdue"}
        (first,) = [ident for ident, each in client.xrange("orders:dead") if each["_dead.reason"] == "error"]
        version.cli("dead", "retry", "orders", first, "--url", url, "--yes")
        with worker(version, url, app):
            eventually(lambda: len(dead()) == 5, 60, what="it died again")
        # what it had in hand when it was killed: pardoned, running alone, not begun; and the heartbeat of that moment
        jobs(client, "later", "slow", "slow", *["ok"] * 3, first=100)
        for number in range(3):
            jobs(client, "slow", first=200 + number)
            with worker(version, url, app) as pid:
                eventually(lambda: _running(client, pid), what="the heartbeat tells of what runs")
        version.cli("worker", "pause", "orders", "billing", "--reason", "the provider is down", "--url", url)


def _running(client: redis.Redis, pid: int) -> bool:
    """Whether that process has told of a job at work."""
    told = [json.loads(client.get(key)) for key in client.keys(f"millstream:worker:*-{pid}-*")]
    return any(subscriber["jobs"] for each in told for subscriber in each["subscribers"])


def worker_state(version: Version, folder: Path) -> None:
    """What workers leave in a Redis, where the worker makes up for what the server cannot do."""
    with redis_server(folder / "redis") as server:
        work(version, server.url, folder)
        with server.client(**kept.TEXT) as client:
            kept.write(FIXTURES / "worker-redis.json", kept.kept(client))


# -- a server's log, and what Spark's part left in it -----------------------------------------------------------------


def values(client: redis.Redis) -> None:
    """Every type of value, every part of a stream."""
    client.set("text", "ä\r\n\0")
    client.set("raw", b"\xff\xfe")
    client.set("lives", "long", pxat=4_102_444_800_000)
    client.incrby("number", 41)
    client.hset("hash", mapping={"a": "1", "b": "\x00"})
    client.sadd("set", "one", "two", "3")
    client.sadd("numbers", 1, 2, 3)
    client.zadd("sorted", {"a": 1.5, "b": -2, "c": float("inf")})
    client.rpush("list", "a", "b", "a")
    for number in range(1, 301):
        client.xadd(
            "events", {"n": number, "text": "x" * (number % 7)}, id=f"{1_700_000_000_000 + number}-{number % 3}"
        )
    client.execute_command("XADD", "events", "1700000000500-0", "same", "1", "same", "2")
    client.xdel("events", "1700000000010-1", "1700000000301-0")
    client.xtrim("events", minid="1700000000005-0", approximate=False)
    client.xgroup_create("events", "fresh", "$")
    client.xgroup_create("events", "at work", "0")
    client.xreadgroup("at work", "ann", {"events": ">"}, count=20)
    client.xreadgroup("at work", "bob", {"events": ">"}, count=20)
    client.xgroup_createconsumer("events", "at work", "idle")
    taken = [each["message_id"] for each in client.xpending_range("events", "at work", "-", "+", 30)]
    client.xack("events", "at work", *taken[:5])
    client.xclaim("events", "at work", "cid", 0, taken[6:9])
    client.execute_command("XNACK", "events", "at work", "FAIL", "IDS", 2, *taken[10:12])
    client.xdel("events", taken[12])  # pending, and its entry gone
    client.execute_command("XADD", "marked", "IDMP", "producer", "order-1", "*", "a", "b")
    client.xgroup_create("empty", "g", mkstream=True)
    client.execute_command("SELECT", 3)
    client.set("in three", "yes")
    client.execute_command("SELECT", 0)


def log(version: Version, folder: Path) -> None:
    """A data directory with snapshot and later files; its backup, its export; Spark's checkpoints and an archive."""
    users = folder / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n")
    with version.server(folder, "--aclfile", str(users)) as server, server.client(**kept.TEXT) as client:
        values(client)
        client.execute_command("ACL", "SETUSER", "producer", "on", ">secret", "%W~orders:*", "+xadd")
        client.execute_command("ACL", "SAVE")
        work(version, server.url, folder)
        heartbeats = _volatile(client)
        client.bgrewriteaof()
        eventually(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, what="rewritten")
        spark(version, server.url, folder)
        client.xadd("events", {"after": "the snapshot"}, id="1700000001000-0")
        client.delete("numbers")
        target = FIXTURES / "export.resp.gz"
        target.unlink(missing_ok=True)
        version.cli("export", server.url, str(target), "--stream", "events", "--stream", "orders*", "--stream", "empty")
        version.cli("backup", server.url, str(folder / "backup"))
        volatile = {each["key"]: each for each in heartbeats + _volatile(client)}
        state: dict[str, Any] = {"databases": {"0": kept.shown(client)}, "volatile": {"keys": list(volatile.values())}}
        client.execute_command("SELECT", 3)
        state["databases"]["3"] = kept.shown(client)
        client.execute_command("SELECT", 0)
        state["users"] = client.acl_list()
        server.kill()
        pack(FIXTURES / "log.tar.xz", folder / "data", "log")
        server.start()
        kept.put(client, state["volatile"])
        says(version, server, folder)
    shutil.copy(users, FIXTURES / "users.acl")
    pack(FIXTURES / "backup.tar.xz", folder / "backup", "backup")
    kept.write(FIXTURES / "log.json.xz", state)


def _volatile(client: redis.Redis) -> list[dict[str, Any]]:
    """Keys that end by themselves before long: they are in the log, and gone when it is read years later."""
    everything = kept.kept(client)["keys"]
    return [each for each in everything if each["lives_ms"] > 0 and each["key"] != "lives"]


def spark(version: Version, url: str, folder: Path) -> None:
    """Queries that ended in the midst, with what they left in the server and in their checkpoints; an archive."""
    with redis.Redis.from_url(url, **kept.TEXT) as client:
        for stream, count in (("flights", 250), ("parcels", 250), ("readings", 150)):
            for number in range(1, count + 1):
                client.xadd(stream, {"n": str(number), "kind": "even" if number % 2 == 0 else "odd"}, id=f"{number}-0")
        client.xgroup_create("parcels", "lake", "0")
        client.xgroup_create("readings", "slow", "100-0")
    checkpoints = folder / "checkpoints"
    words = [str(HERE / "record_spark.py"), url, str(checkpoints)]
    subprocess.run(version.python(*words), env=version.environment(), check=True)
    pack(FIXTURES / "checkpoints.tar.xz", checkpoints, "checkpoints")
    archive = folder / "archive"
    version.cli("archive", url, "readings", "--to", str(archive), "--once", "--batch", "60")
    version.cli("replay", str(archive), "readings", "--to", url, "--as", "again", "--name", "kept")
    pack(FIXTURES / "archive.tar.xz", archive, "archive")


# -- names ------------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, list[str]] = {
    "dead ls": ["dead", "ls", "--url", "URL"],
    "dead ls orders": ["dead", "ls", "orders", "--url", "URL"],
    "dead show": ["dead", "show", "orders", "LETTER", "--url", "URL"],
    "worker ls": ["worker", "ls", "--url", "URL"],
    "worker show": ["worker", "show", "WORKER", "--url", "URL"],
    "spark ls": ["spark", "ls", "--url", "URL"],
    "log check": ["log", "check", "DIR"],
    "log dump": ["log", "dump", "DIR", "-o", "jsonl"],
    "doctor": ["doctor", "URL"],
    "archive": ["archive", "URL", "readings", "--to", "ARCHIVE", "--dry-run"],
    "replay": ["replay", "URL", "readings", "--to", "URL", "--as", "READINGS"],
    "export": ["export", "URL", "EXPORT", "--stream", "empty"],
    "import": ["import", "EXPORT", "--to", "URL", "--replace"],
    "backup": ["backup", "URL", "BACKUP"],
    "restore": ["restore", "BACKUP", "RESTORED"],
    "recover": ["recover", "readings", "--group", "slow", "--min-idle", "1h", "--verdict", "release", "--url", "URL"],
    "dead retry": ["dead", "retry", "orders", "LETTER", "--yes", "--url", "URL"],
    "dead rm": ["dead", "rm", "orders", "--reason", "reject", "--yes", "--url", "URL"],
}
"""What is run with ``-o json``; words in capitals are filled in."""

Cli = Callable[[list[str]], tuple[str, str]]


def shapes(cli: Cli, url: str, directory: Path, archive: Path, folder: Path) -> dict[str, list[str]]:
    """The names in what each of :data:`COMMANDS` shows, run one after the other on a server with the recorded state.

    Args:
        cli: runs a command line; its standard output, and what it said beside it.
        url: of the server.
        directory: its data directory.
        archive: the recorded archive.
        folder: made, for what the commands write.
    """
    with redis.Redis.from_url(url, **kept.TEXT) as client:
        letter = client.xrange("orders:dead")[0][0]
        worker_id = client.zrange("millstream:workers", -1, -1)[0]
    folder.mkdir()
    told = {
        "URL": url, "LETTER": letter, "WORKER": worker_id, "DIR": str(directory), "ARCHIVE": str(archive),
        "EXPORT": str(folder / "empty.resp"), "BACKUP": str(folder / "copy"), "RESTORED": str(folder / "restored"),
        "READINGS": "again:2",
    }  # fmt: skip
    found, silent = {}, []
    for name, words in COMMANDS.items():
        form = () if "-o" in words else ("-o", "json")
        out, said = cli([*(told.get(word, word) for word in words), *form])
        if not out.strip():
            silent.append(f"{name}: {said}")
            continue
        facts = json.loads(out) if form else list(map(json.loads, out.splitlines()))
        found[name] = sorted(kept.shape(facts))
    assert not silent, silent
    return found


def fields_of(server: ServerProcess) -> dict[str, list[str]]:
    """What a server names: INFO, CONFIG, commands, categories, what CLIENT LIST shows."""
    with server.client(**kept.TEXT) as client:
        text = str(_raw(client, "INFO", "everything"))
        sections = [line[2:] for line in text.splitlines() if line.startswith("# ")]
        names = [line.partition(":")[0] for line in text.splitlines() if ":" in line]
        clients = str(_raw(client, "CLIENT", "LIST"))
        return {
            "info sections": sorted(sections),
            "info fields": sorted(
                {name for name in names if not name.startswith(("cmdstat_", "errorstat_", "latency_"))}
            ),
            "config": sorted(client.config_get("*")),
            "commands": sorted(_raw(client, "COMMAND", "LIST")),
            "categories": sorted(client.acl_cat()),
            "client list": sorted({pair.partition("=")[0] for pair in clients.split()}),
        }


def _raw(client: redis.Redis, *words: str) -> Any:
    """A reply without redis-py's reading of it."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)


def says(version: Version, server: ServerProcess, folder: Path) -> None:
    """What the server and the commands show, by name."""

    def cli(words: list[str]) -> tuple[str, str]:
        done = version.cli(*words, check=False)
        return done.stdout, done.stderr

    found = {
        "commands": shapes(cli, server.url, folder / "data", folder / "archive", folder / "shown"),
        "server": fields_of(server),
    }
    kept.write(FIXTURES / "shown.json", found)


def names(version: Version, folder: Path) -> None:
    """The names a program, a shell or a dashboard uses."""
    words = version.python(str(HERE / "names.py"), str(folder / "source"))
    out = subprocess.run(words, env=version.environment(), check=True, capture_output=True, text=True).stdout
    ask = "import json; from millstream.spark.names import _USES; print(json.dumps(sorted(_USES)))"
    options = subprocess.run(version.python("-c", ask), env=version.environment(), check=True, capture_output=True)
    kept.write(FIXTURES / "names.json", json.loads(out))
    kept.write(FIXTURES / "options.json", json.loads(options.stdout))


PARTS: dict[str, Callable[[Version, Path], None]] = {"log": log, "worker": worker_state, "names": names}


def main(parts: list[str]) -> None:
    """Record these parts, or all but the source."""
    FIXTURES.mkdir(exist_ok=True)
    # A fixed place: it stands in the tracebacks of dead letters.
    folder = Path("/var/tmp/millstream-recording")
    folder.mkdir()
    try:
        if "source" in parts or not SOURCE.exists():
            source(Version("new", ()), folder)
        version = old(folder / "source")
        for part, record in PARTS.items():
            if part in parts or not parts:
                print(f"recording {part}", flush=True)  # noqa: T201 - a program's progress
                record(version, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
