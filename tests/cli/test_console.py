"""``millstream stream``, ``group``, ``pending``, ``consumer``: their output, on redis-server and Millstream."""

import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver


def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, [*words, "--url", server.url])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def facts(server: ServerProcess, *words: str) -> Any:
    """Return the JSON of a subcommand."""
    return json.loads(run(server, *words, "-o", "json").stdout)


def fill(client: redis.Redis, key: str = "orders", entries: int = 5, since: int = 0) -> None:
    """Add a stream with entries 1-0 to n-0, or from a time in milliseconds. A group was delivered three of them."""
    for number in range(1, entries + 1):
        client.xadd(key, {"n": number}, id=f"{since + number}-0")
    client.xgroup_create(key, "billing", id="0")
    client.xreadgroup("billing", "c1", {key: ">"}, count=3)


def test_streams_are_listed(server: ServerProcess, client: redis.Redis) -> None:
    """``stream ls`` has one row a stream, on request the worst first. Standard error counts the rows left out."""
    fill(client, "a", 4)
    fill(client, "b", 9)
    rows = facts(server, "stream", "ls")
    assert [(row["key"], row["length"], row["lag"], row["pending"]) for row in rows] == [("a", 4, 1, 3), ("b", 9, 6, 3)]
    done = run(server, "stream", "ls", "--sort", "lag", "--limit", "1")
    assert done.stdout.splitlines()[1].split()[0] == "b"
    assert "There are more" in done.stderr
    assert run(server, "stream", "ls", "none*").stdout == "No streams.\n"


def test_an_unknown_lag_is_no_number(server: ServerProcess, client: redis.Redis) -> None:
    """An unknown lag is null with bounds in JSON, and text in a table. ``show`` gives the reason."""
    fill(client)
    client.xdel("orders", "4-0")
    row = facts(server, "group", "ls", "orders")[0]
    assert (row["lag"], row["lag_at_least"], row["lag_at_most"], row["lag_unknown"]) == (None, 1, 2, "deleted")
    assert "unknown (1-2)" in run(server, "group", "ls").stdout
    assert "was deleted" in facts(server, "group", "show", "orders", "billing")["lag_why"]


def test_what_nobody_tells_is_null_and_no_number(server: ServerProcess, client: redis.Redis) -> None:
    """Without the right to read pending entries, their age and missing owners are null in JSON, not 0."""
    fill(client)
    client.acl_setuser(
        "looker", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@read", "+@connection"],
        commands=["+xinfo", "-xpending"],
    )  # fmt: skip
    try:
        url = server.url.replace("redis://", "redis://looker:pw@")
        done = CliRunner().invoke(main, ["stream", "ls", "-o", "json"], env={"MILLSTREAM_URL": url})
        (row,) = json.loads(done.stdout)
        assert (row["pending"], row["pending_age_ms"], row["unowned"]) == (3, None, None)
    finally:
        client.acl_deluser("looker")


def test_a_stream_is_shown_with_its_groups(server: ServerProcess, client: redis.Redis) -> None:
    """``stream show`` has the stream's facts, and then a row for each group."""
    fill(client)
    found = facts(server, "stream", "show", "orders")
    assert (found["length"], found["first_entry"], found["last_id"], found["missing"]) == (5, "1-0", "5-0", {})
    assert [(group["group"], group["lag"]) for group in found["groups"]] == [("billing", 2)]


def test_a_group_is_shown_with_its_consumers(server: ServerProcess, client: redis.Redis) -> None:
    """``group show`` has the group's pending entries and their consumers."""
    fill(client)
    found = facts(server, "group", "show", "orders", "billing")
    assert (found["lag"], found["pending"], found["unowned"], found["lag_why"]) == (2, 3, 0, None)
    assert [(row["consumer"], row["pending"]) for row in found["consumers"]] == [("c1", 3)]
    assert [row["consumer"] for row in facts(server, "consumer", "ls", "orders", "billing")] == ["c1"]


def test_pending_entries_are_listed_in_pages(server: ServerProcess, client: redis.Redis) -> None:
    """``pending ls`` prints the command for the next page at the end of a page."""
    fill(client)
    client.xdel("orders", "2-0")
    done = run(server, "pending", "ls", "orders", "billing", "--limit", "2")
    assert "--start '(2-0'" in done.stderr
    rest = facts(server, "pending", "ls", "orders", "billing", "--start", "(2-0")
    assert [(row["id"], row["consumer"], row["gone"]) for row in rest] == [("3-0", "c1", None)]
    whole = facts(server, "pending", "ls", "orders", "billing", "--payload")
    assert [row["fields"] for row in whole] == [[["n", "1"]], None, [["n", "3"]]]
    assert [row["gone"] for row in whole] == [False, True, False]


