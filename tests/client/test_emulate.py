"""XNACK and its emulation leave entries in the same state for any reader."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from millstream.client import capabilities, emulate
from millstream.client.capabilities import Capabilities
from support.groups import pending
from support.servers import ServerProcess, millstream_server

HOUR = 3_600_000


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One Millstream server in memory."""
    with millstream_server(tmp_path_factory.mktemp("emulate"), "--memory") as found:
        yield found


@pytest.fixture(params=["redis", "ours-native", "ours-emulated"])
def place(request: pytest.FixtureRequest) -> tuple[ServerProcess, Capabilities]:
    """A server and the capabilities to use on it."""
    name = "real_redis" if request.param == "redis" else "ours"
    server: ServerProcess = request.getfixturevalue(name)
    with server.client() as client:
        client.flushall()
        found = capabilities.find_sync(client)
    return server, Capabilities() if request.param == "ours-emulated" else found


def delivered(client: redis.Redis, count: int, times: int) -> list[str]:
    """Add entries of consumer ``a`` with a delivery count."""
    client.xgroup_create("s", "g", "0", mkstream=True)
    ids: Any = [client.xadd("s", {"x": number}) for number in range(count)]
    client.xreadgroup("g", "a", {"s": ">"})
    client.execute_command("XCLAIM", "s", "g", "a", 0, *ids, "RETRYCOUNT", times, "JUSTID")
    return ids


@pytest.mark.parametrize("charge", [True, False])
def test_released_entries_can_be_claimed_at_once_by_anybody(
    place: tuple[ServerProcess, Capabilities], charge: bool
) -> None:
    """A released entry can be claimed at once with any min-idle, with its count or one less."""
    server, found = place
    with server.client(decode_responses=True) as client:
        ids = delivered(client, 3, times=4)
        move = emulate.release(found, "g", 4, charge=charge)
        client.execute_command(*move.command("s", [entry.encode() for entry in ids]))
        assert "a" not in {owner for owner, _ in pending(client, "s", "g").values()}
        assert [row[0] for row in client.xautoclaim("s", "g", "b", HOUR)[1]] == ids
        assert pending(client, "s", "g") == dict.fromkeys(ids, ("b", 5 if charge else 4))


def test_a_delayed_entry_is_not_claimable_before_its_time(place: tuple[ServerProcess, Capabilities]) -> None:
    """A delayed entry cannot be claimed before its time, and keeps its count."""
    server, _ = place
    with server.client(decode_responses=True) as client:
        (entry,) = delivered(client, 1, times=2)
        move = emulate.delay("g", deliveries=2, delay_ms=HOUR // 2, min_idle_ms=HOUR)
        client.execute_command(*move.command("s", [entry.encode()]))
        assert not client.xautoclaim("s", "g", "b", HOUR)[1]
        assert client.xautoclaim("s", "g", "b", HOUR // 2)[1]
        assert pending(client, "s", "g") == {entry: ("b", 3)}


def test_renewal_resets_idle_time_and_nothing_else(place: tuple[ServerProcess, Capabilities]) -> None:
    """A lease renewal resets the idle time only, not the owner or count."""
    server, _ = place
    with server.client(decode_responses=True) as client:
        ids = delivered(client, 2, times=2)
        client.execute_command("XCLAIM", "s", "g", "a", 0, *ids, "IDLE", HOUR, "JUSTID")
        client.execute_command(*emulate.renew("g", "a").command("s", [entry.encode() for entry in ids]))
        assert not client.xautoclaim("s", "g", "b", HOUR // 2)[1]
        assert pending(client, "s", "g") == dict.fromkeys(ids, ("a", 2))


@given(st.integers(-10, 10**9), st.integers(1, 10**9))
def test_idle_time_given_is_never_out_of_range(delay_ms: int, min_idle_ms: int) -> None:
    """The idle time set by a delay stays between zero and min_idle."""
    command = emulate.delay("g", deliveries=1, delay_ms=delay_ms, min_idle_ms=min_idle_ms).command("s", [b"1-1"])
    idle = command[command.index("IDLE") + 1]
    assert isinstance(idle, int)
    assert 0 <= idle <= min_idle_ms
