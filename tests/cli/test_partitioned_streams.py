"""A partitioned stream on the command line: one row with the sums of its partitions."""

import json
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client.partitions.layout import HIGHEST_ID, descriptor_key
from millstream.client.partitions.lease import owned_key, owner_key
from support.partitioned import partition, second_generation
from support.servers import ServerProcess


def rows(url: str, *words: str) -> dict[str, dict[str, Any]]:
    """Return the rows of ``stream ls`` by key."""
    done = CliRunner().invoke(main, ["stream", "ls", *words, "-o", "json", "--url", url])
    assert done.exit_code == 0, done.output
    return {row["key"]: row for row in json.loads(done.stdout)}


def fill(server: ServerProcess, client: redis.Redis) -> None:
    """Add three partitions with 1, 2 and 3 entries and a group that has read the first of each, and a plain stream."""
    partition(server.url, "orders", 3)
    client.xadd("plain{7}", {"n": 1})
    for at in range(3):
        key = f"orders{{{at}}}"
        client.xgroup_create(key, "billing", "0", mkstream=True)
        for number in range(at + 1):
            client.xadd(key, {"n": number}, id=f"{number + 1}-{at}")
        client.xreadgroup("billing", f"worker-{at}", {key: ">"}, count=1)


def test_a_partitioned_stream_is_one_row(server: ServerProcess, client: redis.Redis) -> None:
    """A partitioned stream is one row with sums. A key that only looks like a partition stays a stream."""
    fill(server, client)
    found = rows(server.url)
    assert set(found) == {"orders", "plain{7}"}
    one = found["orders"]
    assert (one["partitions"], one["length"], one["entries_added"], one["groups"]) == (3, 6, 6, 1)
    assert (one["lag"], one["pending"], found["plain{7}"]["partitions"]) == (3, 3, None)
    assert set(rows(server.url, "--all")) == {"orders", "plain{7}", *(f"orders{{{at}}}" for at in range(3))}
    assert "PARTITIONS" in CliRunner().invoke(main, ["stream", "ls", "--url", server.url]).stdout


def test_a_check_finds_partitions_without_an_owner(server: ServerProcess, client: redis.Redis) -> None:
    """``check`` warns of a partition that has had no owner for a minute, though no entry waits."""
    partition(server.url, "orders", 2)
    now = int(time.time() * 1000)
    for at, age in enumerate((5_000, 120_000)):
        client.xgroup_create(f"orders{{{at}}}", "billing", "0", mkstream=True)
        client.set(owned_key(f"orders{{{at}}}", "billing"), now - age)
    for words in ((), ("orders",), ("orders", "billing")):
        done = CliRunner().invoke(main, ["check", *words, "--url", server.url])
        assert (done.exit_code, "orders{1}/billing no owner 2 m" in done.output) == (1, True), done.output
    done = CliRunner().invoke(main, ["check", "orders", "-o", "prometheus", "--url", server.url])
    assert 'millstream_partition_unowned_seconds{db="db0",stream="orders{0}",group="billing"}' in done.output
    client.set(owner_key("orders{1}", "billing"), "worker-1:2", px=60_000)
    assert CliRunner().invoke(main, ["check", "orders", "--url", server.url]).exit_code == 0


def test_a_pattern_that_fits_the_name_shows_the_whole(server: ServerProcess, client: redis.Redis) -> None:
    """A pattern that matches the stream's name shows full sums. A pattern of partitions shows partitions."""
    fill(server, client)
    for pattern in ("orders", "ord*"):
        assert [(key, row["length"]) for key, row in rows(server.url, pattern).items()] == [("orders", 6)]
    assert set(rows(server.url, "orders{[01]}")) == {"orders{0}", "orders{1}"}
    assert set(rows(server.url, "--limit", "1")) == {"orders"}


def test_all_generations_are_in_the_sum(server: ServerProcess, client: redis.Redis) -> None:
    """Sums include all generations and a former plain stream. The number counts the open partitions."""
    fill(server, client)
    client.execute_command("XSETID", "orders{0}", HIGHEST_ID)
    second_generation(client, "orders", 4)
    client.xadd("orders~2{1}", {"n": 9})
    one = rows(server.url)["orders"]
    assert (one["partitions"], one["length"]) == (4, 7)


def test_a_strange_descriptor_hides_no_stream(server: ServerProcess, client: redis.Redis) -> None:
    """With a damaged or wrong descriptor, partitions are listed as separate streams."""
    fill(server, client)
    key = descriptor_key("orders")
    for write in (("SET", key, b"\xff{"), ("DEL", key), ("XADD", key, "*", "a", "1")):
        client.delete(key)
        client.execute_command(*write)
        assert {f"orders{{{at}}}" for at in range(3)} <= set(rows(server.url))


def test_tail_shows_the_entries_of_all_partitions(server: ServerProcess, client: redis.Redis) -> None:
    """``stream tail`` shows all partitions' entries in order of id, each with its partition."""
    fill(server, client)
    client.delete("orders{0}")
    done = CliRunner().invoke(main, ["stream", "tail", "orders", "-o", "jsonl", "--url", server.url])
    assert done.exit_code == 0, done.output
    found = [(row["stream"], row["id"]) for row in map(json.loads, done.stdout.splitlines())]
    one, two = "orders{1}", "orders{2}"
    assert found == [(one, "1-1"), (two, "1-2"), (one, "2-1"), (two, "2-2"), (two, "3-2")]
    done = CliRunner().invoke(main, ["stream", "tail", "orders", "--group", "billing", "--url", server.url])
    assert [line.split("  ")[1] for line in done.stdout.splitlines()] == [one, two, two]


