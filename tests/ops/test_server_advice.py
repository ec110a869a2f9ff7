"""Findings about a server: a lost link, silent or slow replicas, refused writes."""

from pathlib import Path

import click
import pytest

from millstream.cli.main import main
from millstream.ops.findings.status import place_of, servers_advice
from millstream.ops.server.status import ServerStatus, parse_info, server_status
from millstream.ops.watching.servers import ConsoleServer
from millstream.server.thread import ServerThread
from support.console import ConsoleThread
from support.ports import free_port
from support.wire import Wire

REPLICA = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nslave_repl_offset:7\n"
PRIMARY = "role:master\nmaster_replid:a\nmaster_repl_offset:900\n"


def status(info: str, at_ms: int = 0) -> ServerStatus:
    """Return the status of a server with the given INFO."""
    return server_status(parse_info(info), at_ms)


@pytest.mark.parametrize(
    ("info", "level", "said"),
    [
        (
            f"{REPLICA}master_link_status:down\nmaster_link_down_since_seconds:9\nmillstream_link_error:no, not now",
            "problem",
            "its link to its primary 10.0.0.1:6379 has been down for 9.0 s: no, not now",
        ),
        (
            f"{REPLICA}master_link_status:down\nmaster_sync_in_progress:1",
            "hint",
            "it is copying all data of its primary 10.0.0.1:6379",
        ),
        (
            f"{PRIMARY}millstream_sync_state:refused\nmillstream_sync_asked:2\nmillstream_sync_confirming:1",
            "problem",
            "writes are refused: sync-replicas 2, 1 confirms",
        ),
        (
            f"{PRIMARY}min_slaves_good_slaves:0",
            "problem",
            "writes are refused: min-replicas-to-write, 0 replicas heard",
        ),
        (
            f"{PRIMARY}slave0:ip=10.0.0.2,port=1,state=online,offset=900,lag=22",
            "warning",
            "its replica 10.0.0.2:1 was last heard from 22.0 s ago",
        ),
        (f"{PRIMARY}aof_last_write_status:err", "problem", "the last write to its disk failed"),
    ],
)
def test_what_is_found(info: str, level: str, said: str) -> None:
    """Each fault of a server is one finding."""
    (found,) = servers_advice([status(info)])
    assert (found.level, said in found.says) == (level, True), found.says
    assert (place_of(found), found.server) == ("server", "server")


@pytest.mark.parametrize(
    "info",
    [
        "",
        PRIMARY,
        f"{REPLICA}master_link_status:up",
        f"{PRIMARY}millstream_sync_state:ok\nmillstream_sync_asked:1\nmillstream_sync_confirming:1",
        f"{PRIMARY}min_slaves_good_slaves:1\naof_last_write_status:ok",
        f"{PRIMARY}slave0:ip=a,port=1,state=online,offset=1,lag=9\nslave1:ip=b,port=1,state=wait_bgsave,offset=0,lag=60",
    ],
)
def test_what_is_well_is_no_finding(info: str) -> None:
    """A single server, a healthy replica, and a replica in its first sync cause no finding."""
    assert servers_advice([status(info)]) == []


def test_a_replica_is_slow_by_what_was_written_before() -> None:
    """A replica is slow if it lacks writes that its primary had ten seconds before, of the same history."""
    row = "slave0:ip=a,port=1,state=online,offset={},lag=0"
    was = status(PRIMARY, 0)
    later = PRIMARY.replace("900", "5000")
    slow, quick = (status(later + row.format(at), 11_000) for at in (899, 900))
    (found,) = servers_advice([slow], [was])
    assert (found.level, found.code) == ("warning", "slow-replica")
    assert found.says == "its replica a:1 has not received the writes of 11.0 s ago"
    assert servers_advice([quick], [was]) == []
    assert servers_advice([slow]) == []
    assert servers_advice([slow], [status(PRIMARY, 2000)]) == []
    assert servers_advice([slow], [status(PRIMARY.replace(":a", ":b"), 0)]) == []


def test_nodes_of_a_cluster_are_told_apart() -> None:
    """A finding on a cluster names the node by its number, as on the server page."""
    found = servers_advice([status(PRIMARY), status(f"{PRIMARY}min_slaves_good_slaves:0")])
    assert [one.server for one in found] == ["node 2"]


