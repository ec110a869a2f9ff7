"""One name for all partitions: dead letters, schedules, pending entries, groups and jobs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from cli.test_dead import add_letter
from millstream import App, StreamSub
from millstream.cli.main import main
from millstream.client.later import schedule
from support.partitioned import partition
from support.servers import ServerProcess
from support.waiting import aeventually

KEYS = [f"orders{{{at}}}" for at in range(3)]


def run(server: ServerProcess, *words: str, code: int = 0) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, [*words[:2], "--url", server.url, *words[2:]])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def facts(server: ServerProcess, *words: str, code: int = 0) -> Any:
    """Return the JSON of a subcommand."""
    return json.loads(run(server, *words[:2], "-o", "json", *words[2:], code=code).stdout)


@pytest.fixture
def orders(server: ServerProcess, client: redis.Redis) -> ServerProcess:
    """A stream of four partitions: three with 1, 2 and 3 pending entries and a consumer each.

    The last partition has one entry and no group yet.
    """
    partition(server.url, "orders", 4)
    for at, key in enumerate(KEYS):
        client.xgroup_create(key, "billing", "0", mkstream=True)
        for number in range(at + 1):
            client.xadd(key, {"n": number}, id=f"{number + 1}-{at}")
        client.xreadgroup("billing", f"worker-{at}", {key: ">"})
    client.xadd("orders{3}", {"n": 1}, id="9-3")
    return server


def test_pending_entries_are_one_list(orders: ServerProcess) -> None:
    """``pending ls`` of a partitioned stream lists entries by id with their partitions. Pages join without a gap."""
    rows = facts(orders, "pending", "ls", "orders", "billing")
    ids = ["1-0", "1-1", "1-2", "2-1", "2-2", "3-2"]
    assert [row["id"] for row in rows] == ids
    assert [row["stream"] for row in rows] == [f"orders{{{one[-1]}}}" for one in ids]
    seen, start = [], ["--start", "-"]
    while start:
        page = run(orders, "pending", "ls", "orders", "billing", "-o", "json", "--limit", "2", *start)
        seen += [row["id"] for row in json.loads(page.stdout)]
        _, found, rest = page.stderr.partition("--start '")
        start = ["--start", rest.partition("'")[0]] if found else []
    assert seen == ids
    table = run(orders, "pending", "ls", "orders", "billing", "--consumer", "worker-2").stdout
    assert ("STREAM" in table, "orders{2}" in table, "orders{1}" in table) == (True, True, False)
    worst = facts(orders, "pending", "ls", "orders", "billing", "--sort", "idle", "--limit", "4")
    assert len(worst) == 4
    assert run(orders, "pending", "ls", "orders", "nobody", code=4).stderr


@pytest.mark.parametrize(("verb", "more"), [("ack", ()), ("nack", ()), ("claim", ("--to", "w")), ("dead", ())])
def test_pending_entries_are_changed_and_restored(
    orders: ServerProcess, client: redis.Redis, verb: str, more: tuple[str, ...]
) -> None:
    """Pending commands select over all partitions and find an id's partition. One undo restores everything."""
    before = facts(orders, "pending", "ls", "orders", "billing")
    one = facts(orders, "pending", verb, "orders", "billing", "2-1", *more, "--dry-run")
    assert (one["stream"], one["entries"], one["applied"]) == ("orders{1}", 1, False)
    done = facts(orders, "pending", verb, "orders", "billing", "--all", *more, "--yes")
    assert (done["stream"], done["done"], done["partitions"]) == ("orders", 6, 3)
    assert "in one step" in " ".join(done["notes"])
    held = [row["consumer"] for row in facts(orders, "pending", "ls", "orders", "billing")]
    assert held == {"ack": [], "nack": [None] * 6, "claim": ["w"] * 6, "dead": []}[verb] or verb == "nack"
    if verb == "dead":
        assert facts(orders, "dead", "retry", "orders", "--all", "--yes")["returned"] == 6
        assert client.xlen("orders{2}") == 6
        return
    run(orders, "audit", "undo", done["change"], "--yes")
    after = facts(orders, "pending", "ls", "orders", "billing")
    names = ("stream", "id", "consumer", "deliveries")
    assert [[row[name] for name in names] for row in after] == [[row[name] for name in names] for row in before]
    assert "9-9" in run(orders, "pending", verb, "orders", "billing", "9-9", *more, "--yes", code=4).stderr


