"""The replication state of a server, read from real ones."""

import asyncio
from pathlib import Path

import pytest

from millstream.client.line import Line
from millstream.ops.server.reading import server as read_server
from millstream.ops.server.status import ServerStatus
from support.servers import ServerProcess, millstream_server, redis_server
from support.waiting import eventually

pytestmark = pytest.mark.realserver


def seen(server: ServerProcess) -> ServerStatus:
    """Return the status that a server reports."""

    async def main() -> ServerStatus:
        line = Line(server.url)
        try:
            return (await read_server(line))[0]
        finally:
            await line.close()

    return asyncio.run(main())


def test_a_replica_and_its_primary_tell_of_each_other(tmp_path: Path) -> None:
    """A replica and its primary show each other with the same history. After the primary's end the link is down."""
    with redis_server(tmp_path / "one") as primary:
        words = ("--replicaof", f"127.0.0.1 {primary.port}")
        with redis_server(tmp_path / "two", *words) as replica:
            eventually(lambda: seen(replica).primary_link == "up", what="the replica follows")
            follower, leader = seen(replica).replication, seen(primary).replication
            assert follower is not None
            assert follower.primary is not None
            assert leader is not None
            assert (follower.primary.address, follower.primary.read_only) == (f"127.0.0.1:{primary.port}", True)
            assert (leader.primary, leader.id) == (None, follower.id)
            assert leader.backlog_bytes
            eventually(lambda: [each.state for each in seen(primary).replicas] == ["online"], what="it is online")
            primary.kill()
            eventually(lambda: seen(replica).primary_link == "down", what="the link is down")
            lost = seen(replica).replication
            assert lost is not None
            assert lost.primary is not None
            assert lost.primary.down_seconds is not None


def test_ours_has_none(tmp_path: Path) -> None:
    """A Millstream server in memory shows no primary, no replicas and no backlog."""
    with millstream_server(tmp_path, "--memory") as server:
        found = seen(server).replication
        assert found is not None
        assert (found.primary, found.backlog_bytes, seen(server).replicas) == (None, None, ())
