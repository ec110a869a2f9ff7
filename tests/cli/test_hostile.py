"""Every reading subcommand survives a hundred thousand hostile inputs.

A failure is a traceback, an undocumented exit code, invalid JSON, or a control character for a terminal.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
import redis
from click.testing import CliRunner

from cli.hostile import BYTES, letter, record, text
from cli.test_worker import FACTS
from millstream.cli.main import main
from millstream.spark.archiving.manifest import FORMAT
from millstream.spark.monitoring import store as queries
from millstream.worker.registry import protocol
from support import campaign
from support.servers import ServerProcess, millstream_server

MOVING = frozenset(map(chr, (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x202E, 0xFEFF)))
QUERY = {**queries.NEW, "id": "q-1", "name": "hourly", "driver": "d", "at_ms": 1_763_721_600_000, "error": "E: no"}
ARCHIVE = {
    "format": FORMAT, "generation": 3, "places": {"orders": {"id": "9-0", "n": 9, "holes": 1}},
    "files": [["stream=orders/date=2025-11-21/hour=10/a.parquet", "orders", "1-0", "9-0", 9, 1000]],
}  # fmt: skip
LOG = {
    "format": 2, "snapshot": {"name": f"snapshot-{7:020d}-{'a' * 32}.snap", "last": 7, "identity": "a" * 32},
    "segments": [{"name": f"log-{8:020d}.seg", "first": 8, "identity": "a" * 32}], "obsolete": [],
}  # fmt: skip
BACKUP = {
    "format": 1, "made_ms": 1_763_721_600_000, "source": "/data", "millstream": "0.1.0", "snapshot_last": 7,
    "records": 1, "last": 8, "last_ms": 1_763_721_600_000, "files": {f"log-{8:020d}.seg": 100},
}  # fmt: skip


class Hands:
    """Writers of hostile data and runs of commands, by one seed.

    Args:
        url: URL of a server without valuable data.
        folder: a directory of its own.
        seed: seed of all random decisions.
    """

    def __init__(self, client: redis.Redis, url: str, folder: Path, seed: int) -> None:
        self.client, self.url, self.folder = client, url, folder
        self.chance = Random(seed)
        client.flushall()

    def ask(self, *words: str, form: str | None = None) -> str:
        """Run a subcommand and return its standard output."""
        form = form or self.chance.choice(("table", "json", "jsonl", "csv"))
        given = [*words, *(() if form == "none" else ("-o", form))]
        done = CliRunner().invoke(main, given)
        assert done.exception is None or isinstance(done.exception, SystemExit), (given, done.exception)
        assert done.exit_code in {0, 1, 2, 3, 4, 5}, (given, done.output)
        assert not MOVING & set(done.output), given
        if done.stdout and form == "json":
            json.loads(done.stdout)
        return done.stdout

    def letters(self, count: int) -> int:
        """Write dead letters; list, export and put them back."""
        with self.client.pipeline(transaction=False) as pipe:
            for number in range(count):
                pipe.execute_command("XADD", "orders:dead", f"{number + 1}-0", *letter(self.chance))
            pipe.execute()
        at = ("--url", self.url)
        rows = self.ask("dead", "ls", "orders", "--limit", str(count), *at, form="jsonl")
        assert len(rows.splitlines()) == count
        self.ask("dead", "ls", "orders", "--limit", str(count), *at, form="table")
        assert len(self.ask("dead", "export", "orders", *at, form="none").splitlines()) == count
        for _ in range(12):
            self.ask("dead", "show", "orders", f"{self.chance.randrange(count) + 1}-0", *at)
        self.ask("dead", "retry", "orders", "--all", "--yes", "--rate", "100000", *at)
        self.ask("dead", "ls", *at)
        return count

    def entries(self, count: int) -> int:
        """Write entries, keys, groups and consumers of any bytes; read them with the console, doctor and export."""
        named = []
        for number in range(count):
            name = text(self.chance, b"orders") + b"%d" % number
            with self.client.pipeline(transaction=False) as pipe:
                pipe.execute_command("XADD", name, "*", text(self.chance, b"field"), self.chance.choice(BYTES))
                pipe.xgroup_create(name, group := text(self.chance, b"billing"), 0)
                pipe.xreadgroup(group, text(self.chance, b"consumer"), {name: ">"})
                pipe.execute()
            named.append([each.decode(errors="surrogateescape") for each in (name, group)])
        self.look(named)
        self.ask("doctor", self.url, "--pending-older", "0s")
        self.ask("dead", "ls", "--url", self.url)
        self.ask("export", self.url, str(self.folder / "streams.resp"))
        (self.folder / "streams.resp").unlink(missing_ok=True)
        return count

    def look(self, named: list[list[str]]) -> None:
        """Read these streams and groups with the console."""
        at = ("--url", self.url)
        for noun in ("stream", "group"):
            self.ask(noun, "ls", *at, form="table")
            self.ask(noun, "ls", *at, form="json")
        for stream, group in named[:10]:
            if not stream.startswith("-") and not group.startswith("-"):
                self.ask("stream", "show", stream, *at)
                self.ask("group", "show", stream, group, *at)
                self.ask("consumer", "ls", stream, group, *at)
                self.ask("pending", "ls", stream, group, "--payload", *at)
        for form in ("nagios", "json", "prometheus"):
            self.ask("check", "--lag", "1", "--dead", "1", *at, form=form)

    def workers(self, count: int) -> int:
        """Write records, pauses and orders into the registry."""
        for number in range(count):
            worker = text(self.chance, b"web") + b"%d" % number
            facts = {**FACTS, "id": worker.decode(errors="surrogateescape")}
            self.client.zadd(protocol.INDEX, {worker: number})
            self.client.set(b"millstream:worker:" + worker, record(self.chance, facts))
            field = b"pause:" + (record(self.chance, ["orders", "billing"]))
            pause = record(self.chance, {"reason": "r", "by": "ann", "at_ms": 1_763_721_600_000})
            self.client.hset(protocol.CONTROL, text(self.chance, field), pause)
        at = ("--url", self.url)
        for form in ("table", "json"):
            self.ask("worker", "ls", *at, form=form)
        self.ask("worker", "show", "web", *at)
        self.ask("worker", "quiet", "--all", *at, form="none")
        return 2 * count

    def queries(self, count: int) -> int:
        """Write records of Spark's drivers and read them."""
        for number in range(count):
            self.client.hset(queries.QUERIES, f"q{number}", record(self.chance, QUERY))
        for form in ("table", "json"):
            self.ask("spark", "ls", "--url", self.url, form=form)
        return count

    def archives(self, count: int) -> int:
        """Write manifests of archives and read them."""
        place = self.folder / "archive"
        place.mkdir(exist_ok=True)
        for _ in range(count):
            (place / "_manifest.json").write_bytes(record(self.chance, ARCHIVE))
            self.ask("replay", str(place), "orders", "--to", self.url, "--as", "again", "--until", "5")
        return count

    def logs(self, count: int) -> int:
        """Write manifests of data directories with valid checksums, and read them."""
        place = self.folder / "data"
        place.mkdir(exist_ok=True)
        for _ in range(count):
            line = record(self.chance, LOG).replace(b"\n", b"")
            (place / "MANIFEST").write_bytes(line + b"\ncrc32 %08x\n" % crc32(line))
            (place / "lock").write_bytes(record(self.chance, {"pid": 1, "address": "unix:/run/x.sock"}))
            self.ask(*self.chance.choice((("log", "check", str(place)), ("doctor", str(place)))))
            facts = record(self.chance, BACKUP).replace(b"\n", b"")
            (place / "BACKUP").write_bytes(facts + b"\ncrc32 %08x\n" % crc32(facts))
            self.ask("restore", str(place), str(self.folder / "restored"))
            (place / "BACKUP").unlink()
        return 3 * count


def piece(server: ServerProcess, folder: Path, size: int) -> Callable[[int], int]:
    """Run all of the above with one seed; return the number of inputs."""

    def run(seed: int) -> int:
        with server.client() as client:
            hands = Hands(client, server.url, folder, seed)
            count = hands.letters(10 * size) + hands.entries(2 * size) + hands.workers(4 * size)
            return count + hands.queries(size) + hands.archives(size) + hands.logs(size // 2)

    return run


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ServerProcess]:
    """A Millstream server in memory, for this test alone."""
    with millstream_server(tmp_path / "server", "--memory") as server:
        yield server


def test_hostile_inputs_end_no_subcommand(alone: ServerProcess, tmp_path: Path) -> None:
    """Hundreds of hostile inputs end no subcommand badly."""
    assert piece(alone, tmp_path, 20)(0) == 470


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_hundred_thousand_hostile_inputs(alone: ServerProcess, tmp_path: Path) -> None:
    """A hundred thousand mutated entries, records, dead letters and manifests end no subcommand badly."""
    campaign.run("hostile-cli", piece(alone, tmp_path, 50), range(1, 91), unit="mutated inputs")