def test_a_group_is_rewound_in_all_partitions(orders: ServerProcess, client: redis.Redis) -> None:
    """``group rewind`` of a partitioned stream previews sums and each position.

    It skips partitions without the group.
    """
    shown = facts(orders, "group", "rewind", "orders", "billing", "--to", "start", "--dry-run")
    table = {row["fact"]: (row["before"], row["after"]) for row in shown["before_after"]}
    assert (table["lag"], table["orders{2}: last delivered id"]) == ((0, 6), ("3-2", "0-0"))
    done = facts(orders, "group", "rewind", "orders", "billing", "--to", "start", "--yes")
    assert (done["done"], done["partitions"], done["undo"]) == (3, 3, None)
    assert all(client.xinfo_groups(key)[0]["last-delivered-id"] == b"0-0" for key in KEYS)
    assert client.xinfo_groups("orders{3}") == []
    assert [row["stream"] for row in facts(orders, "audit", "ls")] == KEYS[::-1]


async def test_a_rewind_knows_the_workers_of_the_partitions(server: ServerProcess, client: redis.Redis) -> None:
    """The preview of a rewind names the workers that own the partitions. Pausing the stream is enough."""
    app = App(server.url)
    await app.partition("orders", 2, by="customer")

    @app.subscriber(StreamSub("orders", group="billing"))
    async def bill(n: int) -> None: ...

    def note() -> str:
        return " ".join(facts(server, "group", "rewind", "orders", "billing", "--to", "start", "--dry-run")["notes"])

    async with app.running():
        await app.publish_batch("orders", [{"customer": f"c{n}", "n": n} for n in range(8)])
        await aeventually(
            lambda: sum(one["lag"] for at in (0, 1) for one in client.xinfo_groups(f"orders{{{at}}}")) == 0
        )
        shown = await asyncio.to_thread(note)
        assert ("worker pause orders billing" in shown, "no worker reports" in shown) == (True, False)
        await asyncio.to_thread(run, server, "worker", "pause", "orders", "billing", "--reason", "rewind")
        assert "is being read" not in await asyncio.to_thread(note)
        wrong = await asyncio.to_thread(run, server, "worker", "pause", "orders{1}", "billing", "--reason", "r", code=2)
        assert "Write `millstream worker pause orders billing --reason r`" in wrong.stderr
        for at in (0, 1):
            client.xgroup_createconsumer(f"orders{{{at}}}", "billing", "gone")
        reaped = await asyncio.to_thread(
            facts, server, "worker", "reap", "orders", "billing", "--idle", "0s", "--dry-run"
        )
        assert (reaped["partitions"], reaped["consumers"]) == (2, [["billing", "gone"]] * 2)


