"""Publishing to a partitioned stream: the key chooses the partition, and plain streams pay nothing."""

import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from millstream import App
from millstream.client.later import schedule
from millstream.client.partitions.layout import LayoutError, described, first_layout, parse_layout
from millstream.errors import UsageError
from support import needs
from support.accounts import user
from support.servers import ServerProcess

SERVERS = ["redis", "millstream", *needs.OTHERS]


@pytest.fixture
async def app(server: ServerProcess) -> AsyncIterator[App]:
    """An app that only publishes."""
    found = App(server.url, registry=False)
    yield found
    await found.close()


def part(key: str, number: int = 4) -> str:
    """Return the partition of a key by the formula documented for other languages."""
    return f"orders{{{zlib.crc32(key.encode()) % number}}}"


def found(client: redis.Redis, number: int = 4) -> dict[str, list[dict[str, str]]]:
    """Return the entries of each non-empty partition."""
    rows: Any = {f"orders{{{at}}}": client.xrange(f"orders{{{at}}}") for at in range(number)}
    return {key: [fields for _, fields in each] for key, each in rows.items() if each}


async def test_the_field_or_the_key_chooses_the_partition(app: App, client: redis.Redis) -> None:
    """Every way of publishing puts a key's entries into the partition of the documented formula."""
    await app.partition("orders", 4, by="customer")
    await app.partition("orders", 4, by="customer")
    await app.publish("orders", {"customer": "c7", "n": 1})
    await app.publish("orders", {"n": 2}, key="c7")
    await app.publish("orders", {"customer": "c7"}, headers={"a": "b"})
    await app.publish("orders", {"customer": 7})
    await app.publish("orders", {"n": 3}, key=7)
    await app.publish_batch("orders", [{"customer": "c7"}, {"customer": "7"}])
    await app.publish_batch("orders", [{"n": "c8"}], key=lambda one: one["n"])
    await app.publish("orders", {"customer": "c7"}, retry=5)
    await app.publish("orders", {"customer": "c7"}, unique="once")
    await app.publish("orders", {"customer": "c7"}, unique="once")
    lengths = {f"orders{{{at}}}": length for at in range(4) if (length := client.xlen(f"orders{{{at}}}"))}
    expected: dict[str, int] = {}
    for key, count in (("c7", 6), ("7", 3), ("c8", 1)):
        expected[part(key)] = expected.get(part(key), 0) + count
    assert lengths == expected
    record = json.loads(str(client.get("millstream:{orders}:partitions")))
    assert record["generations"][0]["keys"] == [f"orders{{{at}}}" for at in range(4)]


async def test_a_schedule_waits_next_to_its_partition(app: App, client: redis.Redis) -> None:
    """A delayed entry waits in the slot of the partition that its key chose."""
    await app.partition("orders", 4, by="customer")
    await app.publish("orders", {"customer": "c7"}, delay="1h", id="a")
    await app.publish_batch("orders", [{"customer": "c7"}, {"customer": "c8"}], delay="1h")
    counts = {key: client.zcard(schedule.due_key(part(key))) for key in ("c7", "c8")}
    assert counts == {"c7": 2, "c8": 1}
    assert part("c7") != part("c8")
    assert not client.exists(schedule.due_key("orders"))


async def test_a_publisher_of_before_finds_the_partitions(app: App, client: redis.Redis) -> None:
    """A publisher that knew a stream as plain is refused by the seal, and then publishes to its partitions."""
    await app.publish("orders", {"customer": "c7", "n": 1})
    client.delete("orders")
    other = App(app.url)
    await other.partition("orders", 4, by="customer")
    await other.close()
    await app.publish("orders", {"customer": "c7", "n": 2})
    await app.publish_batch("orders", [{"customer": "c7", "n": 3}, {"customer": "c7", "n": 4}])
    assert [fields["n"] for fields in found(client)[part("c7")]] == ["2", "3", "4"]
    with pytest.raises(redis.ResponseError, match="exhausted"):
        client.xadd("orders", {"n": "foreign"})


async def test_a_plain_stream_costs_no_command_more(app: App, client: redis.Redis) -> None:
    """Publishing to a plain stream sends only XADD, the first time too."""
    await app.publish("warm", {"n": 1})
    before: Any = client.info("commandstats")
    for _ in range(3):
        await app.publish("plain", {"n": 1})
    await app.publish_batch("plain", [{"n": 1}, {"n": 2}])
    after: Any = client.info("commandstats")
    grown = {
        name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"]
        for name in after
        if after[name]["calls"] != before.get(name, {"calls": 0})["calls"] and not name.startswith("cmdstat_info")
    }
    assert grown == {"cmdstat_xadd": 5}


