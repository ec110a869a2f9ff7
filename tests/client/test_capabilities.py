"""The capabilities of a server are found by probing it."""

from collections.abc import Iterator

import pytest
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from millstream.client import capabilities
from millstream.client.capabilities import Capabilities, capabilities_of
from millstream.client.line import Line
from support.ports import free_port
from support.servers import ServerProcess, millstream_server

NOTHING = Capabilities()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One Millstream server in memory."""
    with millstream_server(tmp_path_factory.mktemp("capabilities"), "--memory") as found:
        yield found


async def ask(server: ServerProcess) -> Capabilities:
    line = Line(server.url)
    try:
        return await capabilities.find(line)
    finally:
        await line.close()


async def test_an_old_server_has_none_and_keeps_no_trace(real_redis: ServerProcess) -> None:
    """Redis 7.0 has none of the newer commands, and probing leaves no key."""
    assert await ask(real_redis) == NOTHING
    with real_redis.client() as client:
        assert capabilities.find_sync(client) == NOTHING
        assert client.dbsize() == 0


async def test_our_server_has_all_and_both_ways_of_asking_agree(ours: ServerProcess) -> None:
    """Millstream has every capability, by both kinds of client, and is probed once per pool."""
    found = await ask(ours)
    assert found.xnack
    assert found.claim
    with ours.client() as client:
        assert capabilities.find_sync(client) == found
        client.connection_pool.disconnect()
        assert capabilities.find_sync(client) is capabilities.find_sync(client)
        assert client.dbsize() == 0


def test_a_server_that_takes_no_writes_now_tells_less() -> None:
    """A capability is unknown if the server refuses writes now, and is probed again when needed."""
    refused = ResponseError("NOREPLICAS Not enough good replicas to write.")
    found = capabilities_of([[[b"xnack"], None, None], refused, ReadOnlyError("You can't write")])
    assert found == Capabilities(xnack=True, unknown=frozenset({"claim", "idmp"}))


def test_it_is_asked_again_once_it_takes_writes(ours: ServerProcess) -> None:
    """A replica's unknown capabilities are probed again after its promotion."""
    with ours.client() as client, ours.client() as other:
        whole = capabilities.find_sync(client)
        client.replicaof("127.0.0.1", free_port())
        assert capabilities.find_sync(other).unknown == {"claim", "idmp"}
        client.replicaof("NO", "ONE")
        assert capabilities.find_sync(other) == whole


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([NoPermissionError("NOPERM"), NoPermissionError("NOPERM"), NoPermissionError("NOPERM")], NOTHING),
        ([[], ResponseError("ERR syntax error"), ResponseError("ERR")], NOTHING),
        ([[None, None, None], ResponseError("NOGROUP No such key"), b"1-1"], Capabilities(claim=True)),
        (
            [[[b"xnack"], None, [b"xdelex"]], ResponseError("ERR syntax error"), None],
            Capabilities(xnack=True, xdelex=True, idmp=True),
        ),
    ],
)
def test_doubt_means_absent(replies: list[object], expected: Capabilities) -> None:
    """A capability that cannot be probed counts as absent."""
    assert capabilities_of(replies) == expected