def test_groups_are_sums(orders: ServerProcess) -> None:
    """``group ls`` has one row for a partitioned stream, and ``--all`` its partitions.

    ``group show`` has them with owners.
    """
    (row,) = facts(orders, "group", "ls", "orders")
    assert (row["stream"], row["pending"], row["lag"]) == ("orders", 6, 0)
    assert facts(orders, "group", "ls") == [
        {**row, "pending_age_ms": facts(orders, "group", "ls")[0]["pending_age_ms"]}
    ]
    assert [one["stream"] for one in facts(orders, "group", "ls", "orders", "--all", "--sort", "name")] == KEYS
    whole = facts(orders, "group", "show", "orders", "billing")
    assert [(one["consumer"], one["pending"]) for one in whole["consumers"]] == [
        ("worker-0", 1), ("worker-1", 2), ("worker-2", 3)
    ]  # fmt: skip
    assert [(one["key"], one["pending"]) for one in whole["partitions"]] == [
        *zip(KEYS, (1, 2, 3), strict=True), ("orders{3}", 0)
    ]  # fmt: skip
    assert len(facts(orders, "consumer", "ls", "orders", "billing")) == 3
    facts(orders, "consumer", "rm", "orders", "billing", "worker-1", "--yes")
    assert [one["consumer"] for one in facts(orders, "consumer", "ls", "orders", "billing")] == ["worker-0", "worker-2"]
    facts(orders, "group", "rm", "orders", "billing", "--yes")
    assert facts(orders, "group", "ls", "orders") == []


def test_dead_letters_are_one_list(orders: ServerProcess, client: redis.Redis) -> None:
    """Dead letters of all partitions are listed, shown, exported, put back and removed by the stream's name."""
    for at in (2, 0):
        add_letter(client, f"orders{{{at}}}:dead", f"{9 - at}-0", stream=f"orders{{{at}}}", id=f"1-{at}")
    add_letter(client, "orders{0}:dead", "20-0", stream="orders{0}", id="5-0")
    rows = facts(orders, "dead", "ls", "orders")
    assert [(row["id"], row["stream"]) for row in rows] == [
        ("7-0", "orders{2}"), ("9-0", "orders{0}"), ("20-0", "orders{0}")
    ]  # fmt: skip
    assert [row["id"] for row in facts(orders, "dead", "ls", "orders", "--limit", "1")] == ["7-0"]
    assert facts(orders, "dead", "show", "orders", "9-0")["stream"] == "orders{0}"
    assert len(run(orders, "dead", "export", "orders").stdout.splitlines()) == 3
    assert facts(orders, "dead", "retry", "orders", "7-0", "--yes")["returned"] == 1
    assert client.xlen("orders{2}") == 4
    assert facts(orders, "dead", "retry", "orders", "7-0", "9-0", "--yes", code=1) | {"letters": []} == {
        "returned": 1, "gone": 1, "refused": 0, "groups": "failed", "letters": []
    }  # fmt: skip
    add_letter(client, "orders{2}:dead", "30-0", stream="orders{2}")
    assert facts(orders, "dead", "retry", "orders", "--all", "--yes")["returned"] == 2
    assert facts(orders, "dead", "ls", "orders") == []
    for at in range(3):
        add_letter(client, f"orders{{{at}}}:dead", stream=f"orders{{{at}}}")
    assert facts(orders, "dead", "rm", "orders", "--all", "--yes")["removed"] == 3


def test_the_lines_of_a_change_in_one_partition_name_the_stream(orders: ServerProcess, client: redis.Redis) -> None:
    """A change in one partition prints a command and undo with the stream's name, which run as printed."""
    client.zadd(schedule.due_key(KEYS[1]), {"job": 10**13})
    client.hset(schedule.content_key(KEYS[1]), "job", b"-:1:*1:n1:7")
    moved = facts(orders, "later", "move", "orders", "job", "--delay", "2h", "--yes")
    assert moved["line"].startswith("millstream later move orders job --at ")
    run(orders, *moved["undo"].split()[1:], "--yes")
    assert client.zscore(schedule.due_key(KEYS[1]), "job") == 10**13
    add_letter(client, f"{KEYS[2]}:dead", "7-0", stream=KEYS[2])
    for words in (("retry", "orders", "7-0"), ("rm", "orders", "--all")):
        shown = facts(orders, "dead", *words, "--dry-run")
        assert shown["line"].startswith(f"millstream dead {words[0]} orders "), shown["line"]
    shown = facts(orders, "pending", "ack", "orders", "billing", "2-1", "--dry-run")
    assert shown["line"].startswith("millstream pending ack orders billing 2-1")


