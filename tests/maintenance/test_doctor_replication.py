"""What the doctor says of primaries and replicas."""

from typing import Any

import pytest

from millstream.maintenance.health.replication import diagnose_replication

LINK = {"role": "slave", "master_host": "a", "master_port": 1}


def replica(state: str = "online", lag: int = 0) -> dict[str, Any]:
    """A row of INFO, as redis-py reads it."""
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
            [
                (
                    "warning",
                    "2 files in the data directory hold changes that this server took as a primary and no other has",
                )
            ],
        ),
        ({"role": "master", "slave0": replica()}, [("note", "one replica only")]),
        (
            {"role": "master", "slave0": replica("wait_bgsave"), "slave1": replica(lag=60)},
            [
                ("note", "replica 10.0.0.2:1 is wait_bgsave: its copy is not there yet"),
                ("warning", "replica 10.0.0.2:1 was last heard of 60 s ago"),
            ],
        ),
    ],
)
def test_what_is_found(info: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """A server that stands alone is passed over; a link that is down says since when and why."""
    assert [(one.level, one.what) for one in diagnose_replication(info)] == expected
