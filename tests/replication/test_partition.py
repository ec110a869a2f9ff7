"""A primary that Sentinels and its replica do not reach, while its clients do: no confirmed write is lost."""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.test_redis_follows import info
from replication.test_sync_replicas import NO_REPLICAS as UNCONFIRMED
from replication.test_tail import files, lines
from support.between import Between
from support.sentinels import Watched
from support.servers import ServerProcess, millstream_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver

NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."


class Parted:
    """Three Sentinels, a primary that can be cut off from them and from its replica, and a client beside it.

    Args:
        folder: for all data.
        stack: closes what is opened.
        parameters: options of ``serve`` for both servers.
    """

    def __init__(self, folder: Path, stack: ExitStack, *parameters: str) -> None:
        self.folder = folder

        def make(folder: Path) -> ServerProcess:
            return millstream_server(folder, *(word for each in parameters for word in ("--set", each)))

        def way(port: int) -> int:
            self.between = stack.enter_context(Between(port))
            return self.between.port

        self.watched = stack.enter_context(Watched(folder, make, silence=3000, way=way))
        self.client = stack.enter_context(Wire(self.watched.master.url))

    def part(self) -> None:
        """Cut the primary off from all but its clients."""
        self.between.part()

    def successor(self) -> Wire:
        """Wait for the replica to lead; return a client of it."""
        eventually(lambda: self.watched.chosen() is self.watched.replica, 60, what="the replica leads")
        leader = Wire(self.watched.replica.url)
        eventually(lambda: info(leader)["role"] == "master", what="it does")
        return leader

    def heal(self) -> None:
        """Reconnect, and wait until the former primary follows."""
        self.between.go_on()
        eventually(self._is_level, 60, what="the former primary follows")

    def _is_level(self) -> bool:
        with Wire(self.watched.master.url) as former, Wire(self.watched.replica.url) as leader:
            try:
                mine, its = info(former), info(leader)
            except (EOFError, ConnectionError):  # a Sentinel that changes a server's role cuts its clients off
                return False
        return (mine["role"], mine.get("master_link_status")) == ("slave", "up") and mine["slave_repl_offset"] == its[
            "master_repl_offset"
        ]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.long
def test_a_primary_cut_off_loses_only_what_nobody_confirmed(tmp_path: Path, stack: ExitStack) -> None:
    """Writes confirmed by WAIT are on the new primary. Writes after the cut are in the former primary's files."""
    parted = Parted(tmp_path, stack)
    client = parted.client
    for at in range(20):
        client.ask("XADD", "s", f"{at + 1}-1", "at", at)
    assert client.ask("WAIT", 1, 10_000) == 1
    parted.part()
    with parted.successor() as leader:
        client.ask("XADD", "s", "100-1", "at", "alone")
        client.ask("SET", "alone", "v")
        assert client.ask("WAIT", 1, 300) == 0
        assert leader.ask("XLEN", "s") == 20
        leader.ask("XADD", "s", "200-1", "at", "next")
        parted.heal()
        with Wire(parted.watched.master.url) as former:
            assert former.ask("XRANGE", "s", "-", "+") == leader.ask("XRANGE", "s", "-", "+")
            assert (former.ask("XLEN", "s"), former.ask("GET", "alone")) == (21, None)
            assert info(former)["millstream_diverged_files"] == "1"
    (kept,) = files(tmp_path / "master" / "data")
    held = [change["key"] for line in lines(kept) for change in line["changes"] if change["key"]]
    assert held == ["s", "alone"]
    assert not files(tmp_path / "replica-0" / "data")


@pytest.mark.long
@pytest.mark.parametrize("parameter", ["sync-replicas=1", "min-replicas-to-write=1"])
def test_a_primary_cut_off_confirms_nothing(tmp_path: Path, stack: ExitStack, parameter: str) -> None:
    """A primary cut off confirms nothing with sync-replicas, nor beyond its lag with ``min-replicas-to-write``.

    Both servers end with equal data.
    """
    parted = Parted(tmp_path, stack, parameter, "min-replicas-max-lag=2")
    client = parted.client
    confirmed = [client.ask("XADD", "s", "*", "at", at) for at in range(20)]
    assert all(isinstance(each, bytes) for each in confirmed)
    if not parameter.startswith("sync"):  # with which a reply alone says so
        assert client.ask("WAIT", 1, 10_000) == 1
    parted.part()
    refused = UNCONFIRMED if parameter.startswith("sync") else NO_REPLICAS
    if parameter.startswith("sync"):
        client.send("XADD", "s", "*", "at", "held")
    with parted.successor() as leader:
        with Wire(parted.watched.master.url) as other:
            eventually(lambda: str(other.ask("SET", "k", "v")) == refused, what="writes are refused")
            assert other.ask("PING") == b"PONG"
        assert leader.ask("XLEN", "s") == 20
        parted.heal()
        if parameter.startswith("sync"):
            with contextlib.suppress(EOFError):  # the Sentinel that changes the role cuts clients off as well
                assert str(client.read()).startswith("UNBLOCKED")
        with Wire(parted.watched.master.url) as former:
            assert former.ask("XRANGE", "s", "-", "+") == leader.ask("XRANGE", "s", "-", "+")