def test_tail_follows_all_partitions(server: ServerProcess, client: redis.Redis) -> None:
    """``stream tail -f`` follows all partitions, also one that gets its first entry later."""
    fill(server, client)
    client.delete("orders{0}")
    words = [Path(sys.executable).with_name("millstream"), "stream", "tail", "orders", "-n", "1", "-f", "-o", "jsonl"]
    with subprocess.Popen([*words, "--url", server.url], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert json.loads(running.stdout.readline())["id"] == "3-2"
            client.xadd("orders{0}", {"n": "late"})
            row = json.loads(running.stdout.readline())
        finally:
            running.kill()
    assert (row["stream"], row["fields"]) == ("orders{0}", {"n": "late"})


def test_add_names_the_partitions_of_a_partitioned_stream(server: ServerProcess, client: redis.Redis) -> None:
    """``stream add`` to a partitioned stream's name or a former partition is refused, with the way to publish."""
    fill(server, client)
    for key in ("orders", "orders{0}"):
        if key != "orders":
            client.execute_command("XSETID", key, HIGHEST_ID)
            second_generation(client, "orders", 4)
        done = CliRunner().invoke(main, ["stream", "add", key, "n=1", "--url", server.url])
        assert done.exit_code == 5, done.output
        assert f"the stream 'orders' is partitioned by key, and {key!r} takes no entries" in done.stderr
        assert "Name 'orders' with --key, or publish from an app: app.publish('orders', ..., key=...);" in done.stderr
        assert "0 entries were added" in done.stderr


def test_add_by_key(server: ServerProcess, client: redis.Redis) -> None:
    """``stream add --key`` adds to the key's partition, or to the next one if that is sealed."""

    def add(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["stream", "add", *words, "--url", server.url])
        assert done.exit_code == code, (words, done.output)
        return done.output

    fill(server, client)
    place = f"orders{{{zlib.crc32(b'c1') % 3}}}"
    before = client.xlen(place)
    assert f"XADD {place} " in add("orders", "n=6", "--key", "c1", "--dry-run")
    assert place in add("orders", "n=6", "--key", "c1")
    assert client.xlen(place) == before + 1
    second_generation(client, "orders", 4, sealed=False)
    add("orders", "n=7", "--key", "c1")
    assert client.xlen(place) == before + 2
    client.execute_command("XSETID", place, HIGHEST_ID)
    add("orders", "n=8", "--key", "c1", "--no-create")
    assert client.xlen(f"orders~2{{{zlib.crc32(b'c1') % 4}}}") == 1
    assert "'plain{7}' is not partitioned" in add("plain{7}", "n=1", "--key", "c1", code=2)
    assert client.xlen("plain{7}") == 1


def test_former_partitions_are_no_rows(server: ServerProcess, client: redis.Redis) -> None:
    """Empty sealed partitions that left the layout are in no row of ``stream ls``; one with entries is a row."""

    def run(*words: str) -> None:
        done = CliRunner().invoke(main, ["stream", *words, "--yes", "--url", server.url])
        assert done.exit_code == 0, (words, done.output)

    client.xadd("orders", {"n": 1})
    run("partition", "orders", "2")
    run("unseal", "orders")
    found = rows(server.url)
    assert {key: row["length"] for key, row in found.items() if not key.startswith("millstream:")} == {"orders": 1}
    run("partition", "orders", "2")
    run("repartition", "orders", "4")
    run("repartition", "orders", "--finish")
    assert set(rows(server.url)) - {"millstream:audit"} == {"orders"}
    assert "orders" in rows(server.url, "--limit", "2")
    run("rm", "orders")
    assert set(rows(server.url)) - {"millstream:audit"} == {"orders"}
    client.xadd("orders{9}", {"n": 1})
    assert set(rows(server.url)) - {"millstream:audit"} == {"orders", "orders{9}"}
    run("rm", "orders")
    assert set(rows(server.url)) - {"millstream:audit"} == {"orders{9}"}


def test_show_has_the_partitions(server: ServerProcess, client: redis.Redis) -> None:
    """``stream show`` of a partitioned stream has the sums, the skew and each partition's share."""
    fill(server, client)
    done = CliRunner().invoke(main, ["stream", "show", "orders", "-o", "json", "--url", server.url])
    assert done.exit_code == 0, done.output
    seen = json.loads(done.stdout)
    assert (seen["length"], seen["partitions_now"], seen["skew"]) == (6, 3, 1.5)
    assert [(row["group"], row["pending"], row["lag"]) for row in seen["groups"]] == [("billing", 3, 3)]
    parts = [(row["partition"], row["entries"], row["share"], row["lag"]) for row in seen["partitions"]]
    assert parts == [("orders{0}", 1, 16.7, 0), ("orders{1}", 2, 33.3, 1), ("orders{2}", 3, 50.0, 2)]
    assert seen["memory_bytes"] == sum(row["bytes"] for row in seen["partitions"])
    text = CliRunner().invoke(main, ["stream", "show", "orders", "--url", server.url]).output
    assert ("sealed: no entry" in text, "orders{2}" in text) == (False, True)