async def test_a_user_without_rights_to_the_descriptor_publishes_to_plain_streams(
    server: ServerProcess, client: redis.Redis
) -> None:
    """A user without rights to the partition descriptor can still publish to plain streams."""
    with user(client, "~plain", "+xadd", "+@connection", "+info") as name:
        app = App(server.url.replace("redis://", f"redis://{name}"), registry=False)
        await app.publish("plain", {"n": 1})
        with pytest.raises(UsageError, match="not partitioned"):
            await app.publish("plain", {"n": 1}, key="c7")
        await app.close()


@pytest.mark.parametrize(
    ("arguments", "options", "fault"),
    [
        (("orders", 0), {}, "1 to 1024"),
        (("orders", 1025), {}, "1 to 1024"),
        (("orders", True), {}, "1 to 1024"),
        (("a{b}", 4), {}, "without braces"),
        (("", 4), {}, "without braces"),
        (("orders", 4), {"by": ""}, "name of a field"),
        (("orders", 8), {}, "4 partitions by 'customer' already"),
        (("orders", 4), {}, "4 partitions by 'customer' already"),
        (("used", 4), {}, "is in use"),
        (("text", 4), {}, "is in use"),
        (("read", 4), {}, "is in use"),
    ],
)
async def test_what_cannot_be_partitioned_is_refused(
    app: App, client: redis.Redis, arguments: tuple[Any, ...], options: dict[str, str], fault: str
) -> None:
    """Invalid partitioning is refused with one error that gives the correct form, and no key changes."""
    client.xadd("used", {"n": "1"})
    client.set("text", "x")
    client.xgroup_create("read", "g", mkstream=True)
    await app.partition("orders", 4, by="customer")
    before = sorted(client.keys("*"))
    with pytest.raises(UsageError, match=fault):
        await app.partition(*arguments, **options)
    assert sorted(client.keys("*")) == before


@pytest.mark.parametrize("content", [{"n": 1}, {"customer": None, "n": 1}, "text"])
async def test_an_entry_without_a_key_is_refused(app: App, client: redis.Redis, content: Any) -> None:
    """An entry without a key is refused with the field's name, and nothing is added to any partition."""
    await app.partition("orders", 4, by="customer")
    for options in ({}, {"delay": 1}):
        with pytest.raises(UsageError, match=r"no key. Write key=.*'customer'"):
            await app.publish("orders", content, **options)
    for key in (True, ["a"], float("nan")):
        with pytest.raises(UsageError, match="text, bytes or a number"):
            await app.publish("orders", content, key=key)
    with pytest.raises(UsageError, match="is not partitioned"):
        await app.publish("plain", {"n": 1}, key="c7")
    assert found(client) == {}
    assert not client.exists("plain")


GOOD = json.loads(described(first_layout("orders", 2, "customer")))


def test_a_descriptor_is_read_as_it_was_written() -> None:
    """A partition descriptor is read back as it was written, with any characters in its names."""
    for layout in (first_layout("orders", 2, None), first_layout("bück\udcff", 3, "ü")):
        if layout.stream.isascii() or "\udcff" not in layout.stream:
            assert parse_layout(layout.stream, described(layout).encode()) == layout
    assert parse_layout("orders", None) is None


@pytest.mark.parametrize(
    "change",
    [
        {"stream": "other"},
        {"hash": "md5"},
        {"by": 7},
        {"generations": []},
        {"generations": {}},
        {"generations": [7]},
        {"generations": [GOOD["generations"][0] | {"keys": ["secret", "orders{1}"]}]},
        {"generations": [GOOD["generations"][0] | {"keys": []}]},
        {"generations": [GOOD["generations"][0] | {"g": True}]},
        {"generations": [GOOD["generations"][0] | {"from": [7]}]},
        {"generations": [GOOD["generations"][0], GOOD["generations"][0]]},
    ],
)
def test_a_foreign_descriptor_is_named_and_not_followed(change: dict[str, Any]) -> None:
    """A descriptor written by another program is a named error, and none of its keys is used."""
    with pytest.raises(LayoutError, match=r"millstream:\{orders\}:partitions does not describe"):
        parse_layout("orders", json.dumps(GOOD | change).encode())


@pytest.mark.parametrize(("stream", "says"), [(None, "names no stream"), ("bills", "about the stream 'bills'")])
def test_a_descriptor_of_no_or_another_stream_says_so(stream: str | None, says: str) -> None:
    """The error of a descriptor that names no stream, or another one, has the reason."""
    with pytest.raises(LayoutError, match=says):
        parse_layout("orders", json.dumps({} if stream is None else GOOD | {"stream": stream}).encode())


@pytest.mark.parametrize("text", [b"", b"[", b"7", b"null", b"\xff", b"[" * 100_000])
def test_a_damaged_descriptor_is_named(text: bytes) -> None:
    """A damaged descriptor is a clear error."""
    with pytest.raises(LayoutError, match="Read that key, and remove it if no version of Millstream wrote it"):
        parse_layout("orders", text)
