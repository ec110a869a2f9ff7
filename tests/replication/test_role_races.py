"""A role change at the moment at which a link would change data: the new role holds."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from millstream.clock import Now
from millstream.node.following.role import Following
from millstream.node.obeying import Obedience
from millstream.replication.received import ReceivedStream
from millstream.server.following import taking
from millstream.server.thread import ServerThread
from replication.test_following_redis import follow
from replication.test_link import Primary, copy
from replication.test_redis_follows import info
from support.waiting import eventually
from support.wire import Wire


@pytest.fixture
def primary() -> Iterator[Primary]:
    server = Primary(copy(k="theirs"))
    yield server
    server.close()


@pytest.fixture
def replica() -> Iterator[ServerThread]:
    """Yield a replica without a log, so no record delays a copy."""
    with ServerThread() as server:
        yield server


def lead(replica: ServerThread) -> None:
    """Run REPLICAOF NO ONE in the current turn of the replica's event loop."""
    server = replica.server
    server.node.following.lead(server.clock.now())
    server.after_commands()


def test_who_leads_takes_no_copy_over_that_was_about_to_be(
    primary: Primary, replica: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is read but not adopted at REPLICAOF NO ONE is dropped, and the server has its own data."""
    is_queued, loop = threading.Event(), replica.server.loop
    prepare = Following.prepared

    class Watched(Future):  # type: ignore[type-arg]  # of nothing
        def result(self, timeout: float | None = None) -> None:
            is_queued.set()
            super().result(timeout)

    def lead_first() -> None:
        lead(replica)
        is_queued.wait(30)

    def prepared(following: Following, *words: Any) -> Callable[[int], None]:
        adopt = prepare(following, *words)
        loop.call_soon_threadsafe(lead_first)
        return adopt

    monkeypatch.setattr(taking, "Future", Watched)
    monkeypatch.setattr(Following, "prepared", prepared)
    with Wire(replica.url) as ours:
        ours.ask("SET", "mine", "v")
        follow(ours, primary.port)
        eventually(is_queued.is_set, what="the copy is read")
        assert (ours.ask("GET", "mine"), ours.ask("GET", "k")) == (b"v", None)
        assert info(ours)["role"] == "master"
        assert ours.ask("SET", "more", "v") == b"OK"


def test_who_leads_runs_nothing_more_of_a_primary(
    primary: Primary, replica: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that arrived with a copy are not run after REPLICAOF NO ONE, even if some have been run before it."""
    run = Obedience.run
    roles: list[bool] = []

    def watched(obedience: Obedience, received: ReceivedStream, now: Now) -> bool:
        roles.append(replica.server.node.following.is_replica)
        replica.server.loop.call_soon(lead, replica)
        run(obedience, received, now)
        return True

    monkeypatch.setattr(Obedience, "run", watched)
    with Wire(replica.url) as ours:
        follow(ours, primary.port)
        eventually(lambda: info(ours)["role"] == "master" and ours.ask("GET", "k") == b"theirs", what="it leads")
        assert ours.ask("SET", "k", "v") == b"OK"
    replica.stop()
    assert roles == [True]