def test_pending_entries_are_chosen_and_sorted(server: ServerProcess, client: redis.Redis) -> None:
    """``pending ls`` filters by consumer, deliveries and idle time.

    Entries without an owner sort as idle for longest.
    """
    fill(client)
    client.xclaim("orders", "billing", "", 0, ["2-0"], time=1, justid=True)
    client.xclaim("orders", "billing", "c2", 0, ["3-0"], retrycount=7)
    client.xclaim("orders", "billing", "c1", 0, ["1-0"], idle=90_000)

    def ids(*words: str) -> list[str]:
        return [row["id"] for row in facts(server, "pending", "ls", "orders", "billing", *words)]

    assert ids("--consumer", "c2") == ids("--deliveries", "7") == ["3-0"]
    assert ids("--unowned") == ["2-0"]
    assert ids("--idle", "1m") == ["1-0", "2-0"]
    assert ids("--sort", "idle") == ["2-0", "1-0", "3-0"]
    assert ids("--sort", "deliveries", "--limit", "1") == ["3-0"]
    assert (
        "the 1 oldest scanned"
        in run(server, "pending", "ls", "orders", "billing", "--sort", "idle", "--scan", "1").stderr
    )


def test_what_is_not_there_is_said(server: ServerProcess, client: redis.Redis) -> None:
    """A missing name is one line with its exit code and the existing names."""
    fill(client)
    assert "no stream 'order'" in run(server, "stream", "show", "order", code=4).stderr
    assert "its groups are: billing" in run(server, "group", "show", "orders", "bill", code=4).stderr
    assert "with a group 'bill'" in run(server, "pending", "ls", "orders", "bill", code=4).stderr
    run(server, "pending", "ls", "orders", "billing", "--sort", "idle", "--start", "1-0", code=2)


def test_names_that_move_a_cursor_are_escaped(server: ServerProcess, client: redis.Redis) -> None:
    """Control bytes in keys, groups, consumers and fields are escaped."""
    key, name = b"k\x1b[2J\xff", b"g\x1b]0;x\x07"
    client.xadd(key, {b"f\x1b[1m": b"\x1b[31mred"}, id="1-0")
    client.xgroup_create(key, name, id="0")
    client.xreadgroup(name, b"c\x1b[H", {key: ">"})
    text = key.decode(errors="surrogateescape")
    group = name.decode()
    for words in (
        ("stream", "ls"),
        ("group", "ls"),
        ("stream", "show", text),
        ("group", "show", text, group),
        ("consumer", "ls", text, group),
        ("pending", "ls", text, group, "--payload"),
    ):
        for form in ("table", "json", "jsonl", "csv"):
            done = run(server, *words, "-o", form)
            assert "\x1b" not in done.output, (words, form)
            assert "\x07" not in done.output, (words, form)


GROUP_FIELDS = [
    "stream", "group", "lag", "lag_at_least", "lag_at_most", "lag_unknown", "lag_change", "undelivered_age_ms",
    "drain_ms", "pending", "pending_age_ms", "delayed", "unowned", "consumers", "last_delivered_id", "entries_read",
    "added_per_second", "delivered_per_second",
]  # fmt: skip
PINNED: dict[tuple[str, ...], list[str]] = {
    ("stream", "ls"): [
        "key", "partitions", "length", "groups", "lag", "lag_at_least", "lag_at_most", "undelivered_age_ms", "pending",
        "pending_age_ms", "unowned", "last_entry_ms", "entries_added", "added_per_second",
    ],
    ("stream", "show", "orders"): [
        "key", "length", "entries_added", "last_id", "first_entry", "first_entry_ms", "last_entry", "last_entry_ms",
        "max_deleted_id", "added_per_second", "missing", "groups", "memory_bytes", "hot_bytes", "cold_bytes",
        "retention",
    ],
    ("group", "ls"): GROUP_FIELDS,
    ("group", "show", "orders", "billing"): [
        *(name for name in GROUP_FIELDS if name != "consumers"), "oldest_undelivered_id", "oldest_pending_id",
        "lag_why", "lag_repair", "lag_repair_note", "consumers", "advice",
    ],
    ("consumer", "ls", "orders", "billing"): ["consumer", "pending", "idle_ms", "inactive_ms"],
    ("pending", "ls", "orders", "billing"): [
        "stream", "id", "added_ms", "consumer", "idle_ms", "due_in_ms", "deliveries", "unowned", "fatal", "gone",
        "fields",
    ],
    ("server", "show"): [
        "product", "version", "redis_version", "role", "primary_link", "uptime_ms", "clients", "blocked_clients",
        "commands_per_second", "memory_bytes", "memory_limit_bytes", "log_enabled", "log_bytes", "log_status", "costs",
        "replicas", "retention", "retention_holds", "retention_removed", "retention_removed_unread",
    ],
}  # fmt: skip