@pytest.mark.parametrize(
    "words",
    [
        ("pending", "ls", "orders", "nobody"),
        ("pending", "claim", "orders", "nobody", "--all", "--to", "w"),
        ("consumer", "ls", "orders", "nobody"),
        ("consumer", "rm", "orders", "nobody", "w"),
        ("group", "rm", "orders", "nobody"),
        ("group", "show", "orders", "nobody"),
    ],
)
def test_a_missing_group_is_reported_with_the_name_of_the_stream(orders: ServerProcess, words: tuple[str, ...]) -> None:
    """An error about a missing group has the stream's name, not a partition's key."""
    error = run(orders, *words, code=4).stderr
    assert ("'orders'" in error, "orders{" in error) == (True, False)


def test_one_dead_letter_stream_for_all_partitions_is_found(orders: ServerProcess, client: redis.Redis) -> None:
    """A common dead-letter stream of all partitions is found by the partitioned stream's name."""
    add_letter(client, "failed", "7-0", stream="orders{2}")
    assert [row["id"] for row in facts(orders, "dead", "ls", "orders")] == ["7-0"]
    assert facts(orders, "dead", "rm", "orders", "7-0", "--yes")["removed"] == 1


WRONG = [
    ("pending", "ls", "orders", "nobody"),
    *[("pending", verb, "orders", "nobody", "--all", "--yes") for verb in ("ack", "nack", "dead")],
    ("pending", "claim", "orders", "nobody", "--all", "--to", "w", "--yes"),
    ("group", "show", "orders", "nobody"),
    ("group", "owners", "orders", "nobody"),
    ("group", "rewind", "orders", "nobody", "--to", "start", "--yes"),
    ("group", "rm", "orders", "nobody", "--yes"),
    ("consumer", "ls", "orders", "nobody"),
    ("consumer", "rm", "orders", "nobody", "worker-0", "--yes"),
    ("consumer", "rm", "orders", "billing", "nobody", "--yes"),
    ("worker", "pause", "orders", "nobody", "--reason", "r"),
    ("worker", "reap", "orders", "nobody", "--dry-run"),
    ("job", "show", "orders", "99-9"),
    ("job", "cancel", "orders", "nobody", "1-0", "--yes"),
    ("dead", "show", "orders", "99-9"),
    ("dead", "edit", "orders", "99-9", "--print"),
    ("later", "fire", "orders", "nobody", "--yes"),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words[:4]))
def test_what_no_partition_has_is_missing_in_the_stream(orders: ServerProcess, words: tuple[str, ...]) -> None:
    """A wrong group, consumer or id of a partitioned stream ends with 4 and the stream's name."""
    said = run(orders, *words, code=4).stderr
    assert ("'orders'" in said, "orders{" in said) == (True, False), said


def test_a_group_of_the_name_alone_is_refused(orders: ServerProcess, client: redis.Redis) -> None:
    """``group create`` on a partitioned stream's own name is refused, since its key takes no entries."""
    said = run(orders, "group", "create", "orders", "mail", "--at", "start", "--yes", code=5).stderr
    assert "Its workers create the group in each partition" in said
    assert client.xinfo_groups("orders") == []
    run(orders, "group", "create", "orders{3}", "mail", "--yes")
    assert [one["name"] for one in client.xinfo_groups("orders{3}")] == [b"mail"]


def test_a_refusal_in_a_partition_has_the_name_of_the_stream_in_its_command_line(
    orders: ServerProcess, client: redis.Redis
) -> None:
    """A refusal about a damaged schedule in a partition prints a removal command with the stream's name."""
    client.zadd(schedule.due_key(KEYS[1]), {"x": 1})
    said = run(orders, "later", "fire", "orders", "x", "--yes", code=5).stderr
    assert "`millstream later cancel orders x` removes it" in said.replace("'orders'", "orders")