def test_the_remedy_is_a_command_line_that_is_taken() -> None:
    """The remedy is a valid ``millstream doctor`` command line with the server as its argument."""
    (found,) = servers_advice([status(f"{PRIMARY}min_slaves_good_slaves:0")])
    assert found.remedy is not None
    line = ConsoleServer("redis://10.0.0.1:6379/0").command_line(*found.remedy[1:])
    command = main.get_command(click.Context(main), line[1])
    assert command is not None
    command.make_context(line[1], line[2:])


def test_a_replica_of_nobody_needs_a_person() -> None:
    """A replica without a reachable primary is a problem on the overview, with a link to the server page."""
    with ServerThread() as server, ConsoleThread(server.url) as console, Wire(server.url) as client:
        assert "Nothing needs attention" in console.ask("/").text
        client.ask("REPLICAOF", "127.0.0.1", str(free_port()))
        console.forget()
        text = " ".join(console.ask("/").text.split())
        assert ("1 problem needs attention" in text, "Nothing needs attention" in text) == (True, False)
        assert 'href="/server"' in text
        (found,) = console.ask("/overview.json").facts["findings"]
        assert (found["code"], found["server"], found["stream"]) == ("lost-link", "server", "")
        assert found["remedy"].startswith("millstream doctor ")


@pytest.mark.parametrize("setting", ["sync-replicas", "min-replicas-to-write"])
def test_a_primary_that_refuses_writes_needs_a_person(setting: str) -> None:
    """A primary that refuses writes is a finding that names the setting and its value."""
    with ServerThread(parameters={setting: "2"}) as server, ConsoleThread(server.url) as console:
        (found,) = console.ask("/overview.json").facts["findings"]
        assert found["says"].startswith(f"writes are refused: {setting} 2, 0 ")
        assert ("so writes are refused" in console.ask("/server").text) == (setting == "sync-replicas")


TIER = f"{PRIMARY}tier_enabled:1\ntier_packs:1\n"


@pytest.mark.parametrize(
    ("info", "code", "said"),
    [
        ("used_memory:96\nmaxmemory:100", "memory-near-limit", "its memory is nearly full (96 bytes of 100 bytes)"),
        ("used_memory:100\nmaxmemory:100", "out-of-memory", "its memory is full"),
        ("tier_damaged_extents:2", "damaged-entries", "2 parts of its packs cannot be read"),
        ("tier_last_spill_status:disk-full", "spilling-fails", "memory grows instead: its disk is full"),
        (
            "tier_disk_needed:60\nmillstream_disk_free:100",
            "disk-nearly-full",
            "100 bytes free; below 60 bytes no more entries",
        ),
        ("tier_parked_clients:1\ntier_parked_longest_msec:61000", "slow-disk", "a client has waited for entries"),
    ],
)
def test_what_is_found_of_memory_and_packs(info: str, code: str, said: str) -> None:
    """Each fault of memory or packs is one finding, and what is near it is none."""
    (found,) = servers_advice([status(TIER + info)])
    assert (found.code, said in found.says) == (code, True), found.says
    well = "used_memory:105\nmem_not_counted_for_evict:10\nmaxmemory:100\n"
    well += "tier_damaged_extents:0\ntier_last_spill_status:max-bytes\n"
    well += "tier_disk_needed:50\nmillstream_disk_free:100\ntier_parked_clients:1\ntier_parked_longest_msec:59000\n"
    assert servers_advice([status(TIER + well)]) == []


def test_unread_entries_are_a_finding_when_they_are_removed() -> None:
    """The count since the start is none; an increase since the earlier reading is one."""
    was, now = (status(f"{PRIMARY}retention_removed_entries:9\nretention_removed_unread:{each}") for each in (2, 5))
    assert servers_advice([was]) == servers_advice([now], [now]) == servers_advice([was], [now]) == []
    (found,) = servers_advice([now], [was])
    assert (found.code, found.says) == ("removed-unread", "retention removed 3 entries that a group had not read")


def test_a_server_reports_what_findings_about_packs_need(tmp_path: Path) -> None:
    """INFO has every figure that a finding reads."""
    with ServerThread(tmp_path, parameters={"tier": "yes"}) as server, Wire(server.url) as client:
        found = status(client.ask("INFO").decode())
    assert found.tier.keys() >= {"damaged_extents", "last_spill_status", "disk_needed", "parked_longest_msec"}
    assert (found.disk_free or 0) > 0
    assert int(found.tier["disk_needed"]) > 64 << 20
