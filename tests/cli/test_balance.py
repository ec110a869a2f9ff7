"""``stream balance``: partitions by node, their skew, and moves of slots that it suggests and never makes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

import millstream
from millstream.cli.main import main
from millstream.client.partitions.layout import HIGHEST_ID, descriptor_key
from millstream.client.slots import slot_of
from millstream.ops.streams.balance import PartitionLoad, StreamBalance
from support.clusters import Three
from support.partitioned import partition, second_generation
from support.servers import ServerProcess


def run(url: str, *words: str, code: int = 0) -> Result:
    """Run the command."""
    done = CliRunner().invoke(main, ["stream", "balance", *words, "--url", url])
    assert done.exit_code == code, done.output
    return done


def shown(url: str) -> dict[str, Any]:
    """Return the command's JSON."""
    found: dict[str, Any] = json.loads(run(url, "orders", "-o", "json").stdout)
    return found


def test_one_server_shows_shares_lag_and_skew(server: ServerProcess, client: redis.Redis) -> None:
    """``stream balance`` shows partitions of all generations with shares and lag. Skew counts only open partitions."""
    partition(server.url, "orders", 2)
    for number in range(10):
        client.xadd("orders{0}", {"n": number}, id=f"{number + 1}-0")
    client.execute_command("XSETID", "orders{0}", HIGHEST_ID)
    client.xgroup_create("orders{0}", "billing", "4-0")
    second_generation(client, "orders", 4)
    for at, count in ((0, 30), (1, 10)):
        for number in range(count):
            client.xadd(f"orders~2{{{at}}}", {"n": number})
    found = shown(server.url)
    assert (found["partitions_now"], found["skew"], found["node_skew"]) == (4, 3.0, None)
    rows = {row["partition"]: row for row in found["partitions"]}
    assert set(rows) == {"orders{0}", *(f"orders~2{{{at}}}" for at in range(4))}
    sealed = rows["orders{0}"]
    assert (sealed["state"], sealed["entries"], sealed["share"], sealed["lag"]) == ("sealed", 10, 20.0, 9)
    assert (rows["orders~2{0}"]["state"], rows["orders~2{0}"]["bytes"] > 0) == ("open", True)
    assert (found["nodes"], found["moves"]) == ([], [])
    assert "All partitions are on one server." in run(server.url, "orders").stdout


def test_a_stream_without_a_usable_layout_is_an_error(server: ServerProcess, client: redis.Redis) -> None:
    """``stream balance`` of a plain stream, or with a foreign descriptor, is an error that names the stream."""
    client.xadd("orders", {"n": 1})
    assert "`millstream stream show` shows a plain" in " ".join(run(server.url, "orders", code=4).stderr.split())
    client.set(descriptor_key("orders"), b'\xff{"stream"')
    assert "does not describe a partitioned stream" in " ".join(run(server.url, "orders", code=1).stderr.split())


def test_moves_even_the_nodes() -> None:
    """Suggested moves take slots, with all generations of their partitions, from the heaviest to the lightest node."""
    sizes = {"a:1": [50, 40, 30], "b:1": [10], "c:1": []}
    loads = [
        PartitionLoad(f"orders{{{node[0]}{at}}}", 100 * ord(node[0]) + at, node, current=True, bytes=size)
        for node, held in sizes.items()
        for at, size in enumerate(held)
    ]
    loads.append(PartitionLoad("orders~2{a0}", loads[0].slot, "a:1", current=True, bytes=0))
    nodes = {node: tuple(one for one in loads if one.node == node) for node in sizes}
    balance = StreamBalance("orders", tuple(loads), nodes, {})
    moves = balance.moves()
    assert [(move.source, move.target, move.keys) for move in moves] == [
        ("a:1", "c:1", ("orders{a0}", "orders~2{a0}")),
        ("a:1", "b:1", ("orders{a2}",)),
    ]
    assert balance.node_skew == 2.77
    assert StreamBalance("orders", (), {}, {}).moves() == []


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """A cluster of three nodes."""
    with Three(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.realserver
def test_a_cluster_shows_nodes_and_suggests_moves_only(three: Three) -> None:
    """On a cluster the command shows each node's partitions and load, suggests slots to move, and moves none."""
    partition(three.url, "orders", 6)
    with millstream.connect(three.url, decode_responses=True) as client:
        homes = {f"orders{{{at}}}": three.owner(f"orders{{{at}}}").port for at in range(6)}
        busy = max(homes.values(), key=list(homes.values()).count)
        for key, port in homes.items():
            for number in range(200 if port == busy else 1):
                client.xadd(key, {"n": number, "text": "x" * 100})
    found = shown(three.url)
    assert {row["partition"]: int(row["node"].rpartition(":")[2]) for row in found["partitions"]} == homes
    assert sum(row["partitions"] for row in found["nodes"]) == 6
    assert found["node_skew"] > 1.5
    assert found["moves"]
    for move in found["moves"]:
        assert {slot_of(key) for key in move["partitions"].split(", ")} == {move["slot"]}
        assert move["from"] != move["to"]
    assert shown(three.url)["nodes"] == found["nodes"], "a slot was moved"