def test_an_entry_is_found_in_its_partition(orders: ServerProcess, client: redis.Redis) -> None:
    """``get`` finds an id in the partition that has it, and refuses one of two; ``gaps`` asks for a partition."""
    found = facts(orders, "stream", "get", "orders", "9-3")
    assert (found["stream"], found["fields"][0]["value"]) == ("orders{3}", "1")
    run(orders, "stream", "get", "orders", "9-9", code=4)
    client.xadd("orders{2}", {"n": 1}, id="9-3")
    assert "'orders{2}' and 'orders{3}' have it" in run(orders, "stream", "get", "orders", "9-3", code=2).stderr
    assert "Name 'orders{3}'" in run(orders, "stream", "gaps", "orders", code=2).stderr


def test_a_copy_of_the_name_alone_is_refused(orders: ServerProcess, client: redis.Redis, tmp_path: Path) -> None:
    """``export`` of the sealed key alone is refused; all partitions and a new layout restore the stream."""
    path = str(tmp_path / "orders.resp")
    words = ["export", orders.url, path, "--stream"]
    alone = CliRunner().invoke(main, [*words, "orders"])
    assert (alone.exit_code, "--stream 'orders*'" in alone.stderr) == (2, True), alone.output
    assert CliRunner().invoke(main, [*words, "orders*"]).exit_code == 0
    client.flushall()
    done = CliRunner().invoke(main, ["import", path, "--to", orders.url])
    assert done.exit_code == 0, done.output
    run(orders, "stream", "partition", "orders", "4", "--by", "customer", "--yes")
    found = facts(orders, "stream", "show", "orders")
    assert (found["length"], found["partitions_now"], found["groups"][0]["pending"]) == (7, 4, 6)
    run(orders, "stream", "add", "orders", "n=1", "--key", "c1")


def test_schedules_are_one_list(orders: ServerProcess, client: redis.Redis) -> None:
    """Schedules of all partitions are listed by time, and can be moved, fired and cancelled."""
    for at, key in enumerate(KEYS):
        client.zadd(schedule.due_key(key), {f"job-{at}": 10**13 - at})
        client.hset(schedule.content_key(key), f"job-{at}", b"-:1:*1:n1:7")
    assert [(row["stream"], row["waiting"]) for row in facts(orders, "later", "ls")] == [("orders", 3)]
    rows = facts(orders, "later", "ls", "orders")
    assert [(row["id"], row["stream"]) for row in rows] == [(f"job-{at}", KEYS[at]) for at in (2, 1, 0)]
    assert "orders{2}" in run(orders, "later", "ls", "orders").stdout
    assert facts(orders, "later", "show", "orders", "job-1")["stream"] == KEYS[1]
    done = facts(orders, "later", "move", "orders", "job-1", "job-2", "--at", "2050-01-01T00:00Z", "--yes")
    assert (done["done"], done["partitions"]) == (2, 2)
    facts(orders, "later", "fire", "orders", "job-2", "--yes")
    assert client.xlen(KEYS[2]) == 4
    facts(orders, "later", "cancel", "orders", "job-0", "job-1", "--yes")
    assert facts(orders, "later", "ls", "orders") == []
    assert "job-9" in run(orders, "later", "cancel", "orders", "job-9", "--yes", code=4).stderr


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        (["billing", "--pending", "3"], 2, "CRITICAL - orders{2}/billing pending 3"),
        (["--pending", "4"], 0, "OK - 3 figures"),
        (["--pending", "off", "--lag", "1"], 0, "OK - 3 figures"),
        (["--dead", "1"], 2, "CRITICAL - orders{1}:dead dead 1"),
        (["--overdue", "1h"], 2, "CRITICAL - orders{2}"),
        (["bill", "--lag", "1"], 3, "the stream 'orders' has no group 'bill'; its groups are: billing"),
    ],
)
def test_a_check_of_the_name_checks_each_partition(
    orders: ServerProcess, client: redis.Redis, words: list[str], code: int, shown: str
) -> None:
    """``check`` of a partitioned stream checks each partition."""
    add_letter(client, key="orders{1}:dead", stream="orders{1}")
    client.zadd("millstream:{2}:later:orders{2}:due", {"x": 1})
    off = ["--behind", "off", "--pending-age", "off"]
    done = CliRunner().invoke(main, ["check", "orders", *words, *off, "--url", orders.url])
    assert (done.exit_code, shown in done.stdout) == (code, True), done.stdout


