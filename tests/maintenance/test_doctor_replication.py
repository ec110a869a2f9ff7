"""The doctor's findings about primaries and replicas."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis._parsers.helpers import parse_info

from millstream.cli.main import main
from millstream.maintenance.health.pairs import ServerWords, diagnose_pairs
from millstream.maintenance.health.replication import diagnose_replication, diagnose_stream
from support.servers import millstream_server
from support.waiting import eventually

LINK = {"role": "slave", "master_host": "a", "master_port": 1}


def replica(state: str = "online", lag: int = 0) -> dict[str, Any]:
    """Build a replica's row of INFO as redis-py reads it."""
    return {"ip": "10.0.0.2", "port": 1, "state": state, "lag": lag, "offset": 5}


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"role": "master"}, []),
        (LINK | {"master_link_status": "up"}, [("ok", "follows a:1, and the link is up")]),
        (
            LINK | {"master_link_status": "down", "master_link_down_since_seconds": 9, "millstream_link_error": "no"},
            [("problem", "the link to a:1 has been down for 9 s: no")],
        ),
        (
            LINK | {"master_link_status": "down", "master_sync_in_progress": 1, "millstream_link_divergences": 2},
            [
                ("warning", "its data differed from those of a:1 2 times since it was started"),
                ("note", "all data of a:1 are being copied"),
            ],
        ),
        ({"role": "master", "slave0": replica(), "slave1": replica()}, [("ok", "2 replicas")]),
        (
            {"role": "master", "millstream_diverged_files": 2},
            [("warning", "2 files in the data directory hold changes that only this server accepted, as a primary")],
        ),
        ({"role": "master", "slave0": replica()}, [("note", "one replica only")]),
        (
            {"role": "master", "slave0": replica("wait_bgsave"), "slave1": replica(lag=60)},
            [
                ("note", "replica 10.0.0.2:1 is wait_bgsave: its copy is not complete yet"),
                ("warning", "replica 10.0.0.2:1 was last heard from 60 s ago"),
            ],
        ),
    ],
)
def test_what_is_found(info: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """The doctor skips a single server, and reports for a broken link its duration and cause."""
    assert [(one.level, one.what) for one in diagnose_replication(info, {})] == expected


SYNC = {"millstream_sync_state": "refused", "millstream_sync_asked": 2, "millstream_sync_confirming": 1}


@pytest.mark.parametrize(
    ("info", "settings", "refused", "away"),
    [
        (SYNC, {}, "sync-replicas 2, 1 confirms", "all writes are refused (sync-replicas 2)"),
        (SYNC | {"millstream_sync_state": "ok"}, {}, None, "all writes are refused (sync-replicas 2)"),
        (
            {"min_slaves_good_slaves": 1},
            {"min-replicas-to-write": "2"},
            "min-replicas-to-write 2, 1 heard from recently",
            "all writes are refused (min-replicas-to-write 2)",
        ),
        ({"min_slaves_good_slaves": 1}, {}, None, "all writes are refused (min-replicas-to-write)"),
        (
            {"min_slaves_good_slaves": 0},
            {},
            "min-replicas-to-write, 0 heard from recently",
            "all writes are refused (min-replicas-to-write)",
        ),
        ({}, {}, None, "no other server has the writes"),
    ],
)
def test_writes_that_are_refused(
    info: dict[str, Any], settings: dict[str, str | None], refused: str | None, away: str
) -> None:
    """If writes are refused for lack of replicas, the doctor names the setting that refuses them."""
    found = list(diagnose_replication({"role": "master", "slave0": replica(), **info}, settings))
    problems = [one.what for one in found if one.level == "problem"]
    assert problems == ([f"writes are refused: {refused}"] if refused else [])
    assert [one.why for one in found if one.what == "one replica only"] == [f"while it is away, {away}"]


@pytest.mark.parametrize(
    "said", ["it holds a library, as of offset 17", "GET k=v, and more=1", "k=v failed, at offset 3", "a=b", "7"]
)
def test_why_a_link_is_down_is_said_as_the_server_says_it(said: str) -> None:
    """The doctor shows the cause of a broken link as the server gives it, although redis-py splits it."""
    info = parse_info(f"role:slave\r\nmaster_link_status:down\r\nmillstream_link_error:{said}\r\n")
    assert next(diagnose_replication(info, {})).what.endswith(f" s: {said}")


@pytest.mark.parametrize(
    ("reason", "advice"),
    [("WRONGPASS invalid username-password pair", "masterauth"), ("Connection refused", "network"), ("PFADD", "docs/")],
)
def test_what_to_do_about_a_link_goes_by_the_reason(reason: str, advice: str) -> None:
    """The doctor's advice for a broken link depends on its cause."""
    down = LINK | {"master_link_status": "down", "millstream_link_error": reason}
    assert advice in next(diagnose_replication(down, {})).advice


PRIMARY = {"role": "master", "slave0": replica(), "slave1": replica(), "repl_backlog_size": 1 << 20}
AMPLE = {"repl-timeout": "60", "client-output-buffer-limit": "normal 0 0 0 slave 0 8388608 60 pubsub 1 1 1"}


@pytest.mark.parametrize(
    ("info", "settings", "rate", "expected"),
    [
        (PRIMARY, AMPLE, 10_000, []),
        (PRIMARY, {}, 1e9, []),
        ({"role": "master"}, AMPLE, 1e9, []),
        (PRIMARY, AMPLE, 1 << 18, [("warning", "the backlog holds 4.0 s of the present writes")]),
        (
            PRIMARY,
            {"client-output-buffer-limit": "normal 0 0 0 slave 1000 900 60 pubsub 1 1 1"},
            0,
            [("note", "client-output-buffer-limit replica is 1000, below repl-backlog-size, 1048576")],
        ),
    ],
)
def test_what_a_primary_keeps(
    info: dict[str, Any], settings: dict[str, str | None], rate: float, expected: list[tuple[str, str]]
) -> None:
    """The doctor reports a backlog that is too short for the writes, and a limit without effect."""
    found = [(one.level, one.what.partition(", and repl-timeout")[0]) for one in diagnose_stream(info, settings, rate)]
    assert found == expected


def one(place: str, clock: float = 0, settings: dict[str, str | None] | None = None, **more: Any) -> ServerWords:
    """Build a replica's information, of Redis 7.0 unless given."""
    info = {"role": "slave", "redis_version": "7.0.15", "slave_priority": 100, **more}
    return ServerWords(place, info, settings or {}, clock, 100)


@pytest.mark.parametrize(
    ("primary", "others", "expected"),
    [
        (
            ServerWords("p", PRIMARY, {"repl-dialect": "7.0", "sync-replicas": "1"}),
            [one("a"), one("b", clock=-1099)],
            [],
        ),
        (ServerWords("p", PRIMARY), [one("a", role="master")], [("warning", "a is not a replica")]),
        (
            ServerWords("p", PRIMARY, {"repl-dialect": "8.2"}),
            [one("a"), one("b", redis_version="8.2.1"), one("c", millstream_version="1")],
            [("problem", "a is of version 7.0.15, and replicas get the commands of version 8.2")],
        ),
        (
            ServerWords("p", PRIMARY),
            [one("a", unexpected_error_replies=3)],
            [("problem", "a failed to run 3 commands of its primary or of its own log")],
        ),
        (
            ServerWords("p", PRIMARY, clock=-500),
            [one("a", clock=2000)],
            [("warning", "the clocks of p and a are 2.5 s apart")],
        ),
        (
            ServerWords("p", PRIMARY, {"stream-node-max-entries": "100"}),
            [one("a", settings={"stream-node-max-entries": "50"})],
            [("note", "stream-node-max-entries is 100 on p and 50 on a")],
        ),
        (ServerWords("p", PRIMARY), [one("a"), one("b", slave_priority=10)], []),
        (
            ServerWords("p", PRIMARY, {"sync-replicas": "1"}),
            [one("a"), one("b", slave_priority=10)],
            [("warning", "replicas have different priorities: a 100, b 10")],
        ),
        (
            ServerWords("p", PRIMARY | {"cmdstat_wait": {"calls": 1}}),
            [one("a"), one("b", slave_priority=0)],
            [("warning", "replicas have different priorities: a 100, b 0")],
        ),
    ],
)
def test_a_primary_beside_its_replicas(
    primary: ServerWords, others: list[ServerWords], expected: list[tuple[str, str]]
) -> None:
    """The doctor compares a primary with its replicas: unsupported commands, settings, and Sentinel's priorities."""
    assert [(each.level, each.what) for each in diagnose_pairs(primary, others)] == expected


def test_a_real_pair(tmp_path: Path) -> None:
    """``doctor --replica`` checks both servers, and reports an unreachable one."""
    with (
        millstream_server(tmp_path / "a", "--set", "stream-node-max-entries=50") as first,
        millstream_server(tmp_path / "b", "--replicaof", f"127.0.0.1:{first.port}") as second,
    ):
        eventually(lambda: "slave0" in first.client().info("replication"))
        words = ["doctor", first.url, "--replica", second.url, "--replica", "redis://127.0.0.1:1", "-o", "json"]
        done = CliRunner().invoke(main, words)
        found = {each["what"]: each["level"] for each in json.loads(done.output)}
        assert found[f"stream-node-max-entries is 50 on {first.url} and 100 on {second.url}"] == "note"
        assert [level for what, level in found.items() if what.startswith("redis://127.0.0.1:1:")] == ["problem"]
    assert CliRunner().invoke(main, ["doctor", str(tmp_path), "--replica", "redis://x"]).exit_code == 2


def test_a_full_disk_is_this_servers() -> None:
    """If a replica has no space for the primary's copy, the advice is about the replica's machine."""
    reason = "cannot keep the primary's copy in /data: No space left on device; free some space there"
    info = {"role": "slave", "master_link_status": "down", "millstream_link_error": reason}
    (finding,) = diagnose_replication(info, {})
    assert "free space in that directory of this server" in finding.advice
