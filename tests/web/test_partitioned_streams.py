"""A partitioned stream on the pages: one row of the overview, and a page with its partitions and owners."""

import re
import time
from urllib.parse import urlencode

import pytest
import redis

from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.client.partitions.layout import HIGHEST_ID
from millstream.client.partitions.lease import owned_key, owner_key
from millstream.server.thread import ServerThread
from support.console import ConsoleThread
from support.partitioned import partition, second_generation


def fill(data: ServerThread, client: redis.Redis) -> None:
    """Add two partitions with a group that has read one entry of the second, which has an owner."""
    partition(data.url, "orders", 2)
    for at in range(2):
        client.xgroup_create(f"orders{{{at}}}", "billing", "0", mkstream=True)
        for number in range(1 + 2 * at):
            client.xadd(f"orders{{{at}}}", {"n": number})
    client.xreadgroup("billing", "worker-7", {"orders{1}": ">"}, count=1)
    client.set(owner_key("orders{1}", "billing"), "worker-7:4", px=60_000)


def test_a_partitioned_stream_is_one_row_and_a_page(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """The overview's row has sums, and the page shows and links each partition with share, lag and owner."""
    fill(data, client)
    (row,) = console.ask("/overview.json").facts["streams"]
    assert (row["key"], row["partitions"], row["length"], row["lag"]) == ("orders", 2, 4, 3)
    text = console.ask("/").text
    assert ("2 partitions" in text, "/stream?key=orders#partitions" in text, "1 stream " in text) == (True, True, True)
    page = console.ask("/stream.json?key=orders").facts
    assert (page["length"], page["groups"][0]["lag"], page["groups"][0]["pending"]) == (4, 3, 1)
    first, second = page["partition_list"]
    assert (first["share"], first["groups"][0]["owner"]) == (0.25, None)
    assert second["groups"][0] == second["groups"][0] | {"owner": "worker-7", "fence": 4, "lag": 2, "pending": 1}
    text = console.ask("/stream?key=orders").text
    assert all(word in text for word in ("Stream of 2 partitions", "no owner", "worker-7", "/stream?key=orders%7B1%7D"))
    assert console.ask("/stream.json?key=orders%7B1%7D").facts["partition_list"] is None


def test_the_charts_of_a_whole_stream_are_sums(data: ServerThread, console: ConsoleThread, client: redis.Redis) -> None:
    """The page of the whole stream and of its group have the sums of the partitions, and so has the overview's row."""
    fill(data, client)
    for path, figure, value in (
        ("/stream.json?key=orders", "entries", 4),
        ("/stream.json?key=orders", "billing", 3),
        ("/group.json?key=orders&group=billing", "pending", 1),
    ):
        console.forget()
        figures = {one["figure"]: one["points"] for one in console.ask(path).facts["history"]["figures"]}
        assert [point[1] for point in figures[figure]] == [value], (path, figure)
    console.forget()
    console.ask("/overview.json")
    figures = {one["figure"]: one["points"] for one in console.ask("/overview.json").facts["history"]["figures"]}
    assert [figures[name][0][1] for name in ("lag", "pending")] == [3, 1]


def test_a_group_shows_its_partitions_and_owners(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """The group of the whole stream has all partitions with their owners; that of one partition has its own."""
    fill(data, client)
    rows = console.ask("/group.json?key=orders&group=billing").facts["partition_list"]
    assert [(row["key"], row["owner"], row["fence"], row["lag"], row["pending"]) for row in rows] == [
        ("orders{0}", None, None, 1, 0), ("orders{1}", "worker-7", 4, 2, 1)
    ]  # fmt: skip
    text = console.ask("/group?key=orders&group=billing").text
    assert ("Partitions, 1 without an owner" in text, "group owners orders billing" in text) == (True, True)
    (row,) = console.ask("/group.json?key=orders%7B1%7D&group=billing").facts["partition_list"]
    assert (row["owner"], row["lease_ms"] > 50_000) == ("worker-7", True)
    assert "All of orders" in console.ask("/group?key=orders%7B1%7D&group=billing").text
    client.xgroup_create("plain", "billing", "0", mkstream=True)
    assert console.ask("/group.json?key=plain&group=billing").facts["partition_list"] is None


def test_partitions_without_an_owner_are_a_finding(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """Partitions without an owner for a minute are a finding, which is a problem if entries wait."""
    fill(data, client)
    client.delete(owner_key("orders{1}", "billing"))
    for at in range(2):  # never owned; or owned until lately
        console.forget()
        assert "no-owner" not in {one["code"] for one in console.ask("/overview.json").facts["findings"]}
        client.set(owned_key(f"orders{{{at}}}", "billing"), int(time.time() * 1000) - 30_000)
    client.set(owned_key("orders{1}", "billing"), int(time.time() * 1000) - 180_000)
    console.forget()
    found = {one["code"]: one for one in console.ask("/overview.json").facts["findings"]}["no-owner"]
    assert (found["stream"], found["group"], found["level"]) == ("orders", "billing", "problem")
    assert found["says"].startswith("1 of 2 partitions had no owner for 3 m")
    assert "group owners orders billing" in found["remedy"]
    client.set(owned_key("orders{0}", "billing"), "9" * 40)  # another program's text
    client.set(owner_key("orders{1}", "billing"), "worker-7:5", px=60_000)
    console.forget()
    assert "no-owner" not in {one["code"] for one in console.ask("/overview.json").facts["findings"]}


def test_uneven_and_sealed_partitions_are_findings(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """A partition with over three times the mean number of entries is a finding. A drained sealed one is not."""
    fill(data, client)
    client.execute_command("XSETID", "orders{1}", HIGHEST_ID)
    second_generation(client, "orders", 4)
    with client.pipeline() as pipe:
        for number in range(1_200):
            pipe.xadd("orders~2{3}", {"n": number})
        pipe.execute()
    console.forget()
    codes = {one["code"]: one for one in console.ask("/overview.json").facts["findings"]}
    assert (
        codes["uneven-partitions"]["says"] == "one of 4 partitions has 4.0 times the entries of the mean: orders~2{3}"
    )
    assert "sealed-not-finished" not in codes
    client.delete("orders{0}")
    client.xgroup_create("orders{0}", "billing", "0", mkstream=True)
    client.xadd("orders{0}", {"n": 1}, id=f"{int(time.time() * 1000) - 7_200_000}-0")
    console.forget()
    codes = {one["code"]: one for one in console.ask("/overview.json").facts["findings"]}
    assert (codes["sealed-not-finished"]["stream"], codes["sealed-not-finished"]["group"]) == ("orders{0}", "billing")


def test_former_partitions_are_no_rows(data: ServerThread, console: ConsoleThread, client: redis.Redis) -> None:
    """The overview leaves out an empty sealed partition that the layout has no more."""
    fill(data, client)
    client.xgroup_create("orders~2{0}", "g", mkstream=True)
    client.execute_command("XSETID", "orders~2{0}", HIGHEST_ID)
    assert [row["key"] for row in console.ask("/overview.json").facts["streams"]] == ["orders"]


def test_an_entry_for_the_name_alone_is_refused(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """The form that adds an entry refuses a partitioned stream's name, with the command that takes a key."""
    fill(data, client)
    text = console.ask(f"/change?{urlencode({'do': 'stream add', 'key': 'orders', 'fields': 'n=1'})}").text
    assert "stream add NAME ... --key KEY" in text


@pytest.mark.parametrize("action", ["dead rm", "dead retry", "pending claim", "pending ack"])
def test_separators_alone_name_nothing(
    data: ServerThread, console: ConsoleThread, client: redis.Redis, action: str
) -> None:
    """A list of ids with only separators is refused like on a plain stream."""
    fill(data, client)
    client.xadd("plain", {"n": 1})
    client.xgroup_create("plain", "billing", "0")
    words = {"do": action, "ids": " ,\n "} | ({"group": "billing", "to": "web-2"} if "pending" in action else {})
    whole, plain = (console.ask(f"/change?{urlencode({**words, 'key': key})}") for key in ("orders", "plain"))
    refusals = [re.findall(r"<h1>The form is invalid</h1><p.*?</p>", page.text) for page in (whole, plain)]
    assert refusals[0] == refusals[1] != []


def test_a_letter_of_a_partition_is_corrected_by_the_name_of_the_stream(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """A partition's dead letter is corrected by the stream's name. A missing id is refused with that name."""
    fill(data, client)
    letter = DeadLetter((b"n", b"1"), "orders{1}", "1-1", "billing", "c", 5, "error", "ValueError: no", "T", 1, 1001)
    ident = client.execute_command("XADD", "orders{1}:dead", "*", *pack(letter)).decode()
    page = console.ask(f"/change.json?do=dead+edit&key=orders&ids={ident}")
    assert (page.status, page.facts["key"], page.facts["id"]) == (200, "orders{1}:dead", ident)
    missing = console.ask("/change.json?do=dead+edit&key=orders&ids=1-0")
    assert missing.status == 404
    assert "there is no letter 1-0 in the partitions of 'orders'" in missing.facts["error"]


def test_an_entry_is_found_by_the_name_of_the_stream(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """Workers report the stream's name, so its entries and their runs have pages by it. Rows link to the partition."""
    fill(data, client)
    ident = client.xadd("orders{1}", {"n": 1}, id="9999999999999-0").decode()
    client.xreadgroup("billing", "worker-7", {"orders{1}": ">"})
    entry = console.ask(f"/entry.json?key=orders&id={ident}").facts
    assert (entry["stream"], entry["gone"], entry["groups"][0]["state"]) == ("orders{1}", False, "pending")
    run = console.ask(f"/run.json?key=orders&id={ident}").facts
    assert (run["stream"], run["gone"], run["groups"][0]["state"]) == ("orders{1}", False, "pending")
    assert f"/entry?key=orders%7B1%7D&amp;id={ident}" in console.ask("/group?key=orders&group=billing").text
    assert console.ask("/entry.json?key=orders&id=1-0").facts["gone"]
    client.xadd("orders{0}", {"n": 1}, id="9999999999999-9")
    ident = client.xadd("orders{1}", {"n": 1}, id="9999999999999-9").decode()
    for path in ("entry", "run"):
        page = console.ask(f"/{path}?key=orders&id={ident}").text
        assert f'Entries of the same id are in <a href="/{path}?key=orders%7B1%7D&amp;id={ident}' in page


def test_dead_letters_are_found_by_the_name_of_the_stream(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """A handler's page links to the letters of all partitions; if no letter names the stream, to all letters."""
    fill(data, client)
    for key in ("orders{0}", "orders{1}", "plain"):
        letter = DeadLetter((b"n", b"1"), key, "1-1", "billing", "c", 5, "error", "ValueError: no", "T", 1, 1001)
        client.execute_command("XADD", f"{key}:dead", "*", *pack(letter))
    for of, found in (("orders", 2), ("plain", 1), ("other", 3)):
        assert console.ask(f"/dead.json?of={of}").facts["letters"] == found
    assert "<h1>plain:dead</h1>" in console.ask("/dead?of=plain").text


def test_a_group_that_no_partition_has_is_named(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """A change in a group that no partition has is refused with the group's name, not with the ids."""
    fill(data, client)
    words = {"do": "pending claim", "key": "orders", "ids": "1-0", "to": "c"}
    for group, reason in (
        ("nobody", "no partition of 'orders' has a group 'nobody': `millstream group ls orders` lists them"),
        ("billing", "'1-0': no partition of 'orders' has it"),
    ):
        page = console.ask(f"/change.json?{urlencode({**words, 'group': group})}")
        assert (page.status, page.facts["error"]) == (404, reason)


def test_a_change_of_several_partitions_is_asked_for_in_words(
    data: ServerThread, console: ConsoleThread, client: redis.Redis
) -> None:
    """The question names the effect and the stream, not a command."""
    fill(data, client)
    client.xreadgroup("billing", "worker-8", {"orders{0}": ">"}, count=1)
    ids = " ".join(client.xrange(f"orders{{{at}}}", count=1)[0][0].decode() for at in range(2))
    words = {"do": "pending ack", "key": "orders", "group": "billing", "ids": ids}
    page = console.ask(f"/change?{urlencode(words)}")
    assert "Acknowledge pending entries in 2 partitions of &#39;orders&#39;?" in page.text