@pytest.mark.parametrize("key", ["orders", "orders{1}"])
def test_a_check_sees_each_key_next_to_which_schedules_wait(
    server: ServerProcess, client: redis.Redis, key: str
) -> None:
    """``check`` sees schedules that wait at a partition without entries, or at the stream's own name."""
    partition(server.url, "orders", 3)
    client.xadd("orders{0}", {"n": 1})
    client.delete("orders{1}")
    client.zadd(schedule.due_key(key), {"x": 1})
    done = CliRunner().invoke(main, ["check", "orders", "--overdue", "1h", "--url", server.url])
    assert (done.exit_code, f"CRITICAL - {key} overdue" in done.stdout) == (2, True), done.stdout


def test_the_undo_note_of_a_rewind_is_about_the_partitions_that_moved(
    orders: ServerProcess, client: redis.Redis
) -> None:
    """The undo note of a rewind covers the partitions that moved."""
    client.xgroup_setid("orders{0}", "billing", "0-0")
    shown = run(orders, "group", "rewind", "orders", "billing", "--to", "start", "--yes").stdout
    assert ("undo of its own" in shown, "nothing to undo" in shown) == (True, False)


def test_an_id_that_one_partition_has_not_reached_has_a_remedy_that_works(orders: ServerProcess) -> None:
    """A rewind to an id that one partition has not reached is refused. The proposed time works for all partitions."""
    words = ("group", "rewind", "orders", "billing", "--to")
    refused = run(orders, *words, "3-2", "--yes", code=5).stderr
    assert "3-2 is after the last id of 'orders{0}', 1-0" in refused
    assert "all partitions, as in --to 3," in refused
    assert "`millstream group rewind 'orders{0}' billing --to end`" in refused
    ends = facts(orders, *words, "3", "--dry-run")["before_after"]
    assert {row["fact"]: row["after"] for row in ends}["last delivered id"] == "2-2"


def test_errors_about_partitions_name_commands(server: ServerProcess) -> None:
    """Errors about partitions give commands to run, not Python calls."""
    missing = run(server, "stream", "repartition", "nope", "4", "--yes", code=5).stderr
    assert "'nope' does not exist. Run `millstream stream partition nope 4 --by FIELD`" in missing
    for words in (("partition", "a{b", "3"), ("partition", "p", "3", "--by", ""), ("repartition", "nope", "--finish")):
        text = run(server, "stream", *words, "--yes", code=5 if words[0] == "repartition" else 2).stderr
        assert "partition('" not in text


def test_a_lag_that_is_known_by_its_bounds_in_one_partition_is_shown_for_each(
    server: ServerProcess, client: redis.Redis
) -> None:
    """The preview of a rewind lists lags by partition if one of them is known only by its bounds."""
    partition(server.url, "orders", 2)
    for at in range(2):
        client.xgroup_create(f"orders{{{at}}}", "billing", "0", mkstream=True)
        for number in range(6):
            client.xadd(f"orders{{{at}}}", {"n": number}, id=f"{number + 1}-{at}")
        client.xreadgroup("billing", "worker", {f"orders{{{at}}}": ">"}, count=2)
    client.xdel("orders{1}", "4-1")
    table = facts(server, "group", "rewind", "orders", "billing", "--to", "3-0", "--dry-run")["before_after"]
    lags = {row["fact"]: (row["before"], row["after"]) for row in table if "lag" in row["fact"]}
    assert lags == {"orders{0}: lag": (4, 3), "orders{1}: lag": (3, "2 to 3")}