@pytest.mark.parametrize("words", PINNED, ids=" ".join)
def test_the_names_in_json_stay(server: ServerProcess, client: redis.Redis, words: tuple[str, ...]) -> None:
    """Field names in JSON output do not change, since scripts read them. New ones may be added."""
    fill(client)
    found = facts(server, *words)
    row = found[0] if isinstance(found, list) else found
    assert sorted(row) == sorted(PINNED[words])


def test_names_are_found_as_the_page_finds_them(server: ServerProcess, client: redis.Redis) -> None:
    """``stream find`` finds streams, groups and consumers like the console's search, the best match first."""
    client.xadd("Web", {"n": 1})
    for group in ("web", "mail"):
        client.xgroup_create("Web", group, id="0")
    client.xreadgroup("mail", "web-1", {"Web": ">"})
    found = [(row["kind"], row["group"], row["consumer"]) for row in facts(server, "stream", "find", "web")]
    assert found == [("stream", None, None), ("group", "web", None), ("consumer", "mail", "web-1")]
    assert "1 of 3 names" in run(server, "stream", "find", "WEB", "--limit", "1").stderr
    assert run(server, "stream", "find", "nothing").stdout == "No name contains this text.\n"


def test_a_server_shows_what_takes_its_time(server: ServerProcess, client: redis.Redis) -> None:
    """``server slow`` lists commands by total time, and the slow ones if the server keeps them."""
    client.config_resetstat()
    fill(client)
    costs = {row["command"]: row["calls"] for row in facts(server, "server", "show")["costs"]}
    assert (costs["xadd"], costs["xreadgroup"]) == (5, 1)
    client.slowlog_reset()
    client.config_set("slowlog-log-slower-than", 0)
    client.eval("for i = 1, 5000000 do end", 0)
    for _ in range(125):
        client.execute_command("XADD", "orders", "*", "f\x1b[2J", "1")
    client.config_set("slowlog-log-slower-than", 60_000_000)
    rows = facts(server, "server", "slow", "--limit", "1000", "--sort", "time")
    assert any(row["command"].startswith("XADD orders * f") for row in rows)
    longest = facts(server, "server", "slow", "--limit", "1000")
    assert sorted(row["took_ms"] for row in rows) == [row["took_ms"] for row in longest][::-1]
    assert longest[0]["command"].startswith("EVAL ")
    assert facts(server, "server", "slow") == longest[:20]
    assert f"20 of {len(rows)} slow commands" in run(server, "server", "slow").stderr
    assert "\x1b" not in run(server, "server", "slow").stdout


def test_show_has_the_memory_and_the_retention(server: ServerProcess, client: redis.Redis) -> None:
    """``stream show`` and ``server show`` have the rules of a server with retention; elsewhere they are null."""
    fill(client)
    ours = "millstream_version" in client.info("server")
    if ours:
        client.config_set("stream-retention", "orders* 7d 2gb * 0 10mb")
    try:
        one, whole = facts(server, "stream", "show", "orders"), facts(server, "server", "show")
        assert one["memory_bytes"] > 0
        assert (one["retention"] or {}).get("age_ms") == (604_800_000 if ours else None)
        assert [row["streams"] for row in whole["retention"]] == ([1, 0] if ours else [])
        assert (whole["retention_removed"] is None, whole["retention_holds"]) == (not ours, False if ours else None)
        assert ("kept for 7 d" in run(server, "stream", "show", "orders").stdout) == ours
        assert ("retention" in run(server, "server", "show").stdout) == ours
    finally:
        if ours:
            client.config_set("stream-retention", "")
