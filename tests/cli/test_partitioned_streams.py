"""A partitioned stream on the command line: one row with the sums of its partitions."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client.partitions.layout import HIGHEST_ID, descriptor_key
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
    for key, last in (("orders", "orders{0} to orders{2}"), ("orders{0}", "orders~2{0} to orders~2{3}")):
        if key != "orders":
            client.execute_command("XSETID", key, HIGHEST_ID)
            second_generation(client, "orders", 4)
        done = CliRunner().invoke(main, ["stream", "add", key, "n=1", "--url", server.url])
        assert done.exit_code == 5, done.output
        assert f"the stream 'orders' is partitioned by key, and {key!r} takes no entries" in done.stderr
        assert f"app.publish('orders', ..., key=...). Or add to the key's partition, one of {last};" in done.stderr
        assert "0 entries were added" in done.stderr
